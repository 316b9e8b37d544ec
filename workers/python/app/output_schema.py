"""A tool's output schema, where the return annotation settles what `structuredContent` will look like.

The gateway sends an object as it is and anything else as `{"result": value}`. So a type that is always an object gives
its own schema, one that never is gives a wrapped one, and where it depends on the value there is none: a client may
check what it gets against the schema, and a schema that is right only sometimes is worse than no schema.

Failures are not described here: they travel without `structuredContent`.
"""

from __future__ import annotations

from typing import Any, get_args

from . import fitting, plain_types, results, whole_pydantic
from .decorator import UNSET
from .results import Encode
from .schema import Invalid

_BINARY = (bytes, bytearray, memoryview)
_SCALARS = frozenset({"string", "number", "integer", "boolean", "null", "array"})
_ANY_LIST = {"type": "array", "items": {}}
_MISSING = object()


def output_schema_of(hints: dict[str, Any], given: Any = UNSET) -> dict[str, Any] | None:
    """The schema the author gave, or the one the return annotation implies, or None."""
    if given is UNSET:
        return _inferred(hints.get("return", _MISSING))
    if given is None or given is False:
        return None
    if not isinstance(given, dict) or given.get("type") != "object":
        raise Invalid("output_schema must be a JSON Schema of type object")
    return given


def encoder_of(hints: dict[str, Any], output: dict[str, Any] | None, given: Any = UNSET) -> Encode:
    """What writes the results of a function whose output schema is this one, and refuses those that do not fit it. With a
    model as the return annotation, only what the model has is written."""
    hint = hints.get("return", _MISSING)
    encode = _written_by(hint)
    if output is None:
        return encode
    if given is not UNSET:
        return fitting.checked_by_schema(encode, output)
    # What a model wrote fits the schema of the model.
    return fitting.checked_by_type(hint, output) if encode is results.encode else encode


def _written_by(hint: Any) -> Encode:
    if hint is _MISSING or hint is None or plain_types.schemas_of(hint) is not None or _names_no_class(hint):
        return results.encode
    whole_pydantic.bring_in()
    from . import sent_types

    return sent_types.encoder_of(hint) or results.encode


def _names_no_class(hint: Any) -> bool:
    """Whether it is one of the builtins, which are no models: not worth an import of pydantic."""
    return isinstance(hint, type) and hint.__module__ == "builtins" and not get_args(hint)


def _inferred(hint: Any) -> dict[str, Any] | None:
    if hint is _MISSING or hint is None or hint is type(None) or _may_be_content(hint):
        return None
    schema = schema_of(hint)
    if schema is None:
        return None
    if schema == _ANY_LIST:
        return None  # it would say nothing, and a model pays for every word
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


def schema_of(hint: Any) -> dict[str, Any] | None:
    """The schema of what a value of this type is sent as; None if there is none."""
    if (plain := plain_types.schemas_of(hint)) is not None:
        return _sent(plain[1])
    whole_pydantic.bring_in()
    from . import sent_types

    try:
        return sent_types.schema_of(hint)
    except Exception:
        return None  # a type without a schema, such as a class of the author's own


def _sent(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a plain type, with what `sent_types` says of numbers: NaN and the infinities are sent as null."""
    if schema.get("type") == "number":
        return {**schema, "type": ["number", "null"]}
    sent = dict(schema)
    for key in ("items", "additionalProperties"):
        if isinstance(sent.get(key), dict):
            sent[key] = _sent(sent[key])
    if "anyOf" in sent:  # `X | None`
        inner = _sent(sent["anyOf"][0])
        if isinstance(inner.get("type"), list):
            return inner
        sent["anyOf"] = [inner, *sent["anyOf"][1:]]
    return sent


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
    kind = schema.get("type")
    if kind == "object":
        return "object"
    kinds = kind if isinstance(kind, list) else [kind]
    return "other" if _SCALARS.issuperset(kinds) else None


def _may_be_content(hint: Any) -> bool:
    if isinstance(hint, type) and not get_args(hint):
        package = hint.__module__.partition(".")[0]
        return issubclass(hint, _BINARY) or package in ("fastmcp", "mcp", "mcp_types")
    return any(_may_be_content(part) for part in get_args(hint))
