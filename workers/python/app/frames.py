"""Lines in, lines out: cutting the stream into frames, and the frames the worker sends.

A frame is one line of JSON. A line longer than the limit is never held: once it is known to be too long only its first
bytes are kept, in which the id usually is, and the rest is skipped.
"""

from __future__ import annotations

import re
from typing import Any

from . import jsontext, results

_HEAD = 512

MAX_KEY = 256
"""Characters of a question's key."""

_ID = rb'("(?:[^"\\]|\\.)*"|-?[0-9]+)'
_LEADING_ID = re.compile(rb'\s*\{\s*"id"\s*:\s*%b\s*,' % _ID)
_LEADING_ANSWER = re.compile(rb'\{"op":"answer","target":%b,"key":("(?:[^"\\]|\\.)*"),' % _ID)

NO_ID = b'""'
"""The id of an answer to something whose id is not known."""


def leading_id(line: bytes) -> bytes:
    """The id of a line that is no JSON or was not read whole: it stands first in what the gateway sends."""
    found = _LEADING_ID.match(line[:_HEAD])
    return found.group(1) if found else NO_ID


def leading_answer(line: bytes) -> tuple[bytes, str] | None:
    """Call and key of an answer that is no JSON or was not read whole, written as the gateway does."""
    found = _LEADING_ANSWER.match(line[: _HEAD + 6 * MAX_KEY])
    if found is None:
        return None
    try:
        return found.group(1), str(jsontext.loads(found.group(2)))
    except ValueError:
        return None


class TooLong:
    """Stands in the place of a line over the limit."""

    __slots__ = ("head", "id")

    def __init__(self, line: bytes) -> None:
        self.head = line[: _HEAD + 6 * MAX_KEY]
        self.id = leading_id(line)


class LineBuffer:
    """Cuts received bytes into lines, whatever pieces they come in."""

    __slots__ = ("_limit", "_parts", "_size", "_skipping")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | TooLong]:
        """The lines that are complete now."""
        lines: list[Any] = data.split(b"\n")
        tail: bytes = lines.pop()
        if lines:
            if self._skipping:
                del lines[0]
                self._skipping = False
            elif self._parts:
                self._parts.append(lines[0])
                lines[0] = b"".join(self._parts)
                self._parts.clear()
                self._size = 0
            limit = self._limit
            if len(data) + len(lines[0] if lines else b"") > limit:
                lines = [line if len(line) <= limit else TooLong(line) for line in lines]
        if tail and not self._skipping:
            self._parts.append(tail)
            self._size += len(tail)
            if self._size > self._limit:
                lines.append(TooLong(b"".join(self._parts)))
                self._parts.clear()
                self._size = 0
                self._skipping = True
        return lines


def id_text(value: Any) -> bytes | None:
    """The JSON text of a request's id; None if it is not one."""
    kind = type(value)
    if kind is int:
        return b"%d" % value
    if kind is str or kind is float:
        return jsontext.dumps_any(value)
    return None


def success(
    call_id: bytes, result: bytes, content: bytes | None, latency_ms: int, meta: bytes | None = None
) -> bytes:
    """The answer to a request that worked. `result`, `content` and `meta` are JSON texts."""
    if content is None:
        return b'{"id":%b,"ok":true,"result":%b,"latency_ms":%d}\n' % (call_id, result, latency_ms)
    if meta is not None:
        content += b',"meta":' + meta
    return b'{"id":%b,"ok":true,"result":%b,"content":%b,"latency_ms":%d}\n' % (call_id, result, content, latency_ms)


def failure(call_id: bytes, code: str, message: str, details: dict[str, Any] | None = None) -> bytes:
    """The answer to a request that did not."""
    error = jsontext.dumps_any(results.plain({"code": code, "message": message, "details": details or {}}))
    return b'{"id":%b,"ok":false,"error":%b}\n' % (call_id, error)


def unknown(call_id: bytes, kind: str, name: Any) -> bytes:
    """The answer to a request for a tool, resource or prompt that is not there."""
    shown = name if isinstance(name, str) else "(no name given)"
    return failure(call_id, f"{kind}_not_found", f"Unknown {kind}: {shown[:200]}")


def progress(call_id: bytes, params: dict[str, Any]) -> bytes:
    """How far a running call is."""
    return b'{"op":"progress","id":%b,"params":%b}\n' % (call_id, jsontext.dumps_any(results.plain(params)))


def log(call_id: bytes, params: dict[str, Any]) -> bytes:
    """A log message of a running call."""
    return b'{"op":"log","id":%b,"params":%b}\n' % (call_id, jsontext.dumps_any(results.plain(params)))


def dropped(call_id: bytes, count: int) -> bytes:
    """How many messages of a running call were left out, because nobody read them in time."""
    return b'{"op":"dropped","id":%b,"params":{"count":%d}}\n' % (call_id, count)


def notify(call_id: bytes, notification: dict[str, Any]) -> bytes:
    """Something changed, says a running call: `method`, and `params` if there are any."""
    return b'{"op":"notify","id":%b,%b\n' % (call_id, jsontext.dumps_any(results.plain(notification))[1:])


def ask(call_id: bytes, questions: list[bytes]) -> bytes:
    """Questions of a running call, each the JSON text of `key`, `method`, `params`."""
    return b'{"op":"ask","id":%b,"questions":[%b]}\n' % (call_id, b",".join(questions))


def notice(op: str, **fields: Any) -> bytes:
    """A frame of the worker's own: ready, recycle, failed."""
    return jsontext.dumps_any(results.plain({"op": op, **fields})) + b"\n"
