"""Client of the Python SDK 1.x that runs the tool `asks` as a task, and answers the task's question while it waits for the result.

Arguments: URL, token, `mcp` for Streamable HTTP or `sse` for HTTP+SSE. Prints one JSON object: the question, the state of the
task and the text of its result.
"""

import asyncio
import json
import sys

from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamablehttp_client
from mcp.types import CallToolResult, ElicitResult

URL, TOKEN, TRANSPORT = sys.argv[1:]
asked = []


async def answers(_context, params) -> ElicitResult:
    asked.append(params.message)
    return ElicitResult(action="accept", content={"value": True})


async def main() -> None:
    connect = streamablehttp_client if TRANSPORT == "mcp" else sse_client
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Namespace": "jobs"}
    async with connect(URL, headers=headers) as (read, write, *_):
        async with ClientSession(read, write, elicitation_callback=answers) as session:
            await session.initialize()
            task = (await session.experimental.call_tool_as_task("asks", {})).task
            async for status in session.experimental.poll_task(task.taskId):
                if status.status == "input_required":
                    break
            result = await session.experimental.get_task_result(task.taskId, CallToolResult)
            status = await session.experimental.get_task(task.taskId)
    print(json.dumps({"asked": asked[0], "status": status.status, "text": result.content[0].text}))


asyncio.run(main())
