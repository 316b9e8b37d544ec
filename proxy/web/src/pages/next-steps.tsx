// Next steps while no tool was ever called: something to serve, a client that is connected, a first call.
import type { ComponentChildren } from "preact";
import { get, query } from "../api.ts";
import { useLoad } from "../hooks.ts";
import { link } from "../router.ts";
import type { CallRecord, Key, Namespace } from "../types.ts";
import { State } from "../ui/basics.tsx";

/** The namespace of the management tools, whose calls are not those of clients. */
const MANAGEMENT = "_system";

export function NextSteps({ all }: { all: Namespace[] }) {
  const called = useLoad("called", (abort) => get<{ records: CallRecord[] }>(`/api/activity${query({ limit: 500, status: "ok" })}`, abort));
  const keys = useLoad("any key", (abort) => get<{ keys: Key[] }>(`/api/keys${query({ limit: 1, state: "active" })}`, abort));
  // A login that may not see calls is told nothing: somebody else set the gateway up.
  if (!called.data || called.data.records.some((record) => record.tool !== undefined && record.namespace !== MANAGEMENT)) return null;
  const ready = all.find((namespace) => namespace.tool_count > 0 && !namespace.error);
  return (
    <section aria-labelledby="next">
      <h2 id="next">What to do next</h2>
      <p class="quiet">No tool was called yet.</p>
      <ol class="steps">
        <Step done={ready !== undefined} title="Serve a tool">
          <a href={link("sources")}>Write a tool</a> in Python, or <a href={link("servers")}>add an MCP server</a> from the registry or by its command.
        </Step>
        <Step done={false} title="Call it here">
          {ready ? <><a href={link("namespaces", ready.name)}>The tools of {ready.name}</a> each have a form.</> : "Each tool has a form under Namespaces."}
        </Step>
        <Step done={keys.data !== undefined && keys.data.keys.length > 0} title="Make a key for a client">
          <a href={link("keys")}>A key of its own</a> opens as little as the client needs, and can be revoked.
        </Step>
        <Step done={false} title="Connect the client">
          {ready ? <><a href={link("namespaces", ready.name, "connect")}>The configuration for clients of {ready.name}</a> can be copied.</> : "Each namespace has the configuration for clients under Connect."}
        </Step>
      </ol>
    </section>
  );
}

function Step({ done, title, children }: { done: boolean; title: string; children: ComponentChildren }) {
  return (
    <li>
      <h3>{title} {done && <State state="done" />}</h3>
      <p>{children}</p>
    </li>
  );
}
