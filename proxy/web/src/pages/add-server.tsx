// Adding a server: from the registry, or by the command that starts it.
import { useState } from "preact/hooks";
import { get, post, query, type JsonObject } from "../api.ts";
import { useLoad } from "../hooks.ts";
import { announce } from "../ui/announce.tsx";
import { Button, Dialog, Field, Loading, Problem } from "../ui/basics.tsx";
import { plural } from "../ui/format.ts";
import { parseVariables, parseWords } from "../words.ts";

const MOST_FOUND = 50;

interface Found {
  name: string;
  description?: string;
  package?: string;
  package_type?: string;
  [other: string]: unknown;
}

export function AddServer({ onClose, onDone }: { onClose: () => void; onDone: () => void }) {
  const [from, setFrom] = useState<"command" | "registry">("command");
  const [found, setFound] = useState<Found | null>(null);
  const [id, setId] = useState("");
  const [line, setLine] = useState("");
  const [env, setEnv] = useState("");
  const [cwd, setCwd] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const wrongId = id && !/^[a-z0-9][a-z0-9_-]{0,62}$/.test(id) ? "1 to 63 lowercase letters, digits, - or _, beginning with a letter or digit." : undefined;
  const variables = parseVariables(env);
  const words = parseWords(line);
  const ready = id && !wrongId && !variables.wrong && !words.wrong && (from === "registry" ? found : words.all.length);
  const add = async () => {
    setBusy(true);
    setError(undefined);
    const config: JsonObject = from === "registry" ? { source: "registry", name: found!.package ?? found!.name, ...(found!.package_type ? { package_type: found!.package_type } : {}) } : { source: "custom", command: words.all[0], args: words.all.slice(1) };
    if (from === "registry" && words.all.length) config.args = words.all;
    if (Object.keys(variables.all).length) config.env = variables.all;
    if (cwd && from === "command") config.cwd = cwd;
    try {
      await post("/api/servers", { server_id: id, config });
      announce(`${id} is added and starts`);
      onDone();
    } catch (cause) {
      setError(cause as Error);
      setBusy(false);
    }
  };
  return (
    <Dialog title="Add a server" onClose={onClose}>
      <form onSubmit={(event) => (event.preventDefault(), ready && !busy && add())}>
        <fieldset class="choice">
          <legend>From</legend>
          <label><input type="radio" name="from" checked={from === "command"} onChange={() => setFrom("command")} /> a command</label>
          <label><input type="radio" name="from" checked={from === "registry"} onChange={() => setFrom("registry")} /> the MCP registry</label>
        </fieldset>
        {from === "registry" && <Search chosen={found} onChoose={(one) => (setFound(one), id || setId(shortName(one.name)))} />}
        <Field label="Name" hint="The namespace its tools are served under." error={wrongId || undefined}>
          {(control) => <input {...control} value={id} onInput={(event) => setId(event.currentTarget.value)} autocomplete="off" spellcheck={false} />}
        </Field>
        <Field
          label={from === "command" ? "Command" : "Further arguments (optional)"}
          hint={from === "command" ? "The program and its arguments, as in a shell with quotes: npx -y @modelcontextprotocol/server-memory" : "As in a shell with quotes."}
          error={words.wrong}
        >
          {(control) => <input {...control} class="code" value={line} onInput={(event) => setLine(event.currentTarget.value)} autocomplete="off" spellcheck={false} />}
        </Field>
        <Field label="Environment (optional)" hint="One NAME=value a line. They are written to a file: for a secret write NAME=${NAME} and set it under Secrets." error={variables.wrong}>
          {(control) => <textarea {...control} class="code" rows={3} value={env} onInput={(event) => setEnv(event.currentTarget.value)} spellcheck={false} />}
        </Field>
        {from === "command" && (
          <Field label="Working directory (optional)">
            {(control) => <input {...control} value={cwd} onInput={(event) => setCwd(event.currentTarget.value)} autocomplete="off" spellcheck={false} />}
          </Field>
        )}
        {error && <Problem error={error} />}
        <div class="actions end">
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="primary" busy={busy} disabled={!ready}>Add</Button>
        </div>
      </form>
    </Dialog>
  );
}

function Search({ chosen, onChoose }: { chosen: Found | null; onChoose: (found: Found) => void }) {
  const [text, setText] = useState("");
  const [q, setQ] = useState<string | null>(null);
  const loaded = useLoad(q === null ? null : `registry ${q}`, (abort) => get<{ servers: Found[] }>(`/api/registry${query({ q: q! })}`, abort));
  const servers = loaded.data?.servers ?? [];
  return (
    <div class="field">
      <label for="registry-q">Search the registry</label>
      <div class="control">
        <input
          id="registry-q"
          type="search"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Enter" && (event.preventDefault(), setQ(text))}
        />
        <Button onClick={() => setQ(text)} disabled={!text}>Search</Button>
      </div>
      {loaded.loading && q !== null && <Loading what="servers from the registry" />}
      {loaded.error && <Problem error={loaded.error} retry={loaded.reload} />}
      {loaded.data && <p class="quiet" role="status">{plural(servers.length, "server")} found</p>}
      <ul class="plain-list found">
        {servers.slice(0, MOST_FOUND).map((server) => (
          <li key={`${server.name} ${server.package_type} ${server.package}`}>
            {whyNot(server)
              ? <p><strong>{server.name}</strong></p>
              : <button type="button" class="as-link" aria-pressed={chosen === server} onClick={() => onChoose(server)}>{server.name}{server.package_type && ` (${server.package_type})`}</button>}
            {server.description && <p class="quiet">{server.description}</p>}
            {whyNot(server) && <p class="hint">{whyNot(server)}</p>}
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Why a server of the registry cannot be started here; nothing where it can. */
function whyNot(server: Found): string | undefined {
  const kind = server.package_type;
  if (kind === "remote") return "Reached over HTTP: add its URL as a remote server, under upstreams.remote in the gateway's configuration.";
  if (!server.package) return "The registry names no package: add the server by its command.";
  if (kind && kind !== "npm" && kind !== "pypi") return `Published as ${kind}: add the server by its command.`;
  return undefined;
}

function shortName(name: string): string {
  return (name.split("/").pop() ?? "").toLowerCase().replace(/^(mcp-)?server-/, "").replace(/[^a-z0-9_-]/g, "-").replace(/^[-_]+/, "").slice(0, 63);
}
