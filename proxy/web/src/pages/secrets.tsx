// Which secrets there are, where they are used, which are missing. No value is ever shown: the server sends none.
import { useState } from "preact/hooks";
import { get, path, put, remove } from "../api.ts";
import { useLoad, useSettled } from "../hooks.ts";
import { link } from "../router.ts";
import type { Me, Secret } from "../types.ts";
import { announce } from "../ui/announce.tsx";
import { Button, ConfirmAndDo, Dialog, Empty, Field, Loading, Notice, PageHead, Problem, State } from "../ui/basics.tsx";
import { More, usePaged } from "../ui/paged.tsx";

export function Secrets() {
  const me = useLoad("me", (abort) => get<Me>("/api/me", abort));
  const [text, setText] = useState("");
  const q = useSettled(text);
  const list = usePaged<Secret>("/api/secrets", "secrets", { q });
  const [setting, setSetting] = useState<{ key: string; scope: string } | null>(null);
  const [removing, setRemoving] = useState<Secret | null>(null);
  const insecure = me.data?.secure === false;
  return (
    <>
      <PageHead title="Secrets">
        <Button kind="primary" disabled={insecure} onClick={() => setSetting({ key: "", scope: "global" })}>Set a secret</Button>
      </PageHead>
      <p class="lead">Values can be set and removed, never read. Tools get them as variables of their environment.</p>
      {insecure && <Notice kind="warn">This connection is neither TLS nor loopback, so values cannot be set here. Open the page over HTTPS, through an SSH tunnel, or use <code>tooldock secrets set</code>.</Notice>}
      <div class="filters">
        <label for="secret-q">Find</label>
        <input id="secret-q" type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </div>
      {list.error && <Problem error={list.error} retry={list.reload} />}
      {list.loading && !list.items.length && <Loading what="the secrets" />}
      {!list.items.length && !list.loading && !list.error && <Empty>{q ? "No secret has this in its name." : "No secrets, and none are asked for."}</Empty>}
      {list.items.length > 0 && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Secrets">
          <table>
            <thead><tr><th scope="col">Name</th><th scope="col">For</th><th scope="col">State</th><th scope="col">Used by</th><th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
            <tbody>
              {list.items.map((secret) => (
                <tr key={`${secret.scope}/${secret.key}`}>
                  <th scope="row"><code>{secret.key}</code></th>
                  <td>{secret.scope === "global" ? "all namespaces" : secret.scope}</td>
                  <td><State state={secret.status} /></td>
                  <td>{secret.used_by.slice(0, 10).map((name, index) => <>{index > 0 && ", "}<a key={name} href={link("namespaces", name)}>{name}</a></>)}{secret.used_by.length > 10 && ` and ${secret.used_by.length - 10} more`}</td>
                  <td class="number">
                    <Button small disabled={insecure} onClick={() => setSetting(secret)} label={`Set ${secret.key}`}>Set</Button>{" "}
                    {secret.status !== "missing" && <Button small onClick={() => setRemoving(secret)} label={`Remove ${secret.key}`}>Remove</Button>}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <More list={list} />
      {setting && <SetSecret start={setting} onClose={() => setSetting(null)} onDone={() => (setSetting(null), list.reload())} />}
      {removing && <RemoveSecret secret={removing} onClose={() => setRemoving(null)} onDone={() => (setRemoving(null), list.reload())} />}
    </>
  );
}

function SetSecret({ start, onClose, onDone }: { start: { key: string; scope: string }; onClose: () => void; onDone: () => void }) {
  const [key, setKey] = useState(start.key);
  const [scope, setScope] = useState(start.scope);
  const [value, setValue] = useState("");
  const [lines, setLines] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  return (
    <Dialog title={start.key ? `Set ${start.key}` : "Set a secret"} onClose={onClose}>
      <form
        onSubmit={async (event) => {
          event.preventDefault();
          if (!key || !value) return;
          setBusy(true);
          setError(undefined);
          try {
            await put("/api/secrets", { key, scope: scope || "global", value });
            setValue("");
            announce(`${key} is set`);
            onDone();
          } catch (cause) {
            setError(cause as Error);
            setBusy(false);
          }
        }}
      >
        <Field label="Name" hint="As code reads it: GITHUB_TOKEN">
          {(control) => <input {...control} value={key} onInput={(event) => setKey(event.currentTarget.value)} autocomplete="off" spellcheck={false} />}
        </Field>
        <Field label="For" hint="global, or the name of one namespace">
          {(control) => <input {...control} value={scope} onInput={(event) => setScope(event.currentTarget.value)} autocomplete="off" spellcheck={false} />}
        </Field>
        <Field label="Value" hint="Sent once, and never shown again.">
          {(control) => lines
            ? <textarea {...control} rows={5} value={value} autocomplete="off" spellcheck={false} onInput={(event) => setValue(event.currentTarget.value)} />
            : <input {...control} type="password" value={value} autocomplete="off" onInput={(event) => setValue(event.currentTarget.value)} />}
        </Field>
        <label class="switch"><input type="checkbox" checked={lines} onChange={(event) => setLines(event.currentTarget.checked)} /> Several lines (shown while typed)</label>
        {error && <Problem error={error} />}
        <div class="actions end">
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="primary" busy={busy} disabled={!key || !value}>Set</Button>
        </div>
      </form>
    </Dialog>
  );
}

function RemoveSecret({ secret, onClose, onDone }: { secret: Secret; onClose: () => void; onDone: () => void }) {
  return (
    <ConfirmAndDo title={`Remove ${secret.key}?`} action="Remove" act={() => remove(path`/api/secrets/${secret.scope}/${secret.key}`)} said={`${secret.key} is removed`} onClose={onClose} onDone={onDone}>
      <p>{secret.used_by.length ? `${secret.used_by.slice(0, 10).join(", ")} will miss it.` : "Nothing is known to use it."} The value cannot be brought back.</p>
    </ConfirmAndDo>
  );
}
