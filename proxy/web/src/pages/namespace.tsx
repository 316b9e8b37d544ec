// The namespaces, and one of them: tools, resources, prompts, and how a client connects.
import { useState } from "preact/hooks";
import { get, path } from "../api.ts";
import { useLoad, useSettled } from "../hooks.ts";
import { link } from "../router.ts";
import type { Namespace, Tool } from "../types.ts";
import { Button, Empty, Loading, Notice, PageHead, Problem, State, Tabs } from "../ui/basics.tsx";
import { count, milliseconds, percent, plural } from "../ui/format.ts";
import { More, usePaged } from "../ui/paged.tsx";
import { Windowed } from "../ui/windowed.tsx";
import { ToolPanel } from "./call.tsx";
import { Connect } from "./connect.tsx";
import { NamespaceLog } from "./namespace-log.tsx";
import { Pins } from "./pins.tsx";
import { Prompts, Resources } from "./resources.tsx";
import { NewFolder } from "./sources.tsx";

export function NamespacePage({ parts, search }: { parts: string[]; search: URLSearchParams }) {
  const [name, tab = "tools", item] = parts;
  return name === undefined ? <NamespaceList /> : <OneNamespace key={name} name={name} tab={tab} item={item} search={search} />;
}

function NamespaceList() {
  const [making, setMaking] = useState(false);
  const [text, setText] = useState("");
  const q = useSettled(text);
  const list = usePaged<Namespace>("/api/namespaces", "namespaces", { q });
  return (
    <>
      <PageHead title="Namespaces" note={list.total !== undefined && <span class="quiet">{count(list.total)}</span>}>
        <a class="button plain" href={link("servers")}>Add a server</a>
        <Button kind="primary" onClick={() => setMaking(true)}>New namespace</Button>
      </PageHead>
      <div class="filters">
        <label for="namespace-q">Find</label>
        <input id="namespace-q" type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </div>
      {list.error && <Problem error={list.error} retry={list.reload} />}
      {!list.items.length && list.loading && <Loading what="the namespaces" />}
      {!list.items.length && !list.loading && !list.error && (
        <Empty>{q ? "No namespace has this in its name." : <>Nothing is served yet. <a href={link("sources")}>Write a tool</a> or <a href={link("servers")}>add a server</a>.</>}</Empty>
      )}
      <ul class="cards">
        {list.items.map((namespace) => (
          <li key={namespace.name}>
            <a href={link("namespaces", namespace.name)} class="card-title">{namespace.name}</a> <State state={namespace.state} />
            <p class="quiet">{namespace.kind}, {plural(namespace.tool_count, "tool")}{namespace.calls_per_minute > 0 && `, ${count(namespace.calls_per_minute)} calls a minute`}</p>
            {namespace.description && <p class="clip">{namespace.description}</p>}
            {namespace.error && <p class="complaint">{namespace.error.message}</p>}
          </li>
        ))}
      </ul>
      <More list={list} />
      {making && <NewFolder onClose={() => setMaking(false)} />}
    </>
  );
}

const TABS = [["tools", "Tools"], ["resources", "Resources"], ["prompts", "Prompts"], ["log", "Log"], ["connect", "Connect"]] as const;

function OneNamespace({ name, tab, item, search }: { name: string; tab: string; item?: string; search: URLSearchParams }) {
  const loaded = useLoad(`namespace ${name}`, (abort) => get<Namespace>(path`/api/namespaces/${name}`, abort));
  const namespace = loaded.data;
  return (
    <>
      <PageHead title={name} crumbs={<a href={link("namespaces")}>Namespaces</a>} note={namespace && <State state={namespace.state} />}>
        {namespace?.folder && <a class="button plain" href={link("sources", name)}>Sources</a>}
        <a class="button plain" href={`${link("activity")}?namespace=${encodeURIComponent(name)}`}>Activity</a>
      </PageHead>
      {loaded.error && <Problem error={loaded.error} retry={loaded.reload} />}
      {namespace && <About namespace={namespace} onDone={loaded.reload} />}
      <Tabs label={`Parts of ${name}`} current={tab} tabs={TABS.map(([id, text]) => ({ id, text, href: link("namespaces", name, id) }))} />
      {tab === "tools" && <Tools namespace={name} chosen={item} search={search} />}
      {tab === "resources" && <Resources namespace={name} />}
      {tab === "prompts" && <Prompts namespace={name} />}
      {tab === "log" && <NamespaceLog namespace={name} />}
      {tab === "connect" && <Connect namespace={name} />}
    </>
  );
}

function About({ namespace, onDone }: { namespace: Namespace; onDone: () => void }) {
  return (
    <>
      {namespace.description && <p class="lead">{namespace.description}</p>}
      <p class="quiet">
        {namespace.kind} · {plural(namespace.tool_count, "tool")} · {count(namespace.calls_per_minute)} calls a minute · errors {percent(namespace.error_rate)} · 95 % within {milliseconds(namespace.p95_ms)}{namespace.sandbox && ` · sandbox ${namespace.sandbox.mode}`}
      </p>
      {namespace.error && <Notice kind="bad"><p>{namespace.error.message} <code class="quiet">{namespace.error.code}</code></p>{namespace.error.hint && <p class="hint">{namespace.error.hint}</p>}</Notice>}
      {namespace.issues.map((issue, index) => (
        <Notice key={index} kind="warn"><p>{issue.subject && <strong>{issue.subject}: </strong>}{issue.message}</p>{issue.hint && <p class="hint">{issue.hint}</p>}</Notice>
      ))}
      {namespace.sandbox?.missing && <Notice kind="warn"><p>The sandbox holds in part on this machine: {namespace.sandbox.missing.join("; ")}</p></Notice>}
      {namespace.pins && <Pins namespace={namespace.name} waiting={namespace.pins} onDone={onDone} />}
      {namespace.secrets_status === "missing" && <Notice kind="warn"><p>Secrets are missing. <a href={link("secrets")}>Set them</a></p></Notice>}
    </>
  );
}

const ROW_PX = 52;

function Tools({ namespace, chosen, search }: { namespace: string; chosen?: string; search: URLSearchParams }) {
  const [text, setText] = useState(search.get("q") ?? "");
  const q = useSettled(text);
  const list = usePaged<Tool>(path`/api/namespaces/${namespace}/tools`, "tools", { q }, 500);
  return (
    <div class={chosen === undefined ? "split" : "split chosen"}>
      <section class="split-list" aria-label="Tools">
        <div class="filters">
          <label for="tool-q">Find a tool</label>
          <input id="tool-q" type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} />
          {list.total !== undefined && <span class="quiet" role="status">{plural(list.total, "tool")}</span>}
        </div>
        {list.error && <Problem error={list.error} retry={list.reload} />}
        {!list.items.length && list.loading && <Loading what="the tools" />}
        {!list.items.length && !list.loading && !list.error && <Empty>{q ? "No tool has this in its name." : "This namespace has no tools."}</Empty>}
        {list.items.length > 0 && (
          <Windowed
            items={list.items}
            rowHeight={ROW_PX}
            label="Tools"
            total={list.total}
            keyOf={(tool) => tool.name}
            onEnd={list.more}
            class="tools"
            row={(tool, tabIndex) => (
              <a href={link("namespaces", namespace, "tools", tool.name)} tabIndex={tabIndex} aria-current={tool.name === chosen ? "true" : undefined}>
                <strong>{tool.name}</strong>
                <span class="clip-line">{tool.description}</span>
              </a>
            )}
          />
        )}
      </section>
      <section class="split-detail" aria-label={chosen === undefined ? "Tool" : `Tool ${chosen}`}>
        {chosen === undefined ? <Empty>Choose a tool to see its arguments and to call it.</Empty> : <OneTool key={chosen} namespace={namespace} name={chosen} />}
      </section>
    </div>
  );
}

function OneTool({ namespace, name }: { namespace: string; name: string }) {
  const loaded = useLoad(`tool ${namespace} ${name}`, (abort) => get<Tool>(`${path`/api/namespaces/${namespace}/tool`}?${new URLSearchParams({ name })}`, abort));
  return (
    <>
      <p class="back"><a href={link("namespaces", namespace)}>← All tools</a></p>
      {loaded.error && <Problem error={loaded.error} retry={loaded.reload} />}
      {!loaded.data && loaded.loading && <Loading what="the tool" />}
      {loaded.data && <ToolPanel namespace={namespace} tool={loaded.data} />}
    </>
  );
}
