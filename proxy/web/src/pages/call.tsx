// One tool: its arguments as a form or as JSON, the call, and what comes of it while it runs.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Json, JsonObject } from "../api.ts";
import { pageOf } from "../app-host.ts";
import { request, type Note } from "../mcp.ts";
import { link } from "../router.ts";
import { initial, isObject, type Schema } from "../schema.ts";
import type { Tool } from "../types.ts";
import { Button, Notice, Problem, State } from "../ui/basics.tsx";
import { announce } from "../ui/announce.tsx";
import { BigText } from "../ui/bigtext.tsx";
import { Editor } from "../ui/editor.tsx";
import { milliseconds, plural } from "../ui/format.ts";
import { check, SchemaForm, type Problems } from "../ui/schema-form.tsx";
import { AppFrame } from "./app-frame.tsx";
import { CallResult } from "./result.tsx";
import { Snippets } from "./snippets.tsx";

/** Older log messages of a call are dropped from the page. */
const MOST_LOGS = 500;

interface Progress {
  progress: number;
  total?: number;
  message?: string;
}
interface Log {
  at: number;
  level: string;
  text: string;
}
interface Run {
  state: "running" | "done" | "failed" | "cancelled";
  started: number;
  took?: number;
  progress?: Progress;
  logs: Log[];
  dropped: number;
  /** The arguments that the tool was called with. */
  input: JsonObject;
  result?: JsonObject;
  error?: Error;
  requestId?: string | null;
}

/** What was typed stays when another page is looked at; a reload of the tab forgets. */
const typed = new Map<string, { value: JsonObject; text: string; raw: boolean }>();
const MOST_TYPED = 200;

export function ToolPanel({ namespace, tool }: { namespace: string; tool: Tool }) {
  const schema: Schema = tool.inputSchema ?? { type: "object" };
  const key = `${namespace}/${tool.name}`;
  const page = pageOf(tool as Tool & JsonObject);
  const before = typed.get(key);
  const [value, setValue] = useState<JsonObject>(() => before?.value ?? startingValue(schema));
  const [raw, setRaw] = useState(before?.raw ?? false);
  const [text, setText] = useState(before?.text ?? "");
  const [problems, setProblems] = useState<Problems>({});
  const [mistake, setMistake] = useState<{ line: number | null; message: string }>();
  const [run, setRun] = useState<Run>();
  const form = useRef<HTMLFormElement>(null);
  const abort = useRef<AbortController | undefined>(undefined);
  useEffect(() => () => abort.current?.abort(), []);
  useEffect(() => {
    typed.delete(key);
    typed.set(key, { value, text, raw });
    if (typed.size > MOST_TYPED) typed.delete(typed.keys().next().value!);
  }, [value, text, raw]);

  const parsed = (): JsonObject | undefined => {
    try {
      const read = JSON.parse(text || "{}") as Json;
      if (!isObject(read)) throw new Error("the arguments are an object: begin with {");
      setMistake(undefined);
      return read;
    } catch (error) {
      const at = /line (\d+)/.exec((error as Error).message) ?? undefined;
      setMistake({ line: at ? Number(at[1]) : null, message: (error as Error).message });
      return undefined;
    }
  };
  const call = async () => {
    const args = raw ? parsed() : value;
    if (!args) return;
    const found = raw ? {} : check(schema, schema, args, true);
    setProblems(found);
    const wrong = Object.keys(found).length;
    if (wrong) {
      announce(`Not called: ${plural(wrong, "field")} must be filled in or corrected`);
      requestAnimationFrame(() => form.current?.querySelector<HTMLElement>("[aria-invalid]")?.focus());
      return;
    }
    const own = new AbortController();
    abort.current?.abort();
    abort.current = own;
    const started = performance.now();
    setRun({ state: "running", started, logs: [], dropped: 0, input: args });
    announce(`Calling ${tool.name}`, true);
    const change = (more: (before: Run) => Partial<Run>) => setRun((before) => before && (abort.current === own ? { ...before, ...more(before) } : before));
    try {
      const answer = await request(namespace, "tools/call", raw ? { name: tool.name } : { name: tool.name, arguments: args }, {
        name: tool.name,
        rawArguments: raw ? text || "{}" : undefined,
        signal: own.signal,
        onNote: (note) => change((state) => noted(state, note)),
      });
      const failed = answer.result.isError === true;
      change(() => ({ state: failed ? "failed" : "done", took: performance.now() - started, result: answer.result, requestId: answer.requestId }));
      announce(failed ? `${tool.name} failed` : `${tool.name} answered`, true);
    } catch (error) {
      const cancelled = own.signal.aborted;
      change(() => ({ state: cancelled ? "cancelled" : "failed", took: performance.now() - started, error: cancelled ? undefined : (error as Error) }));
      announce(cancelled ? "Cancelled" : `${tool.name} failed`, true);
    }
  };

  return (
    <>
      <h2 class="tool-name">{tool.title ?? tool.name}</h2>
      {tool.title && <p class="quiet"><code>{tool.name}</code></p>}
      {tool.description && <p class="about-tool">{tool.description}</p>}
      <p class="quiet">
        {tool.filename && <>from <a href={link("sources", namespace, tool.filename)}>{tool.filename}</a></>}
        {annotationWords(tool.annotations).map((word) => <span class="tag" key={word}>{word}</span>)}
      </p>
      <form
        ref={form}
        class="arguments"
        onSubmit={(event) => {
          event.preventDefault();
          if (run?.state !== "running") call();
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && run?.state !== "running") {
            event.preventDefault();
            call();
          }
        }}
        noValidate
      >
        <div class="form-head">
          <h3>Arguments</h3>
          <label class="switch">
            <input
              type="checkbox"
              checked={raw}
              onChange={(event) => {
                if (event.currentTarget.checked) {
                  setText(JSON.stringify(value, null, 2));
                  setRaw(true);
                  return;
                }
                const read = parsed();
                if (read) {
                  setValue(read);
                  setRaw(false);
                } else event.currentTarget.checked = true;
              }}
            />{" "}
            Raw JSON
          </label>
        </div>
        {raw ? (
          <Editor value={text} onInput={(given) => (setText(given), setMistake(undefined))} language="json" label="Arguments as JSON" mistake={mistake} rows={10} />
        ) : (
          <SchemaForm schema={schema} value={value} problems={problems} onChange={(changed) => (setValue(changed), setProblems({}))} />
        )}
        <div class="actions">
          {run?.state === "running"
            ? <Button kind="danger" onClick={() => abort.current?.abort()}>Cancel the call</Button>
            : <Button submit kind="primary">Call</Button>}
          {!raw && <Button onClick={() => (setValue(startingValue(schema)), setProblems({}))}>Reset</Button>}
        </div>
      </form>
      {run && <Running run={run} />}
      {run?.result && page && <AppFrame key={run.started} namespace={namespace} uri={page} input={run.input} result={run.result} />}
      {run?.result && <CallResult result={run.result} name={tool.name} />}
      {run?.error && <Problem error={run.error} what="The call failed." />}
      <Snippets namespace={namespace} tool={tool.name} args={() => (raw ? parsed() ?? {} : value)} />
      <Schemas tool={tool} />
    </>
  );
}

function startingValue(schema: Schema): JsonObject {
  const value = initial(schema, schema, true);
  const whole: JsonObject = isObject(value) ? { ...value } : {};
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    const own = whole[name] ?? initial(property, schema, schema.required?.includes(name) ?? false);
    if (own !== undefined) whole[name] = own;
  }
  return whole;
}

/** What a notification changes in the state of a call. */
function noted(before: Run, note: Note): Partial<Run> {
  if (note.method === "notifications/progress") return { progress: note.params as unknown as Progress };
  if (note.method !== "notifications/message") return {};
  const { level, data } = note.params;
  const told = isObject(data) && typeof data.msg === "string" ? data.msg : data;
  const text = typeof told === "string" ? told : JSON.stringify(told);
  const logs = [...before.logs, { at: performance.now() - before.started, level: String(level ?? "info"), text }];
  return { logs: logs.slice(-MOST_LOGS), dropped: before.dropped + Math.max(0, logs.length - MOST_LOGS) };
}

function annotationWords(annotations: JsonObject | undefined): string[] {
  if (!annotations) return [];
  const words = [];
  if (annotations.readOnlyHint === true) words.push("reads only");
  if (annotations.destructiveHint === true) words.push("may destroy");
  if (annotations.idempotentHint === true) words.push("may be repeated");
  if (annotations.openWorldHint === true) words.push("reaches other systems");
  return words;
}

function Running({ run }: { run: Run }) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (run.state !== "running") return;
    const timer = setInterval(() => tick((value) => value + 1), 100);
    return () => clearInterval(timer);
  }, [run.state]);
  const { progress } = run;
  const total = typeof progress?.total === "number" && progress.total > 0 ? progress.total : undefined;
  return (
    <section class="run" aria-label="The call">
      <p>
        <State state={run.state} /> <span class="timing">{milliseconds(run.took ?? performance.now() - run.started)}</span>
        {run.requestId && <> <a class="quiet" href={`${link("activity")}?request_id=${encodeURIComponent(run.requestId)}`}>in Activity</a></>}
      </p>
      {progress && (
        <p class="progress">
          <progress aria-label="Progress" max={total ?? 1} value={total === undefined ? undefined : progress.progress} />{" "}
          <span role="status">{progress.message !== undefined && `${progress.message} · `}{total === undefined ? progress.progress : `${progress.progress} of ${total}`}</span>
        </p>
      )}
      {run.logs.length > 0 && (
        <>
          <h3>Log</h3>
          {run.dropped > 0 && <p class="quiet">{plural(run.dropped, "older message")} not kept.</p>}
          <div class="logs" role="log" tabIndex={0} aria-label="Log of the call">
            {run.logs.map((log, index) => (
              <p key={run.dropped + index}>
                <span class="quiet">+{milliseconds(log.at)}</span> <span class={`level ${log.level}`}>{log.level}</span> <span class="log-text">{log.text}</span>
              </p>
            ))}
          </div>
        </>
      )}
      {run.state === "cancelled" && <Notice kind="warn">Cancelled. The gateway was told to end the call.</Notice>}
    </section>
  );
}

function Schemas({ tool }: { tool: Tool }) {
  const input = useMemo(() => JSON.stringify(tool.inputSchema ?? {}, null, 2), [tool]);
  return (
    <details class="more">
      <summary>Schemas</summary>
      <h3>Input</h3>
      <BigText text={input} language="json" label="Input schema" />
      {tool.outputSchema && (
        <>
          <h3>Output</h3>
          <BigText text={JSON.stringify(tool.outputSchema, null, 2)} language="json" label="Output schema" />
        </>
      )}
    </details>
  );
}
