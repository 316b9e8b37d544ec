"""One client on the socket: its requests, its running calls, its answers.

The hot path. Many lines arrive in one read, and their answers leave in one write at the end of the loop's turn: system
calls cost ten times what the frames do. When the client does not read its answers, we stop reading its requests.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import failures, forks, frames, jsontext, results
from .calls import Call
from .declaration import Target
from .frames import NO_ID, LineBuffer, TooLong
from .operations import OPERATIONS
from .results import Encode
from .telling import Telling

if TYPE_CHECKING:
    from .server import Server

MAX_RUNNING = 4096
"""Calls of one connection at a time. The gateway stays far below; this bounds what a client by hand can pile up."""

WRITE_BUFFER = 1024 * 1024

MAX_UNREAD = 16 * WRITE_BUFFER
"""Bytes nobody read, from which on even notifications are dropped."""

_NO_ARGUMENTS: dict[str, Any] = {}


class Connection(asyncio.Protocol):
    """The protocol object asyncio calls."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._tools = server.loaded.tools
        self._loop = server.loop
        self._watch = server.watch
        self._lines = LineBuffer(server.max_frame)
        self.max_frame = server.max_frame
        self._calls: dict[bytes, Call] = {}
        self._out: list[bytes] = []
        self._paused = False
        self._half_closed = False
        self.telling = Telling(self, server.loop)
        self._transport: asyncio.Transport
        self._fd = -1

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._fd = transport.get_extra_info("socket").fileno()
        forks.withhold(self._fd)
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self.server.connected(self)

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
        self.server.disconnected(self)
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
        if call.told is not None:
            self.telling.send_waiting(call)  # said before the end
        if call.dropped:
            self.send(frames.dropped(call.id, call.dropped))
        call.done = True
        call.stop_clock()
        if call.asking is not None:
            call.asking.drop()
        del self._calls[call.id]
        self._answer(call.id, frame)
        if self._half_closed and not self._calls:
            self.close()

    def time_is_up(self, call: Call) -> None:
        """The tool's own time limit is over. While somebody is being asked, time does not count."""
        if call.done:
            return
        if call.asking is not None and call.asking.waiting():
            call.start_clock()
            return
        self._cancel(call)
        message = f"{call.target.name} did not finish within the {call.timeout:g} s of its timeout="
        self.send(frames.failure(call.id, "execution_timeout", message))
        if self._half_closed and not self._calls:
            self.close()

    def congested(self, worthless: bool) -> bool:
        """Whether to drop what is not an answer: the client does not read."""
        return self._paused and (worthless or self._transport.get_write_buffer_size() > MAX_UNREAD)

    def calls(self) -> list[Call]:
        """The calls that run or wait. From any thread."""
        return list(self._calls.values())

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
            if self._unreadable_answer(line.head, f"is longer than {self.max_frame} bytes"):
                return
            message = f"the request is longer than {self.max_frame} bytes"
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
            if operation == "answer" and "id" not in request:
                self._answered(request)
            elif operation == "cancel" and "id" not in request:
                self._cancel_by_id(request)
            else:
                self.send(frames.failure(NO_ID, "internal_error", "a request has an id, a string or a number"))
        elif operation == "tools.call":
            self._call(request_id, request)
        elif operation == "cancel":
            found = self._cancel_by_id(request)
            self.reply(request_id, {"cancelled": found})
        elif operation == "answer":
            self.reply(request_id, {"answered": self._answered(request)})
        elif isinstance(operation, str) and operation in OPERATIONS:
            OPERATIONS[operation](self, request_id, request)
        else:
            self.send(frames.failure(request_id, "internal_error", f"unknown op: {str(operation)[:100]}"))

    def _refuse(self, line: bytes) -> None:
        """Answers a line that cannot be read. One that begins like a request is one: somebody waits for its answer."""
        request_id = frames.leading_id(line)
        if self._unreadable_answer(line, "cannot be read"):
            return
        if request_id == NO_ID:
            self.send(frames.failure(NO_ID, "internal_error", "invalid JSON"))
            return
        message = "the request cannot be read: text with half a surrogate pair, or a number of thousands of digits"
        self.send(frames.failure(request_id, "invalid_arguments", message))

    def _call(self, call_id: bytes, request: dict[str, Any]) -> None:
        if self._watch.asleep:
            self._watch.wake()
        name = request.get("tool")
        tool = self._tools.get(name) if type(name) is str else None
        if tool is None:
            self.send(frames.unknown(call_id, "tool", name))
            return
        try:
            arguments = tool.validate(request.get("arguments", _NO_ARGUMENTS))
        except BaseException as error:  # validators of the tool's author run here, too
            forks.leave_if_child()
            self.send(frames.failure(call_id, *failures.of_arguments(tool.name, error)))
            return
        self.begin(call_id, tool, arguments, request, tool.encode, tool.timeout)

    def begin(
        self,
        call_id: bytes,
        target: Target,
        arguments: dict[str, Any],
        request: dict[str, Any],
        encode: Encode,
        timeout: float | None = None,
    ) -> None:
        """Runs a call, on the loop or in a thread."""
        if self._watch.asleep:
            self._watch.wake()
        if call_id in self._calls or len(self._calls) >= MAX_RUNNING:
            reason = "a running call has this id" if call_id in self._calls else "too many running calls"
            self.send(frames.failure(call_id, "internal_error", reason))
            return
        call = Call(self, call_id, target, encode)
        call.timeout = timeout
        if isinstance(origin := request.get("request"), str):
            call.request = origin
        if "traceparent" in request:
            call.trace = (request["traceparent"], request.get("tracestate"))
        self._calls[call_id] = call
        if target.context_parameter is not None:
            call.inject_context(arguments, request.get("caller"))
        if target.is_async:
            call.start_clock()
            self.server.start(call, arguments)
        else:
            self.run_in_thread(call, call.run_in_thread, arguments)

    def run_in_thread(self, call: Call, work: Callable[[Any], Any], argument: Any) -> None:
        """Gives a part of a call to a thread; the call fails if there is none."""
        if not self.server.threads.submit(call, work, argument):
            message = "threads of cancelled calls take all places; the worker has to be replaced"
            self.finish(call, frames.failure(call.id, "internal_error", message))

    def _answered(self, request: dict[str, Any]) -> bool:
        """Hands an answer to the question of a running call; one that nobody waits for (any more) is dropped."""
        target = frames.id_text(request.get("target"))
        call = self._calls.get(target) if target is not None else None
        return call is not None and call.asking is not None and call.asking.answer(request.get("key"), request)

    def _unreadable_answer(self, head: bytes, why: str) -> bool:
        """Whether the line is an answer that cannot be used: the function that asked hears of it."""
        found = frames.leading_answer(head)
        if found is None:
            return False
        target, key = found
        call = self._calls.get(target)
        if call is not None and call.asking is not None:
            call.asking.answer(key, {"error": {"message": f"the client's answer {why}"}})
        return True

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
        call.stop_clock()
        if call.asking is not None:
            call.asking.drop()
        self._calls.pop(call.id, None)
        self.server.cancelled(call)

    # Answers.

    def reply(self, request_id: bytes, value: Any) -> None:
        """Answers a request that needed no call."""
        result = jsontext.dumps_any(results.plain(value))
        self._answer(request_id, frames.success(request_id, result, None, 0))

    def _answer(self, request_id: bytes, frame: bytes) -> None:
        size = len(frame) - 1
        if size > self.max_frame:
            message = f"the result takes {size} bytes, the limit is {self.max_frame}"
            details = {"size": size, "limit": self.max_frame}
            frame = frames.failure(request_id, "result_too_large", message, details)
        self.send(frame)

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
