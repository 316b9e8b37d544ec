"""The `@tool`, `@resource` and `@prompt` decorators, and who gets what they decorate.

The function is returned unchanged. What was asked for is noted under the tool file that is being executed at that
moment: not under the module the function was defined in, so that a helper module's decorator factory works, while
decorated functions inside a helper belong to the helper and are not listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

UNSET: Any = ...
"""No `output_schema` given: infer it. (`None` means: none.)"""

_COMMON = "name title description icons meta tags version enabled"

OPTIONS: dict[str, frozenset[str]] = {
    "tool": frozenset(
        f"{_COMMON} annotations input_schema output_schema timeout run_in_thread exclude_args task ask_first execution app".split()
    ),
    "resource": frozenset(f"{_COMMON} uri annotations mime_type size complete security cache_ttl task app".split()),
    "prompt": frozenset(f"{_COMMON} complete task".split()),
}
"""What each decorator takes, by its kind."""

REFUSED: dict[str, str] = {
    "auth": "nobody would check it here and everybody could call the function; who may use a namespace or a tool is said "
    "in the gateway's configuration (principals, tools_allow)",
    "serializer": "return the text itself, or a ToolResult with content and structured_content",
}
"""Keywords of the real decorators whose promise cannot be kept here, and what to do instead."""

OWN = {
    "tool": frozenset({"input_schema", "ask_first"}),
    "resource": frozenset({"size", "complete", "cache_ttl"}),
    "prompt": frozenset({"complete"}),
}
"""Keywords the real decorators do not have."""


@dataclass(slots=True)
class Registration:
    """One decorated function and what its author said about it."""

    function: Any
    options: dict[str, Any] = field(default_factory=dict)
    kind: str = "tool"


_executing: list[list[Registration]] = []


@contextmanager
def collecting() -> Iterator[list[Registration]]:
    """Collects the registrations of the file executed inside; nested imports collect their own."""
    registrations: list[Registration] = []
    _executing.append(registrations)
    try:
        yield registrations
    finally:
        _executing.pop()


def tool(name_or_fn: Any = None, /, **options: Any) -> Any:
    """`@tool`, `@tool()`, `@tool("name")`, `@tool(name=…, title=…, …)` or `tool(function, …)`."""
    return _named("tool", name_or_fn, options)


def prompt(name_or_fn: Any = None, /, **options: Any) -> Any:
    """`@prompt`, in the forms of `@tool`."""
    return _named("prompt", name_or_fn, options)


def resource(uri: Any = None, /, **options: Any) -> Any:
    """`@resource("scheme://where", name=…, …)`; the URI may have `{placeholders}`."""
    uri = options.pop("uri", None) if uri is None else uri
    if not isinstance(uri, str):
        raise TypeError('@resource needs the URI: @resource("scheme://where")')
    options["uri"] = uri

    def decorate(function: Any) -> Any:
        return _register("resource", function, options)

    return decorate


def _named(kind: str, name_or_fn: Any, options: dict[str, Any]) -> Any:
    if isinstance(name_or_fn, str):
        if "name" in options:
            raise TypeError(f"@{kind}: the name is given twice")
        options["name"] = name_or_fn
    elif name_or_fn is not None:
        if isinstance(name_or_fn, classmethod):
            raise TypeError(f"@{kind} stands below @classmethod, or takes the bound method: {kind}(Class.method)")
        if not callable(name_or_fn):
            raise TypeError(f"@{kind}: expected a function or a name, not {type(name_or_fn).__name__}")
        return _register(kind, name_or_fn, options)

    def decorate(function: Any) -> Any:
        return _register(kind, function, options)

    return decorate


def _register(kind: str, function: Any, options: dict[str, Any]) -> Any:
    # Decorating while a tool runs is no registration: the list was announced long ago.
    if _executing:
        _executing[-1].append(Registration(function, options, kind))
    return function
