// Resources and prompts of a namespace, read through MCP like any client does.
import { useState } from "preact/hooks";
import type { JsonObject } from "../api.ts";
import { useLoad } from "../hooks.ts";
import { request } from "../mcp.ts";
import { isObject } from "../schema.ts";
import { Button, Empty, Field, Loading, Problem } from "../ui/basics.tsx";
import { Block, Contents } from "./result.tsx";

const PAGE = 100;
/** Pages of a list that are fetched at once; a server with more is told so. */
const MOST_PAGES = 20;

async function list(namespace: string, method: string, member: string, signal: AbortSignal): Promise<JsonObject[]> {
  const all: JsonObject[] = [];
  let cursor: string | undefined;
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const { result } = await request(namespace, method, cursor === undefined ? {} : { cursor }, { signal });
    if (Array.isArray(result[member])) all.push(...result[member].filter(isObject));
    if (typeof result.nextCursor !== "string") break;
    cursor = result.nextCursor;
  }
  return all;
}

function useList(namespace: string, method: string, member: string) {
  return useLoad(`${method} ${namespace}`, (abort) => list(namespace, method, member, abort));
}

export function Resources({ namespace }: { namespace: string }) {
  const resources = useList(namespace, "resources/list", "resources");
  const templates = useList(namespace, "resources/templates/list", "resourceTemplates");
  const [uri, setUri] = useState("");
  const [shown, setShown] = useState<{ uri: string; turn: number } | null>(null);
  const [rows, setRows] = useState(PAGE);
  const read = (address: string) => setShown((before) => ({ uri: address, turn: (before?.turn ?? 0) + 1 }));
  const all = resources.data ?? [];
  return (
    <>
      {resources.error && <Problem error={resources.error} what="The resources could not be listed." retry={resources.reload} />}
      {resources.loading && !resources.data && <Loading what="the resources" />}
      {resources.data && templates.data && !all.length && !templates.data.length && <Empty>This namespace has no resources.</Empty>}
      {all.length > 0 && (
        <ul class="plain-list">
          {all.slice(0, rows).map((resource) => (
            <li key={String(resource.uri)}>
              <button type="button" class="as-link" onClick={() => read(String(resource.uri))}>{String(resource.title ?? resource.name ?? resource.uri)}</button>{" "}
              <code class="quiet">{String(resource.uri)}</code> {resource.mimeType !== undefined && <span class="tag">{String(resource.mimeType)}</span>}
              {typeof resource.description === "string" && <p class="quiet">{resource.description}</p>}
            </li>
          ))}
        </ul>
      )}
      {all.length > rows && <Button onClick={() => setRows(rows + PAGE)}>Show more</Button>}
      {(templates.data ?? []).length > 0 && (
        <>
          <h2>Templates</h2>
          <ul class="plain-list">
            {templates.data!.slice(0, PAGE).map((template) => (
              <li key={String(template.uriTemplate)}>
                <button type="button" class="as-link" onClick={() => setUri(String(template.uriTemplate))}>{String(template.uriTemplate)}</button>
                {typeof template.description === "string" && <p class="quiet">{template.description}</p>}
              </li>
            ))}
          </ul>
        </>
      )}
      {(all.length > 0 || (templates.data ?? []).length > 0) && (
        <form class="inline-form" onSubmit={(event) => (event.preventDefault(), uri && read(uri))}>
          <Field label="Address of a resource">
            {(control) => <input {...control} value={uri} onInput={(event) => setUri(event.currentTarget.value)} spellcheck={false} />}
          </Field>
          <Button submit>Read</Button>
        </form>
      )}
      {shown && <OneResource key={shown.turn} namespace={namespace} uri={shown.uri} />}
    </>
  );
}

function OneResource({ namespace, uri }: { namespace: string; uri: string }) {
  const loaded = useLoad(`read ${namespace} ${uri}`, async (abort) => (await request(namespace, "resources/read", { uri }, { name: uri, signal: abort })).result);
  return (
    <section class="result" aria-label={uri}>
      <h2>{uri}</h2>
      {loaded.loading && <Loading what="the resource" />}
      {loaded.error && <Problem error={loaded.error} retry={loaded.reload} />}
      {Array.isArray(loaded.data?.contents) && loaded.data.contents.filter(isObject).slice(0, 50).map((contents, index) => <Contents key={index} contents={contents} name="resource" />)}
    </section>
  );
}

export function Prompts({ namespace }: { namespace: string }) {
  const prompts = useList(namespace, "prompts/list", "prompts");
  const [rows, setRows] = useState(PAGE);
  const all = prompts.data ?? [];
  return (
    <>
      {prompts.error && <Problem error={prompts.error} what="The prompts could not be listed." retry={prompts.reload} />}
      {prompts.loading && !prompts.data && <Loading what="the prompts" />}
      {prompts.data && !all.length && <Empty>This namespace has no prompts.</Empty>}
      {all.slice(0, rows).map((prompt) => <OnePrompt key={String(prompt.name)} namespace={namespace} prompt={prompt} />)}
      {all.length > rows && <Button onClick={() => setRows(rows + PAGE)}>Show more</Button>}
    </>
  );
}

function OnePrompt({ namespace, prompt }: { namespace: string; prompt: JsonObject }) {
  const name = String(prompt.name);
  const parameters = Array.isArray(prompt.arguments) ? prompt.arguments.filter(isObject) : [];
  const [values, setValues] = useState<Record<string, string>>({});
  const [asked, setAsked] = useState<{ turn: number; values: Record<string, string> } | null>(null);
  const loaded = useLoad(asked && `prompt ${namespace} ${name} ${asked.turn}`, async (abort) =>
    (await request(namespace, "prompts/get", { name, arguments: asked!.values }, { name, signal: abort })).result,
  );
  const messages = Array.isArray(loaded.data?.messages) ? loaded.data.messages.filter(isObject) : [];
  return (
    <details class="card more">
      <summary>{String(prompt.title ?? name)}</summary>
      {typeof prompt.description === "string" && <p>{prompt.description}</p>}
      <form onSubmit={(event) => (event.preventDefault(), setAsked({ turn: (asked?.turn ?? 0) + 1, values }))}>
        {parameters.map((parameter) => {
          const own = String(parameter.name);
          return (
            <Field key={own} label={<>{own}{parameter.required === true && <span class="required"> required</span>}</>} hint={typeof parameter.description === "string" ? parameter.description : undefined}>
              {(control) => (
                <input
                  {...control}
                  value={values[own] ?? ""}
                  onInput={(event) => {
                    const { [own]: _, ...others } = values;
                    setValues(event.currentTarget.value ? { ...others, [own]: event.currentTarget.value } : others);
                  }}
                />
              )}
            </Field>
          );
        })}
        <Button submit busy={asked !== null && loaded.loading}>Show the prompt</Button>
      </form>
      {loaded.error && <Problem error={loaded.error} />}
      {messages.slice(0, 50).map((message, index) => (
        <section key={index} class="result" aria-label={`Message ${index + 1}`}>
          <h3>{String(message.role)}</h3>
          {isObject(message.content) && <Block block={message.content} name={name} index={index} />}
        </section>
      ))}
    </details>
  );
}
