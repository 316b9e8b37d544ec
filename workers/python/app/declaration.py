"""What tools, resources and prompts have in common: a function, and the texts and extras its author gave with it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Protocol

from .decorator import IGNORED, OPTIONS
from .schema import Invalid

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Target(Protocol):
    """A function that a call can run."""

    @property
    def name(self) -> str: ...

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def context_parameter(self) -> str | None: ...


def check(kind: str, function: Any, options: dict[str, Any]) -> None:
    """`Invalid` if the decorated thing is no function that can be called, or a keyword is unknown."""
    if unknown := sorted(set(options) - OPTIONS[kind] - IGNORED):
        raise Invalid(f"@{kind} does not know the keyword {unknown[0]}")
    if inspect.isclass(function) or not callable(function):
        raise Invalid(f"only functions can be {kind}s")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Invalid(f"a generator cannot be a {kind}; return a list")


def is_async(function: Any) -> bool:
    """Whether calling it gives something to run on the loop."""
    call = getattr(type(function), "__call__", None)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def name_of(kind: str, function: Any, given: Any) -> str:
    """The name given, or the function's own; `Invalid` if clients could not say it."""
    name = given or getattr(function, "__name__", "")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(f"a {kind} name is 1 to 128 of the characters A-Z a-z 0-9 _ . -")
    return name


def title_of(name: str) -> str:
    """`list_issues` → `List Issues`; capitals inside a word stay."""
    return " ".join(word[:1].upper() + word[1:] for word in re.split(r"[_\-. ]+", name) if word)


def description(function: Any, given: Any) -> str:
    """The description given, or the docstring."""
    if given is not None:
        return text("description", given) or ""
    return inspect.getdoc(function) or ""


def text(keyword: str, value: Any) -> str | None:
    """The value if it is a string or not given."""
    if value is None or isinstance(value, str):
        return value
    raise Invalid(f"{keyword} must be a string")


def annotations_of(given: Any) -> dict[str, Any]:
    """MCP's hints, as a dict or as an object of the mcp package."""
    if given is None:
        return {}
    given = _dumped(given)
    if not isinstance(given, dict):
        raise Invalid("annotations must be a dict")
    return given


def extras(options: dict[str, Any]) -> dict[str, Any]:
    """`icons` and `_meta`, as far as they were given."""
    found: dict[str, Any] = {}
    if icons := options.get("icons"):
        found["icons"] = _icons(icons)
    if meta := options.get("meta"):
        if not isinstance(meta, dict):
            raise Invalid("meta must be a dict")
        found["_meta"] = meta
    return found


def _icons(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, (list, tuple)):
        raise Invalid("icons must be a list")
    icons = [_dumped(icon) for icon in given]
    for icon in icons:
        if not isinstance(icon, dict) or not isinstance(icon.get("src"), str):
            raise Invalid("an icon is a dict with its address as src")
    return icons


def _dumped(value: Any) -> Any:
    """The plain form of an object of the mcp package."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return value
