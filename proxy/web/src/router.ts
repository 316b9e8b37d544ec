// The address after `#` names the page, so that the server has one page only. Nothing secret is ever put there.
import { signal } from "@preact/signals";

export interface Route {
  parts: string[];
  search: URLSearchParams;
}

function read(): Route {
  const [before, after = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const parts = before.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { parts, search: new URLSearchParams(after) };
}

export const route = signal<Route>(read());
addEventListener("hashchange", () => {
  route.value = read();
});

/** `#/a/b` with every part escaped. */
export function link(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function go(...parts: string[]): void {
  location.hash = link(...parts);
}

/** Text that was typed and not saved, by what it belongs to. It stays while other pages are looked at. */
export const drafts = new Map<string, string>();
addEventListener("beforeunload", (event) => {
  if (drafts.size) event.preventDefault();
});
