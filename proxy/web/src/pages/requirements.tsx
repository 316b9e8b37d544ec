// The packages of a namespace, with the installer's words as it works.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, events, get, path, send, type Json, type JsonObject } from "../api.ts";
import { useLoad } from "../hooks.ts";
import { announce } from "../ui/announce.tsx";
import { Button, Field, Loading, Notice, Problem } from "../ui/basics.tsx";
import { BigText } from "../ui/bigtext.tsx";

/** Older lines of an installer are dropped from the page. */
const MOST_LINES = 2000;

interface Install {
  what: string;
  running: boolean;
  lines: string[];
  message?: string;
  error?: Error;
  good?: boolean;
}

export function Requirements({ folder }: { folder: string }) {
  const loaded = useLoad(`requirements ${folder}`, (abort) => get<{ packages: string[] }>(path`/api/folders/${folder}/requirements`, abort));
  const [name, setName] = useState("");
  const [install, setInstall] = useState<Install>();
  const abort = useRef<AbortController | undefined>(undefined);
  useEffect(() => () => abort.current?.abort(), []);
  const run = async (what: string, address: string, body: Json | undefined) => {
    const own = new AbortController();
    abort.current?.abort();
    abort.current = own;
    const change = (more: (before: Install) => Partial<Install>) => setInstall((before) => before && (abort.current === own ? { ...before, ...more(before) } : before));
    setInstall({ what, running: true, lines: [] });
    announce(`${what}…`, true);
    try {
      const answer = await send(address, { method: "POST", body, signal: own.signal, headers: { Accept: "text/event-stream" } });
      for await (const event of events(answer)) {
        const data = JSON.parse(event.data) as JsonObject;
        if (event.event === "output") change((before) => ({ lines: [...before.lines, String(data.line)].slice(-MOST_LINES) }));
        else if (event.event === "progress") change(() => ({ message: String(data.message ?? "") }));
        else if (event.event === "done") {
          const good = data.added !== false && data.installed !== false;
          change(() => ({ good, error: good ? undefined : new ApiError(200, "not_installed", String(data.error ?? "It could not be installed."), data.details) }));
          announce(good ? "Installed" : "Not installed", true);
          if (good) setName("");
        } else if (event.event === "failed") {
          const error = (data.error ?? {}) as JsonObject;
          change(() => ({ error: new ApiError(200, String(error.code ?? "failed"), String(error.message ?? data.detail ?? "It failed."), error.details) }));
        }
      }
    } catch (error) {
      change(() => ({ error: own.signal.aborted ? undefined : (error as Error) }));
    } finally {
      change(() => ({ running: false }));
      loaded.reload();
    }
  };
  const packages = loaded.data?.packages ?? [];
  return (
    <section aria-labelledby="requirements">
      <h2 id="requirements">Requirements</h2>
      {loaded.error && <Problem error={loaded.error} retry={loaded.reload} />}
      {loaded.loading && !loaded.data && <Loading what="the requirements" />}
      {loaded.data && !packages.length && <p class="quiet">No packages. Python's own library needs none.</p>}
      <ul class="tags">{packages.slice(0, 500).map((one) => <li key={one}><code>{one}</code></li>)}</ul>
      <form class="inline-form" onSubmit={(event) => (event.preventDefault(), name && !install?.running && run(`Installing ${name}`, path`/api/folders/${folder}/requirements`, { package: name.trim() }))}>
        <Field label="Package" hint="As pip writes it: httpx, httpx>=0.28">
          {(control) => <input {...control} value={name} onInput={(event) => setName(event.currentTarget.value)} spellcheck={false} autocomplete="off" />}
        </Field>
        <Button submit disabled={!name || install?.running}>Add and install</Button>
        {packages.length > 0 && <Button disabled={install?.running} onClick={() => run("Installing all packages", path`/api/folders/${folder}/requirements/install`, undefined)}>Install all again</Button>}
      </form>
      {install && (
        <div class="run">
          <p role="status">{install.what}{install.running ? "…" : install.good ? ": done" : ""} {install.running && install.message}</p>
          {install.running && <Button small kind="danger" onClick={() => abort.current?.abort()}>Stop</Button>}
          {install.lines.length > 0 && <BigText text={install.lines.join("\n")} label="Output of the installer" />}
          {install.good && <Notice kind="good">Installed. The tools see the packages from the next reload on, which is under way.</Notice>}
          {install.error && <Problem error={install.error} what="Not installed." />}
        </div>
      )}
    </section>
  );
}
