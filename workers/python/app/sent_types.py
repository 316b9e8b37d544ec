"""What a function's return annotation says of its results: the JSON Schema they fit, and the fields that are sent.

The schema describes what is really sent, which is less than pydantic claims: a `datetime` without a time zone is no RFC
3339 `date-time`, a NaN is null, a flag can be a sum of its members. Strict validators refuse such results after the
tool has run, so formats and patterns that do not hold for every value of a type are left out.

Where the annotation is a model (or has one inside), only the fields of that model are sent, whatever more the returned
object has. This is what FastMCP and FastAPI do, and what authors rely on to keep a column out of an answer.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
import typing
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from . import blocks, jsontext, pydantic_version, results
from .definitions import inlined, without_class_title
from .file_errors import one_line
from .fitting import name_of, wrong_type
from .modelled import NoFieldTitles
from .results import Encode

_TRUE_FORMATS = frozenset({"date", "ipv4", "uuid"})
"""Formats that every value of their type fits, in the validators of both official SDKs."""

_BY_NAME_TOO: dict[str, Any] = {"by_alias": True, "by_name": True} if pydantic_version.at_least(2, 11) else {}


class _AsSent(NoFieldTitles):
    """The schema of values as `results` writes them."""

    def str_schema(self, schema: Any) -> Any:
        # Written for another engine. JavaScript cannot compile `(?i)` or `\z`, and a client would refuse the whole list.
        return _without(super().str_schema(schema), "pattern")

    def float_schema(self, schema: Any) -> Any:
        found = _without(super().float_schema(schema), "multipleOf")  # 0.3 is no multiple of 0.1 without a tolerance
        return found if schema.get("allow_inf_nan") is False else {**found, "type": ["number", "null"]}

    def nullable_schema(self, schema: Any) -> Any:
        found = super().nullable_schema(schema)
        branches = found.get("anyOf", ())
        if len(branches) == 2 and isinstance(branches[0].get("type"), list):
            return branches[0]  # null is among its types
        return found

    def decimal_schema(self, schema: Any) -> Any:
        return {"type": "string"}

    def enum_schema(self, schema: Any) -> Any:
        found = super().enum_schema(schema)
        if issubclass(schema["cls"], enum.Flag):
            found.pop("enum", None)  # several flags together are a number of their own
            found["type"] = "integer"
        return found

    def set_schema(self, schema: Any) -> Any:
        return _without(super().set_schema(schema), "uniqueItems")  # 2**53 and 2**53 + 1 are one number in JavaScript

    def frozenset_schema(self, schema: Any) -> Any:
        return _without(super().frozenset_schema(schema), "uniqueItems")

    def dict_schema(self, schema: Any) -> Any:
        # Keys are sent as texts, and described as what they are in Python.
        return _without(super().dict_schema(schema), "propertyNames")

    def ser_schema(self, schema: Any) -> Any:
        if schema["type"] in ("function-plain", "function-wrap") and schema.get("return_schema") is None:
            module = getattr(schema.get("function"), "__module__", None) or ""
            if not module.startswith("pydantic."):
                return {}  # a serializer of the author's, without an annotation: anything
        return super().ser_schema(schema)

    def generate_inner(self, schema: Any) -> Any:
        found = super().generate_inner(schema)
        if schema["type"] in _FORMATTED and found.get("format") not in _TRUE_FORMATS:
            return _without(found, "format", "minLength", "maxLength")
        return found


_FORMATTED = frozenset(
    "datetime time timedelta date url multi-host-url uuid bytes lax-or-strict json-or-python complex is-instance "
    "function-plain function-after function-before function-wrap fraction chain".split()
)
"""Core schemas whose `format` pydantic chooses; in models it is the author's."""


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON Schema of what a function with this return annotation gives."""
    found = inlined(TypeAdapter(hint).json_schema(mode="serialization", schema_generator=_AsSent))
    return without_class_title(found, getattr(hint, "__name__", ""))


def encoder_of(hint: Any) -> Encode | None:
    """What writes the results of a function with this annotation; None if it has no say in that."""
    if not _decides(hint, 0):
        return None
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint)
    except Exception:
        return None  # no schema either

    def encode(value: Any) -> tuple[bytes, bytes | None]:
        value = results.drained(value)
        if (parts := blocks.split(value)) is not None:  # the author says what is shown, and what is data
            return jsontext.dumps_any(results.plain(parts[0])), jsontext.dumps_any(results.plain(parts[1]))
        return jsontext.dumps_any(results.plain(_dumped(adapter, hint, value))), None

    return encode


def _dumped(adapter: TypeAdapter[Any], hint: Any, value: Any) -> Any:
    try:
        # A dict for a model, say, has to become one to know what of it may be sent. Models stay as they are.
        value = adapter.validate_python(value, from_attributes=True, **_BY_NAME_TOO)
    except ValidationError as error:
        raise wrong_type(error, hint) from None
    try:
        return adapter.dump_python(value, mode="json", by_alias=True)
    except (PydanticSerializationError, UnicodeDecodeError) as error:
        if type(value) is hint and dataclasses.is_dataclass(hint):
            return value  # bytes in it that are no text: sent as base64, and it has no more fields than its class
        raise results.Unserialisable(
            f"the result cannot be written as the return annotation {name_of(hint)} says: {one_line(error)}"
        ) from None


def _decides(hint: Any, depth: int) -> bool:
    if depth > 16:
        return False
    hint = getattr(hint, "__value__", hint) if type(hint).__name__ == "TypeAliasType" else hint
    kind = typing.get_origin(hint) or hint
    if isinstance(kind, type) and not issubclass(kind, types.GenericAlias):
        module = kind.__module__.partition(".")[0]
        if issubclass(kind, BaseModel):
            return module not in blocks.PACKAGES
        if dataclasses.is_dataclass(kind) or _is_typed_dict(kind):
            return True
    if any(hasattr(note, "__get_pydantic_core_schema__") for note in getattr(hint, "__metadata__", ())):
        return True  # `Annotated` with a serializer, say
    return any(_decides(part, depth + 1) for part in get_args(hint) if not isinstance(part, (str, int)))


def _is_typed_dict(kind: type) -> bool:
    extensions = sys.modules.get("typing_extensions")
    return typing.is_typeddict(kind) or extensions is not None and extensions.is_typeddict(kind)


def _without(schema: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in keys}
