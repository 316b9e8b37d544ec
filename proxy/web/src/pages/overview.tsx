// What is served and how it fares, live.
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { get } from "../api.ts";
import { useLoad, useStream, type Liveness } from "../hooks.ts";
import { link } from "../router.ts";
import type { Dashboard, Namespace } from "../types.ts";
import { Empty, Loading, Notice, PageHead, Problem, State } from "../ui/basics.tsx";
import { Chart } from "../ui/chart.tsx";
import { NextSteps } from "./next-steps.tsx";
import { count, duration, milliseconds, percent } from "../ui/format.ts";

/** The charts remember this many samples, also while another page is shown. */
const MOST_SAMPLES = 900;
const SAMPLE_MS = 2000;
const ROWS = 100;

interface Samples {
  times: number[];
  calls: number[];
  p95: Array<number | null>;
}

const dashboard = signal<Dashboard | null>(null);
const namespaces = signal<Map<string, Namespace>>(new Map());
const samples = signal<Samples>({ times: [], calls: [], p95: [] });
const more = signal(false);

function sample(): void {
  const now = dashboard.value;
  if (!now) return;
  const { times, calls, p95 } = samples.value;
  const keep = <T,>(values: T[], next: T) => [...values.slice(-MOST_SAMPLES + 1), next];
  samples.value = { times: keep(times, Date.now() / 1000), calls: keep(calls, now.calls_per_minute), p95: keep(p95, now.p95_ms) };
}

export function Overview() {
  const first = useLoad("dashboard", (abort) => get<Dashboard>("/api/dashboard", abort));
  const liveness = useStream("/api/events", (event) => {
    if (event.event !== "overview") return;
    const told = JSON.parse(event.data) as { dashboard: Dashboard; namespaces: Namespace[]; removed: string[]; more?: boolean };
    dashboard.value = told.dashboard;
    const next = new Map(namespaces.value);
    for (const name of told.removed ?? []) next.delete(name);
    for (const namespace of told.namespaces) next.set(namespace.name, namespace);
    namespaces.value = next;
    if (told.more !== undefined) more.value = told.more;
  });
  useEffect(() => {
    const timer = setInterval(sample, SAMPLE_MS);
    return () => clearInterval(timer);
  }, []);
  useEffect(() => {
    if (first.data && !dashboard.value) dashboard.value = first.data;
    sample();
  }, [first.data]);
  const now = dashboard.value;
  return (
    <>
      <PageHead title="Overview" note={<Live state={liveness} />} />
      {first.error && !now && <Problem error={first.error} what="The overview could not be loaded." retry={first.reload} />}
      {!now && first.loading && <Loading what="the overview" />}
      {now && <Figures now={now} />}
      {now?.problem && <Notice kind="bad"><strong>{now.problem.subject}</strong> {now.problem.message}</Notice>}
      {now && <NextSteps all={[...namespaces.value.values()]} />}
      <Troubles all={[...namespaces.value.values()]} />
      {now && (
        <div class="charts">
          <Chart title="Calls per minute" times={samples.value.times} values={samples.value.calls} text={count} />
          <Chart title="95th percentile of durations" times={samples.value.times} values={samples.value.p95} text={milliseconds} />
        </div>
      )}
      <NamespaceTable all={[...namespaces.value.values()]} loaded={liveness === "live" || namespaces.value.size > 0} />
      {now && <Facts now={now} />}
    </>
  );
}

export function Live({ state }: { state: Liveness }) {
  return <span class="live" role="status">{state === "live" ? <State state="live" /> : state === "lost" ? <State state="waiting for the gateway" /> : <State state="connecting" />}</span>;
}

function Figures({ now }: { now: Dashboard }) {
  const figures: Array<[string, string, string?]> = [
    ["Calls per minute", count(now.calls_per_minute)],
    ["Errors", percent(now.error_rate), now.error_rate ? "bad" : ""],
    ["95 % within", milliseconds(now.p95_ms)],
    ["Namespaces", count(now.namespaces)],
    ["Tools", count(now.tools)],
    ["Servers running", `${count(now.servers.running)} of ${count(now.servers.total)}`],
    ["Sessions", count(now.sessions)],
    ["Streams", count(now.streams)],
  ];
  return (
    <dl class="figures">
      {figures.map(([name, value, kind]) => (
        <div key={name} class={kind || undefined}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Facts({ now }: { now: Dashboard }) {
  return (
    <p class="quiet facts">
      ToolDock {now.version}, {now.status}, up {duration(now.uptime_seconds)}. Data in <code>{now.host_data_dir}</code>
      {now.host_data_dir !== now.data_dir && <> (<code>{now.data_dir}</code> for the gateway)</>}.
    </p>
  );
}

/** What failed, why, and what to do. */
function Troubles({ all }: { all: Namespace[] }) {
  const troubles = all.flatMap((namespace) => {
    const own = namespace.error ? [{ ...namespace.error, bad: true }] : [];
    return [...own, ...namespace.issues.map((issue) => ({ ...issue, bad: false }))].map((trouble) => ({ namespace: namespace.name, folder: namespace.folder, ...trouble }));
  });
  if (!troubles.length) return null;
  return (
    <section aria-labelledby="troubles" class="troubles">
      <h2 id="troubles">Needs attention</h2>
      <ul>
        {troubles.slice(0, ROWS).map((trouble, index) => (
          <li key={index} class={`notice ${trouble.bad ? "bad" : "warn"}`}>
            <p>
              <a href={link("namespaces", trouble.namespace)}>{trouble.namespace}</a>
              {trouble.subject && <> · {trouble.folder && trouble.subject.endsWith(".py") ? <a href={link("sources", trouble.namespace, trouble.subject)}>{trouble.subject}</a> : trouble.subject}</>}: {trouble.message} <code class="quiet">{trouble.code}</code>
            </p>
            {trouble.hint && <p class="hint">{trouble.hint}</p>}
          </li>
        ))}
      </ul>
      {troubles.length > ROWS && <p class="quiet">And {count(troubles.length - ROWS)} more.</p>}
    </section>
  );
}

function NamespaceTable({ all, loaded }: { all: Namespace[]; loaded: boolean }) {
  const [shown, setShown] = useState(ROWS);
  const rows = all.sort((one, other) => Number(other.error !== null) - Number(one.error !== null) || other.calls_per_minute - one.calls_per_minute || one.name.localeCompare(other.name));
  if (!rows.length) {
    return loaded ? <Empty>Nothing is served yet. <a href={link("sources")}>Write a tool</a> or <a href={link("servers")}>add a server</a>.</Empty> : <Loading what="the namespaces" />;
  }
  return (
    <section aria-labelledby="served">
      <h2 id="served">Namespaces</h2>
      <div class="table-box" tabIndex={0} role="region" aria-label="Table of namespaces">
        <table>
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">State</th>
              <th scope="col" class="number">Tools</th>
              <th scope="col" class="number">Calls/min</th>
              <th scope="col" class="number">Errors</th>
              <th scope="col" class="number">95 %</th>
              <th scope="col" class="number">Running</th>
              <th scope="col">About</th>
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, shown).map((row) => (
              <tr key={row.name}>
                <th scope="row"><a href={link("namespaces", row.name)}>{row.name}</a></th>
                <td><State state={row.state} /></td>
                <td class="number">{count(row.tool_count)}</td>
                <td class="number">{count(row.calls_per_minute)}</td>
                <td class={row.error_rate ? "number bad" : "number"}>{percent(row.error_rate)}</td>
                <td class="number">{milliseconds(row.p95_ms)}</td>
                <td class="number">{count(row.in_flight)}</td>
                <td class="about">{row.secrets_status === "missing" && <a href={link("secrets")} class="state bad">secrets missing</a>} {row.description}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {rows.length > shown && <button type="button" class="button plain" onClick={() => setShown(shown + ROWS)}>Show {count(Math.min(ROWS, rows.length - shown))} more</button>}
      {more.value && <p class="quiet">Only the first 500 are watched here; <a href={link("namespaces")}>all namespaces</a> can be searched.</p>}
    </section>
  );
}
