"""Clients of the official Python SDK, 2.x, whose calls go on while replicas come and go (`steady_shared.py`).

Their modes are those of the SDK: `legacy`, or a modern revision.
"""

import asyncio
import os
import warnings
from contextlib import asynccontextmanager

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from steady_shared import PATIENCE, retrying, run

warnings.simplefilter("ignore")


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
                result = await client.call_tool("count", arguments)
                return result.is_error, result.content[0].text

            if client.protocol_version < "2026":
                await client.set_logging_level("debug")
                await client.subscribe_resource(caller.uri)
            yield call


if __name__ == "__main__":
    asyncio.run(run(connect))
