// One tool file: edited with its mistakes shown, saved, compared with earlier versions, taken back.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, path, post, query, send } from "../api.ts";
import { useLoad, useSettled } from "../hooks.ts";
import { drafts, link } from "../router.ts";
import { isObject } from "../schema.ts";
import type { Trouble, Validity } from "../types.ts";
import { announce } from "../ui/announce.tsx";
import { Button, Confirm, Loading, Notice, PageHead, Problem } from "../ui/basics.tsx";
import { BigText } from "../ui/bigtext.tsx";
import { Diff } from "../ui/diff.tsx";
import { Editor } from "../ui/editor.tsx";
import { size, time } from "../ui/format.ts";
import { languageOf } from "../ui/highlight.ts";

const TEMPLATE = `from fastmcp.tools import tool


@tool
def hello(name: str) -> str:
    """Greet somebody by name."""
    return f"Hello, {name}!"
`;

interface Version {
  version: number;
  size: number;
  modified: string;
}
interface Source {
  content: string;
  fresh: boolean;
}
interface Reloaded {
  failed: Array<Trouble & { namespace: string }>;
  issues: Array<Trouble & { namespace: string }>;
}

export function SourceEditor({ folder, file }: { folder: string; file: string }) {
  const key = `${folder}/${file}`;
  const loaded = useLoad<Source>(key, async (abort) => {
    try {
      return { content: (await get<{ content: string }>(path`/api/folders/${folder}/tools/${file}`, abort)).content, fresh: false };
    } catch (error) {
      if (error instanceof ApiError && error.code === "file_not_found") return { content: "", fresh: true };
      throw error;
    }
  });
  const history = useLoad<{ versions: Version[] }>(`history ${key}`, (abort) =>
    get<{ versions: Version[] }>(path`/api/folders/${folder}/tools/${file}/history`, abort).catch((error) => {
      if (error instanceof ApiError && error.status === 404) return { versions: [] };
      throw error;
    }),
  );
  return (
    <>
      <PageHead title={file} crumbs={<><a href={link("sources")}>Sources</a> / <a href={link("sources", folder)}>{folder}</a></>}>
        <a class="button plain" href={link("namespaces", folder)}>Tools</a>
      </PageHead>
      {loaded.error && <Problem error={loaded.error} retry={loaded.reload} />}
      {!loaded.data && loaded.loading && <Loading what="the file" />}
      {loaded.data && <Edit folder={folder} file={file} source={loaded.data} versions={history.data?.versions ?? []} changed={() => (loaded.reload(), history.reload())} />}
    </>
  );
}

function Edit({ folder, file, source, versions, changed }: { folder: string; file: string; source: Source; versions: Version[]; changed: () => void }) {
  const key = `${folder}/${file}`;
  const start = source.fresh && !versions.length ? TEMPLATE : source.content;
  const [text, setText] = useState(drafts.get(key) ?? start);
  const [saved, setSaved] = useState(source.content);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  // Of the text that was sent: what was typed meanwhile is judged by itself.
  const [refused, setRefused] = useState<{ text: string; why: Validity }>();
  const [served, setServed] = useState<Reloaded | "waiting">();
  const dirty = text !== saved || source.fresh;
  const settled = useSettled(text, 500);
  const checked = useLoad<Validity>(settled.trim() === "" ? null : `check ${key} ${settled.length} ${settled}`, (abort) =>
    post<Validity>(path`/api/folders/${folder}/validate`, { filename: file, content: settled }, abort),
  );
  useEffect(() => {
    if (source.content !== saved) {
      // Somebody else, or a rollback, changed the file: an editor without own changes follows.
      if (text === saved) setText(source.content);
      setSaved(source.content);
    }
  }, [source]);
  useEffect(() => {
    if (text !== saved && text !== start) drafts.set(key, text);
    else drafts.delete(key);
  }, [text, saved]);

  const intoService = async () => {
    setServed("waiting");
    try {
      setServed((await (await send("/api/reload", { method: "POST" })).json()) as Reloaded);
    } catch (cause) {
      setServed(undefined);
      setError(cause as Error);
    }
  };
  const save = async () => {
    setBusy(true);
    setError(undefined);
    setRefused(undefined);
    try {
      const answer = await post<{ tools_found: string[] }>(path`/api/folders/${folder}/tools`, { filename: file, content: text });
      setSaved(text);
      announce(`Saved: ${answer.tools_found.join(", ")}`);
      changed();
      intoService();
    } catch (cause) {
      if (cause instanceof ApiError && cause.code === "invalid_tool" && isObject(cause.details)) setRefused({ text, why: { valid: false, ...cause.details } as Validity });
      else setError(cause as Error);
    } finally {
      setBusy(false);
    }
  };
  const wrong = refused?.text === text ? refused.why : (settled === text && checked.data && !checked.data.valid ? checked.data : undefined);
  const mistake = wrong && { line: wrong.line ?? null, message: [wrong.error, wrong.details].filter(Boolean).join(": ") };
  const fine = !wrong && settled === text && checked.data?.valid;
  return (
    <div class="edit">
      <div class="edit-main">
        <Editor value={text} onInput={setText} language={languageOf(file)} label={`Code of ${file}`} mistake={mistake} onSave={save} />
        <div class="actions">
          <Button kind="primary" busy={busy} disabled={!dirty} onClick={save}>Save</Button>
          {text !== saved && !source.fresh && <Button onClick={() => setText(saved)}>Discard changes</Button>}
          <span class="quiet" role="status">
            {fine ? `Checked: ${checked.data?.tools?.map((tool) => tool.name).join(", ") || "no tools"}` : wrong ? "Has a mistake; saving is refused until it is mended" : checked.loading ? "Checking…" : ""}
          </span>
        </div>
        {checked.error && <Problem error={checked.error} what="The code could not be checked." retry={checked.reload} />}
        {error && <Problem error={error} />}
        {served && <Served served={served} folder={folder} />}
      </div>
      <History folder={folder} file={file} versions={versions} gone={source.fresh} onRolledBack={(content) => (setText(content), setSaved(content), changed(), intoService())} />
    </div>
  );
}

/** Whether what was saved is served now, and if not, why. */
function Served({ served, folder }: { served: Reloaded | "waiting"; folder: string }) {
  if (served === "waiting") return <Notice kind="info" live>Saved. Bringing it into service…</Notice>;
  const failed = served.failed.filter((one) => one.namespace === folder);
  const issues = served.issues.filter((one) => one.namespace === folder);
  if (!failed.length && !issues.length) return <Notice kind="good" live>In service. <a href={link("namespaces", folder)}>Try the tools</a></Notice>;
  return (
    <Notice kind={failed.length ? "bad" : "warn"} live>
      {[...failed, ...issues].map((one, index) => <p key={index}>{one.subject && <strong>{one.subject}: </strong>}{one.message}</p>)}
    </Notice>
  );
}

function History({ folder, file, versions, gone, onRolledBack }: { folder: string; file: string; versions: Version[]; gone: boolean; onRolledBack: (content: string) => void }) {
  const [chosen, setChosen] = useState<number | null>(null);
  const [asking, setAsking] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const [shown, setShown] = useState<"diff" | "whole">("diff");
  const heading = useRef<HTMLHeadingElement>(null);
  const newest = versions[0]?.version;
  const address = chosen === null ? null : shown === "diff" ? `${path`/api/folders/${folder}/tools/${file}/diff`}${query({ from: chosen, to: "current" })}` : path`/api/folders/${folder}/tools/${file}/history/${chosen}`;
  const loaded = useLoad(address && `${address} ${newest}`, (abort) => get<{ diff?: string; content?: string }>(address!, abort));
  const rollBack = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await post(path`/api/folders/${folder}/tools/${file}/rollback`, { version: chosen! });
      const { content } = await get<{ content: string }>(path`/api/folders/${folder}/tools/${file}`);
      announce(`${file} is version ${chosen} again`);
      setAsking(false);
      setChosen(null);
      onRolledBack(content);
    } catch (cause) {
      setError(cause as Error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <section class="history" aria-labelledby="history">
      <h2 id="history" ref={heading}>History</h2>
      {gone && versions.length > 0 && <p class="quiet">The file is deleted. A version brings it back.</p>}
      {!versions.length && <p class="quiet">No earlier versions. Each save keeps the one before.</p>}
      <ul class="plain-list versions">
        {versions.map((version) => (
          <li key={version.version}>
            <button type="button" class="as-link" aria-pressed={chosen === version.version} onClick={() => setChosen(chosen === version.version ? null : version.version)}>Version {version.version}</button>{" "}
            <span class="quiet">{time(version.modified)}, {size(version.size)}</span>
          </li>
        ))}
      </ul>
      {chosen !== null && (
        <>
          <div class="actions">
            <Button small onClick={() => setShown(shown === "diff" ? "whole" : "diff")}>{shown === "diff" ? "Show whole version" : "Show differences"}</Button>
            <Button small onClick={() => setAsking(true)}>Go back to version {chosen}</Button>
          </div>
          {loaded.error && <Problem error={loaded.error} />}
          {loaded.loading && !loaded.data && <Loading what="the version" />}
          {loaded.data?.diff !== undefined && <Diff diff={loaded.data.diff} label={`From version ${chosen} to the file as it is`} />}
          {loaded.data?.content !== undefined && <BigText text={loaded.data.content} language={languageOf(file)} label={`Version ${chosen}`} />}
        </>
      )}
      {asking && (
        <Confirm title={`Go back to version ${chosen}?`} action="Go back" busy={busy} error={error} onYes={rollBack} onNo={() => setAsking(false)}>
          <p>The file as it is now is kept as a version, so this can be taken back as well.</p>
        </Confirm>
      )}
    </section>
  );
}
