// A call as curl, as Python and as the configuration of a client. The token is a variable in all of them.
import type { Json, JsonObject } from "./api.ts";
import { headerValue, META, VERSION } from "./meta.ts";

function shellQuoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

export function curl(address: string, tool: string, args: JsonObject): string {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params: { name: tool, arguments: args, _meta: META } });
  return [
    `curl -sN ${shellQuoted(address)}`,
    `  -H "Authorization: Bearer $BEARER_TOKEN" -H 'Content-Type: application/json'`,
    `  -H 'Accept: application/json, text/event-stream' -H 'MCP-Protocol-Version: ${VERSION}'`,
    `  -H 'Mcp-Method: tools/call' -H ${shellQuoted(`Mcp-Name: ${headerValue(tool)}`)}`,
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
