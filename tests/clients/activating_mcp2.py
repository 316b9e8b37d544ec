"""The official Python SDK, 2.x, turns a tool of an aggregate on, in the mode it is told.

Arguments: base URL, token, namespace, `legacy` or a modern revision. Prints one JSON line with what it saw.
"""

import json
import sys
import warnings

import anyio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

warnings.simplefilter("ignore")
BASE, TOKEN, NAMESPACE, MODE = sys.argv[1:]
LISTS = {"tools_on": ["vec_index"], "tools_off": [], "resources_on": [], "resources_off": []}


async def visit(url, seen, activate):
    http = create_mcp_http_client(headers={"Authorization": f"Bearer {TOKEN}"})
    async with http:
        async with Client(streamable_http_client(url, http_client=http), mode=MODE) as client:
            seen["version"] = client.protocol_version

            async def names():
                return [tool.name for tool in (await client.list_tools()).tools]

            handle = None
            if activate:
                seen["before"] = "vec_index" in await names()
                result = await client.call_tool("toolman_activate", LISTS)
                seen["said"] = json.loads(result.content[0].text)["success"]
                handle = (result.meta or {}).get("tooldock/toolset")
            if not activate or handle is None:
                seen["after"] = "vec_index" in await names()
                seen["called"] = (await client.call_tool("vec_index", {})).content[0].text
                seen["read"] = (await client.read_resource("pjpd_item://42")).contents[0].text
                seen["prompts"] = [it.name for it in (await client.list_prompts()).prompts]
            return handle


async def main() -> None:
    seen, url = {}, f"{BASE}/mcp/{NAMESPACE}"
    handle = await visit(url, seen, True)
    if handle is not None:
        await visit(f"{url}?toolset={handle}", seen, False)
    print(json.dumps(seen))


anyio.run(main)
