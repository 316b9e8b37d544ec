"""What running calls tell their client: progress, log messages, notifications.

From the loop's thread they leave at once, in order. Tools in threads put theirs into the call's own short list, of
which the loop is told once: of reports of progress that follow each other only the latest stays.
A client that does not read loses progress and log messages first; neither is worth holding up or filling memory for.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from . import frames

if TYPE_CHECKING:
    from .calls import Call
    from .connection import Connection

MAX_WAITING = 256
"""Messages of one call that wait for the loop; what a thread adds beyond them is dropped."""

_FRAMES = {"progress": frames.progress, "log": frames.log, "notify": frames.notify}


class Telling:
    """The way out for the calls of one connection."""

    __slots__ = ("_connection", "_lock", "_loop", "_thread")

    def __init__(self, connection: Connection, loop: Any) -> None:
        self._connection = connection
        self._loop = loop
        self._thread = threading.get_ident()
        self._lock = threading.Lock()  # guards `told` of every call

    def on_loop(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self._thread

    def tell(self, call: Call, kind: str, params: dict[str, Any]) -> None:
        """Sends the message, or hands it to the loop."""
        if threading.get_ident() == self._thread:
            self._send(call, kind, params)
            return
        with self._lock:
            waiting = call.told
            if waiting is None:
                call.told = [(kind, params)]
            elif kind == "progress" == waiting[-1][0]:
                waiting[-1] = (kind, params)
            elif len(waiting) < MAX_WAITING:
                waiting.append((kind, params))
            else:
                call.dropped += 1
        if waiting is None:
            try:
                self._loop.call_soon_threadsafe(self.send_waiting, call)
            except RuntimeError:
                pass  # the loop is closed: the worker is ending

    def send_waiting(self, call: Call) -> None:
        """Sends what a thread of the call told until now."""
        with self._lock:
            waiting, call.told = call.told, None
        for kind, params in waiting or ():
            self._send(call, kind, params)

    def _send(self, call: Call, kind: str, params: dict[str, Any]) -> None:
        connection = self._connection
        if call.done:
            return
        if connection.congested(kind != "notify"):
            call.dropped += 1
            return
        frame = _FRAMES[kind](call.id, params)
        if len(frame) <= connection.max_frame:
            connection.send(frame)
