// Short messages: shown in a corner for a moment, and read out by screen readers.
import { signal } from "@preact/signals";

const messages = signal<Array<{ id: number; text: string }>>([]);
let last = 0;
const SHOWN_MS = 5000;
const MOST = 4;

export function announce(text: string): void {
  const id = ++last;
  messages.value = [...messages.value, { id, text }].slice(-MOST);
  setTimeout(() => {
    messages.value = messages.value.filter((message) => message.id !== id);
  }, SHOWN_MS);
}

export function Announcements() {
  return (
    <div class="announcements" role="status" aria-live="polite">
      {messages.value.map((message) => <p key={message.id}>{message.text}</p>)}
    </div>
  );
}
