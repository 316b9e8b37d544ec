// How a client reaches a namespace.
import { configuration } from "../snippets.ts";
import { Snippet, useAddress } from "./snippets.tsx";

export function Connect({ namespace }: { namespace: string }) {
  const address = useAddress(namespace);
  return (
    <>
      <p>Clients of MCP connect to the address below with a bearer token. The token stays a variable here; put it where your client keeps secrets.</p>
      <Snippet title="Configuration of a client" text={configuration(address, namespace)} language="json" />
      <Snippet title="Claude Code" text={`claude mcp add --transport http ${namespace} ${address} --header "Authorization: Bearer $BEARER_TOKEN"`} language="text" />
      <Snippet
        title="Python"
        language="python"
        text={`import asyncio
import os

from fastmcp import Client


async def main():
    async with Client(${JSON.stringify(address)}, auth=os.environ["BEARER_TOKEN"]) as client:
        for tool in await client.list_tools():
            print(tool.name, tool.description)


asyncio.run(main())
`}
      />
    </>
  );
}
