"""Clients of the official Python SDK 1.x that keep calling while replicas fail and return (`steady_shared.py`).

A client's `mode` is its transport: `streamable` (Streamable HTTP) or `sse` (HTTP+SSE).
"""

import asyncio
import logging
import os
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import mcp.types as types
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import McpError
from pydantic import AnyUrl

from steady_shared import PATIENCE, Refused, retrying, run


class GivenUp(logging.Handler):
    """Counts the calls that the SDK gave up: after two attempts to resume a stream, it logs this and does not tell its caller."""

    calls = 0

    def emit(self, record):
        GivenUp.calls += record.getMessage().startswith("Max reconnection attempts")


SDK = logging.getLogger("mcp.client.streamable_http")
SDK.setLevel(logging.DEBUG)
SDK.addHandler(GivenUp())


@asynccontextmanager
async def connect(caller):
    headers = {"Authorization": f"Bearer {os.environ['TOKEN']}", "X-Namespace": caller.namespace}
    refused = asyncio.Event()

    async def look(response):
        if caller.mode == "sse" and response.request.method == "POST" and response.status_code >= 400:
            refused.set()

    def http(**_):
        return httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(PATIENCE),
            transport=retrying(httpx, caller),
            event_hooks={"response": [look]},
        )

    @asynccontextmanager
    async def streams():
        if caller.mode == "sse":
            async with sse_client(f"{caller.base}/sse", httpx_client_factory=http) as (read, write):
                yield read, write
        else:
            async with http() as client:
                async with streamable_http_client(f"{caller.base}/mcp", http_client=client) as (read, write, _):
                    yield read, write

    async def log(params):
        caller.hears(params.data)

    async def message(message):
        if isinstance(message, types.ServerNotification):
            caller.updates += isinstance(message.root, types.ResourceUpdatedNotification)

    patience = timedelta(seconds=PATIENCE)
    async with (
        streams() as (read, write),
        ClientSession(
            read, write, logging_callback=log, message_handler=message, read_timeout_seconds=patience
        ) as session,
    ):

        async def call(arguments):
            # The SDK would wait for the answer to a refused message, so a refusal ends the wait.
            called = asyncio.ensure_future(session.call_tool("count", arguments))
            no = asyncio.ensure_future(refused.wait())
            try:
                await asyncio.wait({called, no}, return_when=asyncio.FIRST_COMPLETED)
                if not called.done():
                    raise Refused("the message was not taken")
                result = await called
            except McpError as error:
                if error.error.code == 408 and GivenUp.calls:
                    GivenUp.calls -= 1
                    raise Refused("the SDK has given up") from error
                raise
            finally:
                called.cancel()
                no.cancel()
            return result.isError, result.content[0].text

        await session.initialize()
        await session.set_logging_level("debug")
        await session.subscribe_resource(AnyUrl(caller.uri))
        yield call


if __name__ == "__main__":
    asyncio.run(run(connect))
