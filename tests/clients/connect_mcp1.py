"""Client of the Python SDK 1.x whose principal lacks a personal credential. The gateway asks it to open a link during its call.

Arguments: URL, token. Prints the link, and then one JSON line with the result.
"""

import asyncio
import json
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from mcp.types import CallToolRequest, CallToolRequestParams, ClientRequest, ElicitResult, Result

URL, TOKEN = sys.argv[1:]


async def opens(_context, params) -> ElicitResult:
    print(params.url, flush=True)
    return ElicitResult(action="accept")


async def main() -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with streamablehttp_client(URL, headers=headers) as (read, write, _):
        async with ClientSession(read, write, elicitation_callback=opens) as session:
            await session.initialize()
            call = CallToolRequest(method="tools/call", params=CallToolRequestParams(name="x", arguments={}))
            # The server's result has no content, which the SDK's own method refuses.
            result = await session.send_request(ClientRequest(call), Result)
            print(json.dumps({"text": result.model_dump().get("who")}), flush=True)


asyncio.run(main())
