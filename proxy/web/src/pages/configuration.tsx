// The configuration in force with the source of each value, and what a reload would change. Credentials come masked.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { useSettled } from "../hooks.ts";
import type { ConfigurationChange, ConfiguredValue } from "../types.ts";
import { Button, Empty, Loading, Notice, PageHead, Problem, State } from "../ui/basics.tsx";
import { count } from "../ui/format.ts";
import { More, usePaged } from "../ui/paged.tsx";

export function Configuration({ tabs }: { tabs: ComponentChildren }) {
  const [text, setText] = useState("");
  const [all, setAll] = useState(false);
  const q = useSettled(text);
  const list = usePaged<ConfiguredValue>("/api/configuration", "values", { q, set: all ? undefined : "true" });
  const changes = usePaged<ConfigurationChange>("/api/configuration/changes", "changes");
  const problem = list.page?.problem as string | null | undefined;
  return (
    <>
      <PageHead title="Configuration" note={list.total !== undefined && <span class="quiet">{count(list.total)}</span>}>
        <Button onClick={() => (list.reload(), changes.reload())}>Read again</Button>
      </PageHead>
      {tabs}
      {problem && <Notice kind="bad"><p>{problem}</p></Notice>}
      <Changes list={changes} />
      <section aria-labelledby="in-force">
        <h2 id="in-force">In force</h2>
        <div class="filters" role="search" aria-label="Filters">
          <label for="key-name">Find</label>
          <input id="key-name" type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} />
          <label class="switch"><input type="checkbox" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} /> Defaults, too</label>
        </div>
        {list.error && <Problem error={list.error} retry={list.reload} />}
        {list.loading && !list.items.length && <Loading what="the configuration" />}
        {!list.items.length && !list.loading && !list.error && <Empty>{q ? "No key fits." : "Nothing is set: every value is the default."}</Empty>}
        {list.items.length > 0 && (
          <div class="table-box" tabIndex={0} role="region" aria-label="Configuration in force">
            <table>
              <thead><tr><th scope="col">Key</th><th scope="col">Value</th><th scope="col">Source</th></tr></thead>
              <tbody>
                {list.items.map((one) => (
                  <tr key={one.key}>
                    <th scope="row"><code>{one.key}</code></th>
                    <td><Value value={one.value} /></td>
                    <td class="quiet">{one.source}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
        <More list={list} />
      </section>
    </>
  );
}

function Value({ value }: { value: unknown }) {
  return value === undefined || value === null ? <span class="quiet">none</span> : <code>{typeof value === "string" ? value : JSON.stringify(value)}</code>;
}

function Changes({ list }: { list: ReturnType<typeof usePaged<ConfigurationChange>> }) {
  const refused = list.page?.refused as string | null | undefined;
  return (
    <section aria-labelledby="changes">
      <h2 id="changes">What a reload would change</h2>
      {list.error && <Problem error={list.error} retry={list.reload} />}
      {list.loading && !list.items.length && <Loading what="the files" />}
      {refused && <Notice kind="bad"><p>The files cannot be put in force, and the gateway would not start with them: {refused}</p></Notice>}
      {!list.items.length && !list.loading && !list.error && !refused && <p class="quiet">Nothing: the files and variables are as they are in force.</p>}
      {list.items.length > 0 && (
        <>
          <div class="table-box" tabIndex={0} role="region" aria-label="What a reload would change">
            <table>
              <thead><tr><th scope="col">Key</th><th scope="col">In force</th><th scope="col">Then</th><th scope="col">When</th></tr></thead>
              <tbody>
                {list.items.map((one) => (
                  <tr key={one.key}>
                    <th scope="row"><code>{one.key}</code></th>
                    <td><Value value={one.now} /></td>
                    <td><Value value={one.then} /></td>
                    <td>{one.waits_for_start ? <State state="waiting for the next start" /> : "with a reload"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <p class="quiet">SIGHUP reloads the configuration.</p>
        </>
      )}
      <More list={list} />
    </section>
  );
}
