// The folders of tool files, and one folder: its files, upload, requirements.
import { useState } from "preact/hooks";
import { ApiError, path, post, remove } from "../api.ts";
import { useSettled } from "../hooks.ts";
import { go, link } from "../router.ts";
import type { Folder, SourceFile } from "../types.ts";
import { announce } from "../ui/announce.tsx";
import { Button, ConfirmAndDo, Dialog, Empty, Field, Loading, Notice, PageHead, Problem } from "../ui/basics.tsx";
import { DropZone, FileInput } from "../ui/files.tsx";
import { count, plural, size, time } from "../ui/format.ts";
import { More, usePaged } from "../ui/paged.tsx";
import { Requirements } from "./requirements.tsx";
import { SourceEditor } from "./source-editor.tsx";

export function Sources({ parts }: { parts: string[] }) {
  const [folder, file] = parts;
  if (folder === undefined) return <Folders />;
  return file === undefined ? <OneFolder key={folder} name={folder} /> : <SourceEditor key={`${folder}/${file}`} folder={folder} file={file} />;
}

function Folders() {
  const [text, setText] = useState("");
  const q = useSettled(text);
  const list = usePaged<Folder>("/api/folders", "folders", { q });
  const [making, setMaking] = useState(false);
  return (
    <>
      <PageHead title="Sources" note={list.total !== undefined && <span class="quiet">{plural(list.total, "folder")}</span>}>
        <Button kind="primary" onClick={() => setMaking(true)}>New namespace</Button>
      </PageHead>
      <div class="filters">
        <label for="folder-q">Find</label>
        <input id="folder-q" type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </div>
      {list.error && <Problem error={list.error} retry={list.reload} />}
      {list.loading && !list.items.length && <Loading what="the folders" />}
      {!list.items.length && !list.loading && !list.error && <Empty>{q ? "No folder has this in its name." : "No tool files yet. Make a namespace to begin."}</Empty>}
      <ul class="cards">
        {list.items.map((folder) => (
          <li key={folder.name}>
            <a class="card-title" href={link("sources", folder.name)}>{folder.name}</a>
            <p class="quiet">{plural(folder.tool_count, "tool")}</p>
            {folder.tools.length > 0 && <p class="clip">{folder.tools.slice(0, 12).join(", ")}{folder.tools.length > 12 && " …"}</p>}
          </li>
        ))}
      </ul>
      <More list={list} />
      {making && <NewFolder onClose={() => setMaking(false)} />}
    </>
  );
}

export function NewFolder({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [error, setError] = useState<Error>();
  const [busy, setBusy] = useState(false);
  const wrong = name && !/^[a-z0-9][a-z0-9_-]{0,62}$/.test(name) ? "1 to 63 lowercase letters, digits, - or _, beginning with a letter or digit." : undefined;
  const make = async () => {
    setBusy(true);
    setError(undefined);
    try {
      await post("/api/folders", { name });
      announce(`Made ${name}`);
      onClose();
      go("sources", name);
    } catch (cause) {
      setError(cause as Error);
      setBusy(false);
    }
  };
  return (
    <Dialog title="New namespace" onClose={onClose}>
      <form onSubmit={(event) => (event.preventDefault(), name && !wrong && make())}>
        <Field label="Name" hint="Its tools are served under this name." error={wrong}>
          {(control) => <input {...control} value={name} onInput={(event) => setName(event.currentTarget.value)} autocomplete="off" spellcheck={false} autofocus />}
        </Field>
        {error && <Problem error={error} />}
        <div class="actions end">
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="primary" busy={busy} disabled={!name || wrong !== undefined}>Create</Button>
        </div>
      </form>
    </Dialog>
  );
}

interface Upload {
  name: string;
  state: "sending" | "saved" | "refused";
  error?: Error;
  tools?: string[];
}
const MOST_UPLOADS = 20;

function OneFolder({ name }: { name: string }) {
  const list = usePaged<SourceFile>(path`/api/folders/${name}/tools`, "tools");
  const [deleting, setDeleting] = useState<string | "folder" | null>(null);
  const [naming, setNaming] = useState(false);
  const [uploads, setUploads] = useState<Upload[]>([]);
  const upload = async (file: File) => {
    const told = (more: Partial<Upload>) => setUploads((all) => all.map((one) => (one.name === file.name ? { ...one, ...more } : one)));
    setUploads((all) => [...all.filter((one) => one.name !== file.name), { name: file.name, state: "sending" as const }].slice(-MOST_UPLOADS));
    try {
      const body = new FormData();
      body.append("file", file, file.name);
      const answer = await post<{ tools_found: string[] }>(path`/api/folders/${name}/tools`, body);
      told({ state: "saved", tools: answer.tools_found });
      announce(`${file.name} is saved`);
      list.reload();
    } catch (error) {
      told({ state: "refused", error: error as Error });
    }
  };
  return (
    <>
      <PageHead title={name} crumbs={<a href={link("sources")}>Sources</a>}>
        <a class="button plain" href={link("namespaces", name)}>Tools</a>
        <Button onClick={() => setDeleting("folder")}>Delete namespace</Button>
        <Button kind="primary" onClick={() => setNaming(true)}>New file</Button>
      </PageHead>
      {list.error && <Problem error={list.error} retry={list.reload} />}
      <DropZone onFile={upload}>
        <section aria-labelledby="files">
          <h2 id="files">Files</h2>
          {list.loading && !list.items.length && <Loading what="the files" />}
          {!list.items.length && !list.loading && !list.error && <Empty>No files yet. Make one, or drop Python files here.</Empty>}
          {list.items.length > 0 && (
            <div class="table-box" tabIndex={0} role="region" aria-label="Table of files">
              <table>
                <thead>
                  <tr><th scope="col">File</th><th scope="col">Tools</th><th scope="col" class="number">Size</th><th scope="col" class="number">Versions</th><th scope="col">Changed</th><th scope="col"><span class="visually-hidden">Actions</span></th></tr>
                </thead>
                <tbody>
                  {list.items.map((file) => (
                    <tr key={file.filename}>
                      <th scope="row"><a href={link("sources", name, file.filename)}>{file.filename}</a></th>
                      <td>{file.error ? <span class="complaint">{file.error.error}: {file.error.details}</span> : file.tools.slice(0, 20).join(", ")}</td>
                      <td class="number">{size(file.size)}</td>
                      <td class="number">{count(file.versions)}</td>
                      <td>{time(file.modified)}</td>
                      <td class="number"><Button small onClick={() => setDeleting(file.filename)} label={`Delete ${file.filename}`}>Delete</Button></td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )}
          <More list={list} />
          <div class="field">
            <label for="upload">Upload Python files, or drop them here</label>
            <FileInput control={{ id: "upload" }} label="Upload" accept=".py" multiple onFile={upload} />
          </div>
          <ul class="plain-list" aria-live="polite">
            {uploads.map((one) => (
              <li key={one.name}>
                {one.name}: {one.state === "saved" ? `saved, ${one.tools?.join(", ")}` : one.state}
                {one.error && <Problem error={one.error} what="Nothing was written." />}
              </li>
            ))}
          </ul>
        </section>
      </DropZone>
      <Deleted folder={name} files={(list.page?.deleted ?? []) as DeletedFile[]} />
      <Requirements folder={name} />
      {naming && <NewFile folder={name} onClose={() => setNaming(false)} />}
      {deleting === "folder" && <DeleteFolder name={name} onClose={() => setDeleting(null)} />}
      {deleting !== null && deleting !== "folder" && <DeleteFile folder={name} file={deleting} onClose={() => setDeleting(null)} onDone={() => (setDeleting(null), list.reload())} />}
    </>
  );
}

interface DeletedFile {
  filename: string;
  versions: number;
}

/** Files that are gone and have versions. */
function Deleted({ folder, files }: { folder: string; files: DeletedFile[] }) {
  if (!files.length) return null;
  return (
    <section aria-labelledby="deleted">
      <h2 id="deleted">Deleted files</h2>
      <ul class="plain-list">
        {files.slice(0, 100).map((file) => <li key={file.filename}><a href={link("sources", folder, file.filename)}>{file.filename}</a> <span class="quiet">{plural(file.versions, "version")} to go back to</span></li>)}
      </ul>
    </section>
  );
}

function NewFile({ folder, onClose }: { folder: string; onClose: () => void }) {
  const [name, setName] = useState("");
  const full = name.endsWith(".py") ? name : `${name}.py`;
  const wrong = name && !/^[A-Za-z_]\w*\.py$/.test(full) ? "Letters, digits and _, not beginning with a digit." : undefined;
  return (
    <Dialog title="New file" onClose={onClose}>
      <form onSubmit={(event) => (event.preventDefault(), name && !wrong && (onClose(), go("sources", folder, full)))}>
        <Field label="Name of the file" error={wrong}>
          {(control) => <input {...control} value={name} placeholder="weather.py" onInput={(event) => setName(event.currentTarget.value)} autocomplete="off" spellcheck={false} autofocus />}
        </Field>
        <div class="actions end">
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="primary" disabled={!name || wrong !== undefined}>Write it</Button>
        </div>
      </form>
    </Dialog>
  );
}

function DeleteFile({ folder, file, onClose, onDone }: { folder: string; file: string; onClose: () => void; onDone: () => void }) {
  return (
    <ConfirmAndDo title={`Delete ${file}?`} action="Delete" act={() => remove(path`/api/folders/${folder}/tools/${file}`)} said={`${file} is deleted`} onClose={onClose} onDone={onDone}>
      <p>Its tools are no longer served. The last versions are kept, so the file can be brought back.</p>
    </ConfirmAndDo>
  );
}

function DeleteFolder({ name, onClose }: { name: string; onClose: () => void }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const [typedName, setTypedName] = useState("");
  const full = error instanceof ApiError && error.code === "not_empty";
  return (
    <Dialog title={`Delete ${name}?`} onClose={onClose}>
      <form
        onSubmit={async (event) => {
          event.preventDefault();
          if (full && typedName !== name) return;
          setBusy(true);
          try {
            await remove(`${path`/api/folders/${name}`}${full ? "?force=true" : ""}`);
            announce(`${name} is deleted`);
            onClose();
            go("sources");
          } catch (cause) {
            setError(cause as Error);
            setBusy(false);
          }
        }}
      >
        <p>The folder and everything in it goes, with the kept versions of its files. A backup of the data directory is the only way back.</p>
        {error && <Notice kind="warn" live>{error.message}</Notice>}
        {full && (
          <Field label={`Type ${name} to delete the files as well`}>
            {(control) => <input {...control} value={typedName} onInput={(event) => setTypedName(event.currentTarget.value)} autocomplete="off" />}
          </Field>
        )}
        <div class="actions end">
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="danger" busy={busy} disabled={full && typedName !== name}>{full ? "Delete with all files" : "Delete"}</Button>
        </div>
      </form>
    </Dialog>
  );
}
