"""The official Python SDK, 2.x, through everything a client does, in the mode it is told.

Arguments: base URL, token, namespace, `legacy`, `auto` or a modern revision. Prints one JSON line with what it saw.
"""

import json
import sys
import warnings

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from python_shared import status_after_the_end, until

warnings.simplefilter("ignore")
BASE, TOKEN, NAMESPACE, MODE = sys.argv[1:]
HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Namespace": NAMESPACE}
WATCHED = "test://watched-resource"


async def sample(_context, params):
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(type="text", text="hi from the client"), model="none"
    )


async def elicit(_context, params):
    return types.ElicitResult(action="accept", content={"username": "ada", "email": "ada@example.org"})


async def roots(_context):
    return types.ListRootsResult(roots=[types.Root(uri="file:///workspace", name="workspace")])


async def main() -> None:
    logs, notices, sessions = [], [], []

    async def log(params):
        logs.append(params.data)

    async def message(message):
        notices.append(message)

    async def remember_session(response):
        sessions.extend(filter(None, [response.headers.get("mcp-session-id")]))

    http = create_mcp_http_client(headers=HEADERS)
    http.event_hooks["response"].append(remember_session)
    seen = {}
    async with http:
        async with Client(
            streamable_http_client(f"{BASE}/mcp", http_client=http),
            mode=MODE,
            sampling_callback=sample,
            elicitation_callback=elicit,
            list_roots_callback=roots,
            logging_callback=log,
            log_level="debug",
            message_handler=message,
        ) as client:
            seen["version"] = client.protocol_version
            modern = client.protocol_version >= "2026"

            async def call(name, arguments=None, **more):
                result = await client.call_tool(name, arguments or {}, **more)
                return result, result.content[0].text

            names = {tool.name for tool in (await client.list_tools()).tools}
            seen["listed"] = {"test_simple_text", "slow", "update_resource"} <= names
            seen["text"] = (await call("test_simple_text"))[1]
            seen["failed"] = (await call("test_error_handling"))[0].is_error

            async def calls_with_progress(name, arguments=None):
                steps = []

                async def step(progress, total, message):
                    steps.append(progress)

                await call(name, arguments, progress_callback=step)
                return steps

            seen["progress"] = await calls_with_progress("test_tool_with_progress")
            if not modern:
                await client.set_logging_level("debug")
            await call("test_tool_with_logging")
            seen["logs"] = list(logs)
            seen["elicited"] = "ada@example.org" in (await call("test_elicitation", {"message": "Who?"}))[1]
            seen["sampled"] = "hi from the client" in (await call("test_sampling", {"prompt": "Hi"}))[1]
            asks_roots = "test_input_required_result_list_roots" if modern else "list_roots"
            seen["roots"] = "file:///workspace" in (await call(asks_roots))[1]
            completion = await client.complete(
                types.PromptReference(name="city_prompt"), {"name": "city", "value": "par"}
            )
            seen["completed"] = completion.completion.values
            seen["resource"] = (await client.read_resource("test://static-text")).contents[0].text
            template = await client.read_resource("test://template/7/data")
            seen["template"] = json.loads(template.contents[0].text)["id"]
            prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "one", "arg2": "two"})
            seen["prompt"] = prompt.messages[0].content.text

            async def hears_changes(has):
                seen["updated"] = await until(
                    lambda: has("ResourceUpdated"), lambda: call("update_resource", {"uri": WATCHED})
                )
                seen["list_changed"] = await until(
                    lambda: has("ToolListChanged", "ToolsListChanged"), lambda: call("test_trigger_tool_change")
                )

            def heard(*kinds):
                return any(type(notice).__name__.removesuffix("Notification") in kinds for notice in notices)

            if modern:
                async with client.listen(tools_list_changed=True, resource_subscriptions=[WATCHED]) as subscription:

                    async def collect():
                        async for event in subscription:
                            notices.append(event)

                    async with anyio.create_task_group() as group:
                        group.start_soon(collect)
                        await hears_changes(heard)
                        group.cancel_scope.cancel()
            else:
                await client.subscribe_resource(WATCHED)
                await hears_changes(heard)
                await client.unsubscribe_resource(WATCHED)

            # A legacy client resumes what the gateway closes meanwhile; a modern stream stays open to the end.
            seen["resumed"] = await calls_with_progress("slow", {"ms": 1000, "every": 100})

            cancelled = len(json.loads((await call("cancelled_ids"))[1]))
            with anyio.move_on_after(0.3):
                await call("slow", {"ms": 60_000, "every": 100})

            async def count_cancelled():
                counted.append(len(json.loads((await call("cancelled_ids"))[1])))

            counted = [cancelled]
            seen["cancelled"] = await until(lambda: counted[-1] == cancelled + 1, count_cancelled)
    if modern:
        seen["sessions"] = len(sessions)
    else:
        seen["ended"] = await status_after_the_end(BASE, HEADERS, "streamable", sessions[-1], seen["version"])
    print(json.dumps(seen))


if __name__ == "__main__":
    anyio.run(main)
