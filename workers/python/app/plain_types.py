"""Checks and JSON Schemas of the types most tools are made of, without pydantic's Python half.

Text, numbers, flags, `Any`, lists, objects with text keys, each of these or None, with a description or without: their
schemas for pydantic's core are written down here, so that a worker whose tools need no more starts in half the time.
Everything else gives None, and pydantic itself makes the schema (`modelled`). The schemas are the same JSON and the
checks accept, convert and refuse the same; `tests/test_plain_types.py` holds both against each other.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic_core import SchemaValidator

from . import pydantic_version

KNOWN = (2, 12)
"""Earlier versions of pydantic wrote some of these JSON Schemas in another way."""

_DEFAULTS = (str, int, float, bool, list, tuple, dict, type(None))
"""Of these kinds a default is what it looks like; one of another kind may be pydantic's way to say more."""

Schemas = tuple[dict[str, Any], dict[str, Any]]
"""What pydantic's core checks by, and the JSON Schema."""


def _scalar(core: str, json: str) -> Callable[[], Schemas]:
    return lambda: ({"type": core}, {"type": json})


_LEAVES: dict[Any, Callable[[], Schemas]] = {
    str: _scalar("str", "string"),
    int: _scalar("int", "integer"),
    float: _scalar("float", "number"),
    bool: _scalar("bool", "boolean"),
    Any: lambda: ({"type": "any"}, {}),
    list: lambda: ({"type": "list"}, {"items": {}, "type": "array"}),
    dict: lambda: ({"type": "dict"}, {"additionalProperties": True, "type": "object"}),
}


_is_known = pydantic_version.at_least(*KNOWN)


def arguments(
    parameters: Mapping[str, tuple[Any, Any]],
) -> tuple[dict[str, Any], Callable[[Any], dict[str, Any]]] | None:
    """JSON Schema and check of an object with these names, each with its type and its default or `Parameter.empty`;
    None if they are for pydantic itself to know."""
    fields: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, (hint, default) in parameters.items():
        schemas = _described(hint)
        is_required = default is inspect.Parameter.empty
        if schemas is None or not (is_required or type(default) in _DEFAULTS):
            return None
        core, properties[name] = schemas
        fields[name] = {"type": "typed-dict-field", "schema": core, "required": is_required}
        if is_required:
            required.append(name)
    schema: Any = {"type": "typed-dict", "fields": fields, "extra_behavior": "forbid"}
    try:
        validator = SchemaValidator(schema, {"title": "arguments"})
    except Exception:
        return None  # a core of the future has other schemas: pydantic itself knows them
    return {"properties": properties, "required": required}, validator.validate_python


def _described(hint: Any) -> Schemas | None:
    """Those of a type, which may have a text for its readers: `Annotated[str, "what it is"]`."""
    if get_origin(hint) is not Annotated:
        return schemas_of(hint)
    base, *metadata = get_args(hint)
    schemas = schemas_of(base)
    if schemas is None or len(metadata) != 1 or not isinstance(metadata[0], str):
        return None
    return schemas[0], dict(sorted({**schemas[1], "description": metadata[0]}.items()))


def schemas_of(hint: Any) -> Schemas | None:
    """Both schemas of a type; None if it is for pydantic itself to know."""
    return _schemas(hint) if _is_known else None


def _schemas(hint: Any) -> Schemas | None:
    try:
        leaf = _LEAVES.get(hint)
    except TypeError:  # it cannot be hashed
        return None
    if leaf is not None:
        return leaf()
    origin, parts = get_origin(hint), get_args(hint)
    if origin is list and len(parts) == 1 and (items := _schemas(parts[0])) is not None:
        return {"type": "list", "items_schema": items[0]}, {"items": items[1], "type": "array"}
    if origin is dict and len(parts) == 2 and parts[0] is str and (values := _schemas(parts[1])) is not None:
        return (
            {"type": "dict", "keys_schema": {"type": "str"}, "values_schema": values[0]},
            {"additionalProperties": values[1] or True, "type": "object"},
        )
    if (origin is Union or origin is types.UnionType) and len(parts) == 2 and type(None) in parts:
        inner = _schemas(parts[parts[0] is type(None)])
        if inner is not None and inner[1]:
            return {"type": "nullable", "schema": inner[0]}, {"anyOf": [inner[1], {"type": "null"}]}
    return None
