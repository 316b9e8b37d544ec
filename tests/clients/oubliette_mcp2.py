"""The official Python SDK, 2.x, with `oubliette-client` over its own stdio transport, in the mode it is told.

Arguments: the program, the relay's socket, `legacy` or `auto`. The key is in the environment. Prints one JSON line with
what it saw.
"""

import json
import os
import sys
import warnings

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

warnings.simplefilter("ignore")
PROGRAM, SOCKET, MODE = sys.argv[1:]


async def main() -> None:
    seen = {}
    environment = {name: value for name, value in os.environ.items() if name.startswith("OUBLIETTE_")}
    server = StdioServerParameters(command=PROGRAM, args=[SOCKET], env=environment)
    async with Client(stdio_client(server), mode=MODE, cache=None) as client:
        seen["version"] = client.protocol_version
        seen["tools"] = sorted(tool.name for tool in (await client.list_tools()).tools)
        seen["calls"] = []
        for _ in range(2):
            answer = await client.call_tool("oubliette_project_create", {"name": f"of-{MODE}"})
            seen["calls"].append([answer.content[0].text, answer.is_error])
        steps = []

        async def step(progress, total, message):
            steps.append(progress)

        await client.call_tool("oubliette_session_steps", {}, progress_callback=step)
        seen["progress"] = steps
    print(json.dumps(seen))


anyio.run(main)
