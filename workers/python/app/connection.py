"""One client on the socket: its requests, its running calls, its answers.

The hot path. Many lines arrive in one read, and their answers leave in one write at the end of the loop's turn: system
calls cost ten times what the frames do. When the client does not read its answers, we stop reading its requests.
"""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import failures, forks, frames, jsontext, results
from .calls import Call
from .frames import NO_ID, LineBuffer, TooLong

if TYPE_CHECKING:
    from .server import Server

MAX_RUNNING = 4096
"""Calls of one connection at a time. The gateway stays far below; this bounds what a client by hand can pile up."""

WRITE_BUFFER = 1024 * 1024

_NO_ARGUMENTS: dict[str, Any] = {}


class Connection(asyncio.Protocol):
    """The protocol object asyncio calls."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tools = server.tools
        self._loop = server.loop
        self._lines = LineBuffer(server.max_frame)
        self._max_frame = server.max_frame
        self._calls: dict[bytes, Call] = {}
        self._out: list[bytes] = []
        self._paused = False
        self._half_closed = False
        self._loop_thread = threading.get_ident()
        self._transport: asyncio.Transport
        self._fd = -1
        self._operations: dict[str, Callable[[bytes, dict[str, Any]], None]] = {
            "ping": self._ping,
            "tools.list": self._list,
            "tools.get_schema": self._get_schema,
            "shutdown": self._shutdown,
        }

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._fd = transport.get_extra_info("socket").fileno()
        forks.withhold(self._fd)
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self._server.connected(self)

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if line:
                self._receive(line)

    def eof_received(self) -> bool:
        """A client that only stopped writing (`echo … | socat`) still gets its answers; one that is gone does not."""
        self._flush()
        self._half_closed = bool(self._calls) and not self._hung_up()
        return self._half_closed

    def connection_lost(self, error: Exception | None) -> None:
        forks.release(self._fd)
        self._server.disconnected(self)
        self._out.clear()
        for call in list(self._calls.values()):
            self._cancel(call)

    def pause_writing(self) -> None:
        self._paused = True
        if not self._transport.is_closing() and not self._half_closed:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if not self._transport.is_closing() and not self._half_closed:
            self._transport.resume_reading()

    # What the rest of the runtime calls, on the loop's thread unless it says otherwise.

    def send(self, frame: bytes) -> None:
        """Queues a frame; it leaves at the end of this turn of the loop."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def finish(self, call: Call, frame: bytes) -> None:
        """Answers a call, unless it was cancelled meanwhile."""
        if call.done:
            return
        call.done = True
        del self._calls[call.id]
        self._answer(call.id, frame)
        if self._half_closed and not self._calls:
            self.close()

    def report_progress(self, call: Call, params: dict[str, Any]) -> None:
        """Sends a progress frame; from a tool's thread, only the latest report of a turn."""
        if threading.get_ident() == self._loop_thread:
            self._send_progress(call, params)
            return
        first = call.latest_progress is None
        call.latest_progress = params
        if first:
            try:
                self._loop.call_soon_threadsafe(self._send_latest_progress, call)
            except RuntimeError:
                pass  # the loop is closed: the worker is ending

    def cancel_all(self) -> None:
        """Cancels every running call, each with its answer."""
        for call in list(self._calls.values()):
            self._cancel(call)
            self.send(_cancelled(call))

    def close(self) -> None:
        """Sends what is queued and ends the connection."""
        self._flush()
        self._transport.close()

    # Requests.

    def _receive(self, line: bytes | TooLong) -> None:
        if type(line) is TooLong:
            message = f"the request is longer than {self._max_frame} bytes"
            self.send(frames.failure(line.id, "invalid_arguments", message))
            return
        try:
            request = jsontext.loads(line)  # type: ignore[arg-type]
        except ValueError:
            if line.isspace():  # type: ignore[union-attr]
                return  # somebody pressed Enter
            self._refuse(line)  # type: ignore[arg-type]
            return
        if type(request) is not dict:
            self.send(frames.failure(NO_ID, "internal_error", "a request is a JSON object"))
            return
        operation = request.get("op")
        request_id = frames.id_text(request.get("id"))
        if request_id is None:
            if operation == "cancel" and "id" not in request:
                self._cancel_by_id(request)
            else:
                self.send(frames.failure(NO_ID, "internal_error", "a request has an id, a string or a number"))
        elif operation == "tools.call":
            self._call(request_id, request)
        elif operation == "cancel":
            found = self._cancel_by_id(request)
            self._reply(request_id, {"cancelled": found})
        elif isinstance(operation, str) and operation in self._operations:
            self._operations[operation](request_id, request)
        else:
            self.send(frames.failure(request_id, "internal_error", f"unknown op: {str(operation)[:100]}"))

    def _refuse(self, line: bytes) -> None:
        """Answers a line that cannot be read. One that begins like a request is one: somebody waits for its answer."""
        request_id = frames.leading_id(line)
        if request_id == NO_ID:
            self.send(frames.failure(NO_ID, "internal_error", "invalid JSON"))
            return
        message = "the request cannot be read: text with half a surrogate pair, or a number of thousands of digits"
        self.send(frames.failure(request_id, "invalid_arguments", message))

    def _call(self, call_id: bytes, request: dict[str, Any]) -> None:
        name = request.get("tool")
        tool = self._tools.get(name) if type(name) is str else None
        if tool is None:
            self.send(_unknown_tool(call_id, name))
            return
        try:
            arguments = tool.validate(request.get("arguments", _NO_ARGUMENTS))
        except BaseException as error:  # validators of the tool's author run here, too
            forks.leave_if_child()
            self.send(frames.failure(call_id, *failures.of_arguments(tool.name, error)))
            return
        if call_id in self._calls or len(self._calls) >= MAX_RUNNING:
            reason = "a running call has this id" if call_id in self._calls else "too many running calls"
            self.send(frames.failure(call_id, "internal_error", reason))
            return
        call = Call(self, call_id, tool)
        self._calls[call_id] = call
        if tool.context_parameter is not None:
            call.inject_context(arguments)
        if tool.is_async:
            self._server.start(call, arguments)
        else:
            self._server.threads.submit(call, arguments)

    def _cancel_by_id(self, request: dict[str, Any]) -> bool:
        target = frames.id_text(request.get("target"))
        call = self._calls.get(target) if target is not None else None
        if call is None:
            return False
        self._cancel(call)
        self.send(_cancelled(call))
        if self._half_closed and not self._calls:
            self.close()
        return True

    def _cancel(self, call: Call) -> None:
        """Ends the call without an answer."""
        call.done = True
        self._calls.pop(call.id, None)
        self._server.cancelled(call)

    def _ping(self, request_id: bytes, request: dict[str, Any]) -> None:
        self._reply(request_id, {"pong": True})

    def _list(self, request_id: bytes, request: dict[str, Any]) -> None:
        self._reply(request_id, [tool.public for tool in self._tools.values()])

    def _get_schema(self, request_id: bytes, request: dict[str, Any]) -> None:
        name = request.get("tool")
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            self.send(_unknown_tool(request_id, name))
            return
        wanted = ("name", "inputSchema", "outputSchema")
        self._reply(request_id, {key: tool.public[key] for key in wanted if key in tool.public})

    def _shutdown(self, request_id: bytes, request: dict[str, Any]) -> None:
        self._reply(request_id, {"shutdown": True})
        self._server.stop()

    # Answers.

    def _reply(self, request_id: bytes, value: Any) -> None:
        result = jsontext.dumps_any(results.plain(value))
        self._answer(request_id, frames.success(request_id, result, None, 0))

    def _answer(self, request_id: bytes, frame: bytes) -> None:
        size = len(frame) - 1
        if size > self._max_frame:
            message = f"the result takes {size} bytes, the limit is {self._max_frame}"
            details = {"size": size, "limit": self._max_frame}
            frame = frames.failure(request_id, "result_too_large", message, details)
        self.send(frame)

    def _send_progress(self, call: Call, params: dict[str, Any]) -> None:
        # Dropped for a client that does not read: the next report says more than this one.
        if call.done or self._paused:
            return
        frame = frames.progress(call.id, params)
        if len(frame) <= self._max_frame:
            self.send(frame)

    def _send_latest_progress(self, call: Call) -> None:
        params, call.latest_progress = call.latest_progress, None
        if params is not None:
            self._send_progress(call, params)

    def _flush(self) -> None:
        out = self._out
        if not out:
            return
        self._out = []
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _hung_up(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, 0)  # hang-up and error are always reported
        return bool(poll.poll(0))


def _cancelled(call: Call) -> bytes:
    return frames.failure(call.id, "cancelled", "the call was cancelled")


def _unknown_tool(request_id: bytes, name: Any) -> bytes:
    shown = name if isinstance(name, str) else "(no name given)"
    return frames.failure(request_id, "tool_not_found", f"Unknown tool: {shown[:200]}")
