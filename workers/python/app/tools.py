"""One tool: what is announced of it, and what a call needs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .decorator import IGNORED, OPTIONS, UNSET
from .output_schema import output_schema_of
from .schema import InvalidTool, arguments_of, hints_of

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(slots=True)
class Tool:
    """A function that clients may call."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    validate: Callable[[Any], dict[str, Any]]
    context_parameter: str | None
    public: dict[str, Any]


def make_tool(function: Any, options: dict[str, Any], filename: str) -> Tool:
    """Reads name, texts and schemas off the function. `InvalidTool` if it cannot be a tool."""
    if unknown := sorted(set(options) - OPTIONS - IGNORED):
        raise InvalidTool(f"@tool does not know the keyword {unknown[0]}")
    _check_function(function)
    name = options.get("name") or getattr(function, "__name__", "")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidTool("a tool name is 1 to 128 of the characters A-Z a-z 0-9 _ . -")
    hints = hints_of(function)
    arguments = arguments_of(function, hints)
    annotations = _annotations(options.get("annotations"))
    public: dict[str, Any] = {
        "name": name,
        "title": _text("title", options.get("title")) or annotations.get("title") or title_of(name),
        "description": _description(function, options.get("description")),
        "inputSchema": arguments.schema,
    }
    output = output_schema_of(hints, options.get("output_schema", UNSET))
    if output is not None:
        public["outputSchema"] = output
    if annotations:
        public["annotations"] = annotations
    if meta := options.get("meta"):
        if not isinstance(meta, dict):
            raise InvalidTool("meta must be a dict")
        public["_meta"] = meta
    public["filename"] = filename
    call = getattr(type(function), "__call__", None)
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    return Tool(name, function, is_async, arguments.validate, arguments.context_parameter, public)


def title_of(name: str) -> str:
    """`list_issues` → `List Issues`; capitals inside a word stay."""
    return " ".join(word[:1].upper() + word[1:] for word in re.split(r"[_\-. ]+", name) if word)


def _check_function(function: Any) -> None:
    if inspect.isclass(function) or not callable(function):
        raise InvalidTool("only functions can be tools")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTool("a generator cannot be a tool; return a list")


def _description(function: Any, given: Any) -> str:
    if given is not None:
        return _text("description", given) or ""
    return inspect.getdoc(function) or ""


def _text(keyword: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidTool(f"{keyword} must be a string")


def _annotations(given: Any) -> dict[str, Any]:
    """MCP's hints, as a dict or as the ToolAnnotations object of the mcp package."""
    if given is None:
        return {}
    if hasattr(given, "model_dump"):
        given = given.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not isinstance(given, dict):
        raise InvalidTool("annotations must be a dict")
    return given
