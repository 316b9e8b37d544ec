// What the processes of a server print to standard error, as it comes.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, path, query } from "../api.ts";
import { useLoad, useStream } from "../hooks.ts";
import { Dialog, Empty, Loading, Problem } from "../ui/basics.tsx";
import { BigText } from "../ui/bigtext.tsx";
import { time } from "../ui/format.ts";
import { Live } from "./overview.tsx";

interface Line {
  number: number;
  ts: string;
  pid: number | null;
  text: string;
}

/** Older lines are dropped from the page. */
const MOST_LINES = 2000;

export function ServerOutput({ server, onClose }: { server: string; onClose: () => void }) {
  const loaded = useLoad(`output ${server}`, (abort) => get<{ lines: Line[] }>(path`/api/servers/${server}/stderr?limit=500`, abort));
  const [fresh, setFresh] = useState<Line[]>([]);
  const before = loaded.data?.lines;
  // A stream that breaks is opened anew from where it began: lines that came already are told by their numbers.
  const address = before ? path`/api/servers/${server}/stderr/events` + query({ after: before.at(-1)?.number ?? 0 }) : null;
  const liveness = useStream(address, (event) => {
    if (event.event !== "line") return;
    const line = JSON.parse(event.data) as Line;
    setFresh((all) => (all.some((one) => one.number === line.number && one.ts === line.ts) ? all : [...all, line].slice(-MOST_LINES)));
  });
  const lines = [...(before ?? []), ...fresh].slice(-MOST_LINES);
  const text = lines.map((line) => `${time(line.ts)} ${line.pid ?? "installer"} ${line.text}`).join("\n");
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const inner = box.current?.querySelector(".bigtext");
    // The newest line stays in sight, unless somebody scrolled back.
    if (inner && inner.scrollHeight - inner.scrollTop - inner.clientHeight < 200) inner.scrollTop = inner.scrollHeight;
  }, [text]);
  return (
    <Dialog title={`Standard error of ${server}`} onClose={onClose}>
      {address && <p><Live state={liveness} /></p>}
      {loaded.error && <Problem error={loaded.error} retry={loaded.reload} />}
      {loaded.loading && !loaded.data && <Loading what="standard error" />}
      {loaded.data && !lines.length && <Empty>The server has printed nothing yet.</Empty>}
      {lines.length > 0 && <div ref={box}><BigText text={text} label={`Lines of ${server}, newest last`} /></div>}
    </Dialog>
  );
}
