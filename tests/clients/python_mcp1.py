"""The official Python SDK, 1.x, through everything a client does, over Streamable HTTP or HTTP+SSE.

Arguments: base URL, token, namespace, `streamable` or `sse`. Prints one JSON line with what it saw.
"""

import asyncio
import json
import sys
from contextlib import asynccontextmanager

import mcp.types as types
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamablehttp_client
from pydantic import AnyUrl

from python_shared import status_after_the_end, until

BASE, TOKEN, NAMESPACE, TRANSPORT = sys.argv[1:]
HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Namespace": NAMESPACE}
WATCHED = AnyUrl("test://watched-resource")


@asynccontextmanager
async def connect():
    """The two streams of a transport, and a function that knows the session's id."""
    if TRANSPORT == "sse":
        ids = []
        async with sse_client(f"{BASE}/sse", headers=HEADERS, on_session_created=ids.append) as (read, write):
            yield read, write, lambda: ids[0]
    else:
        async with streamablehttp_client(f"{BASE}/mcp", headers=HEADERS) as (read, write, session_id):
            yield read, write, session_id


async def sample(_context, params):
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(type="text", text="hi from the client"), model="none"
    )


async def elicit(_context, params):
    return types.ElicitResult(action="accept", content={"username": "ada", "email": "ada@example.org"})


async def roots(_context):
    return types.ListRootsResult(roots=[types.Root(uri="file:///workspace", name="workspace")])


async def main() -> None:
    logs, notices = [], []

    async def log(params):
        logs.append(params.data)

    async def message(message):
        if isinstance(message, types.ServerNotification):
            notices.append(message.root)

    seen = {}
    async with connect() as (read, write, session_id):
        async with ClientSession(
            read,
            write,
            sampling_callback=sample,
            elicitation_callback=elicit,
            list_roots_callback=roots,
            logging_callback=log,
            message_handler=message,
        ) as session:
            initialized = await session.initialize()
            seen["version"] = initialized.protocolVersion
            await session.send_ping()

            async def call(name, arguments=None, **more):
                result = await session.call_tool(name, arguments or {}, **more)
                return result, result.content[0].text

            names = {tool.name for tool in (await session.list_tools()).tools}
            seen["listed"] = {"test_simple_text", "slow", "update_resource"} <= names
            seen["text"] = (await call("test_simple_text"))[1]
            seen["failed"] = (await call("test_error_handling"))[0].isError

            async def calls_with_progress(name, arguments=None):
                steps = []

                async def step(progress, total, message):
                    steps.append(progress)

                await call(name, arguments, progress_callback=step)
                return steps

            seen["progress"] = await calls_with_progress("test_tool_with_progress")
            await session.set_logging_level("debug")
            await call("test_tool_with_logging")
            seen["logs"] = list(logs)
            seen["elicited"] = "ada@example.org" in (await call("test_elicitation", {"message": "Who?"}))[1]
            seen["sampled"] = "hi from the client" in (await call("test_sampling", {"prompt": "Hi"}))[1]
            seen["roots"] = "file:///workspace" in (await call("list_roots"))[1]
            completion = await session.complete(
                types.PromptReference(type="ref/prompt", name="city_prompt"), {"name": "city", "value": "par"}
            )
            seen["completed"] = completion.completion.values
            seen["resource"] = (await session.read_resource(AnyUrl("test://static-text"))).contents[0].text
            template = await session.read_resource(AnyUrl("test://template/7/data"))
            seen["template"] = json.loads(template.contents[0].text)["id"]
            prompt = await session.get_prompt("test_prompt_with_arguments", {"arg1": "one", "arg2": "two"})
            seen["prompt"] = prompt.messages[0].content.text

            def has(kind):
                return any(isinstance(notice, kind) for notice in notices)

            await session.subscribe_resource(WATCHED)
            seen["updated"] = await until(
                lambda: has(types.ResourceUpdatedNotification),
                lambda: call("update_resource", {"uri": str(WATCHED)}),
            )
            await session.unsubscribe_resource(WATCHED)
            seen["list_changed"] = await until(
                lambda: has(types.ToolListChangedNotification), lambda: call("test_trigger_tool_change")
            )

            # The gateway closes the stream of a long call; the SDK resumes it with `Last-Event-ID`.
            seen["resumed"] = await calls_with_progress("slow", {"ms": 1000, "every": 100})

            cancelled = len(json.loads((await call("cancelled_ids"))[1]))
            request = session._request_id
            running = asyncio.create_task(call("slow", {"ms": 60_000, "every": 100}))
            await asyncio.sleep(0.3)
            await session.send_notification(
                types.ClientNotification(
                    types.CancelledNotification(params=types.CancelledNotificationParams(requestId=request))
                )
            )

            async def count_cancelled():
                counted.append(len(json.loads((await call("cancelled_ids"))[1])))

            counted = [cancelled]
            seen["cancelled"] = await until(lambda: counted[-1] == cancelled + 1, count_cancelled)
            running.cancel()
            identity = session_id()
    seen["ended"] = await status_after_the_end(BASE, HEADERS, TRANSPORT, identity, seen["version"])
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main())
