"""Servers of others, by the official Python SDK 2.x: directly over stdio, over Streamable HTTP, in the mode it is told."""

import warnings
from contextlib import asynccontextmanager

import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from real_shared import main, until, updated

warnings.simplefilter("ignore")


@asynccontextmanager
async def transport(target):
    if "command" in target:
        async with stdio_client(StdioServerParameters(**target["command"])) as streams:
            yield streams
    else:
        async with create_mcp_http_client(headers=target["headers"]) as http:
            async with streamable_http_client(target["url"], http_client=http) as streams:
                yield streams


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
    tapped = wire.tapped(transport(target))
    async with Client(tapped, mode=target["mode"], cache=None, log_level="debug", **callbacks) as client:
        yield Steps(client, wire)


class Steps:
    """What each step is to this SDK."""

    def __init__(self, client, wire):
        self.client, self.wire = client, wire

    async def list(self, step, _seen):
        client = self.client
        lists = {
            "tools": client.list_tools,
            "resources": client.list_resources,
            "templates": client.list_resource_templates,
            "prompts": client.list_prompts,
        }
        await lists[step["list"]]()

    async def call(self, step, seen):
        async def progress(done, total, message):
            seen.setdefault("progress", []).append([done, total])

        callback = progress if step.get("progress") else None
        await self.client.call_tool(step["call"], step.get("arguments", {}), progress_callback=callback)

    async def read(self, step, _seen):
        await self.client.read_resource(step["read"])

    async def prompt(self, step, _seen):
        await self.client.get_prompt(step["prompt"], step.get("arguments"))

    async def complete(self, step, _seen):
        reference = types.PromptReference(name=step["complete"])
        await self.client.complete(reference, step["argument"], context_arguments=step.get("context"))

    async def updates(self, step, seen):
        """Listens for a resource and has the server change it."""
        async with self.client.listen(resource_subscriptions=[step["updates"]]):
            await self.client.call_tool(step["by"], step.get("arguments", {}))
            seen["updated"] = await until(lambda: updated(self.wire, step["updates"]))


if __name__ == "__main__":
    main(connect, MCPError)
