"""LiteLLM's proxy reads a configuration, and its MCP manager uses the servers in it.

Arguments: the configuration, a tool, its arguments as JSON. Prints one JSON line: per server its tools, and what the
tool said.
"""

import asyncio
import json
import sys

from litellm.proxy._experimental.mcp_server.mcp_server_manager import global_mcp_server_manager as manager
from litellm.proxy.proxy_server import ProxyConfig


async def main(config: str, tool: str, arguments: str) -> None:
    await ProxyConfig().load_config(router=None, config_file_path=config)
    seen = {}
    for server in manager.get_registry().values():
        tools = await manager._get_tools_from_server(server)
        result = await manager.call_tool(server_name=server.name, name=tool, arguments=json.loads(arguments))
        seen[server.name] = {"tools": [tool.name for tool in tools], "said": result.content[0].text}
    print(json.dumps(seen))


asyncio.run(main(*sys.argv[1:]))
