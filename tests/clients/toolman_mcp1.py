"""The official Python SDK, 1.x, with `tooldock toolman` over its own stdio transport.

Arguments: the program, the folder of the project. Prints one JSON line with what it saw.
"""

import asyncio
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

PROGRAM, FOLDER = sys.argv[1:]


async def main() -> None:
    seen = {}
    server = StdioServerParameters(command=PROGRAM, args=["toolman"], cwd=FOLDER)
    async with stdio_client(server) as (read, write), ClientSession(read, write) as client:
        await client.initialize()

        async def has(name):
            return name in {tool.name for tool in (await client.list_tools()).tools}

        seen["before"] = await has("vec_index")
        lists = {"tools_on": ["vec_index"], "tools_off": [], "resources_on": [], "resources_off": []}
        await client.call_tool("toolman_activate", lists)
        seen["after"] = await has("vec_index")
        seen["ran"] = (await client.call_tool("vec_index", {})).content[0].text
        seen["prompts"] = [prompt.name for prompt in (await client.list_prompts()).prompts]
    print(json.dumps(seen))


asyncio.run(main())
