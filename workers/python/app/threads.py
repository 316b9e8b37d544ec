"""The threads that run sync tools, and the generators that async tools return.

A queue and a few threads of our own: `run_in_executor` costs about 40 µs more per call, in futures and one wake-up of
the loop each. Finished calls are handed over in batches, one wake-up per batch.

A thread cannot be stopped. A cancelled call's thread is therefore abandoned: a fresh one takes its place, and it ends
by itself should the tool ever return. The gateway replaces a worker that has abandoned too many.

Each call runs in a copy of the context that was there when all files were loaded: what a file set when it was imported
(the precision of `decimal`, a context variable, `numpy.seterr`) holds, and what a call sets ends with the call.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from .calls import Call

RECYCLE_AFTER = 4
"""Abandoned threads after which the worker asks to be replaced."""

MAX_STUCK = 32
"""With so many still running, no thread is started any more, and calls fail: the process has to be replaced."""

LONG_WAIT = 1.0
"""Seconds that a call waits for a thread before that is counted."""

_monotonic = time.monotonic

_Job = tuple[Call, Callable[[Any], Any], Any]
"""A call, and which part of it with what."""


class _Thread:
    """One thread and the call it runs."""

    __slots__ = ("abandoned", "call")

    def __init__(self) -> None:
        self.call: Call | None = None
        self.abandoned = False


class SyncThreads:
    """Runs sync calls in order of arrival, `size` at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int) -> None:
        self._loop = loop
        self._size = size
        self._started = 0
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._finished: deque[tuple[Call, Any]] = deque()
        self._waking = False
        self._lock = threading.Lock()  # guards `call` and `abandoned` of every thread, `queued` of every call, `_stuck`, `_waited`
        self._stuck = 0
        self._waited = 0
        self._context = contextvars.copy_context()
        self._decimal = sys.modules.get("decimal")
        self._numpy_errors = _numpy_errors()
        self.abandoned = 0

    def submit(self, call: Call, work: Callable[[Any], Any], argument: Any) -> bool:
        """Queues the call; False if no thread is there to run it. Threads are started with the first calls, not with
        the worker."""
        if self._started < self._size and not self._start() and self._started == 0:
            return False
        call.queued = _monotonic()
        self._jobs.put((call, work, argument))
        return True

    def count_waits(self, calls: list[Call]) -> int:
        """How many calls have waited for a thread for long since the last count, each counted once. `calls` are all
        that run or wait. Called on the watch's thread."""
        now = _monotonic()
        with self._lock:
            for call in calls:
                if call.thread is None and not call.done:
                    self._note_wait(call, now)
            count, self._waited = self._waited, 0
        return count

    def _note_wait(self, call: Call, now: float) -> None:
        if call.queued and now - call.queued > LONG_WAIT:
            call.queued = 0.0
            self._waited += 1

    def cancel(self, call: Call) -> None:
        """The call was cancelled (`done` is set): forget it if it is queued, abandon its thread if it runs."""
        with self._lock:
            thread = call.thread
            if thread is None or thread.call is not call:
                return
            thread.abandoned = True
            self._stuck += 1
        self.abandoned += 1
        self._started -= 1
        self._start()

    def _start(self) -> bool:
        with self._lock:
            if self._stuck >= MAX_STUCK:
                return False
        self._started += 1
        # Daemons: a stuck tool must not hold up the end of the process.
        threading.Thread(target=self._work, args=(_Thread(),), name="sync-tool", daemon=True).start()
        return True

    def _refill(self) -> None:
        """An abandoned thread has ended: there may be room for one, and calls that wait for it."""
        if self._started < self._size and not self._jobs.empty():
            self._start()

    def _work(self, thread: _Thread) -> None:
        if self._numpy_errors is not None:
            sys.modules["numpy"].seterr(**self._numpy_errors)
        while True:
            call, work, argument = self._jobs.get()
            with self._lock:
                if call.done:
                    continue
                self._note_wait(call, _monotonic())
                thread.call = call
                call.thread = thread
            if call.timeout is not None:
                self._on_loop(call.start_clock)
            outcome = self._context.copy().run(self._run, work, argument)
            with self._lock:
                thread.call = None
                abandoned = thread.abandoned
                if abandoned:
                    self._stuck -= 1
            if abandoned:
                self._on_loop(self._refill)
                return
            self._finished.append((call, outcome))
            if not self._waking:
                self._waking = True
                self._on_loop(self._hand_over)
            del call, work, argument, outcome  # not kept alive while waiting for the next job

    def _run(self, work: Callable[[Any], Any], argument: Any) -> Any:
        if self._decimal is not None:  # its context is an object that calls change: copying the variable is not enough
            self._decimal.setcontext(self._decimal.getcontext().copy())
        return work(argument)

    def _on_loop(self, callback: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            pass  # the loop is closed: the worker is ending

    def _hand_over(self) -> None:
        # Cleared before emptying: what is appended from here on either is seen below or wakes us again.
        self._waking = False
        while self._finished:
            call, outcome = self._finished.popleft()
            if call.done:
                if not isinstance(outcome, bytes) and hasattr(outcome, "close"):
                    outcome.close()
            elif isinstance(outcome, bytes):
                call.connection.finish(call, outcome)
            else:
                call.task = self._loop.create_task(call.finish_awaiting(outcome))


def _numpy_errors() -> Any:
    """How numpy 1, which keeps this by thread and not in the context, was told to treat errors."""
    numpy = sys.modules.get("numpy")
    return numpy.geterr() if numpy is not None and str(getattr(numpy, "__version__", "")).startswith("1.") else None
