// The records of the audit log that fit the filters, as a file.
import { useState } from "preact/hooks";
import { query, send } from "../api.ts";
import { announce } from "../ui/announce.tsx";
import { Button, Dialog, Field, Notice, Problem, saveAs } from "../ui/basics.tsx";

type Format = "jsonl" | "csv";

export function ExportRecords({ filters, onClose }: { filters: Record<string, string | undefined>; onClose: () => void }) {
  const [format, setFormat] = useState<Format>("jsonl");
  const [limit, setLimit] = useState("10000");
  const [part, setPart] = useState(0);
  const [next, setNext] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const save = async () => {
    setBusy(true);
    setError(undefined);
    try {
      const answer = await send(`/api/activity/export${query({ ...filters, format, limit, cursor: next ?? undefined })}`);
      const content = await answer.blob();
      saveAs(part === 0 ? `audit.${format}` : `audit-${part + 1}.${format}`, content, content.type);
      const rest = answer.headers.get("X-Next-Cursor");
      setNext(rest);
      setPart(part + 1);
      announce(rest ? "Saved; there are more records" : "Saved");
    } catch (cause) {
      setError(cause as Error);
    } finally {
      setBusy(false);
    }
  };
  const again = () => {
    setNext(null);
    setPart(0);
  };
  return (
    <Dialog title="Export" onClose={onClose}>
      <form onSubmit={(event) => (event.preventDefault(), !busy && save())}>
        <p>The records that fit the filters, newest first.</p>
        <Field label="Format" hint="JSON lines have every member of a record; CSV leaves arguments out.">
          {(control) => (
            <select {...control} value={format} onChange={(event) => (setFormat(event.currentTarget.value as Format), again())}>
              <option value="jsonl">JSON lines</option>
              <option value="csv">CSV</option>
            </select>
          )}
        </Field>
        <Field label="Records in a file" hint="1 to 100,000; a file ends at 16 MB as well.">
          {(control) => <input {...control} type="number" min={1} max={100_000} value={limit} onInput={(event) => (setLimit(event.currentTarget.value), again())} />}
        </Field>
        {part > 0 && <Notice kind={next ? "info" : "good"} live><p>{next ? "The file is saved. The log has more records that fit: save the next file to get them." : "Everything that fits is saved."}</p></Notice>}
        {error && <Problem error={error} />}
        <div class="actions end">
          <Button onClick={onClose}>Close</Button>
          <Button submit kind="primary" busy={busy} disabled={part > 0 && !next}>{part > 0 ? "Save the next file" : "Save the file"}</Button>
        </div>
      </form>
    </Dialog>
  );
}
