"""An address for what tools print, log and warn of: how severe a line is, and which request it belongs to.

All of it reaches the gateway as lines on one pipe. With `--addressed-log` each line that Python code writes begins with
`\\x1e`, a letter for its level, the request's id (or nothing) and `\\x1f`, which the gateway takes off again. Lines
without that, of C code and of subprocesses, belong to the namespace alone. By hand, lines are as they always were.

`logging` shows INFO and above where the author sets nothing up; what the author's own handlers write to the standard
streams keeps its level. A warning is one line of level warning.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

REQUEST: ContextVar[str] = ContextVar("tooldock_request", default="")
"""The request that the running code works for."""

_LEVEL: ContextVar[str] = ContextVar("tooldock_level", default="info")

_LETTERS = {"debug": b"d", "info": b"i", "notice": b"i", "warning": b"w"}
"""Of MCP's levels; what is missing here is an error."""

MAX_HELD = 4096
"""Characters of a line without an end that wait for it; and so many such lines at a time:"""
MAX_LINES = 64

_held: dict[tuple[int, str], str] = {}
"""Beginnings of lines, by stream and request."""
_lock = threading.Lock()  # guards `_held`


def set_up(addressed: bool) -> None:
    """Prepares the standard streams, `logging` and `warnings`, before any tool code runs."""
    if addressed:
        for name in ("stdout", "stderr"):
            if (stream := getattr(sys, name)) is not None:
                addressed_stream = _Addressed(stream)
                setattr(sys, name, addressed_stream)
                setattr(sys, f"__{name}__", addressed_stream)
        os.register_at_fork(after_in_child=_after_in_child)
    _set_up_logging()
    warnings.showwarning = _show_warning


@contextmanager
def level(name: str) -> Iterator[None]:
    """What is written inside has this level."""
    token = _LEVEL.set(name)
    try:
        yield
    finally:
        _LEVEL.reset(token)


def settle() -> None:
    """The call is over: what it wrote without ending the line is written as it is."""
    if _held:
        request = REQUEST.get()
        for key in [key for key in list(_held) if key[1] == request]:
            with _lock:
                rest = _held.pop(key, "")
            if rest:
                _write(rest, request)


class _Addressed(io.TextIOWrapper):
    """A standard stream that writes whole lines with their address. Its `buffer` is the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        stream.flush()
        super().__init__(stream.detach(), "utf-8", "backslashreplace", line_buffering=True)  # type: ignore[attr-defined]

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        request = REQUEST.get()
        key = (id(self), request)
        with _lock:
            *lines, rest = (_held.pop(key, "") + text).split("\n")
            if len(rest) > MAX_HELD or rest and len(_held) >= MAX_LINES:
                lines.append(rest)
            elif rest:
                _held[key] = rest
        for line in lines:
            _write(line, request)
        return len(text)


def _write(line: str, request: str) -> None:
    data = b"\x1e%b%b\x1f%b\n" % (
        _LETTERS.get(_LEVEL.get(), b"e"),
        request.encode("utf-8", "replace"),
        line.encode("utf-8", "backslashreplace"),
    )
    try:
        while data:
            data = data[os.write(2, data) :]
    except OSError:
        pass  # nobody reads the log any more; that must not fail a call


def _after_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    _held.clear()  # the parent's lines


def _set_up_logging() -> None:
    import logging  # asyncio brings it along in any case

    call_handlers = logging.Logger.callHandlers

    def with_level(self: Any, record: Any) -> None:
        number = record.levelno
        name = "error" if number >= 40 else "warning" if number >= 30 else "info" if number >= 20 else "debug"
        with level(name):
            call_handlers(self, record)

    logging.Logger.callHandlers = with_level  # type: ignore[method-assign]
    logging.root.setLevel(logging.INFO)
    if logging.lastResort is not None:  # what writes where no handler is set up
        logging.lastResort.setLevel(logging.INFO)
        logging.lastResort.setFormatter(logging.Formatter("%(name)s: %(message)s"))


_show_elsewhere = warnings.showwarning


def _show_warning(
    message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:
    if file is not None:
        _show_elsewhere(message, category, filename, lineno, file, line)
    elif sys.stderr is not None:
        with level("warning"):
            sys.stderr.write(f"{os.path.basename(filename)}:{lineno}: {category.__name__}: {message}\n")
