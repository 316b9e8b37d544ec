"""The Python SDK's own OAuth client: it knows nothing but the URL of a namespace.

Arguments: URL. Prints one JSON line with what it saw.
"""

import asyncio
import json
import sys
from urllib.parse import parse_qs, urljoin, urlparse

import httpx
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.auth import OAuthClientMetadata

URL = sys.argv[1]
CALLBACK = "http://127.0.0.1:1/callback"
seen = {}


class Storage:
    """Keeps tokens and registration in memory."""

    tokens = None
    client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


async def browse(address: str) -> None:
    """What a browser does whose user agrees: follows redirects, with cookies, until it is sent back to the client."""
    seen["challenged"] = True
    async with httpx.AsyncClient(follow_redirects=False) as browser:
        while not address.startswith(CALLBACK):
            answer = await browser.get(address)
            address = urljoin(address, answer.headers["location"])
    query = parse_qs(urlparse(address).query)
    seen["code"] = query["code"][0], query.get("state", [None])[0]


async def came_back():
    return seen.pop("code")


async def main() -> None:
    metadata = OAuthClientMetadata(
        client_name="tests",
        redirect_uris=[CALLBACK],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
    )
    auth = OAuthClientProvider(
        server_url=URL, client_metadata=metadata, storage=Storage(), redirect_handler=browse, callback_handler=came_back
    )
    async with streamablehttp_client(URL, auth=auth) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        seen["tools"] = sorted(tool.name for tool in (await session.list_tools()).tools)
        seen["sum"] = (await session.call_tool("add", {"a": 2, "b": 3})).structuredContent
    print(json.dumps(seen))


asyncio.run(main())
