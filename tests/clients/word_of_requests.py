"""A script that knows nothing of MCP: plain `requests`, no handshake, no session, `Accept: */*` (MCP-45)."""

import json
import sys

import requests

base, token, namespace = sys.argv[1:]
response = requests.post(
    f"{base}/mcp",
    headers={"Authorization": f"Bearer {token}", "X-Namespace": namespace},
    json={
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "add", "arguments": {"a": 2, "b": 3}},
    },
    timeout=30,
)
response.raise_for_status()
print(json.dumps(response.json()["result"]))
