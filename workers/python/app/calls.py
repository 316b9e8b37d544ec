"""Running one call of a tool, from checked arguments to the answer's frame.

State of a call: accepted ──▶ running ──▶ done (answered)
                     └───────────┴──────▶ done (cancelled: answered at once; what the tool still does is dropped)
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from . import failures, forks, frames, jsontext, results
from .context import Context
from .tools import Tool

if TYPE_CHECKING:
    from .connection import Connection

_monotonic = time.monotonic


class Call:
    """One running call. Whoever sets `done` answers, so that nobody does twice; it is set on the loop's thread only."""

    __slots__ = ("connection", "done", "id", "latest_progress", "started", "task", "thread", "tool")

    def __init__(self, connection: Connection, call_id: bytes, tool: Tool) -> None:
        self.connection = connection
        self.id = call_id
        self.tool = tool
        self.started = _monotonic()
        self.done = False
        self.task: asyncio.Task[None] | None = None
        self.thread: Any = None
        self.latest_progress: dict[str, Any] | None = None

    def inject_context(self, arguments: dict[str, Any]) -> None:
        """Gives the tool its way back, if it asked for one."""
        if self.tool.context_parameter is not None:
            request_id = jsontext.loads(self.id)
            arguments[self.tool.context_parameter] = Context(self.tool.name, str(request_id), self._report)

    def success(self, value: Any) -> bytes:
        """The frame for what the tool returned; a failure's frame if that is not JSON."""
        try:
            result, content = results.encode(value)
        except BaseException as error:
            return self.failure(error)
        latency_ms = int((_monotonic() - self.started) * 1000)
        return frames.success(self.id, result, content, latency_ms)

    def failure(self, error: BaseException) -> bytes:
        """The frame for what the tool raised."""
        return frames.failure(self.id, *failures.of_tool(error))

    async def run(self, arguments: dict[str, Any]) -> None:
        """Runs an async tool."""
        try:
            frame = self.success(await self.tool.function(**arguments))
        except BaseException as error:  # SystemExit too: a tool does not decide over the worker
            if self.done:
                return  # cancelled, and answered so
            frame = self.failure(error)
        finally:
            forks.leave_if_child()
        self.connection.finish(self, frame)

    async def finish_awaiting(self, awaitable: Any) -> None:
        """A sync function returned something to await: the rest of it belongs on the loop."""
        try:
            frame = self.success(await awaitable)
        except BaseException as error:
            if self.done:
                return  # cancelled, and answered so
            frame = self.failure(error)
        finally:
            forks.leave_if_child()
        self.connection.finish(self, frame)

    def run_in_thread(self, arguments: dict[str, Any]) -> Any:
        """Runs a sync tool, in a thread of its own: the answer's frame, or what is left to await."""
        try:
            value = self.tool.function(**arguments)
            if hasattr(type(value), "__await__"):
                return value
            return self.success(value)
        except BaseException as error:
            return self.failure(error)
        finally:
            forks.leave_if_child()

    def _report(self, params: dict[str, Any]) -> None:
        self.connection.report_progress(self, params)
