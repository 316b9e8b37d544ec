"""FastMCP's side of the comparison: a program for an environment that has it.

    python fastmcp_side.py FOLDER MODE MODULE…   the tool files are in FOLDER; calls come as JSON lines

MODE is that of the package's client, `auto` or `legacy`: only the second can be asked while a call runs.

It writes JSON lines: the versions, a line for every tool, one for every function that cannot be one, and one for every
call, in their order. Calls go through the package's own client and a server in this process.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
import warnings
from typing import Any

import fastmcp
import pydantic
from fastmcp.client.elicitation import ElicitResult
from forms import filled


def say(**line: Any) -> None:
    print(json.dumps(line))


def wire(value: Any) -> Any:
    """What a client on a network reads."""
    return json.loads(value.model_dump_json(by_alias=True, exclude_none=True), parse_constant=lambda name: f"no JSON: {name}")


def served(folder: str) -> fastmcp.FastMCP:
    """A server with every function of the files that can be a tool."""
    server = fastmcp.FastMCP("theirs")
    sys.path.insert(0, folder)
    for name in sys.argv[3:]:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            say(refused=name, message=f"{type(error).__name__}: {error}")
            continue
        for attribute, function in list(vars(module).items()):
            if getattr(function, "__fastmcp__", None) is None or attribute == "tool":
                continue
            try:
                server.add_tool(function)
            except Exception as error:
                say(refused=getattr(function, "__name__", attribute), message=f"{type(error).__name__}: {error}")
    return server


async def unchecked(name: str, result: Any) -> None:
    """Stands in for the client's check of results against the output schema."""


async def main(server: fastmcp.FastMCP) -> None:
    told: list[Any] = []

    async def log(message: Any) -> None:
        told.append(["log", {"level": message.level, "logger": message.logger, "data": message.data}])

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(["progress", {"progress": done, "total": total, "message": message}])

    async def fill(message: str, kind: Any, params: Any, context: Any) -> Any:
        return ElicitResult(action="accept", content=filled(wire(params)["requestedSchema"]))

    handlers = {"log_handler": log, "progress_handler": progress, "elicitation_handler": fill, "mode": sys.argv[2]}
    async with fastmcp.Client(server, **handlers) as client:
        for tool in await client.list_tools():
            say(tool=wire(tool))
        client.session.validate_tool_result = unchecked  # what was sent counts, whether it fits its schema or not
        for line in sys.stdin:
            call = json.loads(line)
            told.clear()
            try:
                result = await client.call_tool_mcp(call["tool"], call["arguments"])
                said = {"result": wire(result)}
            except Exception as error:
                said = {"raised": f"{type(error).__name__}: {error}"}
            say(call=call["call"], told=list(told), **said)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    names = [name for name in dir(fastmcp.Context) if not name.startswith("_")]
    say(versions={"fastmcp": fastmcp.__version__, "pydantic": pydantic.VERSION, "python": sys.version.split()[0]}, context=names)
    asyncio.run(main(served(sys.argv[1])))
