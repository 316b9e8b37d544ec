// Host of MCP Apps (SEP-1865): answers the messages of a tool's page that is shown in a frame. This file uses no frame itself, so
// that tests run without a browser; `pages/app-frame.tsx` connects it to the frame.
import type { Json, JsonObject } from "./api.ts";
import { isObject } from "./schema.ts";

/** Revision of MCP Apps, which defines the messages between a page and its host. */
const APP_VERSION = "2026-01-26";
/** Maximum number of requests of a page that run at the same time. */
const MOST_REQUESTS = 8;
/** Minimum and maximum height of a frame, in pixels. */
const HEIGHTS = [80, 1200] as const;

/** Data and functions that a page can use: its tool's call, requests to the page's own server, and the size of the frame. */
export interface AppHost {
  /** Arguments of the tool call for which the page is shown; `result` is the call's result. */
  input: JsonObject;
  result: JsonObject;
  theme: "light" | "dark";
  /** Sends a message to the page. */
  post(message: JsonObject): void;
  /** Returns true if the page may call a tool of its server. */
  mayCall(tool: string): Promise<boolean>;
  /** Returns true if the page may read a resource of its server. */
  mayRead(uri: string): Promise<boolean>;
  request(method: string, params: JsonObject): Promise<JsonObject>;
  resize(height: number): void;
}

class Refused extends Error {
  readonly code: number;
  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

/** Returns a function to which each message from the page must be passed. */
export function appHost(host: AppHost): (message: unknown) => void {
  let running = 0;
  let told = false;
  const answer = async (id: Json, method: string, params: JsonObject) => {
    const reply = (more: JsonObject) => host.post({ jsonrpc: "2.0", id, ...more });
    if (running >= MOST_REQUESTS) return reply({ error: { code: -32000, message: `a page may have ${MOST_REQUESTS} requests at the same time` } });
    running += 1;
    try {
      reply({ result: await answered(host, method, params) });
    } catch (error) {
      const { code = -32000, message } = error as Refused;
      reply({ error: { code: typeof code === "number" ? code : -32000, message } });
    } finally {
      running -= 1;
    }
  };
  return (message) => {
    if (!isObject(message as Json) || typeof (message as JsonObject).method !== "string") return;
    const { id, method, params } = message as { id?: Json; method: string; params?: Json };
    const given: JsonObject = isObject(params) ? params : {};
    if (typeof id === "number" || typeof id === "string") void answer(id, method, given);
    else if (method === "ui/notifications/initialized") {
      if (told) return;
      told = true;
      host.post({ jsonrpc: "2.0", method: "ui/notifications/tool-input", params: { arguments: host.input } });
      host.post({ jsonrpc: "2.0", method: "ui/notifications/tool-result", params: host.result });
    } else if (method === "ui/notifications/size-changed" && typeof given.height === "number") {
      host.resize(Math.min(Math.max(Math.ceil(given.height) || 0, HEIGHTS[0]), HEIGHTS[1]));
    }
  };
}

async function answered(host: AppHost, method: string, params: JsonObject): Promise<JsonObject> {
  switch (method) {
    case "ui/initialize":
      return {
        protocolVersion: APP_VERSION,
        hostInfo: { name: "tooldock-web", version: "1" },
        hostCapabilities: { serverTools: {}, serverResources: {} },
        hostContext: { theme: host.theme, displayMode: "inline", availableDisplayModes: ["inline"], platform: "web" },
      };
    case "ping":
      return {};
    case "tools/call": {
      const name = String(params.name ?? "");
      if (!(await host.mayCall(name))) throw new Refused(-32602, `the page may not call ${name}: its server has no such tool for pages`);
      return host.request(method, { name, arguments: isObject(params.arguments) ? params.arguments : {} });
    }
    case "resources/read": {
      const uri = String(params.uri ?? "");
      if (!(await host.mayRead(uri))) throw new Refused(-32602, `the page may not read ${uri}`);
      return host.request(method, { uri });
    }
    default:
      throw new Refused(-32601, `${method} is not offered by the web interface`);
  }
}

/** Returns the settings of MCP Apps (`_meta.ui`) of a tool, a resource or its contents; an empty object if there are none. */
function uiOf(object: JsonObject): JsonObject {
  const meta = isObject(object._meta) ? object._meta : {};
  return isObject(meta.ui) ? meta.ui : {};
}

/** Returns the URI of the page that is shown with a tool's results; undefined if the tool names no page. */
export function pageOf(tool: JsonObject): string | undefined {
  const flat = isObject(tool._meta) ? tool._meta["ui/resourceUri"] : undefined;
  const uri = uiOf(tool).resourceUri ?? flat;
  return typeof uri === "string" && uri.startsWith("ui://") ? uri : undefined;
}

/** Returns true if pages may call a tool: it has no list `visibility`, or the list contains "app". Otherwise returns false. */
export function isForPages(tool: JsonObject): boolean {
  const { visibility } = uiOf(tool);
  return !Array.isArray(visibility) || visibility.includes("app");
}

/** Maximum number of hosts that are shown to the user, and maximum length of each, in characters. */
const MOST_HOSTS = [20, 100] as const;

/** Returns the page in a result of `resources/read`: its HTML, and the hosts that it wants to use. Undefined without HTML. */
export function pageIn(result: JsonObject): { html: string; wanted: string[] } | undefined {
  const contents = Array.isArray(result.contents) ? result.contents.find(isObject) : undefined;
  if (!contents) return undefined;
  const csp = uiOf(contents).csp;
  const wanted = isObject(csp) ? Object.values(csp).flatMap((list) => (Array.isArray(list) ? list.map(String) : [])) : [];
  const html = typeof contents.text === "string" ? contents.text : typeof contents.blob === "string" ? decoded(contents.blob) : undefined;
  const shown = [...new Set(wanted)].slice(0, MOST_HOSTS[0]).map((host) => host.slice(0, MOST_HOSTS[1]));
  return html === undefined ? undefined : { html, wanted: shown };
}

function decoded(base64: string): string {
  return new TextDecoder().decode(Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)));
}
