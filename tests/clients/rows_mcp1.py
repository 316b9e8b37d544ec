"""Calls tools through the official Python SDK, 1.x, which checks each result against the tool's output schema.

Arguments: URL of the MCP endpoint, token. Reads from standard input a JSON list of calls, each `[tool, arguments]`. Prints
one JSON object: `instructions` of the server, `listed`, the description of each tool by its name, and `results`, for each
call `[how it ended, text]`, where a call ends as `ok`, `refused` (a result with isError) or `raised` (the SDK refused the answer). An argument `$MEMBER` stands for that
member of the last result that had one.
"""

import asyncio
import json
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

URL, TOKEN = sys.argv[1:]


async def ended(session, members, tool, arguments):
    arguments = {name: members.get(value, value) if isinstance(value, str) else value for name, value in arguments.items()}
    try:
        result = await session.call_tool(tool, arguments)
    except Exception as error:
        return ["raised", str(error)]
    members.update({f"${name}": value for name, value in (result.structuredContent or {}).items()})
    return ["refused" if result.isError else "ok", result.content[0].text]


async def main() -> None:
    calls = json.load(sys.stdin)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with streamablehttp_client(URL, headers=headers) as (read, write, _):
        async with ClientSession(read, write) as session:
            instructions = (await session.initialize()).instructions
            listed = {tool.name: tool.description for tool in (await session.list_tools()).tools}
            members = {}
            results = [await ended(session, members, *call) for call in calls]
    print(json.dumps({"instructions": instructions, "listed": listed, "results": results}))


asyncio.run(main())
