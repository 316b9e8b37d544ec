"""Completing an argument of a prompt or resource template while somebody types it.

Where an author gave a list of values, or the argument's type has only so many, those that begin with what was typed are
offered. A function of the author's decides itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from . import jsontext, results
from .declaration import is_async
from .schema import Invalid

MAX_VALUES = 100
"""Values in one answer; MCP allows no more."""

Completer = list[str] | Callable[..., Any]
Completers = dict[str, Completer]

_NONE: dict[str, Any] = {}


@dataclass(slots=True)
class Completion:
    """One question to an author's function, as a call can run it."""

    name: str
    function: Callable[[], Any]
    is_async: bool
    context_parameter: str | None = None


def completers_of(given: Any, schema: dict[str, Any]) -> Completers:
    """What completes which argument: the author's `complete=`, and the choices of the types."""
    properties = schema["properties"]
    definitions = schema.get("$defs", _NONE)
    found = {name: choices for name, field in properties.items() if (choices := _choices(field, definitions, 0))}
    completers: Completers = dict(found)
    if given is None:
        return completers
    if not isinstance(given, Mapping):
        raise Invalid("complete is a dict from argument to values or function")
    for name, completer in given.items():
        if name not in properties:
            raise Invalid(f"complete: there is no argument {name}")
        if callable(completer):
            completers[name] = completer
        elif isinstance(completer, (list, tuple, set, frozenset)):
            completers[name] = [_text(value) for value in completer]
        else:
            raise Invalid(f"complete: {name} needs a list of values or a function")
    return completers


def matching(values: list[str], typed: str) -> dict[str, Any]:
    """The answer for a list of values: those that begin like what was typed."""
    begin = typed.casefold()
    return answer([value for value in values if value.casefold().startswith(begin)])


def completion(name: str, function: Callable[..., Any], typed: str, others: dict[str, Any]) -> Completion:
    """The call of an author's function: with the text, and with the arguments given so far if it takes them."""
    given = (typed, others) if _takes_two(function) else (typed,)
    if is_async(function):

        async def awaited() -> Any:
            return await function(*given)

        return Completion(name, awaited, True)
    return Completion(name, lambda: function(*given), False)


def encode(value: Any) -> tuple[bytes, bytes | None]:
    """The JSON text of the result, from what an author's function returned."""
    return jsontext.dumps_any(results.plain({"completion": answer(value)})), None


def answer(value: Any) -> dict[str, Any]:
    """MCP's completion object: at most `MAX_VALUES` values, how many there are, and whether there are more."""
    total = more = None
    if isinstance(value, Mapping) or hasattr(value, "values") and not callable(value.values):
        # A dict, or the Completion object of the mcp package.
        fields = value if isinstance(value, Mapping) else vars(value)
        total, more = fields.get("total"), fields.get("hasMore", fields.get("has_more"))
        value = fields.get("values")
    if value is None:
        value = []
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple, set, frozenset)):
        raise results.Unserialisable("a completion is a list of values")
    values = [_text(item) for item in value]
    found: dict[str, Any] = {"values": values[:MAX_VALUES]}
    found["total"] = total if isinstance(total, int) and not isinstance(total, bool) else len(values)
    found["hasMore"] = more if isinstance(more, bool) else found["total"] > len(found["values"])
    return found


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind("", {})
    except (TypeError, ValueError):  # ValueError: a built-in without a signature
        return False
    return True


def _choices(field: Any, definitions: dict[str, Any], depth: int) -> list[str]:
    """The values of a `Literal`, `Enum` or flag, `None` apart."""
    if not isinstance(field, dict) or depth > 8:
        return []
    if isinstance(reference := field.get("$ref"), str):
        return _choices(definitions.get(reference.rpartition("/")[2]), definitions, depth + 1)
    if isinstance(values := field.get("enum"), list):
        return [_text(value) for value in values if value is not None]
    if "const" in field and field["const"] is not None:
        return [_text(field["const"])]
    if field.get("type") == "boolean":
        return ["true", "false"]
    for union in ("anyOf", "oneOf", "allOf"):
        if isinstance(branches := field.get(union), list):
            others = [branch for branch in branches if not (isinstance(branch, dict) and branch.get("type") == "null")]
            parts = [_choices(branch, definitions, depth + 1) for branch in others]
            return [value for part in parts for value in part] if all(parts) else []
    return []


def _text(value: Any) -> str:
    value = value.value if isinstance(value, Enum) else value
    return value if isinstance(value, str) else jsontext.dumps_any(results.plain(value)).decode("utf-8")
