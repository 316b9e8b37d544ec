// Single keys: `/` searches, `?` lists the keys, `g` and a letter goes to a page. They can be turned off, for people whose
// input software types letters by itself.
import { signal } from "@preact/signals";

const KEPT = "tooldock-shortcuts";

/** False if a person has turned the keys off on this machine. */
export const shortcutsOn = signal(localStorage.getItem(KEPT) !== "off");

export function setShortcuts(on: boolean): void {
  shortcutsOn.value = on;
  if (on) localStorage.removeItem(KEPT);
  else localStorage.setItem(KEPT, "off");
}

/** The time in which the letter has to follow `g`. */
const SEQUENCE_MS = 1500;

/** True for a place where a letter is text. */
function takesText(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

/** Listens to the keys until the returned function is called. */
export function listen(act: { search: () => void; help: () => void; go: (letter: string) => boolean }): () => void {
  let gone = 0;
  const heard = (event: KeyboardEvent) => {
    if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || event.isComposing) return;
    if (!shortcutsOn.value || takesText(event.target) || document.querySelector("dialog[open]")) return;
    if (gone && event.timeStamp - gone < SEQUENCE_MS && act.go(event.key)) event.preventDefault();
    else if (event.key === "/") {
      event.preventDefault();
      act.search();
    } else if (event.key === "?") {
      event.preventDefault();
      act.help();
    }
    gone = event.key === "g" ? event.timeStamp : 0;
  };
  addEventListener("keydown", heard);
  return () => removeEventListener("keydown", heard);
}
