"""Tools, resources and prompts in an executed module that our own decorators did not see.

Where a file uses the real fastmcp package, its decorators leave their own traces: functions that carry a `__fastmcp__`
note (3.x and later), and objects that hold the function (2.x). Both are translated into our registrations.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .decorator import OPTIONS, OWN, REFUSED, UNSET, Registration

_KIND_OF_CLASS = {
    "FunctionTool": "tool",
    "Tool": "tool",
    "FunctionResource": "resource",
    "FunctionResourceTemplate": "resource",
    "ResourceTemplate": "resource",
    "FunctionPrompt": "prompt",
    "Prompt": "prompt",
}
_WORKED_OUT = frozenset({"output_schema"})
"""What the objects have worked out by themselves; ours follows the gateway's rules for results."""


def registrations_in(module: ModuleType, path: str, own: list[Registration]) -> list[Registration]:
    """All of the module in the order of the file; `own` are those our decorators noted."""
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
    kind = getattr(note, "type", None)
    if isinstance(kind, str) and kind in OPTIONS:
        return Registration(value, _options(kind, note, frozenset()), kind)
    class_ = type(value)
    if class_.__module__.partition(".")[0] in ("fastmcp", "mcp") and class_.__name__ in _KIND_OF_CLASS:
        function = _own_function(getattr(value, "fn", None))
        if callable(function):
            kind = _KIND_OF_CLASS[class_.__name__]
            return Registration(function, _options(kind, value, _WORKED_OUT), kind)
    return None


def _own_function(function: Any) -> Any:
    """The author's function. 2.x hides one that takes a Context in a wrapper that only its own server can call."""
    if (getattr(function, "__module__", None) or "").partition(".")[0] != "fastmcp":
        return function
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
    names = code.co_freevars if code is not None else ()
    return dict(zip(names, (cell.cell_contents for cell in cells), strict=False)).get("fn", function)


def _options(kind: str, source: Any, leave_out: frozenset[str]) -> dict[str, Any]:
    names = (OPTIONS[kind] | set(REFUSED)) - leave_out - OWN[kind] - {"enabled", "exclude_args"}
    options = {name: getattr(source, name, None) for name in sorted(names)}
    options = {name: value for name, value in options.items() if value is not None and value is not UNSET}
    if kind == "resource":
        if getattr(source, "security", UNSET) is None:
            options["security"] = None
        options["uri"] = str(options.get("uri") or getattr(source, "uri_template", ""))
    if getattr(source, "enabled", True) is False:
        options["enabled"] = False
    return options


def _line(function: Any, path: str) -> float:
    code = getattr(function, "__code__", None)
    return code.co_firstlineno if code is not None and code.co_filename == path else float("inf")
