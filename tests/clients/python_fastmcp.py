"""The FastMCP client through everything a client does, in the mode it is told.

Arguments: base URL, token, namespace, `legacy` or `auto`. Prints one JSON line with what it saw.
"""

import json
import os
import sys
import warnings

os.environ["FASTMCP_CHECK_FOR_UPDATES"] = "off"

import anyio
import mcp_types as types
from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport

from python_shared import status_after_the_end, until

warnings.simplefilter("ignore")
BASE, TOKEN, NAMESPACE, MODE = sys.argv[1:]
HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Namespace": NAMESPACE}
WATCHED = "test://watched-resource"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"


async def sample(messages, params, context):
    return "hi from the client"


async def elicit(message, response_type, params, context):
    return {"username": "ada", "email": "ada@example.org"}


async def main() -> None:
    logs, notices = [], []

    async def log(message):
        logs.append(message.data)

    async def message(message):
        notices.append(message)

    transport = StreamableHttpTransport(f"{BASE}/mcp", headers=HEADERS)
    client = Client(
        transport,
        mode=MODE,
        roots=["file:///workspace"],
        sampling_handler=sample,
        elicitation_handler=elicit,
        log_handler=log,
        message_handler=message,
    )
    seen = {}
    async with client:
        seen["version"] = client.protocol_version
        modern = client.protocol_version >= "2026"

        async def call(name, arguments=None, **more):
            result = await client.call_tool(name, arguments or {}, raise_on_error=False, **more)
            return result, result.content[0].text

        names = {tool.name for tool in await client.list_tools()}
        seen["listed"] = {"test_simple_text", "slow", "update_resource"} <= names
        seen["text"] = (await call("test_simple_text"))[1]
        seen["failed"] = (await call("test_error_handling"))[0].is_error

        async def calls_with_progress(name, arguments=None):
            steps = []

            async def step(progress, total, message):
                steps.append(progress)

            await call(name, arguments, progress_handler=step)
            return steps

        seen["progress"] = await calls_with_progress("test_tool_with_progress")
        if modern:
            await call("test_tool_with_logging", meta={LOG_LEVEL: "debug"})
        else:
            await client.set_logging_level("debug")
            await call("test_tool_with_logging")
        seen["logs"] = list(logs)
        seen["elicited"] = "ada@example.org" in (await call("test_elicitation", {"message": "Who?"}))[1]
        seen["sampled"] = "hi from the client" in (await call("test_sampling", {"prompt": "Hi"}))[1]
        asks_roots = "test_input_required_result_list_roots" if modern else "list_roots"
        seen["roots"] = "file:///workspace" in (await call(asks_roots))[1]
        completion = await client.complete(types.PromptReference(name="city_prompt"), {"name": "city", "value": "par"})
        seen["completed"] = completion.values
        seen["resource"] = (await client.read_resource("test://static-text"))[0].text
        seen["template"] = json.loads((await client.read_resource("test://template/7/data"))[0].text)["id"]
        prompt = await client.get_prompt("test_prompt_with_arguments", {"arg1": "one", "arg2": "two"})
        seen["prompt"] = prompt.messages[0].content.text

        if not modern:

            def heard(kind):
                return any(type(notice).__name__ == kind for notice in notices)

            await client.session.subscribe_resource(WATCHED)
            seen["updated"] = await until(
                lambda: heard("ResourceUpdatedNotification"), lambda: call("update_resource", {"uri": WATCHED})
            )
            seen["list_changed"] = await until(
                lambda: heard("ToolListChangedNotification"), lambda: call("test_trigger_tool_change")
            )

        seen["resumed"] = await calls_with_progress("slow", {"ms": 1000, "every": 100})

        cancelled = len(json.loads((await call("cancelled_ids"))[1]))
        with anyio.move_on_after(0.3):
            await call("slow", {"ms": 60_000, "every": 100})

        async def count_cancelled():
            counted.append(len(json.loads((await call("cancelled_ids"))[1])))

        counted = [cancelled]
        seen["cancelled"] = await until(lambda: counted[-1] == cancelled + 1, count_cancelled)
        session = transport.get_session_id()
    if modern:
        seen["sessions"] = int(session is not None)
    else:
        seen["ended"] = await status_after_the_end(BASE, HEADERS, "streamable", session, seen["version"])
    print(json.dumps(seen))


if __name__ == "__main__":
    anyio.run(main)
