// Output of a namespace's processes, and the calls of its tools, in the order of time: `tooldock logs -f` in the page.
import { useState } from "preact/hooks";
import { ApiError, get, path, query } from "../api.ts";
import { useLoad, useStream } from "../hooks.ts";
import { link } from "../router.ts";
import type { CallRecord, OutputLine } from "../types.ts";
import { Empty, Loading, Problem } from "../ui/basics.tsx";
import { milliseconds } from "../ui/format.ts";
import { LogRows, type LogEntry } from "../ui/log-rows.tsx";
import { Live } from "./overview.tsx";

/** Older entries are dropped from the page. */
const MOST_ENTRIES = 2000;

function ofLine(line: OutputLine): LogEntry {
  return { key: `line ${line.number} ${line.ts}`, ts: line.ts, word: line.pid === null ? "installer" : line.stream, text: line.pid === null ? line.text : `[${line.pid}] ${line.text}` };
}

function ofRecord(record: CallRecord): LogEntry {
  const parts = [record.tool ?? record.subject ?? record.method, record.latency_ms === undefined ? undefined : milliseconds(record.latency_ms), record.principal && `principal=${record.principal}`, record.request_id && `request=${record.request_id}`];
  return { key: `record ${record.id}`, ts: record.ts, word: record.status, good: record.status === "ok", text: parts.filter(Boolean).join(" ") };
}

export function NamespaceLog({ namespace }: { namespace: string }) {
  const printed = useLoad(`output ${namespace}`, async (abort) => {
    try {
      return await get<{ lines: OutputLine[] }>(path`/api/namespaces/${namespace}/output` + query({ limit: 500 }), abort);
    } catch (error) {
      // Remote servers print elsewhere; their calls are shown all the same.
      if (error instanceof ApiError && error.code === "no_output") return null;
      throw error;
    }
  });
  const called = useLoad(`records ${namespace}`, (abort) => get<{ records: CallRecord[] }>(`/api/activity${query({ namespace, limit: 200 })}`, abort));
  const [fresh, setFresh] = useState<LogEntry[]>([]);
  const add = (entry: LogEntry) => setFresh((all) => [...all, entry].slice(-MOST_ENTRIES));
  const lines = printed.data ? path`/api/namespaces/${namespace}/output/events` + query({ after: printed.data.lines.at(-1)?.number ?? 0 }) : null;
  useStream(lines, (event) => event.event === "line" && add(ofLine(JSON.parse(event.data) as OutputLine)));
  const liveness = useStream(`/api/activity/events${query({ namespace })}`, (event) => event.event === "record" && add(ofRecord(JSON.parse(event.data) as CallRecord)));
  const all = [...(printed.data?.lines ?? []).map(ofLine), ...(called.data?.records ?? []).map(ofRecord), ...fresh];
  const entries = [...new Map(all.map((entry) => [entry.key, entry])).values()].sort((one, other) => Date.parse(other.ts) - Date.parse(one.ts)).slice(0, MOST_ENTRIES);
  const loading = (printed.loading && printed.data === undefined) || (called.loading && !called.data);
  const error = printed.error ?? called.error;
  return (
    <>
      <p><Live state={liveness} /> <a href={`${link("activity")}?namespace=${encodeURIComponent(namespace)}`}>All calls in Activity</a></p>
      {error && <Problem error={error} retry={() => (printed.reload(), called.reload())} />}
      {loading && !entries.length && <Loading what="the log" />}
      {!loading && !error && !entries.length && <Empty>Nothing was printed or called yet.</Empty>}
      {entries.length > 0 && <LogRows entries={entries} label={`Log of ${namespace}, newest first`} />}
    </>
  );
}
