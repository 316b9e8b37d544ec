"""The worker while it serves: connections, running calls, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import Any

from . import forks, frames, stdio
from .calls import Call
from .connection import Connection
from .loader import Loaded
from .threads import RECYCLE_AFTER, SyncThreads
from .watch import Watch

CLEAN_UP = 0.5
"""Seconds that cancelled calls have for their `finally` blocks when the worker ends."""

_EAGER = sys.version_info >= (3, 12)


class Server:
    """Everything the connections share."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        loaded: Loaded,
        *,
        greeting: bytes | None,
        max_frame: int,
        sync_concurrency: int,
        tools: str,
        say: Callable[[bytes], None],
    ) -> None:
        self.loop = loop
        self.loaded = loaded
        self.max_frame = max_frame
        self.threads = SyncThreads(loop, sync_concurrency)
        self.watch = Watch(self, tools, say)
        self._greeting = greeting
        self._connections: set[Connection] = set()
        self._cancelled: set[asyncio.Task[None]] = set()
        self._recycle: bytes | None = None
        self._listener: asyncio.AbstractServer | None = None
        self._all_gone: asyncio.Future[None] = loop.create_future()
        self._stopping = False
        self._stopped = False

    def stand_still(self) -> None:
        """Lifts the time limits of calls: a debugger may hold them, and the loop, at a breakpoint."""
        self.watch.stay_off()
        for tool in self.loaded.tools.values():
            tool.timeout = None

    def run(self, sock: Any, listening: Callable[[], None]) -> None:
        """Serves on a listening socket until `stop`; calls `listening` once it does.

        Neither `sys.exit()` in a background task of a tool nor a loop that a tool stopped ends the worker.
        """
        forks.withhold(sock.fileno())
        begin = self.loop.create_task(self._begin(sock, listening))
        while not self._stopped:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                forks.leave_if_child()
                stdio.log(f"ignored {type(error).__name__} of a background task")
            except BaseException:
                forks.leave_if_child()
                raise
            forks.leave_if_child()
            if begin.done():
                begin.result()  # raises what kept us from listening

    async def _begin(self, sock: Any, listening: Callable[[], None]) -> None:
        try:
            self._listener = await self.loop.create_unix_server(lambda: Connection(self), sock=sock)
            # Inside the running loop: uvloop loses a signal that arrives before.
            for number in (signal.SIGTERM, signal.SIGINT):
                self.loop.add_signal_handler(number, self.stop)
        except BaseException:
            self.loop.stop()
            raise
        listening()

    def stop(self) -> None:
        """Stops accepting, cancels what runs, and lets `run` return soon."""
        if self._stopping:
            return
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.cancel_all()
            connection.close()
        self.loop.create_task(self._end())

    def connected(self, connection: Connection) -> None:
        if self._stopping:
            connection.close()
            return
        self._connections.add(connection)
        if self._greeting is not None:
            connection.send(self._greeting)
        if self._recycle is not None:
            connection.send(self._recycle)

    def disconnected(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._stopping and not self._connections and not self._all_gone.done():
            self._all_gone.set_result(None)

    def connections(self) -> list[Connection]:
        """The open connections. From any thread."""
        return list(self._connections)

    def start(self, call: Call, arguments: dict[str, Any]) -> None:
        """Runs an async tool. Where Python can, its first step runs right here, which often is all of it."""
        if _EAGER:
            task = asyncio.Task(call.run(arguments), loop=self.loop, eager_start=True)  # type: ignore[call-arg]
        else:
            task = self.loop.create_task(call.run(arguments))
        if not call.done and not task.done():
            call.task = task

    def cancelled(self, call: Call) -> None:
        """The call counts as over: make it so."""
        if call.task is not None:
            # Held until it ends: it may still have cleaning up to do, and the loop holds tasks only weakly.
            self._cancelled.add(call.task)
            call.task.add_done_callback(self._cancelled.discard)
            call.task.cancel()
            return
        before = self.threads.abandoned
        self.threads.cancel(call)
        if before < RECYCLE_AFTER <= self.threads.abandoned:
            self._ask_for_replacement()

    def _ask_for_replacement(self) -> None:
        reason = f"{self.threads.abandoned} threads of cancelled sync calls were abandoned"
        stdio.log(f"asking to be replaced: {reason}")
        self._recycle = frames.notice("recycle", reason=reason)
        for connection in self._connections:
            connection.send(self._recycle)

    async def _end(self) -> None:
        if self._cancelled:
            await asyncio.wait(list(self._cancelled), timeout=CLEAN_UP)
        if self._connections:  # their last answers are still being written
            await asyncio.wait([self._all_gone], timeout=CLEAN_UP)
        self._stopped = True
        self.loop.stop()
