"""What a tool may ask of its caller: `ctx: Context` in its signature.

The methods are FastMCP's. Each does its work when it is called and returns something to `await`, so that a sync tool,
which cannot await, may simply call it. Log messages go to the worker's log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NoReturn

from . import stdio

Report = Callable[[dict[str, Any]], None]


class Context:
    """One call's way back to its caller."""

    __slots__ = ("_report", "_request_id", "_tool")

    def __init__(self, tool: str, request_id: str, report: Report) -> None:
        self._tool = tool
        self._request_id = request_id
        self._report = report

    @property
    def request_id(self) -> str:
        """The id of this call."""
        return self._request_id

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> Coroutine[Any, Any, None]:
        """Tells the caller how far the tool is. Reports may be dropped when the caller does not read them in time."""
        params: dict[str, Any] = {"progress": _number("progress", progress)}
        if total is not None:
            params["total"] = _number("total", total)
        if message is not None:
            params["message"] = str(message)
        self._report(params)
        return _Done()

    def log(
        self, message: Any, level: str = "info", logger_name: str | None = None, extra: Any = None
    ) -> Coroutine[Any, Any, None]:
        """A line in the worker's log."""
        origin = self._tool if logger_name is None else f"{self._tool} {logger_name}"
        stdio.log(f"{level} [{origin}] {message}" + ("" if extra is None else f" {extra}"))
        return _Done()

    def debug(self, message: Any, logger_name: str | None = None, extra: Any = None) -> Coroutine[Any, Any, None]:
        """`log` at level debug."""
        return self.log(message, "debug", logger_name, extra)

    def info(self, message: Any, logger_name: str | None = None, extra: Any = None) -> Coroutine[Any, Any, None]:
        """`log` at level info."""
        return self.log(message, "info", logger_name, extra)

    def warning(self, message: Any, logger_name: str | None = None, extra: Any = None) -> Coroutine[Any, Any, None]:
        """`log` at level warning."""
        return self.log(message, "warning", logger_name, extra)

    def error(self, message: Any, logger_name: str | None = None, extra: Any = None) -> Coroutine[Any, Any, None]:
        """`log` at level error."""
        return self.log(message, "error", logger_name, extra)


class _Done(Coroutine[Any, Any, None]):
    """Already done; awaiting it only lets the event loop turn once, so that a loop of reports does not starve others.

    A `Coroutine`, since FastMCP's methods are, and tools hand those to `asyncio.create_task`.
    """

    __slots__ = ("_turned",)

    def __init__(self) -> None:
        self._turned = False

    def __await__(self) -> Generator[None, None, None]:
        yield

    def send(self, value: Any) -> None:
        if self._turned:
            raise StopIteration
        self._turned = True

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> NoReturn:
        raise kind if value is None else value

    def close(self) -> None:
        self._turned = True


def is_context(hint: Any) -> bool:
    """Whether an annotation means the context: ours, or the real packages' class of that name."""
    if not isinstance(hint, type):
        return False
    package = hint.__module__.partition(".")[0]
    return hint is Context or (hint.__name__ == "Context" and package in ("fastmcp", "mcp"))


def _number(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number")
    return value
