// The gateway itself: its state, backends, certificates and replicas; its log; its configuration.
import { useEffect, useState } from "preact/hooks";
import { get, post } from "../api.ts";
import { useLoad } from "../hooks.ts";
import { link } from "../router.ts";
import type { GatewayStatus, ReloadReport } from "../types.ts";
import { announce } from "../ui/announce.tsx";
import { Button, Dialog, Empty, Loading, Notice, PageHead, Problem, State, Tabs } from "../ui/basics.tsx";
import { count, duration, moment, plural, time } from "../ui/format.ts";
import { Configuration } from "./configuration.tsx";
import { GatewayLog } from "./gateway-log.tsx";

const REFRESH_MS = 5000;
/** Rows of one table at first. */
const ROWS = 200;
const DAY_MS = 86_400_000;
/** A certificate that ends within this time is marked. */
const SOON_DAYS = 30;

const TABS = [["state", "State"], ["log", "Log"], ["configuration", "Configuration"]] as const;

export function Operations({ parts }: { parts: string[] }) {
  const [tab = "state"] = parts;
  if (tab === "log") return <GatewayLog tabs={<OperationsTabs current={tab} />} />;
  if (tab === "configuration") return <Configuration tabs={<OperationsTabs current={tab} />} />;
  return <GatewayState />;
}

function OperationsTabs({ current }: { current: string }) {
  return <Tabs label="Parts of Operations" current={current} tabs={TABS.map(([id, text]) => ({ id, text, href: id === "state" ? link("operations") : link("operations", id) }))} />;
}

function GatewayState() {
  const loaded = useLoad("status", (abort) => get<GatewayStatus>("/api/status", abort));
  const [reloading, setReloading] = useState(false);
  const status = loaded.data;
  useEffect(() => {
    if (loaded.loading || loaded.error || reloading) return;
    const timer = setTimeout(loaded.reload, REFRESH_MS);
    return () => clearTimeout(timer);
  });
  return (
    <>
      <PageHead title="Operations" note={status && <State state={status.gateway.status} />}>
        <Button onClick={() => setReloading(true)}>Reload</Button>
      </PageHead>
      <OperationsTabs current="state" />
      {loaded.error && <Problem error={loaded.error} retry={loaded.reload} />}
      {loaded.loading && !status && <Loading what="the state" />}
      {status && (
        <>
          <p>ToolDock {status.gateway.version}, up {duration(status.gateway.uptime_seconds)}. {status.reload ? <>Last reload: <State state={status.reload.result} good={status.reload.result === "complete"} /> at {time(status.reload.at)}, {duration(status.reload.seconds)}.</> : "No reload has ended yet."}</p>
          {status.reload?.problem && <Notice kind="bad"><p>{status.reload.problem}</p></Notice>}
          {status.gateway.problem && <Notice kind="bad"><p><strong>{status.gateway.problem.subject}</strong> {status.gateway.problem.message}</p></Notice>}
          {status.unserved.map((one) => <Notice key={one.name} kind="bad"><p><strong>{one.name}</strong> is not served: {one.message} <code class="quiet">{one.code}</code></p></Notice>)}
          <Backends status={status} />
          <Certificates status={status} />
          <Replicas status={status} />
        </>
      )}
      {reloading && <ReloadNow onClose={() => (setReloading(false), loaded.reload())} />}
    </>
  );
}

function Backends({ status }: { status: GatewayStatus }) {
  const rows = status.namespaces.flatMap((namespace) => [
    ...namespace.backends.map((one) => ({ namespace: namespace.name, name: one.backend, kind: "backend", state: one.draining ? "draining" : one.healthy ? "up" : "down", good: one.draining ? undefined : one.healthy, why: one.draining ? "no longer named by the configuration or DNS; its open calls end" : one.problem })),
    ...(namespace.members ?? []).map((one) => ({ namespace: namespace.name, name: one.name, kind: "member", state: one.state, good: undefined, why: one.reason ?? null })),
  ]);
  return (
    <section aria-labelledby="backends">
      <h2 id="backends">Backends and members</h2>
      {!rows.length && <Empty>No remote server and no aggregate is served.</Empty>}
      {rows.length > 0 && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Backends and members">
          <table>
            <thead><tr><th scope="col">Name</th><th scope="col">Namespace</th><th scope="col">Kind</th><th scope="col">State</th><th scope="col">Reason</th></tr></thead>
            <tbody>
              {rows.slice(0, ROWS).map((row) => (
                <tr key={`${row.namespace} ${row.kind} ${row.name}`}>
                  <th scope="row"><code>{row.name}</code></th>
                  <td><a href={link("namespaces", row.namespace)}>{row.namespace}</a></td>
                  <td>{row.kind}</td>
                  <td><State state={row.state} good={row.good} /></td>
                  <td>{row.why}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {rows.length > ROWS && <p class="quiet">And {count(rows.length - ROWS)} more; each namespace lists its own.</p>}
    </section>
  );
}

function Certificates({ status }: { status: GatewayStatus }) {
  return (
    <section aria-labelledby="certificates">
      <h2 id="certificates">Certificates</h2>
      {!status.certificates.length && <Empty>No listener has TLS of its own.</Empty>}
      {status.certificates.length > 0 && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Certificates">
          <table>
            <thead><tr><th scope="col">Listener</th><th scope="col">Ends</th><th scope="col">State</th></tr></thead>
            <tbody>
              {status.certificates.slice(0, ROWS).map((one) => {
                const end = moment(one.ends);
                const days = end ? Math.floor((end.getTime() - Date.now()) / DAY_MS) : undefined;
                return (
                  <tr key={one.listener}>
                    <th scope="row">{one.listener}</th>
                    <td>{time(one.ends)}</td>
                    <td>{days === undefined ? "–" : days < 0 ? <State state="ended" /> : days < SOON_DAYS ? <State state={`warning: ${plural(days, "day")} left`} /> : <State state={`${plural(days, "day")} left`} good />}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Replicas({ status }: { status: GatewayStatus }) {
  const replicas = status.replicas;
  return (
    <section aria-labelledby="replicas">
      <h2 id="replicas">Replicas</h2>
      {!replicas && <Empty>This gateway runs alone.</Empty>}
      {replicas && (
        <ul class="plain-list">
          <li>
            <strong>{replicas.name}</strong> (this one){" "}
            {replicas.rival ? <State state="another process has its name" good={false} /> : <State state={replicas.store === "up" ? "up" : "the store does not answer"} good={replicas.store === "up"} />}
          </li>
          {replicas.others.slice(0, ROWS).map((one) => {
            const problem = one.problem ?? (one.sources === "differ" ? "serves other namespaces" : null);
            return <li key={one.name}><strong>{one.name}</strong> <State state={problem ?? "up"} good={problem === null} /></li>;
          })}
        </ul>
      )}
    </section>
  );
}

/** Reloads the namespaces at once, and tells the outcome. */
function ReloadNow({ onClose }: { onClose: () => void }) {
  const loaded = useLoad("reload", async (abort) => {
    const report = await post<ReloadReport>("/api/reload", {}, abort);
    announce("Reloaded");
    return report;
  });
  const report = loaded.data;
  const failed = report ? report.failed : [];
  return (
    <Dialog title="Reload" onClose={onClose}>
      {loaded.error && <Problem error={loaded.error} retry={loaded.reload} />}
      {loaded.loading && !report && <p class="loading" role="status">The gateway reads its namespaces again…</p>}
      {report && (
        <>
          <p>{plural(report.namespaces.length, "namespace")}, {count(report.workers_restarted.length)} started anew, {count(failed.length)} failed.</p>
          {report.workers_restarted.length > 0 && <p class="quiet">Started anew: {report.workers_restarted.slice(0, 50).join(", ")}</p>}
          {failed.slice(0, 50).map((one) => <Notice key={one.namespace} kind="bad"><p><strong>{one.namespace}</strong>: {one.message} <code class="quiet">{one.code}</code></p></Notice>)}
          {report.issues.slice(0, 50).map((one, index) => <Notice key={index} kind="warn"><p><strong>{one.namespace}</strong>{one.subject && ` · ${one.subject}`}: {one.message}</p></Notice>)}
          {report.replicas?.map((one) => <p key={one.name}>Replica {one.name}: {one.outcome}</p>)}
        </>
      )}
      <div class="actions end"><Button kind="primary" onClick={onClose}>Close</Button></div>
    </Dialog>
  );
}
