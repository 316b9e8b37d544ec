"""The arguments of a function: their JSON Schema, and the check of every call against it.

Both come from one pydantic type made of the signature: a TypedDict, since its check turns the JSON object straight into
the keyword arguments of the call, and takes any parameter name (a model would refuse `_x` and `copy`). What is left out
of a call stays left out, so that the function's own defaults hold.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from .results import plain

_CONTEXT = f"{__package__}.context"


class Invalid(Exception):
    """The function cannot be a tool, resource or prompt; the message says why."""


class NoFieldTitles(GenerateJsonSchema):
    """Without the titles pydantic derives from field names: they say nothing and cost a model's tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(slots=True)
class Arguments:
    """What a call of the function must look like."""

    schema: dict[str, Any]
    validate: Callable[[Any], dict[str, Any]]
    context_parameter: str | None


def arguments_of(function: Callable[..., Any], hints: dict[str, Any]) -> Arguments:
    """Reads the signature. `Invalid` if JSON cannot express it."""
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    context: str | None = None
    for name, parameter in inspect.signature(function).parameters.items():
        _check_kind(parameter)
        hint = hints.get(name, Any)
        if means_context(hint):
            if context is not None:
                raise Invalid(f"two parameters are the context: {context}, {name}")
            context = name
            continue
        hint, required = _described(hint), True
        if isinstance(parameter.default, FieldInfo):
            hint = Annotated[hint, parameter.default]
        elif parameter.default is not parameter.empty:
            required = False
            defaults[name] = parameter.default
        fields[name] = hint if required and not _has_field_default(hint) else NotRequired[hint]
    adapter = _adapter(fields)
    return Arguments(_input_schema(adapter, defaults), adapter.validator.validate_python, context)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations, resolved. One of the result that cannot be is as good as none."""
    target = inspect.unwrap(function)
    if not inspect.isroutine(target):
        target = getattr(target, "__call__", target)  # noqa: B004 (the method is wanted)
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception as error:
        raw = dict(getattr(target, "__annotations__", {}))
        if raw.pop("return", None) is None:
            raise Invalid(f"cannot resolve the annotations: {error}") from None
    stand_in = types.SimpleNamespace(__annotations__=raw)
    try:
        return typing.get_type_hints(stand_in, getattr(target, "__globals__", {}), include_extras=True)
    except Exception as error:
        raise Invalid(f"cannot resolve the annotations: {error}") from None


def _check_kind(parameter: inspect.Parameter) -> None:
    if parameter.kind is parameter.VAR_POSITIONAL:
        raise Invalid(f"*{parameter.name} cannot be given by name")
    if parameter.kind is parameter.VAR_KEYWORD:
        raise Invalid(f"**{parameter.name} has no schema; name the parameters")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise Invalid(f"the positional-only parameter {parameter.name} cannot be given by name")


def means_context(hint: Any) -> bool:
    """Whether a parameter with this annotation gets the context: ours, or the real packages' class of that name."""
    origin = get_origin(hint)
    if origin is Annotated or origin is Union or origin is types.UnionType:
        return any(means_context(part) for part in get_args(hint))
    if not isinstance(hint, type) or hint.__name__ != "Context":
        return False
    return hint.__module__ == _CONTEXT or hint.__module__.partition(".")[0] in ("fastmcp", "mcp")


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


def _adapter(fields: dict[str, Any]) -> TypeAdapter[dict[str, Any]]:
    arguments = TypedDict("arguments", fields)  # type: ignore[misc]
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    try:
        return TypeAdapter(arguments)  # type: ignore[arg-type]
    except Exception as error:
        raise Invalid(f"no schema for the parameters: {one_line(error)}") from None


def _input_schema(adapter: TypeAdapter[dict[str, Any]], defaults: dict[str, Any]) -> dict[str, Any]:
    try:
        raw = adapter.json_schema(schema_generator=NoFieldTitles)
    except Exception as error:
        raise Invalid(f"no schema for the parameters: {one_line(error)}") from None
    properties = raw.get("properties", {})
    for name, default in defaults.items():
        if name in properties:
            try:
                properties[name].setdefault("default", plain(default))
            except Exception:
                pass  # a default without JSON form simply is not shown
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if raw.get("required"):
        schema["required"] = raw["required"]
    schema["additionalProperties"] = False
    if "$defs" in raw:
        schema["$defs"] = raw["$defs"]
    return schema


def one_line(error: BaseException) -> str:
    """The error's first line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
