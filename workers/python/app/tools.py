"""One tool: what is announced of it, and what a call needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import declaration
from .decorator import UNSET
from .output_schema import encoder_of, output_schema_of
from .raw_schema import arguments_by_schema
from .results import Encode
from .schema import arguments_of, hints_of


@dataclass(slots=True)
class Tool:
    """A function that clients may call."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    validate: Callable[[Any], dict[str, Any]]
    context_parameter: str | None
    encode: Encode
    public: dict[str, Any]


def make_tool(function: Any, options: dict[str, Any], filename: str) -> Tool:
    """Reads name, texts and schemas off the function. `Invalid` if it cannot be a tool."""
    declaration.check("tool", function, options)
    name = declaration.name_of("tool", function, options.get("name"))
    hints = hints_of(function)
    given = options.get("input_schema")
    arguments = arguments_of(function, hints) if given is None else arguments_by_schema(function, hints, given)
    annotations = declaration.annotations_of(options.get("annotations"))
    title = declaration.text("title", options.get("title")) or annotations.get("title")
    public: dict[str, Any] = {
        "name": name,
        "title": title or declaration.title_of(name),
        "description": declaration.description(function, options.get("description")),
        "inputSchema": arguments.schema,
    }
    output = output_schema_of(hints, options.get("output_schema", UNSET))
    if output is not None:
        public["outputSchema"] = output
    if annotations:
        public["annotations"] = annotations
    public.update(declaration.extras(options))
    public["filename"] = filename
    if arguments.context_parameter is not None:
        public["context"] = True
    asynchronous = declaration.is_async(function)
    return Tool(
        name=name,
        function=function,
        is_async=asynchronous,
        validate=arguments.validate,
        context_parameter=arguments.context_parameter,
        encode=encoder_of(hints),
        public=public,
    )
