"""Clients of the official Python SDK 2.x that keep calling while replicas fail and return (`steady_shared.py`).

A client's `mode` is that of the SDK: `legacy`, or a modern revision of the protocol such as `2026-07-28`.
"""

import asyncio
import logging
import os
import warnings
from contextlib import asynccontextmanager

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from steady_shared import PATIENCE, Refused, retrying, run

warnings.simplefilter("ignore")


class BrokenStreams(logging.Handler):
    """Counts the streams that broke off. The SDK only logs this: to its caller, a broken stream looks like a complete one."""

    count = 0

    def emit(self, record):
        BrokenStreams.count += record.getMessage() == "SSE stream ended" and record.exc_info is not None


SDK = logging.getLogger("mcp.client.streamable_http")
SDK.setLevel(logging.DEBUG)
SDK.addHandler(BrokenStreams())


@asynccontextmanager
async def connect(caller):
    headers = {"Authorization": f"Bearer {os.environ['TOKEN']}", "X-Namespace": caller.namespace}

    async def log(params):
        caller.hears(params.data)

    async def message(message):
        caller.updates += type(message).__name__ == "ResourceUpdatedNotification"

    async with httpx2.AsyncClient(
        headers=headers, timeout=httpx2.Timeout(PATIENCE), transport=retrying(httpx2, caller)
    ) as http:
        async with Client(
            streamable_http_client(f"{caller.base}/mcp", http_client=http),
            mode=caller.mode,
            logging_callback=log,
            log_level="debug",
            message_handler=message,
            read_timeout_seconds=PATIENCE,
        ) as client:

            async def call(arguments):
                before = BrokenStreams.count
                try:
                    result = await client.call_tool("count", arguments)
                except Exception as error:
                    if "stream ended without a response" in str(error) and BrokenStreams.count > before:
                        raise Refused("the stream broke off") from error
                    raise
                return result.is_error, result.content[0].text

            if client.protocol_version < "2026":
                await client.set_logging_level("debug")
                await client.subscribe_resource(caller.uri)
            yield call


if __name__ == "__main__":
    asyncio.run(run(connect))
