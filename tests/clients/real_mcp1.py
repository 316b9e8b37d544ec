"""Servers of others, by the official Python SDK 1.x: directly over stdio, over Streamable HTTP, over HTTP+SSE."""

from contextlib import asynccontextmanager

import mcp.types as types
from mcp import ClientSession, McpError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from pydantic import AnyUrl

from real_shared import main, until, updated


def transport(target):
    if "command" in target:
        return stdio_client(StdioServerParameters(**target["command"]))
    connect = sse_client if target["via"] == "sse" else streamablehttp_client
    return connect(target["url"], headers=target["headers"])


async def sample(_context, params):
    content = types.TextContent(type="text", text=f"said {params.messages[0].content.text}")
    return types.CreateMessageResult(role="assistant", content=content, model="none")


async def elicit(_context, params):
    if getattr(params, "mode", "form") == "url":
        return types.ElicitResult(action="accept")
    return types.ElicitResult(action="accept", content={"name": "Ada", "check": True, "integer": 7})


@asynccontextmanager
async def connect(target, wire):
    async def roots(_context):
        return types.ListRootsResult(roots=[types.Root(uri=root, name="given") for root in target["roots"]])

    callbacks = {"sampling_callback": sample, "elicitation_callback": elicit, "list_roots_callback": roots}
    if not target["can_be_asked"]:
        callbacks = {}
    async with wire.tapped(transport(target)) as (read, write):
        async with ClientSession(read, write, **callbacks) as session:
            await session.initialize()
            yield Steps(session, wire)


class Steps:
    """What each step is to this SDK."""

    def __init__(self, session, wire):
        self.session, self.wire = session, wire

    async def list(self, step, _seen):
        session = self.session
        lists = {
            "tools": session.list_tools,
            "resources": session.list_resources,
            "templates": session.list_resource_templates,
            "prompts": session.list_prompts,
        }
        await lists[step["list"]]()

    async def call(self, step, seen):
        async def progress(done, total, message):
            seen.setdefault("progress", []).append([done, total])

        callback = progress if step.get("progress") else None
        await self.session.call_tool(step["call"], step.get("arguments", {}), progress_callback=callback)

    async def read(self, step, _seen):
        await self.session.read_resource(AnyUrl(step["read"]))

    async def prompt(self, step, _seen):
        await self.session.get_prompt(step["prompt"], step.get("arguments"))

    async def complete(self, step, _seen):
        reference = types.PromptReference(type="ref/prompt", name=step["complete"])
        await self.session.complete(reference, step["argument"], step.get("context"))

    async def level(self, step, _seen):
        await self.session.set_logging_level(step["level"])

    async def subscribe(self, step, seen):
        await self.session.subscribe_resource(AnyUrl(step["subscribe"]))

    async def unsubscribe(self, step, seen):
        await self.session.unsubscribe_resource(AnyUrl(step["unsubscribe"]))

    async def updates(self, step, seen):
        """Subscribes to a resource and has the server change it."""
        await self.subscribe({"subscribe": step["updates"]}, seen)
        await self.session.call_tool(step["by"], step.get("arguments", {}))
        seen["updated"] = await until(lambda: updated(self.wire, step["updates"]))

    async def research(self, step, seen):
        """Runs a tool as a task."""
        tasks = self.session.experimental
        created = await tasks.call_tool_as_task("simulate-research-query", {"topic": step["research"]})
        seen["created"] = created.task.status
        async for status in tasks.poll_task(created.task.taskId):
            seen["status"] = status.status
        await tasks.get_task_result(created.task.taskId, types.CallToolResult)


if __name__ == "__main__":
    main(connect, McpError)
