"""Checks and JSON Schemas of any type, by pydantic itself.

Importing it takes half of a worker's start, so this module is imported when `plain_types` does not know a type; the
first time by `whole_pydantic`.

The check is one pydantic type made of the signature: a TypedDict, since that turns the JSON object straight into the
keyword arguments of the call, and takes any parameter name (a model would refuse `_x` and `copy`). What is left out of
a call stays left out, so that the function's own defaults hold.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import Field, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from .file_errors import one_line
from .schema import Invalid


class NoFieldTitles(GenerateJsonSchema):
    """Without the titles pydantic derives from field names: they say nothing and cost a model's tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Nothing to say: what has no JSON form, such as some defaults, is left out."""


class _Closed:
    """Marks the arguments' own type: unknown names are refused, and only some names are required.

    Said in the core's schema of this one type, since a TypedDict hands its configuration on to the types inside, and
    `NotRequired[str | int]` can come back as `NotRequired[int | str]` from the cache of `typing`.
    """

    def __init__(self, required: set[str]) -> None:
        self._required = required

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        schema = handler(source)
        arguments = handler.resolve_ref_schema(schema)
        arguments["extra_behavior"] = "forbid"
        for name, field in arguments["fields"].items():
            field["required"] = name in self._required
        return schema


def arguments(
    parameters: Mapping[str, tuple[Any, Any]],
) -> tuple[dict[str, Any], Callable[[Any], dict[str, Any]]]:
    """JSON Schema and check of an object with these names, each with its type and its default or `Parameter.empty`.
    `Invalid` if JSON cannot express it."""
    fields: dict[str, Any] = {}
    required: set[str] = set()
    for name, (hint, default) in parameters.items():
        hint = _described(hint)
        if isinstance(default, FieldInfo):
            hint = Annotated[hint, default]
        elif default is not inspect.Parameter.empty and any(map(_says_more, _fields(hint))):
            hint = Annotated[hint, Field(default=default)]  # goes before a default inside `Annotated`, and with an alias
        fields[name] = hint
        if not _has_field_default(hint) and (default is inspect.Parameter.empty or isinstance(default, FieldInfo)):
            required.add(name)
    try:
        arguments = TypedDict("arguments", fields)  # type: ignore[misc]
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(Annotated[arguments, _Closed(required)])
        schema = adapter.json_schema(schema_generator=NoFieldTitles)
    except Exception as error:
        raise Invalid(f"no schema for the parameters: {one_line(error)}") from None
    return schema, adapter.validator.validate_python


def _described(hint: Any) -> Any:
    """`Annotated[str, "what it is"]` is short for a `Field` with that description, as in FastMCP."""
    if get_origin(hint) is not Annotated:
        return hint
    base, *metadata = get_args(hint)
    texts = [item for item in metadata if isinstance(item, str)]
    if len(texts) != 1 or any(field.description for field in _fields(hint)):
        return hint
    rest = [item for item in metadata if not isinstance(item, str)]
    for item in (*rest, Field(description=texts[0])):
        base = Annotated[base, item]
    return base


def _fields(hint: Any) -> list[FieldInfo]:
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return [item for item in metadata if isinstance(item, FieldInfo)]


def _has_field_default(hint: Any) -> bool:
    return any(not field.is_required() for field in _fields(hint))


def _says_more(field: FieldInfo) -> bool:
    return not field.is_required() or field.alias is not None or field.validation_alias is not None
