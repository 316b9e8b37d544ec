// MCP on the same listener, in the version without sessions: one POST each, progress and log messages on the way.
import { ApiError, events, path, send, type Json, type JsonObject } from "./api.ts";
import { headerValue, META, VERSION } from "./meta.ts";

export interface Note {
  method: string;
  params: JsonObject;
}

export interface Answer {
  result: JsonObject;
  requestId: string | null;
}

interface Message {
  method?: string;
  params?: JsonObject;
  result?: JsonObject;
  error?: { code: number; message: string; data?: Json };
}

/**
 * One request. `params` is an object, or JSON text that is sent as it was typed (numbers keep all their digits).
 * Aborting cancels what runs at the server.
 */
export async function request(namespace: string, method: string, params: JsonObject, options: { name?: string; rawArguments?: string; onNote?: (note: Note) => void; signal?: AbortSignal } = {}): Promise<Answer> {
  const meta: JsonObject = { ...META, ...(options.onNote ? { "io.modelcontextprotocol/logLevel": "debug", progressToken: 1 } : {}) };
  let body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params: { ...params, _meta: meta } });
  // Text that parses as JSON can only stand for the one value that it is put in place of.
  if (options.rawArguments !== undefined) body = body.replace(/,"_meta":/, () => `,"arguments":${options.rawArguments},"_meta":`);
  const answer = await send(path`/mcp/${namespace}`, {
    method: "POST",
    body,
    signal: options.signal,
    headers: {
      Accept: "application/json, text/event-stream",
      "MCP-Protocol-Version": VERSION,
      "Mcp-Method": method,
      ...(options.name === undefined ? {} : { "Mcp-Name": headerValue(options.name) }),
    },
  });
  const requestId = answer.headers.get("X-Request-Id");
  const taken = (message: Message): Answer | undefined => {
    if (message.method) options.onNote?.({ method: message.method, params: message.params ?? {} });
    if (message.error) throw new ApiError(200, String(message.error.code), message.error.message, message.error.data);
    return message.result && { result: message.result, requestId };
  };
  if (answer.headers.get("Content-Type")?.startsWith("text/event-stream")) {
    for await (const event of events(answer)) {
      if (event.data === "") continue;
      const end = taken(JSON.parse(event.data) as Message);
      if (end) return end;
    }
    throw new ApiError(0, "interrupted", "The connection ended before the result came. Activity shows whether the call finished.");
  }
  const end = taken((await answer.json()) as Message);
  if (!end) throw new ApiError(0, "no_result", "The answer has neither a result nor an error.");
  return end;
}
