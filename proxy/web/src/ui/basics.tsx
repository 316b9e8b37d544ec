// Small parts that every page is made of.
import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { ApiError } from "../api.ts";
import { announce } from "./announce.tsx";

export function Button(props: {
  children: ComponentChildren;
  onClick?: () => void;
  kind?: "primary" | "danger" | "plain";
  busy?: boolean;
  disabled?: boolean;
  small?: boolean;
  submit?: boolean;
  label?: string;
  expanded?: boolean;
}) {
  return (
    <button
      type={props.submit ? "submit" : "button"}
      class={`button ${props.kind ?? "plain"}${props.small ? " small" : ""}`}
      onClick={props.onClick && (() => !props.busy && props.onClick!())}
      aria-busy={props.busy || undefined}
      aria-label={props.label}
      aria-expanded={props.expanded}
      disabled={props.disabled}
    >
      {props.children}
    </button>
  );
}

/** A refusal or failure: what was wrong, its code, and what the server adds. */
export function Problem({ error, what, retry }: { error: Error; what?: string; retry?: () => void }) {
  // Of a refused tool file the message says everything that is in the details, in words.
  const details = error instanceof ApiError && error.code !== "invalid_tool" ? error.details : undefined;
  const code = error instanceof ApiError && error.status ? error.code : undefined;
  return (
    <div class="notice bad" role="alert">
      <p>
        {what && <strong>{what} </strong>}
        {error.message} {code && <code class="quiet">{code}</code>}
      </p>
      {details !== undefined && details !== null && <Details value={details} />}
      {retry && (
        <Button small onClick={retry}>
          Try again
        </Button>
      )}
    </div>
  );
}

function Details({ value }: { value: unknown }) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  if (!text || text === "{}") return null;
  return <pre class="details" tabIndex={0}>{text.length > 4000 ? `${text.slice(0, 4000)}…` : text}</pre>;
}

export function Notice({ kind, children, live }: { kind: "good" | "bad" | "warn" | "info"; children: ComponentChildren; live?: boolean }) {
  return (
    <div class={`notice ${kind}`} role={live ? "status" : undefined}>
      {children}
    </div>
  );
}

/** A state in a word; the colour only repeats the word. */
export function State({ state, good }: { state: string; good?: boolean }) {
  const kind =
    good !== undefined ? (good ? "good" : "bad")
    : /^(ready|ok|running|serving|healthy|done|success|set|connected|live|idle)$/i.test(state) ? "good"
    : /^(failed|error|refused|missing|crashed|broken|unavailable|denied|lost|ended|down|stopped)/i.test(state) ? "bad"
    : /^(starting|restarting|degraded|stale|cancelled|timeout|installing|connecting|waiting|warn)/i.test(state) ? "warn"
    : "";
  return <span class={`state ${kind}`}>{state.replaceAll("_", " ")}</span>;
}

export function Loading({ what }: { what: string }) {
  return <p class="loading" role="status">Loading {what}…</p>;
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <div class="empty">{children}</div>;
}

export function PageHead({ title, children, crumbs, note }: { title: string; children?: ComponentChildren; crumbs?: ComponentChildren; note?: ComponentChildren }) {
  useEffect(() => {
    document.title = `${title} · ToolDock`;
  }, [title]);
  return (
    <header class="page-head">
      {crumbs && <p class="crumbs">{crumbs}</p>}
      <div class="page-title">
        <h1 tabIndex={-1}>{title}</h1>
        {note}
        <div class="actions">{children}</div>
      </div>
    </header>
  );
}

/** A labelled control with a hint and a complaint. */
export function Field(props: {
  label: ComponentChildren;
  hint?: ComponentChildren;
  error?: string;
  children: (control: { id: string; "aria-describedby"?: string; "aria-invalid"?: "true" }) => JSX.Element;
}) {
  const id = useId();
  const described = [props.hint && `${id}-hint`, props.error && `${id}-error`].filter(Boolean).join(" ");
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      {props.hint && <p class="hint" id={`${id}-hint`}>{props.hint}</p>}
      {props.children({ id, "aria-describedby": described || undefined, "aria-invalid": props.error ? "true" : undefined })}
      {props.error && <p class="complaint" id={`${id}-error`}>{props.error}</p>}
    </div>
  );
}

/** A modal dialog: the browser keeps the focus inside, Escape closes, the focus goes back. */
export function Dialog({ title, children, onClose }: { title: string; children: ComponentChildren; onClose: () => void }) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = element.current!;
    const before = document.activeElement as HTMLElement | null;
    dialog.showModal();
    return () => {
      dialog.close();
      before?.isConnected && before.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
    >
      <div class="dialog-head">
        <h2 id={id}>{title}</h2>
        <Button small onClick={onClose} label="Close">✕</Button>
      </div>
      {children}
    </dialog>
  );
}

/** Asks before something that cannot be taken back. */
export function Confirm(props: { title: string; children: ComponentChildren; action: string; danger?: boolean; busy?: boolean; error?: Error; onYes: () => void; onNo: () => void }) {
  return (
    <Dialog title={props.title} onClose={props.onNo}>
      {props.children}
      {props.error && <Problem error={props.error} />}
      <div class="actions end">
        <Button onClick={props.onNo}>Cancel</Button>
        <Button kind={props.danger ? "danger" : "primary"} busy={props.busy} onClick={props.onYes}>{props.action}</Button>
      </div>
    </Dialog>
  );
}

/** Asks whether to do what cannot be undone, does it, and says so. A refusal is shown where it was asked. */
export function ConfirmAndDo(props: {
  title: string;
  children: ComponentChildren;
  action: string;
  act: () => Promise<unknown>;
  said: string;
  onClose: () => void;
  onDone: () => void;
}) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const doIt = async () => {
    setBusy(true);
    try {
      await props.act();
      announce(props.said);
      props.onDone();
    } catch (cause) {
      setError(cause as Error);
      setBusy(false);
    }
  };
  return (
    <Confirm title={props.title} action={props.action} danger busy={busy} error={error} onNo={props.onClose} onYes={doIt}>
      {props.children}
    </Confirm>
  );
}

/** Tabs that are links: the address names the tab, so back and forward work. */
export function Tabs({ label, tabs, current }: { label: string; tabs: Array<{ id: string; text: string; href: string }>; current: string }) {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <a key={tab.id} href={tab.href} aria-current={tab.id === current ? "page" : undefined}>{tab.text}</a>
      ))}
    </nav>
  );
}

export function Copy({ text, label }: { text: string | (() => string); label: string }) {
  const done = useSignal(false);
  return (
    <Button
      small
      onClick={async () => {
        const value = typeof text === "string" ? text : text();
        try {
          await navigator.clipboard.writeText(value);
        } catch {
          // Pages over plain HTTP have no clipboard; the old way works from a click.
          const area = document.createElement("textarea");
          area.value = value;
          document.body.append(area);
          area.select();
          document.execCommand("copy");
          area.remove();
        }
        done.value = true;
        announce("Copied");
        setTimeout(() => (done.value = false), 1500);
      }}
    >
      {done.value ? "Copied" : label}
    </Button>
  );
}

export function saveAs(name: string, content: BlobPart, type = "text/plain"): void {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export function asText(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

