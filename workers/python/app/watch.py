"""A thread that watches the event loop, and the calls that wait for a thread.

An async function that computes without awaiting keeps the loop from turning: no other call of the process begins, goes
on or is cancelled. The loop cannot tell of that, so this thread does. While calls run it asks the loop for a sign of
life, and reports the function that keeps the loop from giving one. It also counts the calls that wait for a thread of
`--sync-concurrency`.

Reports are lines on the pipe of the ready line. Sockets belong to the loop, which may be in the middle of a frame; on
the pipe nobody else writes any more. In a process without calls the thread sleeps.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from . import frames
from .calls import Call
from .connection import Connection

if TYPE_CHECKING:
    from .server import Server

BLOCKED_AFTER = 2.0
"""Seconds without a turn of the loop after which that is reported."""

PERIOD = 0.5
"""Seconds between two looks. A loop must miss the whole limit in pieces this long: a process that was stopped for a
while and goes on does not count as blocked."""

LINGER = 20
"""Looks without any call after which the thread sleeps: what a call leaves on the loop may block it as well."""

MAX_TEXT = 200
"""Characters of a name in a report."""

_RUNTIME = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CALL_CODE = frozenset({Call.run.__code__, Call.finish_awaiting.__code__})


class Blocked:
    """What keeps the loop from turning."""

    __slots__ = ("call", "name", "place", "request")

    def __init__(self, call: Call | None, name: str, request: str, place: str) -> None:
        self.call = call
        self.name = name
        self.request = request
        self.place = place


class Watch:
    """The watching thread. Made on the loop's thread; `wake` is called there, too."""

    def __init__(self, server: Server, folder: str, say: Callable[[bytes], None]) -> None:
        self._server = server
        self._folder = os.path.join(folder, "")
        self._say = say
        self._loop_thread = threading.get_ident()
        self._wake = threading.Event()
        self._started = False
        self.asleep = True
        """Whether `wake` has to be called. Read for each call, so it is a plain attribute."""

    def wake(self) -> None:
        """There is something to watch. The thread is started with the first call, not with the worker."""
        self.asleep = False
        if self._started:
            self._wake.set()
            return
        self._started = True
        threading.Thread(target=self._run, name="loop-watch", daemon=True).start()

    def stay_off(self) -> None:
        """Nothing is watched: no thread is started."""
        self.asleep = False

    def _run(self) -> None:
        idle = 0
        while True:
            turned = self._ask()
            if turned is None:
                return
            if not self._waits(turned, BLOCKED_AFTER):
                self._blocked(turned)
            self._tell_of_waits()
            idle = 0 if self._busy() else idle + 1
            if idle < LINGER:
                time.sleep(PERIOD)
                continue
            self._sleep()
            idle = 0

    def _sleep(self) -> None:
        self._wake.clear()
        self.asleep = True
        if self._busy():  # it came between the last look and the line above
            self.asleep = False
            return
        self._wake.wait()

    def _busy(self) -> bool:
        return any(connection.calls() for connection in self._server.connections())

    def _ask(self) -> threading.Event | None:
        """Asks the loop to give a sign in its next turn. None: the loop is closed, the worker is ending."""
        turned = threading.Event()
        try:
            self._server.loop.call_soon_threadsafe(turned.set)
        except RuntimeError:
            return None
        return turned

    @staticmethod
    def _waits(turned: threading.Event, limit: float) -> bool:
        """Waits for the sign, in pieces."""
        return any(turned.wait(PERIOD) for _ in range(round(limit / PERIOD)))

    def _blocked(self, turned: threading.Event) -> None:
        """The loop does not turn: tells so, once the function is found, and waits for the next turn."""
        told = False
        while not turned.is_set():
            found = self._find()
            if found is not None and not turned.is_set():
                self._say(_report(found))
                told = True
            del found
            turned.wait(None if told else PERIOD)
        if told:
            self._say(frames.notice("unblocked"))

    def _find(self) -> Blocked | None:
        """The function that runs on the loop; None if the loop's thread is between two functions, or merely late."""
        try:
            return find(sys._current_frames().get(self._loop_thread), self._folder)
        except Exception:
            return None  # frames of a running thread may change under our eyes: the next look tells

    def _tell_of_waits(self) -> None:
        calls = [call for connection in self._server.connections() for call in connection.calls()]
        if count := self._server.threads.count_waits(calls):
            self._say(frames.notice("waited", count=count))


def find(frame: FrameType | None, folder: str) -> Blocked | None:
    """The call that a thread's stack belongs to, and the innermost line of the tool files in it. Where no tool file
    has a part in it, the innermost line of a library, else of the runtime."""
    own = library = innermost = None
    call: Call | None = None
    name, request, in_call = "", "", False
    for it in _outwards(frame):
        code = it.f_code
        innermost = innermost or it
        if code.co_filename.startswith(folder):
            own = own or it
        elif code in _CALL_CODE:
            call, in_call = it.f_locals["self"], True
            name, request = call.target.name, call.request
            break
        elif code is Connection._call.__code__:  # the author's validators
            asked = it.f_locals["request"]
            name, request, in_call = asked.get("tool"), asked.get("request"), True
            break
        elif not code.co_filename.startswith((_RUNTIME, "<frozen")):
            library = library or it
    where = own or (in_call and (library or innermost)) or None
    if where is None:
        return None
    return Blocked(call, _text(name)[:MAX_TEXT], _text(request), _place(where, folder))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType, folder: str) -> str:
    code = frame.f_code
    return f"{code.co_filename.removeprefix(folder)}:{frame.f_lineno} in {code.co_qualname}"[:MAX_TEXT]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _report(found: Blocked) -> bytes:
    fields: dict[str, Any] = {"subject": found.name, "request": found.request, "place": found.place}
    if found.call is not None:
        fields["running_ms"] = int((time.monotonic() - found.call.started) * 1000)
        if found.call.id.isdigit():  # as the gateway's are
            fields["id"] = int(found.call.id)
    return frames.notice("blocked", **fields)
