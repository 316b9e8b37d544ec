// A search over everything that the login opens, and the list of keys.
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { get, query } from "./api.ts";
import { placeOf } from "./found.ts";
import { useLoad, useSettled } from "./hooks.ts";
import { link } from "./router.ts";
import { setShortcuts, shortcutsOn } from "./shortcuts.ts";
import type { FoundThing } from "./types.ts";
import { Button, Dialog, Problem } from "./ui/basics.tsx";
import { plural } from "./ui/format.ts";

export interface SearchedPage {
  text: string;
  href: string;
}

interface Result {
  kind: string;
  name: string;
  about?: string;
  href: string;
}

const MOST = 50;

function shown(found: FoundThing): Result {
  const name = found.kind === "key" ? (found.about ?? found.name) : found.name;
  const about = found.kind === "key" ? found.name : found.kind === "tool" ? `${found.of}${found.about ? ` · ${found.about}` : ""}` : found.kind === "secret" ? found.of : found.about;
  return { kind: found.kind === "folder" ? "sources" : found.kind, name, about, href: placeOf(found) };
}

export function SearchAll({ pages, onClose }: { pages: SearchedPage[]; onClose: () => void }) {
  const [text, setText] = useState("");
  const [active, setActive] = useState(0);
  const q = useSettled(text.trim(), 150);
  const loaded = useLoad(q ? `search ${q}` : null, (abort) => get<{ results: FoundThing[]; total: number }>(`/api/search${query({ q, limit: MOST })}`, abort));
  const input = useRef<HTMLInputElement>(null);
  const list = useRef<HTMLUListElement>(null);
  const id = useId();
  useEffect(() => input.current?.focus(), []);
  const wanted = text.trim().toLowerCase();
  const results: Result[] = [
    ...pages.filter((page) => page.text.toLowerCase().includes(wanted)).map((page) => ({ kind: "page", name: page.text, href: page.href })),
    ...(loaded.data?.results ?? []).map(shown),
    ...(wanted ? [{ kind: "calls", name: `Calls of a tool with “${text.trim()}” in its name`, href: `${link("activity")}${query({ tool: text.trim() })}` }, { kind: "calls", name: `The call of the request ${text.trim()}`, href: `${link("activity")}${query({ request_id: text.trim() })}` }] : []),
  ];
  const chosen = Math.min(active, results.length - 1);
  useEffect(() => setActive(0), [q]);
  useEffect(() => list.current?.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" }), [chosen]);
  const open = (result: Result | undefined) => {
    if (!result) return;
    onClose();
    location.hash = result.href;
  };
  const more = loaded.data ? loaded.data.total - loaded.data.results.length : 0;
  return (
    <Dialog title="Search" onClose={onClose}>
      <form role="search" onSubmit={(event) => (event.preventDefault(), open(results[chosen]))}>
        <label class="visually-hidden" for={id}>Pages, namespaces, tools, servers, secrets and keys</label>
        <input
          ref={input}
          id={id}
          class="search-text"
          role="combobox"
          aria-expanded={results.length > 0}
          aria-controls={`${id}-list`}
          aria-activedescendant={results.length ? `${id}-${chosen}` : undefined}
          aria-autocomplete="list"
          autocomplete="off"
          spellcheck={false}
          placeholder="Pages, namespaces, tools, servers, secrets, keys"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
            if (!step || !results.length) return;
            event.preventDefault();
            setActive((chosen + step + results.length) % results.length);
          }}
        />
      </form>
      {loaded.error && <Problem error={loaded.error} retry={loaded.reload} />}
      <p class="quiet" role="status">{q && loaded.loading && !loaded.data ? "Searching…" : plural(results.length, "result")}{more > 0 && `, and ${plural(more, "other")} that a longer text would narrow down`}</p>
      <ul ref={list} id={`${id}-list`} class="search-list" role="listbox" aria-label="Results">
        {results.map((result, index) => (
          <li key={`${result.href} ${result.kind}`} id={`${id}-${index}`} role="option" aria-selected={index === chosen} onClick={() => open(result)} onMouseMove={() => index !== chosen && setActive(index)}>
            <span class="tag">{result.kind}</span>
            <strong>{result.name}</strong>
            {result.about && <span class="quiet clip-line">{result.about}</span>}
          </li>
        ))}
      </ul>
    </Dialog>
  );
}

export function ShortcutHelp({ letters, onClose }: { letters: Array<[string, string]>; onClose: () => void }) {
  const rows: Array<[string, string]> = [
    ["/", "search over everything"],
    ["?", "this list"],
    ...letters.map(([letter, text]): [string, string] => [`g ${letter}`, `go to ${text}`]),
    ["↑ ↓ Home End", "move in a list"],
    ["Ctrl+Enter", "call the tool of the form"],
    ["Ctrl+S", "save the file in the editor"],
    ["Esc", "close a dialog; leave the editor"],
  ];
  return (
    <Dialog title="Keyboard" onClose={onClose}>
      <dl class="keys-list">
        {rows.map(([key, text]) => <div key={key}><dt>{key.split(" ").map((one) => <><kbd key={one}>{one}</kbd>{" "}</>)}</dt><dd>{text}</dd></div>)}
      </dl>
      <label class="switch"><input type="checkbox" checked={shortcutsOn.value} onChange={(event) => setShortcuts(event.currentTarget.checked)} /> Single keys do this</label>
      <div class="actions end"><Button kind="primary" onClick={onClose}>Close</Button></div>
    </Dialog>
  );
}
