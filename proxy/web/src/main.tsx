// The frame of the app: navigation, the page that the address names, the login form.
import { render, type ComponentChildren, type ComponentType } from "preact";
import { useEffect, useErrorBoundary, useRef } from "preact/hooks";
import { Login } from "./login.tsx";
import { Activity } from "./pages/activity.tsx";
import { NamespacePage } from "./pages/namespace.tsx";
import { Overview } from "./pages/overview.tsx";
import { Secrets } from "./pages/secrets.tsx";
import { Servers } from "./pages/servers.tsx";
import { Sources } from "./pages/sources.tsx";
import { link, route } from "./router.ts";
import { setTheme, theme, type Theme } from "./theme.ts";
import { Announcements } from "./ui/announce.tsx";
import { Button, Problem } from "./ui/basics.tsx";
import "uplot/dist/uPlot.min.css";
import "./style.css";

interface Page {
  id: string;
  text: string;
  shown: ComponentType<{ parts: string[]; search: URLSearchParams }>;
}

const PAGES: Page[] = [
  { id: "overview", text: "Overview", shown: Overview },
  { id: "namespaces", text: "Namespaces", shown: NamespacePage },
  { id: "sources", text: "Sources", shown: Sources },
  { id: "servers", text: "Servers", shown: Servers },
  { id: "secrets", text: "Secrets", shown: Secrets },
  { id: "activity", text: "Activity", shown: Activity },
];

function App() {
  const [first = "overview", ...parts] = route.value.parts;
  const page = PAGES.find((one) => one.id === first);
  const main = useRef<HTMLElement>(null);
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
        <ThemeSwitch />
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

render(<App />, document.getElementById("app")!);
