// The sessions of clients with their open streams, streams without a session, and the means to end them.
import { useEffect, useState } from "preact/hooks";
import { path, remove } from "../api.ts";
import { link } from "../router.ts";
import { Button, ConfirmAndDo, Empty, Loading, Problem } from "../ui/basics.tsx";
import { count, duration, size } from "../ui/format.ts";
import { More, usePaged, type Paged } from "../ui/paged.tsx";

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

interface OpenStream {
  id: string;
  kind: "listen" | "answer" | "passed_through";
  namespace: string;
  principal: string | null;
  open_seconds: number;
}

const KINDS = { listen: "listens to changes", answer: "answer of a running call", passed_through: "passed through" };

export function Sessions() {
  return (
    <>
      <WithSession />
      <WithoutSession />
    </>
  );
}

/** The first page is looked at again; whoever reads further back, or decides something, is left in peace. */
function useRefresh(list: Paged<unknown>, busy: boolean) {
  const resting = list.loading || list.items.length > 100 || list.error !== undefined || busy;
  useEffect(() => {
    if (resting) return;
    const timer = setTimeout(list.reload, REFRESH_MS);
    return () => clearTimeout(timer);
  });
}

function WithSession() {
  const list = usePaged<Session>("/api/sessions", "sessions");
  const [ending, setEnding] = useState<Session | null>(null);
  useRefresh(list, ending !== null);
  return (
    <>
      {list.error && <Problem error={list.error} retry={list.reload} />}
      {list.loading && !list.items.length && <Loading what="the sessions" />}
      {!list.items.length && !list.loading && !list.error && <Empty>No client has a session open. Clients of 2026-07-28 need none: their streams are listed below.</Empty>}
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

function WithoutSession() {
  const list = usePaged<OpenStream>("/api/streams", "streams");
  const [ending, setEnding] = useState<OpenStream | null>(null);
  useRefresh(list, ending !== null);
  return (
    <section aria-labelledby="streams">
      <h2 id="streams">Streams without a session</h2>
      {list.error && <Problem error={list.error} retry={list.reload} />}
      {list.loading && !list.items.length && <Loading what="the streams" />}
      {!list.items.length && !list.loading && !list.error && <Empty>No stream is open without a session.</Empty>}
      {list.items.length > 0 && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Streams without a session">
          <table>
            <thead>
              <tr>
                <th scope="col">Stream</th><th scope="col">Namespace</th><th scope="col">Principal</th><th scope="col">What for</th><th scope="col" class="number">Open for</th>
                <th scope="col"><span class="visually-hidden">Actions</span></th>
              </tr>
            </thead>
            <tbody>
              {list.items.map((stream) => (
                <tr key={stream.id}>
                  <th scope="row">{stream.id}</th>
                  <td><a href={link("namespaces", stream.namespace)}>{stream.namespace}</a></td>
                  <td>{stream.principal ?? "–"}</td>
                  <td>{KINDS[stream.kind]}</td>
                  <td class="number">{duration(stream.open_seconds)}</td>
                  <td class="number"><Button small onClick={() => setEnding(stream)} label={`End stream ${stream.id}`}>End</Button></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <More list={list} />
      {ending && <EndStream stream={ending} onClose={() => setEnding(null)} onDone={() => (setEnding(null), list.reload())} />}
    </section>
  );
}

function EndStream({ stream, onClose, onDone }: { stream: OpenStream; onClose: () => void; onDone: () => void }) {
  return (
    <ConfirmAndDo title="End this stream?" action="End stream" act={() => remove(path`/api/streams/${stream.id}`)} said="The stream has ended" onClose={onClose} onDone={onDone}>
      <p>{stream.kind === "answer" ? "The call is cancelled, and its client gets no answer." : "The client hears no more changes. Most clients listen again by themselves."}</p>
    </ConfirmAndDo>
  );
}

function EndSession({ session, onClose, onDone }: { session: Session; onClose: () => void; onDone: () => void }) {
  return (
    <ConfirmAndDo title="End this session?" action="End session" act={() => remove(path`/api/sessions/${session.id}`)} said="The session has ended" onClose={onClose} onDone={onDone}>
      <p>{session.client?.name ?? "The client"} in {session.namespace} loses its streams and running calls. Most clients open a new session by themselves.</p>
    </ConfirmAndDo>
  );
}
