// MCP servers of others: what runs, and adding one from the registry or by its command.
import { useState } from "preact/hooks";
import { path, post, put, remove, type JsonObject } from "../api.ts";
import { link } from "../router.ts";
import type { Server } from "../types.ts";
import { announce } from "../ui/announce.tsx";
import { Button, ConfirmAndDo, Empty, Loading, PageHead, Problem, State } from "../ui/basics.tsx";
import { count } from "../ui/format.ts";
import { More, usePaged } from "../ui/paged.tsx";
import { AddServer } from "./add-server.tsx";
import { ServerOutput } from "./server-output.tsx";

const REFRESH_TIMES = 10;
const REFRESH_MS = 1500;

export function Servers() {
  const list = usePaged<Server>("/api/servers", "servers");
  const [adding, setAdding] = useState(false);
  const [removing, setRemoving] = useState<Server | null>(null);
  const [restarting, setRestarting] = useState<Server | null>(null);
  const [reading, setReading] = useState<Server | null>(null);
  // A server that was added starts in the background: it is looked at again for a while.
  const lookAgain = (times = REFRESH_TIMES) => {
    list.reload();
    if (times > 0) setTimeout(() => lookAgain(times - 1), REFRESH_MS);
  };
  return (
    <>
      <PageHead title="Servers" note={list.total !== undefined && <span class="quiet">{count(list.total)}</span>}>
        <Button kind="primary" onClick={() => setAdding(true)}>Add a server</Button>
      </PageHead>
      {list.error && <Problem error={list.error} retry={list.reload} />}
      {list.loading && !list.items.length && <Loading what="the servers" />}
      {!list.items.length && !list.loading && !list.error && <Empty>No servers yet. Add one from the registry, or by its command.</Empty>}
      <ul class="cards wide">
        {list.items.map((server) => <OneServer key={server.server_id} server={server} onRead={() => setReading(server)} onRestart={() => setRestarting(server)} onRemove={() => setRemoving(server)} onChange={() => lookAgain(3)} />)}
      </ul>
      <More list={list} />
      {adding && <AddServer onClose={() => setAdding(false)} onDone={() => (setAdding(false), lookAgain())} />}
      {reading && <ServerOutput server={reading.server_id} onClose={() => setReading(null)} />}
      {restarting && <RestartServer server={restarting} onClose={() => setRestarting(null)} onDone={() => (setRestarting(null), lookAgain())} />}
      {removing && <RemoveServer server={removing} onClose={() => setRemoving(null)} onDone={() => (setRemoving(null), list.reload())} />}
    </>
  );
}

interface Acting {
  server: Server;
  onRead: () => void;
  onRestart: () => void;
  onRemove: () => void;
  onChange: () => void;
}

function OneServer({ server, onRead, onRestart, onRemove, onChange }: Acting) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const config = server.config ?? {};
  const command = [config.command, ...(Array.isArray(config.args) ? config.args : [])].filter((word) => typeof word === "string").join(" ");
  const env = Object.entries((config.env ?? {}) as JsonObject);
  return (
    <li>
      <div class="form-head">
        <p>
          <a class="card-title" href={link("namespaces", server.namespace)}>{server.server_id}</a> <State state={server.status} />
        </p>
        <div class="actions">
          {server.status !== "disabled" && server.status !== "pending" && server.kind !== "aggregate" && (
            <>
              {server.kind === "stdio" && <Button small onClick={onRead} label={`Standard error of ${server.server_id}`}>Standard error</Button>}
              <Button small onClick={onRestart} label={`Restart ${server.server_id}`}>Restart</Button>
            </>
          )}
          {server.managed && (
            <>
              <Button
                small
                busy={busy}
                label={`${server.enabled ? "Disable" : "Enable"} ${server.server_id}`}
                onClick={async () => {
                  setBusy(true);
                  setError(undefined);
                  try {
                    await put(path`/api/servers/${server.server_id}`, { enabled: !server.enabled });
                    announce(`${server.server_id} is ${server.enabled ? "disabled" : "enabled"}`);
                    onChange();
                  } catch (cause) {
                    setError(cause as Error);
                  } finally {
                    setBusy(false);
                  }
                }}
              >
                {server.enabled ? "Disable" : "Enable"}
              </Button>
              <Button small onClick={onRemove} label={`Remove ${server.server_id}`}>Remove</Button>
            </>
          )}
        </div>
      </div>
      <p class="quiet">{server.kind}, {count(server.tool_count)} tools{!server.managed && ", from the gateway's own configuration"}</p>
      {command && <p class="clip"><code>{command}</code></p>}
      {env.length > 0 && <ul class="tags">{env.slice(0, 20).map(([name, value]) => <li key={name}><code>{name}={String(value)}</code></li>)}</ul>}
      {server.error && <div class="notice bad"><p>{server.error.message} <code class="quiet">{server.error.code}</code></p>{server.error.hint && <p class="hint">{server.error.hint}</p>}</div>}
      {error && <Problem error={error} />}
    </li>
  );
}

function RestartServer({ server, onClose, onDone }: { server: Server; onClose: () => void; onDone: () => void }) {
  return (
    <ConfirmAndDo title={`Restart ${server.server_id}?`} action="Restart" act={() => post(path`/api/servers/${server.server_id}/restart`, {})} said={`${server.server_id} is restarted`} onClose={onClose} onDone={onDone}>
      <p>{server.kind === "remote" ? "Its sessions at the backends end and are opened anew." : "Its processes end and new ones start."} Calls that run there fail.</p>
    </ConfirmAndDo>
  );
}

function RemoveServer({ server, onClose, onDone }: { server: Server; onClose: () => void; onDone: () => void }) {
  return (
    <ConfirmAndDo title={`Remove ${server.server_id}?`} action="Remove" act={() => remove(path`/api/servers/${server.server_id}`)} said={`${server.server_id} is removed`} onClose={onClose} onDone={onDone}>
      <p>Its tools are no longer served, and it is taken out of <code>external/config.yaml</code>.</p>
    </ConfirmAndDo>
  );
}
