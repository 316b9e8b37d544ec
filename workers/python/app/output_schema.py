"""A tool's output schema, where the return annotation settles what `structuredContent` will look like.

The gateway sends an object as it is and anything else as `{"result": value}`. So a type that is always an object gives
its own schema, one that never is gives a wrapped one, and where it depends on the value there is none: a client may
check what it gets against the schema, and a schema that is right only sometimes is worse than no schema.
"""

from __future__ import annotations

from typing import Any, get_args

from . import plain_types, whole_pydantic
from .decorator import UNSET
from .failure_schema import admitting_failures
from .schema import Invalid

_BINARY = (bytes, bytearray, memoryview)
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null", "array"})
_MISSING = object()


def output_schema_of(hints: dict[str, Any], given: Any = UNSET) -> dict[str, Any] | None:
    """The schema the author gave, or the one the return annotation implies, or None."""
    if given is UNSET:
        schema = _inferred(hints.get("return", _MISSING))
    elif given is None or given is False:
        schema = None
    elif not isinstance(given, dict) or given.get("type") != "object":
        raise Invalid("output_schema must be a JSON Schema of type object")
    else:
        schema = given
    return admitting_failures(schema) if schema is not None else None


def _inferred(hint: Any) -> dict[str, Any] | None:
    if hint is _MISSING or hint is None or hint is type(None) or _may_be_content(hint):
        return None
    schema = _schema(hint)
    if schema is None:
        return None
    definitions = schema.pop("$defs", {})
    kind = _kind(schema, definitions, 0)
    if kind is None:
        return None
    if kind == "object":
        output = {"type": "object", **schema}
    else:
        output = {
            "type": "object",
            "properties": {"result": schema},
            "required": ["result"],
            "x-fastmcp-wrap-result": True,
        }
    if definitions:
        output["$defs"] = definitions
    return output


def _schema(hint: Any) -> dict[str, Any] | None:
    if (plain := plain_types.schemas_of(hint)) is not None:
        return plain[1]
    whole_pydantic.bring_in()
    from . import modelled

    try:
        return modelled.output_schema(hint)
    except Exception:
        return None  # a type without a schema, such as a class of the author's own


def _kind(schema: Any, definitions: dict[str, Any], depth: int) -> str | None:
    """`object`, `other`, or None if it can be both or is not known."""
    if not isinstance(schema, dict) or depth > 32:
        return None
    if "$ref" in schema:
        return _kind(definitions.get(str(schema["$ref"]).rpartition("/")[2]), definitions, depth + 1)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            kinds = {_kind(branch, definitions, depth + 1) for branch in schema[union]}
            return kinds.pop() if len(kinds) == 1 else None
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return None if any(isinstance(value, dict) for value in values) else "other"
    if schema.get("type") == "object":
        return "object"
    return "other" if schema.get("type") in _SCALARS else None


def _may_be_content(hint: Any) -> bool:
    if isinstance(hint, type) and not get_args(hint):
        package = hint.__module__.partition(".")[0]
        return issubclass(hint, _BINARY) or package in ("fastmcp", "mcp", "mcp_types")
    return any(_may_be_content(part) for part in get_args(hint))
