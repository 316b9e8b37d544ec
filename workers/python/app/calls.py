"""Running one call of a function, from checked arguments to the answer's frame.

State of a call: accepted ──▶ running ──▶ done (answered)
                     └───────────┴──────▶ done (cancelled: answered at once; what the tool still does is dropped)
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from . import blocks, failures, forks, frames, jsontext, output, results
from .context import Context
from .declaration import Target
from .exceptions import is_not_found
from .output import REQUEST
from .questions import Questions
from .resources import Resource
from .results import Encode

if TYPE_CHECKING:
    from .connection import Connection

_monotonic = time.monotonic


class Call:
    """One running call. Whoever sets `done` answers, so that nobody does twice; it is set on the loop's thread only."""

    __slots__ = (
        *("asking", "connection", "done", "dropped", "encode", "id", "queued", "request", "started", "target", "task"),
        *("thread", "timeout", "timer", "told", "trace"),
    )

    def __init__(self, connection: Connection, call_id: bytes, target: Target, encode: Encode) -> None:
        self.connection = connection
        self.id = call_id
        self.request: Any = ""
        self.trace: tuple[Any, Any] = (None, None)
        self.target = target
        self.encode = encode
        self.started = _monotonic()
        self.queued = 0.0  # when it began to wait for a thread; 0 before, and once a long wait is counted
        self.done = False
        self.task: asyncio.Task[None] | None = None
        self.thread: Any = None
        self.asking: Questions | None = None
        self.told: list[tuple[str, dict[str, Any]]] | None = None
        self.dropped = 0
        self.timeout: float | None = None
        self.timer: asyncio.TimerHandle | None = None

    def inject_context(self, arguments: dict[str, Any], caller: Any) -> None:
        """Gives the function its way back, if it asked for one."""
        if self.target.context_parameter is not None:
            request_id = str(jsontext.loads(self.id))
            context = Context(self, request_id, caller if isinstance(caller, dict) else None)
            arguments[self.target.context_parameter] = context

    def start_clock(self) -> None:
        """The function begins: from now on its own time limit runs."""
        if not self.done and self.timeout is not None and self.timer is None:
            self.timer = self.connection.server.loop.call_later(self.timeout, self.connection.time_is_up, self)

    def stop_clock(self) -> None:
        """The call is over."""
        if self.timer is not None:
            self.timer.cancel()

    def tell(self, kind: str, params: dict[str, Any]) -> None:
        """Progress, a log message or a notification for the client."""
        self.connection.telling.tell(self, kind, params)

    def on_loop(self) -> bool:
        """Whether this is the loop's thread."""
        return self.connection.telling.on_loop()

    def questions(self) -> Questions:
        """What the call asks its client."""
        if self.asking is None:
            self.asking = Questions(self)
        return self.asking

    def success(self, value: Any) -> bytes:
        """The frame for what the function returned; a failure's frame if that is not JSON."""
        try:
            result, content = self.encode(value)
            meta = None
            if content is not None and (said := blocks.meta_of(value)) is not None:
                meta = jsontext.dumps_any(results.plain(said))
        except BaseException as error:
            return self.failure(error)
        latency_ms = int((_monotonic() - self.started) * 1000)
        return frames.success(self.id, result, content, latency_ms, meta)

    def failure(self, error: BaseException) -> bytes:
        """The frame for what the function raised."""
        code, message, details = failures.of_tool(error)
        if is_not_found(error) and isinstance(self.target, Resource):
            code = "resource_not_found"
        return frames.failure(self.id, code, message, details)

    async def run(self, arguments: dict[str, Any]) -> None:
        """Runs an async function."""
        REQUEST.set(self.request)
        try:
            value = await self.target.function(**arguments)
            if isinstance(value, GeneratorType):
                self.hand_over(value)
                return
            frame = self.success(value)
        except BaseException as error:  # SystemExit too: a tool does not decide over the worker
            if self.done:
                return  # cancelled, and answered so
            frame = self.failure(error)
        finally:
            forks.leave_if_child()
            output.settle()
        self.connection.finish(self, frame)

    async def finish_awaiting(self, awaitable: Any) -> None:
        """A sync function returned something to await: the rest of it belongs on the loop."""
        REQUEST.set(self.request)
        try:
            value = await awaitable
            if isinstance(value, GeneratorType):
                self.hand_over(value)
                return
            frame = self.success(value)
        except BaseException as error:
            if self.done:
                return  # cancelled, and answered so
            frame = self.failure(error)
        finally:
            forks.leave_if_child()
            output.settle()
        self.connection.finish(self, frame)

    def hand_over(self, generator: GeneratorType[Any, Any, Any]) -> None:
        """An async function returned a generator, whose steps may take long: they run in a thread, not on the loop."""
        if self.done:
            generator.close()
            return
        self.task = None  # what is to be cancelled from now on is the thread
        context = contextvars.copy_context()
        self.connection.run_in_thread(self, self.drain_in_thread, (generator, context))

    def drain_in_thread(self, handed: tuple[GeneratorType[Any, Any, Any], contextvars.Context]) -> bytes:
        """Runs what an async function left: the answer's frame. It sees the variables that the function saw."""
        generator, context = handed
        REQUEST.set(self.request)
        try:
            return context.run(self.success, generator)
        finally:
            forks.leave_if_child()
            output.settle()

    def run_in_thread(self, arguments: dict[str, Any]) -> Any:
        """Runs a sync function, in a thread of its own: the answer's frame, or what is left to await."""
        REQUEST.set(self.request)
        try:
            value = self.target.function(**arguments)
            if hasattr(type(value), "__await__"):
                return value
            return self.success(value)
        except BaseException as error:
            return self.failure(error)
        finally:
            forks.leave_if_child()
            output.settle()
