// The last lines of the gateway's own log, and each further one as it is written.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, query } from "../api.ts";
import { useLoad, useSettled, useStream } from "../hooks.ts";
import type { LogLine } from "../types.ts";
import { Button, Empty, Loading, PageHead, Problem } from "../ui/basics.tsx";
import { LogRows } from "../ui/log-rows.tsx";
import { Live } from "./overview.tsx";

/** Older lines are dropped from the page. */
const MOST_LINES = 2000;

export function GatewayLog({ tabs }: { tabs: ComponentChildren }) {
  const [text, setText] = useState("");
  const [level, setLevel] = useState("");
  const [following, setFollowing] = useState(true);
  const q = useSettled(text);
  const filters = query({ q, level });
  const loaded = useLoad(`log ${filters}`, (abort) => get<{ lines: LogLine[]; newest: number }>(`/api/log${query({ q, level, limit: 500 })}`, abort));
  const [fresh, setFresh] = useState<LogLine[]>([]);
  useEffect(() => setFresh([]), [filters]);
  const address = following && loaded.data ? `/api/log/events${query({ q, level, after: loaded.data.newest })}` : null;
  const liveness = useStream(address, (event) => {
    if (event.event !== "line") return;
    const line = JSON.parse(event.data) as LogLine;
    setFresh((all) => [...all, line].slice(-MOST_LINES));
  });
  // A stream that breaks is opened anew from where it began: a number tells a line that came already.
  const lines = new Map([...(loaded.data?.lines ?? []), ...fresh].map((line) => [`${line.number} ${line.ts}`, line]));
  const entries = [...lines].slice(-MOST_LINES).reverse().map(([key, line]) => ({ key, ts: line.ts, word: line.level || "log", good: line.level === "error" ? false : undefined, text: line.text }));
  return (
    <>
      <PageHead title="Log" note={address && <Live state={liveness} />}>
        <Button onClick={() => setFollowing(!following)}>{following ? "Pause" : "Follow"}</Button>
      </PageHead>
      {tabs}
      <div class="filters" role="search" aria-label="Filters">
        <label for="log-q">Find</label>
        <input id="log-q" type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <label for="log-level">Level</label>
        <select id="log-level" value={level} onChange={(event) => setLevel(event.currentTarget.value)}>
          <option value="">all</option>
          <option value="error">errors</option>
          <option value="warn">warnings and errors</option>
          <option value="info">info and above</option>
        </select>
      </div>
      {loaded.error && <Problem error={loaded.error} retry={loaded.reload} />}
      {loaded.loading && !loaded.data && <Loading what="the log" />}
      {loaded.data && !entries.length && <Empty>No line of the last 500 fits.</Empty>}
      {entries.length > 0 && <LogRows entries={entries} label="Lines of the log, newest first" />}
      <p class="quiet">The last 500 lines of this process, as standard error has them. Older lines are where the service manager or the container keeps them.</p>
    </>
  );
}
