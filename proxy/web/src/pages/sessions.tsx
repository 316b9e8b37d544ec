// The sessions of clients with their open streams, and the means to end them.
import { useEffect, useState } from "preact/hooks";
import { path, remove } from "../api.ts";
import { link } from "../router.ts";
import { announce } from "../ui/announce.tsx";
import { Button, Confirm, Empty, Loading, Problem } from "../ui/basics.tsx";
import { count, duration, size } from "../ui/format.ts";
import { More, usePaged } from "../ui/paged.tsx";

interface Session {
  /** The digest that Activity shows, not the id that a client sends. */
  id: string;
  namespace: string;
  principal: string | null;
  protocol_version: string | null;
  client: { name: string; version: string } | null;
  last_used_seconds: number;
  streams: number;
  bytes: number;
}

const REFRESH_MS = 5000;

export function Sessions() {
  const list = usePaged<Session>("/api/sessions", "sessions");
  const [ending, setEnding] = useState<Session | null>(null);
  // The first page is looked at again; whoever reads further back is left in peace.
  const resting = list.loading || list.items.length > 100 || list.error !== undefined || ending !== null;
  useEffect(() => {
    if (resting) return;
    const timer = setTimeout(list.reload, REFRESH_MS);
    return () => clearTimeout(timer);
  });
  return (
    <>
      {list.error && <Problem error={list.error} retry={list.reload} />}
      {list.loading && !list.items.length && <Loading what="the sessions" />}
      {!list.items.length && !list.loading && !list.error && <Empty>No client has a session open. Clients of 2026-07-28 need none.</Empty>}
      {list.items.length > 0 && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Sessions">
          <table>
            <thead>
              <tr>
                <th scope="col">Client</th><th scope="col">Namespace</th><th scope="col">Principal</th><th scope="col">Version</th>
                <th scope="col" class="number">Streams</th><th scope="col" class="number">Kept</th><th scope="col" class="number">Last used</th><th scope="col">Session</th>
                <th scope="col"><span class="visually-hidden">Actions</span></th>
              </tr>
            </thead>
            <tbody>
              {list.items.map((session) => (
                <tr key={session.id}>
                  <th scope="row">{session.client ? `${session.client.name} ${session.client.version}` : "unnamed"}</th>
                  <td><a href={link("namespaces", session.namespace)}>{session.namespace}</a></td>
                  <td>{session.principal ?? "–"}</td>
                  <td>{session.protocol_version ?? "–"}</td>
                  <td class="number">{count(session.streams)}</td>
                  <td class="number">{size(session.bytes)}</td>
                  <td class="number">{duration(session.last_used_seconds)} ago</td>
                  <td><code>{session.id}</code></td>
                  <td class="number"><Button small onClick={() => setEnding(session)} label={`End session ${session.id}`}>End</Button></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <More list={list} />
      {ending && <EndSession session={ending} onClose={() => setEnding(null)} onDone={() => (setEnding(null), list.reload())} />}
    </>
  );
}

function EndSession({ session, onClose, onDone }: { session: Session; onClose: () => void; onDone: () => void }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  return (
    <Confirm
      title="End this session?"
      action="End session"
      danger
      busy={busy}
      error={error}
      onNo={onClose}
      onYes={async () => {
        setBusy(true);
        try {
          await remove(path`/api/sessions/${session.id}`);
          announce("The session has ended");
          onDone();
        } catch (cause) {
          setError(cause as Error);
          setBusy(false);
        }
      }}
    >
      <p>{session.client?.name ?? "The client"} in {session.namespace} loses its streams and running calls. Most clients open a new session by themselves.</p>
    </Confirm>
  );
}
