// Lines of a log, newest first: one row each, the whole line in a dialog.
import { useState } from "preact/hooks";
import { Copy, Dialog, State } from "./basics.tsx";
import { BigText } from "./bigtext.tsx";
import { time } from "./format.ts";
import { Windowed } from "./windowed.tsx";

export interface LogEntry {
  key: string;
  ts: string;
  /** A level, the name of a stream, or the outcome of a call. */
  word: string;
  good?: boolean;
  text: string;
}

const ROW_PX = 30;

export function LogRows({ entries, label, onEnd }: { entries: LogEntry[]; label: string; onEnd?: () => void }) {
  const [opened, setOpened] = useState<LogEntry | null>(null);
  return (
    <>
      <Windowed
        items={entries}
        rowHeight={ROW_PX}
        label={label}
        keyOf={(entry) => entry.key}
        onEnd={onEnd}
        class="records"
        row={(entry, tabIndex) => (
          <button type="button" class="log-row" tabIndex={tabIndex} onClick={() => setOpened(entry)}>
            <span class="quiet">{time(entry.ts)}</span>
            <span><State state={entry.word} good={entry.good} /></span>
            <code>{entry.text}</code>
          </button>
        )}
      />
      {opened && (
        <Dialog title={`${opened.word}, ${time(opened.ts, true)}`} onClose={() => setOpened(null)}>
          <BigText text={opened.text} label="Line" />
          <div class="actions end"><Copy text={`${opened.ts} ${opened.word} ${opened.text}`} label="Copy line" /></div>
        </Dialog>
      )}
    </>
  );
}
