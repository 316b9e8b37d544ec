// The same call from elsewhere: curl, Python, the configuration of a client. The token is a variable in all of them.
import type { Json, JsonObject } from "../api.ts";
import { get } from "../api.ts";
import { useLoad } from "../hooks.ts";
import { META } from "../mcp.ts";
import type { Me } from "../types.ts";
import { Copy } from "../ui/basics.tsx";
import { BigText } from "../ui/bigtext.tsx";

/** The address that clients use. */
export function useAddress(namespace: string): string {
  const me = useLoad("me", (abort) => get<Me>("/api/me", abort));
  const base = (me.data?.mcp_url ?? location.origin).replace(/\/$/, "");
  return `${base}/mcp/${encodeURIComponent(namespace)}`;
}

function shellQuoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

export function curl(address: string, tool: string, args: JsonObject): string {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: tool, arguments: args, _meta: META } });
  const ascii = /^[\x21-\x7e]+$/.test(tool);
  return [
    `curl -sN ${shellQuoted(address)}`,
    `  -H "Authorization: Bearer $BEARER_TOKEN" -H 'Content-Type: application/json'`,
    `  -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: 2026-07-28'`,
    `  -H 'Mcp-Method: tools/call' -H ${shellQuoted(`Mcp-Name: ${ascii ? tool : `=?base64?${btoa(String.fromCharCode(...new TextEncoder().encode(tool)))}?=`}`)}`,
    `  -d ${shellQuoted(body)}`,
  ].join(" \\\n");
}

export function configuration(address: string, namespace: string): string {
  return JSON.stringify({ mcpServers: { [namespace]: { type: "http", url: address, headers: { Authorization: "Bearer ${BEARER_TOKEN}" } } } }, null, 2);
}

export function pythonValue(value: Json, indent = ""): string {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const deeper = `${indent}    `;
  if (Array.isArray(value)) return value.length ? `[${value.map((item) => pythonValue(item, deeper)).join(", ")}]` : "[]";
  const members = Object.entries(value).map(([name, member]) => `${deeper}${JSON.stringify(name)}: ${pythonValue(member, deeper)},`);
  return members.length ? `{\n${members.join("\n")}\n${indent}}` : "{}";
}

export function python(address: string, tool: string, args: JsonObject): string {
  return `import asyncio
import os

from fastmcp import Client


async def main():
    async with Client(${JSON.stringify(address)}, auth=os.environ["BEARER_TOKEN"]) as client:
        result = await client.call_tool(${JSON.stringify(tool)}, ${pythonValue(args, "        ")})
        print(result.data)


asyncio.run(main())
`;
}

export function Snippets({ namespace, tool, args }: { namespace: string; tool: string; args: () => JsonObject }) {
  const address = useAddress(namespace);
  return (
    <section class="snippets" aria-label="The same call from elsewhere">
      <h3>From elsewhere</h3>
      <div class="actions">
        <Copy label="Copy as curl" text={() => curl(address, tool, args())} />
        <Copy label="Copy as Python" text={() => python(address, tool, args())} />
        <Copy label="Copy client configuration" text={() => configuration(address, namespace)} />
      </div>
    </section>
  );
}

export function Snippet({ title, text, language }: { title: string; text: string; language: "json" | "python" | "text" }) {
  return (
    <section class="text-block" aria-label={title}>
      <div class="form-head"><h3>{title}</h3><Copy text={text} label="Copy" /></div>
      <BigText text={text} language={language} label={title} />
    </section>
  );
}
