// The frame of the app: navigation, the page that the address names, the login form.
import { render, type ComponentChildren, type ComponentType } from "preact";
import { useEffect, useErrorBoundary, useRef, useState } from "preact/hooks";
import { endLogin, logOut } from "./api.ts";
import { Login } from "./login.tsx";
import { Activity } from "./pages/activity.tsx";
import { Keys } from "./pages/keys.tsx";
import { NamespacePage } from "./pages/namespace.tsx";
import { Operations } from "./pages/operations.tsx";
import { Overview } from "./pages/overview.tsx";
import { Secrets } from "./pages/secrets.tsx";
import { Servers } from "./pages/servers.tsx";
import { Sources } from "./pages/sources.tsx";
import { go, link, route } from "./router.ts";
import { SearchAll, ShortcutHelp } from "./search.tsx";
import { listen } from "./shortcuts.ts";
import { setTheme, theme, type Theme } from "./theme.ts";
import { announce, Announcements } from "./ui/announce.tsx";
import { Button, Problem } from "./ui/basics.tsx";
import "uplot/dist/uPlot.min.css";
import "./style.css";

interface Page {
  id: string;
  text: string;
  /** The key after `g` that goes to the page. */
  letter: string;
  shown: ComponentType<{ parts: string[]; search: URLSearchParams }>;
}

const PAGES: Page[] = [
  { id: "overview", text: "Overview", letter: "o", shown: Overview },
  { id: "namespaces", text: "Namespaces", letter: "n", shown: NamespacePage },
  { id: "sources", text: "Sources", letter: "s", shown: Sources },
  { id: "servers", text: "Servers", letter: "v", shown: Servers },
  { id: "secrets", text: "Secrets", letter: "e", shown: Secrets },
  { id: "keys", text: "Keys", letter: "k", shown: Keys },
  { id: "activity", text: "Activity", letter: "a", shown: Activity },
  { id: "operations", text: "Operations", letter: "p", shown: Operations },
];

/** Places that the search finds by their names, beside what the gateway has. */
const PLACES = [
  ...PAGES.map(({ id, text }) => ({ text, href: link(id) })),
  { text: "Sessions and streams", href: link("activity", "sessions") },
  { text: "Configuration in force", href: link("operations", "configuration") },
  { text: "Log of the gateway", href: link("operations", "log") },
];

function App() {
  const [first = "overview", ...parts] = route.value.parts;
  const page = PAGES.find((one) => one.id === first);
  const main = useRef<HTMLElement>(null);
  const [over, setOver] = useState<"search" | "help" | null>(null);
  useEffect(() => listen({
    search: () => setOver("search"),
    help: () => setOver("help"),
    go: (letter) => {
      const found = PAGES.find((one) => one.letter === letter);
      if (found) go(found.id);
      return found !== undefined;
    },
  }), []);
  const before = useRef<string | null>(null);
  const place = route.value.parts.join("/");
  // A new page begins at its heading, for the eye and for screen readers.
  useEffect(() => {
    if (before.current !== null && before.current !== place) {
      main.current?.querySelector<HTMLElement>("h1")?.focus();
      scrollTo(0, 0);
    }
    before.current = place;
  }, [place]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>Skip to the content</a>
      <header class="bar">
        <a class="brand" href={link("overview")}><Mark />ToolDock</a>
        <nav aria-label="Pages">
          {PAGES.map((one) => <a key={one.id} href={link(one.id)} aria-current={one.id === first ? "page" : undefined}>{one.text}</a>)}
        </nav>
        <div class="bar-end">
          <button type="button" class="button small" onClick={() => setOver("search")} aria-keyshortcuts="/">Search <kbd aria-hidden="true">/</kbd></button>
          <button type="button" class="button small" onClick={() => setOver("help")} aria-label="Keyboard" aria-keyshortcuts="?"><kbd aria-hidden="true">?</kbd></button>
          <button type="button" class="button small" onClick={() => logOut().catch((cause: Error) => announce(cause.message))}>Log out</button>
          <ThemeSwitch />
        </div>
      </header>
      <main ref={main} id="main" tabIndex={-1}>
        <Guard key={first}>
          {page ? <page.shown parts={parts} search={route.value.search} /> : (
            <>
              <h1 tabIndex={-1}>No such page</h1>
              <p><a href={link("overview")}>Overview</a></p>
            </>
          )}
        </Guard>
      </main>
      {over === "search" && <SearchAll pages={PLACES} onClose={() => setOver(null)} />}
      {over === "help" && <ShortcutHelp letters={PAGES.map(({ letter, text }) => [letter, text])} onClose={() => setOver(null)} />}
      <Announcements />
      <Login />
    </>
  );
}

/** A mistake in one page leaves the others usable. */
function Guard({ children }: { children: ComponentChildren }) {
  const [error, reset] = useErrorBoundary((cause) => console.error(cause));
  if (!error) return <>{children}</>;
  return (
    <>
      <h1 tabIndex={-1}>This page failed</h1>
      <Problem error={error as Error} what="A mistake in the app, not in your tools." />
      <Button onClick={reset}>Show the page again</Button>
    </>
  );
}

function Mark() {
  return (
    <svg viewBox="0 0 32 32" width="22" height="22" aria-hidden="true">
      <rect width="32" height="32" rx="7" class="mark-ground" />
      <path d="M8 10h16M16 10v9M9 19h14v3a3 3 0 0 1-3 3h-8a3 3 0 0 1-3-3z" class="mark-line" />
    </svg>
  );
}

function ThemeSwitch() {
  return (
    <label class="theme">
      <span class="visually-hidden">Colours</span>
      <select value={theme.value} onChange={(event) => setTheme(event.currentTarget.value as Theme)}>
        <option value="system">System</option>
        <option value="light">Light</option>
        <option value="dark">Dark</option>
      </select>
    </label>
  );
}

endLogin();
render(<App />, document.getElementById("app")!);
