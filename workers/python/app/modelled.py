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
from typing import Annotated, Any, NotRequired, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from .schema import Invalid, one_line


class NoFieldTitles(GenerateJsonSchema):
    """Without the titles pydantic derives from field names: they say nothing and cost a model's tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def arguments(
    parameters: Mapping[str, tuple[Any, Any]],
) -> tuple[dict[str, Any], Callable[[Any], dict[str, Any]]]:
    """JSON Schema and check of an object with these names, each with its type and its default or `Parameter.empty`.
    `Invalid` if JSON cannot express it."""
    fields: dict[str, Any] = {}
    for name, (hint, default) in parameters.items():
        hint, required = _described(hint), True
        if isinstance(default, FieldInfo):
            hint = Annotated[hint, default]
        elif default is not inspect.Parameter.empty:
            required = False
        fields[name] = hint if required and not _has_field_default(hint) else NotRequired[hint]
    arguments = TypedDict("arguments", fields)  # type: ignore[misc]
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(arguments)  # type: ignore[arg-type]
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
    if len(texts) != 1 or any(isinstance(item, FieldInfo) and item.description for item in metadata):
        return hint
    rest = [item for item in metadata if not isinstance(item, str)]
    for item in (*rest, Field(description=texts[0])):
        base = Annotated[base, item]
    return base


def _has_field_default(hint: Any) -> bool:
    if get_origin(hint) is not Annotated:
        return False
    return any(isinstance(item, FieldInfo) and not item.is_required() for item in get_args(hint)[1:])
