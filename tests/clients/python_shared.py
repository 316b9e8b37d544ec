"""What the Python client scripts share: waiting for a fact, and what a session's id is worth after its end."""

import asyncio
import json
import urllib.error
import urllib.request


async def until(fact, attempt, attempts=40):
    """Does something again and again until a fact is true. A fact may need a moment to arrive."""
    for _ in range(attempts):
        await attempt()
        for _ in range(10):
            if fact():
                return True
            await asyncio.sleep(0.02)
    return False


async def status_after_the_end(base, headers, transport, session_id, version):
    """The status of a ping that names a session which has ended."""
    if transport == "sse":
        url = f"{base}/messages?session_id={session_id}"
    else:
        url = f"{base}/mcp"
        headers = {**headers, "Mcp-Session-Id": session_id, "MCP-Protocol-Version": version}
    request = urllib.request.Request(
        url,
        data=json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode(),
        headers={**headers, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"},
    )

    def status():
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    # An HTTP+SSE session ends when the gateway sees the stream closed, which takes a moment.
    for _ in range(50):
        seen = await asyncio.to_thread(status)
        if seen == 404:
            break
        await asyncio.sleep(0.05)
    return seen
