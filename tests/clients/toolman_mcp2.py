"""The official Python SDK, 2.x, with `tooldock toolman` over its own stdio transport, in the mode it is told.

Arguments: the program, the folder of the project, `legacy` or `auto`. Prints one JSON line with what it saw.
"""

import json
import sys
import warnings

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

warnings.simplefilter("ignore")
PROGRAM, FOLDER, MODE = sys.argv[1:]


async def main() -> None:
    seen = {}
    server = StdioServerParameters(command=PROGRAM, args=["toolman"], cwd=FOLDER)
    async with Client(stdio_client(server), mode=MODE, cache=None) as client:
        seen["version"] = client.protocol_version

        async def has(name):
            return name in {tool.name for tool in (await client.list_tools()).tools}

        seen["before"] = await has("vec_index")
        lists = {"tools_on": ["vec_index"], "tools_off": [], "resources_on": [], "resources_off": []}
        await client.call_tool("toolman_activate", lists)
        seen["after"] = await has("vec_index")
        seen["ran"] = (await client.call_tool("vec_index", {})).content[0].text
        seen["read"] = (await client.read_resource("pjpd_projects://list")).contents[0].text
        steps = []

        async def step(progress, total, message):
            steps.append(progress)

        await client.call_tool("pjpd_steps", {}, progress_callback=step)
        seen["progress"] = steps
    print(json.dumps(seen))


anyio.run(main)
