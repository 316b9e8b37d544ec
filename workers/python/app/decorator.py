"""The `@tool` decorator, and who gets what it decorates.

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

IGNORED = frozenset("tags icons version exclude_args serializer task timeout auth run_in_thread app execution".split())
"""Keywords the real decorators know and that mean nothing here."""

OPTIONS = frozenset("name title description annotations output_schema meta enabled".split())


@dataclass(slots=True)
class Registration:
    """One decorated function and what its author said about it."""

    function: Any
    options: dict[str, Any] = field(default_factory=dict)


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
    if isinstance(name_or_fn, str):
        if "name" in options:
            raise TypeError("@tool: the name is given twice")
        options["name"] = name_or_fn
    elif name_or_fn is not None:
        if not callable(name_or_fn):
            raise TypeError(f"@tool: expected a function or a name, not {type(name_or_fn).__name__}")
        return _register(name_or_fn, options)

    def decorate(function: Any) -> Any:
        return _register(function, options)

    return decorate


def _register(function: Any, options: dict[str, Any]) -> Any:
    # Decorating while a tool runs is no registration: the list was announced long ago.
    if _executing:
        _executing[-1].append(Registration(function, options))
    return function
