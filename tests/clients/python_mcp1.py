"""The official Python SDK, 1.x, against a running gateway: the whole handshake and a call.

Arguments: URL, token, namespace. Prints one JSON line with what it saw.
"""

import asyncio
import json
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


async def main(url: str, token: str, namespace: str) -> None:
    headers = {"Authorization": f"Bearer {token}", "X-Namespace": namespace}
    async with streamablehttp_client(url, headers=headers) as (read, write, session_id):
        async with ClientSession(read, write) as session:
            initialized = await session.initialize()
            await session.send_ping()
            tools = await session.list_tools()
            good = await session.call_tool("add", {"a": 2, "b": 3})
            bad = await session.call_tool("add", {"a": "x", "b": 3})
            print(
                json.dumps(
                    {
                        "version": initialized.protocolVersion,
                        "server": initialized.serverInfo.name,
                        "session": bool(session_id()),
                        "tools": [tool.name for tool in tools.tools],
                        "value": good.structuredContent,
                        "text": good.content[0].text,
                        "failed": bad.isError,
                    }
                )
            )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
