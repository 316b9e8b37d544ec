"""A stdio server whose tool wants more of its arguments than the schema says, written with the SDK that argv names."""

import sys
from typing import Annotated

from pydantic import AfterValidator, BaseModel


def is_even(number: int) -> int:
    if number % 2:
        raise ValueError("must be even")
    return number


Even = Annotated[int, AfterValidator(is_even)]


class Model(BaseModel):
    number: Even


def half(number: Even) -> int:
    return number // 2


def broken(number: int) -> int:
    """Fails over a value of its own."""
    return Model(number=number).number


def decorated(server):
    server.tool()(half)
    server.tool()(broken)
    server.run()


def low_level():
    """Checks arguments against the schema, which is too large for others to do so."""
    import anyio
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    server = Server("low")
    schema = {
        "type": "object",
        "properties": {"number": {"multipleOf": 2, "description": "even" * 32_000}},
        "required": ["number"],
    }

    @server.list_tools()
    async def list_tools():
        return [types.Tool(name="half", inputSchema=schema), types.Tool(name="broken", inputSchema={"type": "object"})]

    @server.call_tool()
    async def call_tool(name, arguments):
        number = arguments["number"] // 2
        if name == "broken":
            raise ValueError("broken")
        return [types.TextContent(type="text", text=str(number))]

    async def main():
        async with stdio_server() as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())

    anyio.run(main)


if sys.argv[1] == "mcp1":
    from mcp.server.fastmcp import FastMCP

    decorated(FastMCP("mcp1"))
elif sys.argv[1] == "mcp1-low-level":
    low_level()
elif sys.argv[1] == "mcp2":
    from mcp.server.mcpserver import MCPServer

    decorated(MCPServer("mcp2"))
else:
    from fastmcp import FastMCP

    decorated(FastMCP("fastmcp"))
