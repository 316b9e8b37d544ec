// The audit log: filtered, live, and one call in full.
import { useEffect, useState } from "preact/hooks";
import { get, path, query } from "../api.ts";
import { useLoad, useSettled, useStream } from "../hooks.ts";
import { link } from "../router.ts";
import type { CallRecord } from "../types.ts";
import { Button, Copy, Dialog, Empty, Loading, PageHead, Problem, State, Tabs } from "../ui/basics.tsx";
import { BigText } from "../ui/bigtext.tsx";
import { milliseconds, plural, time } from "../ui/format.ts";
import { usePaged } from "../ui/paged.tsx";
import { Windowed } from "../ui/windowed.tsx";
import { ExportRecords } from "./export.tsx";
import { Live } from "./overview.tsx";
import { Sessions } from "./sessions.tsx";

const ROW_PX = 34;
/** The newest live records that are kept in the page. */
const MOST_LIVE = 2000;

const FILTERS = [
  ["namespace", "Namespace", "text"],
  ["tool", "Tool", "text"],
  ["principal", "Principal", "text"],
  ["request_id", "Request id", "text"],
  ["from", "From", "datetime-local"],
  ["to", "To", "datetime-local"],
] as const;

type Filters = Record<string, string>;

export function Activity({ parts, search }: { parts: string[]; search: URLSearchParams }) {
  const sessions = parts[0] === "sessions";
  return sessions ? (
    <>
      <PageHead title="Sessions" />
      <ActivityTabs current="sessions" />
      <Sessions />
    </>
  ) : <Calls parts={parts} search={search} />;
}

function ActivityTabs({ current }: { current: string }) {
  return <Tabs label="Parts of Activity" current={current} tabs={[{ id: "calls", text: "Calls", href: link("activity") }, { id: "sessions", text: "Sessions", href: link("activity", "sessions") }]} />;
}

function Calls({ parts, search }: { parts: string[]; search: URLSearchParams }) {
  const [filters, setFilters] = useState<Filters>(() => Object.fromEntries([...search].filter(([name]) => name === "status" || FILTERS.some(([own]) => own === name))));
  // Of two inputs before the next rendering, neither may undo the other.
  const set = (name: string, value: string) => setFilters((before) => ({ ...before, [name]: value }));
  const settled = useSettled(filters, 300);
  // What is looked at can be found again by the address; it changes in place, so that "back" leaves the page.
  useEffect(() => {
    history.replaceState(null, "", `${link("activity", ...parts)}${query(settled)}`);
  }, [settled]);
  const asked: Record<string, string | undefined> = { ...settled, from: instant(settled.from), to: instant(settled.to) };
  const list = usePaged<CallRecord>("/api/activity", "records", asked);
  const [following, setFollowing] = useState(true);
  const fits = !settled.request_id && !settled.from && !settled.to;
  const [fresh, setFresh] = useState<CallRecord[]>([]);
  const [skipped, setSkipped] = useState(0);
  const address = following && fits ? `/api/activity/events${query({ namespace: settled.namespace, tool: settled.tool, status: settled.status, principal: settled.principal })}` : null;
  const liveness = useStream(address, (event) => {
    const data = JSON.parse(event.data);
    if (event.event === "record") setFresh((all) => [data as CallRecord, ...all].slice(0, MOST_LIVE));
    else if (event.event === "skipped") setSkipped((all) => all + Number(data.count));
  });
  useEffect(() => {
    setFresh([]);
    setSkipped(0);
  }, [JSON.stringify(settled)]);
  const [opened, setOpened] = useState<CallRecord | null>(null);
  const [exporting, setExporting] = useState(false);
  const known = new Set(fresh.map((record) => record.id));
  const records = [...fresh, ...list.items.filter((record) => !known.has(record.id))];
  return (
    <>
      <PageHead title="Activity" note={address && <Live state={liveness} />}>
        <Button onClick={() => setFollowing(!following)}>{following ? "Pause" : "Follow"}</Button>
        <Button onClick={list.reload}>Refresh</Button>
        <Button onClick={() => setExporting(true)}>Export</Button>
      </PageHead>
      <ActivityTabs current="calls" />
      <form class="filters grid" role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
        {FILTERS.map(([name, text, type]) => (
          <div key={name}>
            <label for={`filter-${name}`}>{text}</label>
            {type === "text"
              ? <input id={`filter-${name}`} value={filters[name] ?? ""} onInput={(event) => set(name, event.currentTarget.value)} spellcheck={false} autocomplete="off" />
              : <input id={`filter-${name}`} type="datetime-local" step="1" value={filters[name] ?? ""} onInput={(event) => set(name, event.currentTarget.value)} />}
          </div>
        ))}
        <div>
          <label for="filter-status">Outcome</label>
          <select id="filter-status" value={filters.status ?? ""} onChange={(event) => set("status", event.currentTarget.value)}>
            <option value="">all</option>
            <option value="ok">ok</option>
            <option value="error">every error</option>
            {["tool_error", "internal_error", "invalid_arguments", "execution_timeout", "overloaded", "cancelled", "tool_not_found", "unauthorized"].map((code) => <option key={code}>{code}</option>)}
          </select>
        </div>
        <div class="end"><Button onClick={() => setFilters({})}>Clear</Button></div>
      </form>
      {list.error && <Problem error={list.error} retry={list.reload} />}
      {list.loading && !records.length && <Loading what="the audit log" />}
      {!records.length && !list.loading && !list.error && <Empty>{list.more ? "Nothing in this part of the log." : "No calls fit."}</Empty>}
      {skipped > 0 && <p class="quiet">{plural(skipped, "call")} came faster than they could be shown; a refresh lists them.</p>}
      {records.length > 0 && (
        <>
          <div class="record head" aria-hidden="true"><span>Time</span><span>Namespace</span><span>Tool</span><span>Outcome</span><span class="number">Took</span><span>Principal</span></div>
          <Windowed
            items={records}
            rowHeight={ROW_PX}
            label="Calls, newest first"
            keyOf={(record) => record.id}
            onEnd={list.more}
            class="records"
            row={(record, tabIndex) => (
              <button type="button" class="record" tabIndex={tabIndex} onClick={() => setOpened(record)}>
                <span>{time(record.ts)}</span>
                <span>{record.namespace ?? "–"}</span>
                <span>{record.tool ?? record.subject ?? record.method ?? "–"}</span>
                <span><State state={record.status} good={record.status === "ok"} /></span>
                <span class="number">{milliseconds(record.latency_ms)}</span>
                <span>{record.principal ?? "–"}</span>
              </button>
            )}
          />
        </>
      )}
      {list.more && <Button onClick={list.more}>Look further back</Button>}
      {exporting && <ExportRecords filters={asked} onClose={() => setExporting(false)} />}
      {opened && <OneCall record={opened} onClose={() => setOpened(null)} onFilter={(more) => (setOpened(null), setFilters(more))} />}
    </>
  );
}

function instant(local: string | undefined): string | undefined {
  if (!local) return undefined;
  const date = new Date(local);
  return Number.isNaN(date.getTime()) ? undefined : date.toISOString();
}

function OneCall({ record, onClose, onFilter }: { record: CallRecord; onClose: () => void; onFilter: (filters: Filters) => void }) {
  const loaded = useLoad(`record ${record.id}`, (abort) => get<CallRecord>(path`/api/activity/${record.id}`, abort));
  const whole = loaded.data ?? record;
  const text = JSON.stringify(whole, null, 2);
  const shown = ["ts", "namespace", "via", "tool", "method", "subject", "status", "http_status", "latency_ms", "principal", "client", "transport", "protocol_version", "session", "request_id"];
  return (
    <Dialog title={`${whole.tool ?? whole.subject ?? whole.method ?? "Call"}: ${whole.status}`} onClose={onClose}>
      <dl class="facts-list">
        {shown.filter((name) => whole[name] !== undefined && whole[name] !== null).map((name) => (
          <div key={name}><dt>{name.replaceAll("_", " ")}</dt><dd>{name === "ts" ? time(whole.ts, true) : name === "latency_ms" ? milliseconds(whole.latency_ms) : String(whole[name])}</dd></div>
        ))}
      </dl>
      {whole.arguments !== undefined && (
        <>
          <h3>Arguments</h3>
          <BigText text={JSON.stringify(whole.arguments, null, 2)} language="json" label="Arguments" />
        </>
      )}
      {loaded.error && <Problem error={loaded.error} />}
      <details class="more"><summary>Whole record</summary><BigText text={text} language="json" label="Record" /></details>
      <div class="actions end">
        <Copy text={text} label="Copy record" />
        {whole.namespace && whole.tool && <a class="button plain" href={link("namespaces", whole.namespace, "tools", whole.tool)} onClick={onClose}>Open the tool</a>}
        {whole.namespace && <Button onClick={() => onFilter({ namespace: whole.namespace!, ...(whole.tool ? { tool: whole.tool } : {}) })}>Calls like this</Button>}
      </div>
    </Dialog>
  );
}
