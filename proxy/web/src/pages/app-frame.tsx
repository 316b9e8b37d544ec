// The page of a tool (MCP Apps), in a frame without access to this page, cookies, storage and files of other hosts.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { get, path, type JsonObject } from "../api.ts";
import { appHost, isForPages, pageIn, pageOf } from "../app-host.ts";
import { useLoad } from "../hooks.ts";
import { request } from "../mcp.ts";
import { shownTheme } from "../theme.ts";
import type { Namespace, Tool } from "../types.ts";
import { Button, Loading, Notice, Problem } from "../ui/basics.tsx";

/** Height of a frame until its page says otherwise, in pixels. */
const FIRST_HEIGHT = 300;

export function AppFrame({ namespace, uri, input, result }: { namespace: string; uri: string; input: JsonObject; result: JsonObject }) {
  // The page is code of the tool's server, so it runs only after the user has asked for it.
  const [wanted, setWanted] = useState(false);
  const loaded = useLoad(wanted ? `read ${namespace} ${uri}` : null, async (abort) => {
    const page = pageIn((await request(namespace, "resources/read", { uri }, { name: uri, signal: abort })).result);
    if (!page) throw new Error(`The resource ${uri} has no text.`);
    return page;
  });
  return (
    <section class="result" aria-label="Page">
      <h3>Page</h3>
      {!wanted && <Button onClick={() => setWanted(true)}>Show the page</Button>}
      {wanted && loaded.loading && !loaded.data && <Loading what="the page" />}
      {loaded.error && <Problem error={loaded.error} what="The page could not be read." retry={loaded.reload} />}
      {loaded.data && loaded.data.wanted.length > 0 && (
        <Notice kind="warn">
          Here the page loads nothing from other hosts. It wants {loaded.data.wanted.join(", ")}, which the client of a model may allow.
        </Notice>
      )}
      {loaded.data && <Frame namespace={namespace} uri={uri} html={loaded.data.html} input={input} result={result} />}
    </section>
  );
}

async function isAggregate(namespace: string, signal: AbortSignal): Promise<boolean> {
  return (await get<Namespace>(path`/api/namespaces/${namespace}`, signal)).kind === "aggregate";
}

/** Returns true if a page may call a tool: the tool is for pages, and belongs to the page's server. In an aggregate, only tools
 * that name the page are known to belong to its server. */
async function mayCall(namespace: string, uri: string, name: string, signal: AbortSignal): Promise<boolean> {
  try {
    const address = `${path`/api/namespaces/${namespace}/tool`}?${new URLSearchParams({ name })}`;
    const [tool, ofMany] = await Promise.all([get<Tool & JsonObject>(address, signal), isAggregate(namespace, signal)]);
    return isForPages(tool) && (!ofMany || pageOf(tool) === uri);
  } catch {
    return false;
  }
}

/** Returns true if a page may read a resource of its server. In an aggregate, only the page itself is known to belong to it. */
async function mayRead(namespace: string, page: string, uri: string, signal: AbortSignal): Promise<boolean> {
  return uri === page || !(await isAggregate(namespace, signal).catch(() => true));
}

function Frame({ namespace, uri, html, input, result }: { namespace: string; uri: string; html: string; input: JsonObject; result: JsonObject }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const [height, setHeight] = useState(FIRST_HEIGHT);
  // A layout effect adds the listener before the browser shows the frame, whose first messages would otherwise be lost.
  useLayoutEffect(() => {
    const running = new AbortController();
    // The target origin is "*", since a sandboxed document has no origin that can be named. Only this frame's window gets
    // messages.
    const post = (message: JsonObject) => frame.current?.contentWindow?.postMessage(message, "*");
    const take = appHost({
      input,
      result,
      theme: shownTheme.value,
      post,
      mayCall: (name) => mayCall(namespace, uri, name, running.signal),
      mayRead: (wanted) => mayRead(namespace, uri, wanted, running.signal),
      request: async (method, params) =>
        (await request(namespace, method, params, { name: String(params.name ?? params.uri), signal: running.signal })).result,
      resize: setHeight,
    });
    let sent = false;
    const heard = ({ source, data }: MessageEvent) => {
      if (source === null || source !== frame.current?.contentWindow) return;
      if (data?.method === "ui/notifications/sandbox-proxy-ready") {
        // Sent once, so that a page cannot request its HTML without end.
        if (!sent) post({ jsonrpc: "2.0", method: "ui/notifications/sandbox-resource-ready", params: { html } });
        sent = true;
      } else take(data);
    };
    addEventListener("message", heard);
    return () => {
      removeEventListener("message", heard);
      running.abort();
    };
  }, [namespace, uri, html, input, result]);
  return <iframe ref={frame} class="app-frame" title={`Page ${uri}`} sandbox="allow-scripts allow-forms" src="/assets/frame.html" height={height} />;
}
