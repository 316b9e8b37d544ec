// Definitions of a server that differ from the approved ones, with their differences, and the operator's approval.
import { useState } from "preact/hooks";
import { path, post, query } from "../api.ts";
import type { WaitingPins } from "../types.ts";
import { Button, ConfirmAndDo, Empty, Loading, Notice, Problem } from "../ui/basics.tsx";
import { Diff } from "../ui/diff.tsx";
import { More, usePaged } from "../ui/paged.tsx";

interface Finding {
  code: string;
  place: string;
  detail: string;
}

interface Version {
  digest: string;
  seen: number;
  definition?: string;
  findings?: Finding[];
}

interface Pin {
  namespace: string;
  kind: "tool" | "prompt" | "template";
  name: string;
  state: "approved" | "changed" | "new" | "suspicious";
  pending: Version[];
  differences?: Array<{ path: string; before: string | null; after: string | null }>;
}

/** The notice at the top of a namespace's page, which opens the list. */
export function Pins({ namespace, waiting, onDone }: { namespace: string; waiting: WaitingPins; onDone: () => void }) {
  const [open, setOpen] = useState(false);
  const number = (waiting.changed?.length ?? 0) + (waiting.new?.length ?? 0) + (waiting.suspicious?.length ?? 0) + (waiting.more ?? 0);
  return (
    <Notice kind={waiting.suspicious?.length ? "bad" : "warn"}>
      <p>
        {number === 1 ? "A definition of its server was" : `${number} definitions of its server were`} not approved and {number === 1 ? "is" : "are"} {waiting.mode === "enforce" ? "hidden" : "served"}.{" "}
        <Button small onClick={() => setOpen(!open)}>{open ? "Close" : "Show"}</Button>
      </p>
      {open && <Waiting namespace={namespace} onDone={onDone} />}
    </Notice>
  );
}

function Waiting({ namespace, onDone }: { namespace: string; onDone: () => void }) {
  const list = usePaged<Pin>("/api/pins", "pins", { namespace, state: "changed,new,suspicious" });
  const [approving, setApproving] = useState<Pin | null>(null);
  const done = () => {
    setApproving(null);
    list.reload();
    onDone();
  };
  return (
    <>
      {list.error && <Problem error={list.error} retry={list.reload} />}
      {list.loading && !list.items.length && <Loading what="the definitions" />}
      {!list.items.length && !list.loading && !list.error && <Empty>Every definition is approved.</Empty>}
      {list.items.map((pin) => (
        <section key={`${pin.namespace} ${pin.kind} ${pin.name}`} aria-label={`${pin.kind} ${pin.name}`}>
          <h3>{pin.kind} {pin.name} <span class="quiet">{pin.state}{pin.namespace !== namespace && `, ${pin.namespace}`}</span></h3>
          {newest(pin).findings?.map((finding, index) => (
            <p key={index} class="complaint">{finding.code}{finding.place && ` in ${finding.place}`}: {finding.detail}</p>
          ))}
          <Diff diff={difference(pin)} label={`Difference of ${pin.name}`} />
          <p><Button kind="primary" small onClick={() => setApproving(pin)} label={`Approve ${pin.kind} ${pin.name}`}>Approve</Button></p>
        </section>
      ))}
      <More list={list} />
      {approving && <Approve pin={approving} onClose={() => setApproving(null)} onDone={done} />}
    </>
  );
}

function newest(pin: Pin): Version {
  return pin.pending[pin.pending.length - 1]!;
}

/** The differences as lines with a sign; the whole definition of what is new. */
function difference(pin: Pin): string {
  const signed = (sign: string, text: string) => text.split("\n").map((line) => `${sign} ${line}`);
  if (!pin.differences?.length) return signed("+", newest(pin).definition ?? "the definition is too large to be recorded").join("\n");
  return pin.differences
    .flatMap(({ path, before, after }) => [`@@ ${path}`, ...(before === null ? [] : signed("-", before)), ...(after === null ? [] : signed("+", after))])
    .join("\n");
}

function Approve({ pin, onClose, onDone }: { pin: Pin; onClose: () => void; onDone: () => void }) {
  // The version that is shown, not one that the server offers since.
  const address = path`/api/pins/${pin.namespace}/approve` + query({ name: pin.name, digest: newest(pin).digest });
  return (
    <ConfirmAndDo title={`Approve ${pin.kind} ${pin.name}?`} action="Approve" act={() => post(address, {})} said={`${pin.name} is approved`} onClose={onClose} onDone={onDone}>
      <p>Clients and their models are shown this version of the definition from now on.</p>
    </ConfirmAndDo>
  );
}
