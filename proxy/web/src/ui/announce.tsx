// Short messages: shown in a corner for a moment, and read out by screen readers.
import { signal } from "@preact/signals";

const messages = signal<Array<{ id: number; text: string; heard: boolean }>>([]);
let last = 0;
const SHOWN_MS = 5000;
const MOST = 4;

/** `heard`: for screen readers alone, where the page itself shows what happens. */
export function announce(text: string, heard = false): void {
  const id = ++last;
  messages.value = [...messages.value, { id, text, heard }].slice(-MOST);
  setTimeout(() => {
    messages.value = messages.value.filter((message) => message.id !== id);
  }, SHOWN_MS);
}

export function Announcements() {
  return (
    <div class="announcements" role="status" aria-live="polite">
      {messages.value.map((message) => <p key={message.id} class={message.heard ? "visually-hidden" : undefined}>{message.text}</p>)}
    </div>
  );
}
