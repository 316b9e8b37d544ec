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

IGNORED = frozenset(
    "tags version exclude_args serializer task timeout auth run_in_thread app execution security".split()
)
"""Keywords the real decorators know and that mean nothing here."""

OPTIONS: dict[str, frozenset[str]] = {
    "tool": frozenset("name title description icons annotations input_schema output_schema meta enabled".split()),
    "resource": frozenset("uri name title description icons annotations mime_type size meta complete enabled".split()),
    "prompt": frozenset("name title description icons meta complete enabled".split()),
}
"""What each decorator takes, by its kind."""

OWN = {
    "tool": frozenset({"input_schema"}),
    "resource": frozenset({"size", "complete"}),
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
