"""From an exception to a stable code, a message a client may read, and details.

The code is one of the contract's; which one says who has to act: the caller (`invalid_arguments`), the caller's client
(`missing_capability`, `ask_failed`), whoever installs packages (`dependency_error`), or the tool's author
(`internal_error`, `output_type`). `tool_error` is what the tool itself has to say: its text is for the model.

`details.traceback` is for the gateway's log; callers see the traceback only where the gateway trusts them with it.
"""

from __future__ import annotations

import os
import traceback
from typing import Any

from pydantic_core import ValidationError

from .blocks import ErrorResult
from .exceptions import plain_texts
from .questions import AskFailed, MissingCapability
from .raw_schema import Mismatch
from .results import Unserialisable, WrongType

MAX_MESSAGE = 4 * 1024
MAX_TRACEBACK = 16 * 1024
"""Bytes of a traceback's text."""
MAX_COMPLAINTS = 100

_RUNTIME = os.path.dirname(os.path.abspath(__file__)) + os.sep

Failure = tuple[str, str, dict[str, Any]]


def of_tool(error: BaseException) -> Failure:
    """What a tool raised."""
    if isinstance(error, ErrorResult):
        return "tool_error", _cut(str(error)), {}
    if isinstance(error, Unserialisable):
        return "internal_error", _cut(str(error)), {}
    if isinstance(error, WrongType):
        return "output_type", _cut(str(error)), {}
    texts, whole = plain_texts(error)
    if texts:
        return "tool_error", _cut("\n".join(texts)), {} if whole else {"traceback": trace(error)}
    asking = _of_asking(error)
    if isinstance(asking, MissingCapability):
        return "missing_capability", _cut(str(asking)), {"requiredCapabilities": asking.required}
    if asking is not None:
        return "ask_failed", _cut(str(asking)), {}
    details: dict[str, Any] = {"traceback": trace(error)}
    if isinstance(error, ImportError):
        if error.name:
            details["module"] = error.name
        return "dependency_error", _message(error), details
    return "internal_error", _described(error), details


def of_arguments(subject: str, error: BaseException) -> Failure:
    """Why arguments were refused. The values themselves are not repeated: they may be long, or secret."""
    if isinstance(error, Mismatch):
        return _refused(error.complaints)
    if not isinstance(error, ValidationError):
        details = {"traceback": trace(error)}
        return "internal_error", f"checking the arguments of {subject} failed: {_described(error)}", details
    return _refused(error.errors(include_url=False))


def _refused(found: list[Any]) -> Failure:
    complaints = [
        {"loc": list(item["loc"]), "msg": _cut(str(item["msg"])), "type": item["type"]}
        for item in found[:MAX_COMPLAINTS]
    ]
    shown = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'arguments'}: {item['msg']}" for item in complaints[:3])
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    return "invalid_arguments", _cut(f"{shown}{more}"), {"errors": complaints}


def _of_asking(error: BaseException) -> Exception | None:
    """The failed question that ended the function; task groups pack it into groups."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error if isinstance(error, (AskFailed, MissingCapability)) else None


def trace(error: BaseException) -> str:
    """The traceback without the runtime's own frames; the end is what matters, so the beginning is cut."""
    try:
        summary = traceback.TracebackException.from_exception(error)
        _strip(summary, set())
        text = "".join(summary.format())
    except BaseException as second:  # exceptions whose __str__ fails, and worse
        text = f"{type(error).__name__} (its traceback cannot be shown: {type(second).__name__})"
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= MAX_TRACEBACK else "…" + encoded[3 - MAX_TRACEBACK :].decode("utf-8", "ignore")


def _strip(summary: traceback.TracebackException, seen: set[int]) -> None:
    if id(summary) in seen:
        return
    seen.add(id(summary))
    kept = [frame for frame in summary.stack if not frame.filename.startswith((_RUNTIME, "<frozen importlib"))]
    summary.stack = traceback.StackSummary.from_list(kept)
    for other in (summary.__cause__, summary.__context__, *(getattr(summary, "exceptions", None) or ())):
        if other is not None:
            _strip(other, seen)


def _described(error: BaseException) -> str:
    message = _message(error)
    return _cut(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def _message(error: BaseException) -> str:
    try:
        return _cut(str(error))
    except BaseException:
        return ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + "…"
