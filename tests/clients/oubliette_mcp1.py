"""The official Python SDK, 1.x, with `oubliette-client` over its own stdio transport.

Arguments: the program, the relay's socket. The key is in the environment. Prints one JSON line with what it saw.
"""

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

PROGRAM, SOCKET = sys.argv[1:]


async def main() -> None:
    seen = {"calls": []}
    environment = {name: value for name, value in os.environ.items() if name.startswith("OUBLIETTE_")}
    server = StdioServerParameters(command=PROGRAM, args=[SOCKET], env=environment)
    async with stdio_client(server) as (read, write), ClientSession(read, write) as client:
        await client.initialize()
        seen["tools"] = sorted(tool.name for tool in (await client.list_tools()).tools)
        for _ in range(2):
            answer = await client.call_tool("oubliette_project_create", {"name": "of-1"})
            seen["calls"].append([answer.content[0].text, answer.isError])
    print(json.dumps(seen))


asyncio.run(main())
