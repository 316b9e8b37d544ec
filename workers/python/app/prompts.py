"""One prompt: what is announced of it, and what getting it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import declaration, jsontext
from .completion import Completers, completers_of
from .schema import arguments_of, hints_of
from .text_arguments import reading_text

_PLAIN_TYPES = frozenset({"string", "number", "integer", "boolean"})


@dataclass(slots=True)
class Prompt:
    """A function that makes messages."""

    name: str
    description: str
    function: Callable[..., Any]
    is_async: bool
    validate: Callable[[Any], dict[str, Any]]
    context_parameter: str | None
    completers: Completers
    public: dict[str, Any]


def make_prompt(function: Any, options: dict[str, Any], filename: str) -> Prompt:
    """Reads name, texts and arguments off the function. `Invalid` if it cannot be a prompt."""
    declaration.check("prompt", function, options)
    name = declaration.name_of("prompt", function, options.get("name"))
    arguments = arguments_of(function, hints_of(function))
    description = declaration.described(function, options.get("description"), arguments.schema)
    definition: dict[str, Any] = {
        "name": name,
        "title": declaration.text("title", options.get("title")) or declaration.title_of(name),
    }
    if description:
        definition["description"] = description
    if arguments.schema["properties"]:
        definition["arguments"] = _arguments(arguments.schema)
    definition.update(declaration.extras("prompt", options))
    return Prompt(
        name=name,
        description=description,
        function=arguments.applied(function, declaration.is_async(function)),
        is_async=declaration.is_async(function),
        validate=reading_text(arguments.validate),
        context_parameter=arguments.context_parameter,
        completers=completers_of(options.get("complete"), arguments.schema),
        public={"definition": definition, "filename": filename, "context": arguments.context_parameter is not None},
    )


def _arguments(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """MCP's list of a prompt's arguments. They are all text: what else one means is said in its description."""
    required = schema.get("required", ())
    listed = []
    for name, field in schema["properties"].items():
        argument: dict[str, Any] = {"name": name}
        if isinstance(title := field.get("title"), str):
            argument["title"] = title
        texts = [field["description"]] if isinstance(field.get("description"), str) else []
        if note := _note(field, schema.get("$defs")):
            texts.append(note)
        if texts:
            argument["description"] = "\n\n".join(texts)
        argument["required"] = name in required
        listed.append(argument)
    return listed


def _note(field: dict[str, Any], definitions: Any) -> str | None:
    about = {key: value for key, value in field.items() if key not in ("title", "description", "default")}
    if not about or about.get("type") in _PLAIN_TYPES and "enum" not in about:
        return None  # anything goes, or a text that reads as such
    if definitions and "$ref" in jsontext.dumps_any(about).decode():
        about["$defs"] = definitions
    return f"Provide JSON text that fits this schema: {jsontext.dumps_any(about).decode()}"
