"""Tools in an executed module that our own decorator did not see.

Where a file uses the real fastmcp package, its decorators leave their own traces: functions that carry a `__fastmcp__`
note (3.x and later), and tool objects that hold the function (2.x). Both are translated into our registrations.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .decorator import UNSET, Registration

_OPTIONS = ("name", "title", "description", "annotations", "output_schema", "meta")


def registrations_in(module: ModuleType, path: str, own: list[Registration]) -> list[Registration]:
    """All tools of the module in the order of the file; `own` are those our decorator noted."""
    known = {id(registration.function) for registration in own}
    found = list(own)
    for value in list(vars(module).values()):
        registration = _foreign(value)
        if registration is None or id(registration.function) in known:
            continue
        if getattr(registration.function, "__module__", module.__name__) != module.__name__:
            continue  # imported from the file that defines it, and listed there
        known.add(id(registration.function))
        found.append(registration)
    return sorted(found, key=lambda registration: _line(registration.function, path))


def _foreign(value: Any) -> Registration | None:
    note = getattr(value, "__fastmcp__", None) if callable(value) else None
    if note is not None and getattr(note, "type", None) == "tool":
        return Registration(value, _options(note, ()))
    kind = type(value)
    if kind.__module__.partition(".")[0] in ("fastmcp", "mcp") and kind.__name__ in ("FunctionTool", "Tool"):
        function = getattr(value, "fn", None)
        if callable(function):
            # The object has worked out its own schema; ours follows the gateway's rules for results.
            return Registration(function, _options(value, ("output_schema",)))
    return None


def _options(source: Any, leave_out: tuple[str, ...]) -> dict[str, Any]:
    options = {name: getattr(source, name, None) for name in _OPTIONS if name not in leave_out}
    options = {name: value for name, value in options.items() if value is not None and value is not UNSET}
    if getattr(source, "enabled", True) is False:
        options["enabled"] = False
    return options


def _line(function: Any, path: str) -> float:
    code = getattr(function, "__code__", None)
    return code.co_firstlineno if code is not None and code.co_filename == path else float("inf")
