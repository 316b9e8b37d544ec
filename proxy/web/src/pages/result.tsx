// What a tool answered: text, images, files, structured content. All of it is shown as text or as a picture, never as markup.
import { useMemo, useState } from "preact/hooks";
import type { Json, JsonObject } from "../api.ts";
import { isObject } from "../schema.ts";
import { Button, Copy, Notice, saveAs } from "../ui/basics.tsx";
import { BigText } from "../ui/bigtext.tsx";
import { size } from "../ui/format.ts";
import type { Language } from "../ui/highlight.ts";

/** Pictures that a browser shows without running anything. */
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"]);
const MOST_BLOCKS = 50;

export function CallResult({ result, name }: { result: JsonObject; name: string }) {
  const [whole, setWhole] = useState(false);
  const blocks = Array.isArray(result.content) ? result.content.filter(isObject) : [];
  const structured = result.structuredContent;
  const failed = result.isError === true;
  return (
    <section class="result" aria-label="Result">
      <div class="form-head">
        <h3>{failed ? "The tool failed" : "Result"}</h3>
        <div class="actions">
          <Button small onClick={() => setWhole(!whole)} expanded={whole}>{whole ? "As read" : "Whole answer"}</Button>
        </div>
      </div>
      {failed && <Notice kind="bad">The tool says that it failed. Its words stand below; the gateway's log has the traceback under the request id.</Notice>}
      {whole ? (
        <Text text={JSON.stringify(result, null, 2)} language="json" label="Whole answer" file={`${name}.json`} />
      ) : (
        <>
          {structured !== undefined && structured !== null && <Structured value={structured} name={name} />}
          {(structured === undefined || structured === null || failed) && blocks.slice(0, MOST_BLOCKS).map((block, index) => <Block key={index} block={block} name={name} index={index} />)}
          {structured !== undefined && blocks.some((block) => block.type !== "text") && blocks.filter((block) => block.type !== "text").slice(0, MOST_BLOCKS).map((block, index) => <Block key={index} block={block} name={name} index={index} />)}
          {blocks.length > MOST_BLOCKS && <p class="quiet">{blocks.length} parts; the others are in the whole answer.</p>}
          {structured === undefined && !blocks.length && <p class="quiet">The answer is empty.</p>}
        </>
      )}
    </section>
  );
}

/** `{"result": x}` is how a bare value is wrapped. */
function Structured({ value, name }: { value: Json; name: string }) {
  const bare = isObject(value) && Object.keys(value).length === 1 && "result" in value ? value.result : value;
  const text = useMemo(() => (typeof bare === "string" ? bare : JSON.stringify(bare, null, 2)), [bare]);
  return <Text text={text} language={typeof bare === "string" ? "text" : "json"} label="Result" file={typeof bare === "string" ? `${name}.txt` : `${name}.json`} />;
}

export function Text({ text, language, label, file }: { text: string; language: Language; label: string; file: string }) {
  return (
    <div class="text-block">
      <div class="actions end">
        <span class="quiet">{size(text.length)}</span>
        <Copy text={text} label="Copy" />
        <Button small onClick={() => saveAs(file, text)}>Save</Button>
      </div>
      <BigText text={text} language={language} label={label} />
    </div>
  );
}

export function Block({ block, name, index }: { block: JsonObject; name: string; index: number }) {
  const label = `Part ${index + 1}`;
  const type = String(block.mimeType ?? "");
  switch (block.type) {
    case "text":
      return <PlainText text={String(block.text ?? "")} label={label} file={`${name}.txt`} />;
    case "image":
      return PICTURES.has(type) && typeof block.data === "string" ? (
        <figure class="picture">
          <img src={`data:${type};base64,${block.data}`} alt={`Picture from ${name}`} />
        </figure>
      ) : <Binary data={block.data} type={type} name={name} what="A picture" />;
    case "audio":
      return <Binary data={block.data} type={type} name={name} what="Sound" />;
    case "resource": {
      const resource = isObject(block.resource) ? block.resource : {};
      return <Contents contents={resource} name={name} />;
    }
    case "resource_link":
      return <p>Resource <code>{String(block.uri)}</code> {block.name !== undefined && String(block.name)}</p>;
    default:
      return <Text text={JSON.stringify(block, null, 2)} language="json" label={label} file={`${name}.json`} />;
  }
}

/** Text that is JSON is set as JSON. */
export function PlainText({ text, label, file }: { text: string; label: string; file: string }) {
  const pretty = useMemo(() => {
    if (!/^\s*[[{]/.test(text)) return undefined;
    try {
      return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      return undefined;
    }
  }, [text]);
  return <Text text={pretty ?? text} language={pretty ? "json" : "text"} label={label} file={file} />;
}

/** What a resource holds: text, or bytes to save. */
export function Contents({ contents, name }: { contents: JsonObject; name: string }) {
  const type = String(contents.mimeType ?? "");
  if (typeof contents.text === "string") return <PlainText text={contents.text} label={String(contents.uri ?? name)} file={fileName(contents.uri, name)} />;
  if (PICTURES.has(type) && typeof contents.blob === "string") {
    return <figure class="picture"><img src={`data:${type};base64,${contents.blob}`} alt={String(contents.uri ?? name)} /></figure>;
  }
  return <Binary data={contents.blob} type={type} name={fileName(contents.uri, name)} what={String(contents.uri ?? "A file")} />;
}

function fileName(uri: unknown, otherwise: string): string {
  return String(uri ?? "").split("/").pop()?.replace(/[^\w.-]/g, "_") || otherwise;
}

function Binary({ data, type, name, what }: { data: unknown; type: string; name: string; what: string }) {
  const text = typeof data === "string" ? data : "";
  return (
    <p>
      {what} {type && <code>{type}</code>} {size(Math.floor((text.length * 3) / 4))}{" "}
      <Button small onClick={() => saveAs(name, Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), "application/octet-stream")}>Save</Button>
    </p>
  );
}
