"""Standard streams of a process that runs a server file, and changes to the SDKs that make their servers use these streams.

The gateway speaks MCP over the process's standard input and output. Text that the author's code prints must not get between
the messages, so both pipes are moved to private descriptors before any of this code runs: descriptor 1 becomes another name
for standard error, which the gateway logs, and descriptor 0 is empty. The pipes remain as `sys.stdin` and
`sys.stdout.buffer`; the SDKs' `stdio_server` uses the `buffer` of both.

The server classes of the SDKs are changed when they are imported (`force_stdio`), so that a server runs over these streams
whichever transport it asks for.
"""

from __future__ import annotations

import importlib.util
import inspect
import io
import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

SERVERS = {
    "fastmcp.server.server": "FastMCP",
    "mcp.server.fastmcp.server": "FastMCP",
    "mcp.server.mcpserver.server": "MCPServer",
}
"""Server classes whose objects choose a transport, by module."""
LOW_LEVEL = "mcp.server.lowlevel.server"
RUNS = ("run_async", "run_http_async", "run_sse_async", "run_streamable_http_async")


class Answer:
    """Writer for the one-line answer of a check, to the original standard output."""

    def __init__(self, wire: io.BufferedWriter) -> None:
        self._wire = wire

    def say(self, message: dict[str, Any]) -> None:
        self._wire.write(json.dumps(message).encode() + b"\n")
        self._wire.flush()


class _Printed(io.TextIOWrapper):
    """Standard output of the author's code: text goes to the log, and `buffer` is the pipe to the gateway."""

    wire: io.BufferedWriter

    @property
    def buffer(self) -> io.BufferedWriter:  # type: ignore[override]
        return self.wire


class Transport:
    """Record of whether this process has run a server: `served` is true once a server was run."""

    def __init__(self) -> None:
        self.served = False


def claim() -> Answer:
    """Moves the pipes to the gateway to private descriptors. Returns the writer for the answer of a check."""
    sys.stdout.flush()
    reads, writes = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdin = io.TextIOWrapper(reads, encoding="utf-8")
    printed = _Printed(os.fdopen(1, "wb", closefd=False), encoding="utf-8", errors="replace", line_buffering=True)
    printed.wire = writes
    sys.stdout = printed
    # A banner does not belong in a log, and no packages are updated while the namespace runs.
    for name, value in (("FASTMCP_SHOW_SERVER_BANNER", "false"), ("FASTMCP_CHECK_FOR_UPDATES", "off")):
        os.environ.setdefault(name, value)
    return Answer(writes)


def force_stdio() -> Transport:
    """Changes the SDKs' classes on import, so that servers run over standard input and output. Returns the record."""
    transport = Transport()
    sys.meta_path.insert(0, _AfterImport(transport))  # type: ignore[arg-type]
    return transport


async def over_stdio(server: Any) -> None:
    """Runs a server of any SDK over standard input and output, until its input ends."""
    if hasattr(server, "run_stdio_async"):
        await server.run_stdio_async()
        return
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (reads, writes):
        await server.run(reads, writes, server.create_initialization_options())


class _AfterImport:
    """Import hook that changes the server classes of the SDKs once their modules are executed."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._busy = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._busy or fullname not in SERVERS and fullname != LOW_LEVEL:
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Changing(spec.loader, self._transport)
        return spec


class _Changing(Loader):
    def __init__(self, loader: Loader, transport: Transport) -> None:
        self._loader = loader
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        name = module.__name__
        found = getattr(module, SERVERS.get(name, "Server"), None)
        if not isinstance(found, type):
            return
        if name == LOW_LEVEL:
            _note(found, self._transport)
        else:
            _change(found, self._transport)


def _note(low_level: Any, transport: Transport) -> None:
    run = low_level.run

    def noted(self: Any, *arguments: Any, **options: Any) -> Any:
        transport.served = True
        return run(self, *arguments, **options)

    low_level.run = noted


def _change(server: Any, transport: Transport) -> None:
    run_stdio = server.run_stdio_async
    quiet = {"show_banner": False} if "show_banner" in inspect.signature(run_stdio).parameters else {}

    async def run_stdio_async(self: Any, *_: Any, **__: Any) -> None:
        transport.served = True
        await run_stdio(self, **quiet)

    async def run_async(self: Any, *arguments: Any, **options: Any) -> None:
        _tell(arguments, options)
        await run_stdio_async(self)

    def run(self: Any, *arguments: Any, **options: Any) -> None:
        import asyncio

        _tell(arguments, options)
        asyncio.run(run_stdio_async(self))

    server.run_stdio_async = run_stdio_async
    server.run = run
    for name in RUNS:
        if hasattr(server, name):
            setattr(server, name, run_async)


def _tell(arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    wanted = arguments[0] if arguments else options.get("transport")
    if isinstance(wanted, str) and wanted != "stdio":
        print(f"the server asks for the transport {wanted}, and is run over standard input and output", file=sys.stderr)
