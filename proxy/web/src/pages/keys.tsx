// API keys: which there are, what each opens, and how they are made and revoked. A key itself is shown once, by the dialog
// that made it, and is kept nowhere.
import { useState } from "preact/hooks";
import { get, path, post, remove } from "../api.ts";
import { useLoad, useSettled } from "../hooks.ts";
import { link } from "../router.ts";
import type { Key, KeyReach, KeyRules, MadeKey, Me, Scope } from "../types.ts";
import { announce } from "../ui/announce.tsx";
import { Button, ConfirmAndDo, Copy, Dialog, Empty, Field, Loading, Notice, PageHead, Problem, State } from "../ui/basics.tsx";
import { count, plural, time } from "../ui/format.ts";
import { More, usePaged } from "../ui/paged.tsx";
import { parseList } from "../words.ts";

/** Tools of a namespace that are listed with their rules. */
const MOST_TOOLS = 200;

export function Keys({ parts }: { parts: string[] }) {
  const [id] = parts;
  return id === undefined ? <KeyList /> : <OneKey key={id} id={id} />;
}

function KeyList() {
  const me = useLoad("me", (abort) => get<Me>("/api/me", abort));
  const [text, setText] = useState("");
  const [state, setState] = useState("");
  const q = useSettled(text);
  const list = usePaged<Key>("/api/keys", "keys", { q, state });
  const [making, setMaking] = useState(false);
  const [revoking, setRevoking] = useState<Key | null>(null);
  const insecure = me.data?.secure === false;
  const scopes = (list.page?.scopes ?? []) as Scope[];
  return (
    <>
      <PageHead title="Keys" note={list.total !== undefined && <span class="quiet">{count(list.total)}</span>}>
        <Button kind="primary" disabled={insecure || !list.page} onClick={() => setMaking(true)}>Make a key</Button>
      </PageHead>
      <p class="lead">An API key opens the tools of its scopes in its namespaces. Give each client a key of its own, with as little as it needs.</p>
      {insecure && <Notice kind="warn">This connection is neither TLS nor loopback, so a key cannot be shown here. Open the page over HTTPS, through an SSH tunnel, or use <code>tooldock keys create</code>.</Notice>}
      <div class="filters">
        <label for="key-q">Find</label>
        <input id="key-q" type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        <label for="key-state">State</label>
        <select id="key-state" value={state} onChange={(event) => setState(event.currentTarget.value)}>
          <option value="">all</option>
          <option>active</option>
          <option>expired</option>
          <option>revoked</option>
        </select>
      </div>
      {list.error && <Problem error={list.error} retry={list.reload} />}
      {list.loading && !list.items.length && <Loading what="the keys" />}
      {!list.items.length && !list.loading && !list.error && <Empty>{q || state ? "No key fits." : "No keys yet. A client that has none needs the gateway's own token, which opens everything."}</Empty>}
      {list.items.length > 0 && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Keys">
          <table>
            <thead>
              <tr>
                <th scope="col">Principal</th><th scope="col">State</th><th scope="col">Scopes</th><th scope="col">Namespaces</th>
                <th scope="col">Ends</th><th scope="col">Last used</th><th scope="col">Id</th>
                <th scope="col"><span class="visually-hidden">Actions</span></th>
              </tr>
            </thead>
            <tbody>
              {list.items.map((key) => (
                <tr key={key.id}>
                  <th scope="row"><a href={link("keys", key.id)}>{key.principal}</a></th>
                  <td><KeyStateShown state={key.state} /></td>
                  <td>{key.scopes.join(", ")}</td>
                  <td>{shortened(key.namespaces)}</td>
                  <td>{key.expires ? time(key.expires) : "never"}</td>
                  <td>{key.last_used ? time(key.last_used) : "never"}</td>
                  <td><code>{key.id}</code></td>
                  <td class="number">{key.state === "active" && <Button small onClick={() => setRevoking(key)} label={`Revoke ${key.principal} ${key.id}`}>Revoke</Button>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <More list={list} />
      {making && <MakeKey scopes={scopes} onClose={() => setMaking(false)} onMade={list.reload} />}
      {revoking && <RevokeKey shown={revoking} onClose={() => setRevoking(null)} onDone={() => (setRevoking(null), list.reload())} />}
    </>
  );
}

function KeyStateShown({ state }: { state: string }) {
  return state === "active" ? <State state={state} good /> : <State state={state} />;
}

function shortened(names: string[]): string {
  const first = names.slice(0, 5).join(", ");
  return names.length > 5 ? `${first} and ${count(names.length - 5)} more` : first;
}

function MakeKey({ scopes, onClose, onMade }: { scopes: Scope[]; onClose: () => void; onMade: () => void }) {
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState<string[]>([]);
  const [namespaces, setNamespaces] = useState("");
  const [expires, setExpires] = useState("90d");
  const [networks, setNetworks] = useState("");
  const [limits, setLimits] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const [made, setMade] = useState<MadeKey | null>(null);
  if (made) return <ShowOnce made={made} onClose={onClose} />;
  const make = async () => {
    setBusy(true);
    setError(undefined);
    const opened = parseList(namespaces);
    try {
      const body = { name, scopes: chosen, networks: parseList(networks), limits: parseList(limits), ...(opened.length ? { namespaces: opened } : {}), ...(expires.trim() ? { expires: expires.trim() } : {}) };
      const answer = await post<MadeKey>("/api/keys", body);
      announce(`The key ${answer.principal} is made`);
      setMade(answer);
      onMade();
    } catch (cause) {
      setError(cause as Error);
      setBusy(false);
    }
  };
  const ready = name.trim() !== "" && chosen.length > 0;
  return (
    <Dialog title="Make a key" onClose={onClose}>
      <form onSubmit={(event) => (event.preventDefault(), ready && !busy && make())}>
        <Field label="Name" hint="The holder, such as ci or alice-laptop. Logs and limits call it key:NAME.">
          {(control) => <input {...control} value={name} onInput={(event) => setName(event.currentTarget.value)} autocomplete="off" spellcheck={false} />}
        </Field>
        <fieldset class="field">
          <legend>Scopes</legend>
          <p class="hint">The tools that the key may list and call, by patterns of their names.</p>
          <ul class="plain-list">
            {scopes.map((scope) => (
              <li key={scope.name}>
                <label class="switch">
                  <input type="checkbox" checked={chosen.includes(scope.name)} onChange={(event) => setChosen(event.currentTarget.checked ? [...chosen, scope.name] : chosen.filter((one) => one !== scope.name))} />
                  {scope.name}
                </label>{" "}
                <span class="quiet">{scope.name === "admin" ? "every tool" : shortened(scope.tools)}</span>
              </li>
            ))}
          </ul>
        </fieldset>
        <Field label="Namespaces" hint="Names and patterns such as dev-*, separated by spaces. Empty: those of your own login. Only the name _system opens management and this page.">
          {(control) => <input {...control} value={namespaces} onInput={(event) => setNamespaces(event.currentTarget.value)} autocomplete="off" spellcheck={false} />}
        </Field>
        <Field label="Ends after" hint="Such as 12h or 90d. Empty: never.">
          {(control) => <input {...control} value={expires} onInput={(event) => setExpires(event.currentTarget.value)} autocomplete="off" spellcheck={false} />}
        </Field>
        <details class="more">
          <summary>Networks and limits</summary>
          <Field label="Networks" hint="Clients' addresses such as 10.0.0.0/8, separated by spaces. Empty: all.">
            {(control) => <input {...control} value={networks} onInput={(event) => setNetworks(event.currentTarget.value)} autocomplete="off" spellcheck={false} />}
          </Field>
          <Field label="Limits" hint="Per second: 10/20 for requests with a burst of 20, 5/5:tool_call for calls.">
            {(control) => <input {...control} value={limits} onInput={(event) => setLimits(event.currentTarget.value)} autocomplete="off" spellcheck={false} />}
          </Field>
        </details>
        {error && <Problem error={error} />}
        <div class="actions end">
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="primary" busy={busy} disabled={!ready}>Make</Button>
        </div>
      </form>
    </Dialog>
  );
}

/** The key after its creation. It leaves the page with the dialog. */
function ShowOnce({ made, onClose }: { made: MadeKey; onClose: () => void }) {
  return (
    <Dialog title={`The key of ${made.principal}`} onClose={onClose}>
      <Notice kind="warn"><p>Copy the key now. It is not stored, and cannot be shown again.</p></Notice>
      <Field label="Key" hint={<>Sent as <code>Authorization: Bearer KEY</code>.</>}>
        {(control) => <input {...control} class="code" readOnly value={made.key} onFocus={(event) => event.currentTarget.select()} autocomplete="off" spellcheck={false} />}
      </Field>
      {made.notes?.map((note) => <Notice key={note} kind="warn"><p>{note}</p></Notice>)}
      <div class="actions end">
        <Copy text={made.key} label="Copy the key" />
        <Button kind="primary" onClick={onClose}>I have it</Button>
      </div>
    </Dialog>
  );
}

function RevokeKey({ shown, onClose, onDone }: { shown: Key; onClose: () => void; onDone: () => void }) {
  return (
    <ConfirmAndDo title={`Revoke ${shown.principal}?`} action="Revoke" act={() => remove(path`/api/keys/${shown.id}`)} said={`The key ${shown.id} is revoked`} onClose={onClose} onDone={onDone}>
      <p>Requests with the key <code>{shown.id}</code> are refused at once, its streams end, and so do the keys that it made. A revoked key cannot be brought back.</p>
    </ConfirmAndDo>
  );
}

function OneKey({ id }: { id: string }) {
  const loaded = useLoad(`key ${id}`, (abort) => get<Key & KeyReach>(path`/api/keys/${id}`, abort));
  const [revoking, setRevoking] = useState(false);
  const key = loaded.data;
  return (
    <>
      <PageHead title={key?.principal ?? id} crumbs={<a href={link("keys")}>Keys</a>} note={key && <KeyStateShown state={key.state} />}>
        {key && <a class="button plain" href={`${link("activity")}?principal=${encodeURIComponent(key.principal)}`}>Activity</a>}
        {key?.state === "active" && <Button kind="danger" onClick={() => setRevoking(true)}>Revoke</Button>}
      </PageHead>
      {loaded.error && <Problem error={loaded.error} retry={loaded.reload} />}
      {loaded.loading && !key && <Loading what="the key" />}
      {key && <KeyFacts shown={key} />}
      {key && <Opens shown={key} />}
      {revoking && key && <RevokeKey shown={key} onClose={() => setRevoking(false)} onDone={() => (setRevoking(false), loaded.reload())} />}
    </>
  );
}

function KeyFacts({ shown }: { shown: Key }) {
  const facts: Array<[string, string]> = [
    ["Id", shown.id],
    ["Scopes", shown.scopes.join(", ")],
    ["Namespaces", shown.namespaces.join(", ")],
    ["Networks", shown.networks.join(", ") || "all"],
    ["Limits of its own", shown.limits.join(", ") || "none"],
    ["Made", time(shown.created)],
    ["Made by", shown.made_by ?? "the operator"],
    ["Ends", shown.expires ? time(shown.expires) : "never"],
    ["Last used", shown.last_used ? `about ${time(shown.last_used)}` : "never"],
    ...(shown.revoked ? [["Revoked", time(shown.revoked)] as [string, string]] : []),
  ];
  return (
    <dl class="facts-list">
      {facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
    </dl>
  );
}

/** Rights of the key, by namespace; the rules of one are loaded when it is opened. */
function Opens({ shown }: { shown: Key & KeyReach }) {
  const [opened, setOpened] = useState<string | null>(null);
  const all = shown.opens ?? [];
  return (
    <section aria-labelledby="opens">
      <h2 id="opens">What it may do</h2>
      {shown.notes.map((note) => <Notice key={note} kind="warn"><p>{note}</p></Notice>)}
      {!all.length && !shown.notes.length && <Empty>The key opens no namespace that is served.</Empty>}
      <ul class="cards wide">
        {all.map(({ namespace, open, tools }) => (
          <li key={namespace}>
            <div class="form-head">
              <p><a class="card-title" href={link("namespaces", namespace)}>{namespace}</a> <span class="quiet">{count(open)} of {plural(tools, "tool")}</span></p>
              <Button small expanded={opened === namespace} label={`Tools and rules of ${namespace}`} onClick={() => setOpened(opened === namespace ? null : namespace)}>Tools and rules</Button>
            </div>
            {opened === namespace && <Rules id={shown.id} namespace={namespace} />}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Rules({ id, namespace }: { id: string; namespace: string }) {
  const loaded = useLoad(`rules ${id} ${namespace}`, (abort) => get<KeyRules>(path`/api/keys/${id}/namespaces/${namespace}`, abort));
  const answer = loaded.data;
  if (loaded.error) return <Problem error={loaded.error} retry={loaded.reload} />;
  if (!answer) return <Loading what="the rules" />;
  const tools = answer.tools ?? [];
  const rest = tools.length - MOST_TOOLS + (answer.left_out ?? 0);
  return (
    <>
      <ul class="plain-list">
        {answer.rules.map((rule) => <li key={rule.rule}><State state={rule.allows ? "allows" : "refuses"} good={rule.allows} /> {rule.rule}: <span class="quiet">{rule.says}</span></li>)}
      </ul>
      {answer.notes?.map((note) => <p key={note} class="quiet">{note}</p>)}
      {tools.length > 0 && (
        <ul class="plain-list">
          {tools.slice(0, MOST_TOOLS).map((tool) => (
            <li key={tool.name}><State state={tool.allowed ? "open" : "refused"} good={tool.allowed} /> <a href={link("namespaces", namespace, "tools", tool.name)}><code>{tool.name}</code></a>{tool.refused_by && <span class="quiet"> {tool.refused_by}</span>}</li>
          ))}
        </ul>
      )}
      {rest > 0 && <p class="quiet">And {plural(rest, "tool")} more.</p>}
    </>
  );
}
