"""The arguments of a function: their JSON Schema, and the check of every call against it.

Both come from the annotations of the signature: by `plain_types` where it knows them all, else by pydantic itself
(`modelled`). What is left out of a call stays left out, so that the function's own defaults hold.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from . import plain_types, whole_pydantic
from .results import plain

if TYPE_CHECKING:
    from .injected import Filling

_CONTEXT = f"{__package__}.context"


class Invalid(Exception):
    """The function cannot be a tool, resource or prompt; the message says why."""


@dataclass(slots=True)
class Arguments:
    """What a call of the function must look like."""

    schema: dict[str, Any]
    validate: Callable[[Any], dict[str, Any]]
    context_parameter: str | None
    fillings: dict[str, Filling] = field(default_factory=dict)
    """Parameters with `Depends()`, which the worker fills."""

    def applied(self, function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
        """The function with these parameters filled."""
        if not self.fillings:
            return function
        from .injected import injecting

        return injecting(function, is_async, self.fillings, self.context_parameter)


def arguments_of(function: Callable[..., Any], hints: dict[str, Any], hidden: Any = ()) -> Arguments:
    """Reads the signature, apart from `hidden` parameters. `Invalid` if JSON cannot express it."""
    parameters: dict[str, tuple[Any, Any]] = {}
    changeable: dict[str, Any] = {}
    fillings: dict[str, Filling] = {}
    context: str | None = None
    for name, parameter in inspect.signature(function).parameters.items():
        _check_kind(parameter)
        hint = hints.get(name, Any)
        if means_context(hint):
            if context is not None:
                raise Invalid(f"two parameters are the context: {context}, {name}")
            context = name
            continue
        if (mark := dependency_in(hint, parameter.default)) is not None:
            fillings[name] = _filling(name, mark)
            continue
        if filler := filler_of(hint, parameter.default):
            raise Invalid(
                f"{name} is filled by {filler}, which is not supported; Depends() of a function of your own is. "
                "A parameter annotated with Context gets the context"
            )
        if parameter.default is ...:
            parameter = parameter.replace(default=parameter.empty)  # pydantic's word for "required"
        if type(parameter.default).__hash__ is None:
            changeable[name] = parameter.default
        if name in hidden:
            if parameter.default is parameter.empty:
                raise Invalid(f"exclude_args: {name} needs a default, since clients cannot give it")
            continue
        parameters[name] = (hint, parameter.default)
    checked = plain_types.arguments(parameters)
    if checked is None:
        whole_pydantic.bring_in()
        from . import modelled

        checked = modelled.arguments(parameters)
    schema, validate = checked
    if changeable:
        validate = _with_fresh(changeable, validate)
    if context is None and any(it.wants_context() for it in fillings.values()):
        from .injected import CONTEXT as context
    return Arguments(_input_schema(schema, parameters), validate, context, fillings)


def _filling(name: str, mark: Any) -> Filling:
    # Imported only when needed, since most namespaces have no dependencies.
    from .injected import filling_of

    return filling_of(name, mark)


def _with_fresh(
    defaults: dict[str, Any], validate: Callable[[Any], dict[str, Any]]
) -> Callable[[Any], dict[str, Any]]:
    """The check, with copies of defaults that a call could change: the next caller must not see what was changed."""
    from copy import deepcopy

    def checked(given: Any) -> dict[str, Any]:
        arguments = validate(given)
        for name, default in defaults.items():
            if name not in arguments:
                arguments[name] = deepcopy(default)
        return arguments

    return checked


_FILLERS = frozenset({"fastmcp", "uncalled_for", "docket", "fastapi", "fast_depends"})


_DEPENDS = frozenset({"_Depends", "Depends", "_Dependency"})
_PROVIDERS = _FILLERS - {"fastapi", "fast_depends"}


def dependency_in(hint: Any, default: Any) -> Any:
    """The mark of a `Depends()` that the worker fills: ours, or that of FastMCP's packages; None if there is none."""
    for mark in (default, *getattr(hint, "__metadata__", ())):
        kind = type(mark)
        if kind.__name__ in _DEPENDS and kind.__module__.partition(".")[0] in _PROVIDERS:
            return mark
    return None


def filler_of(hint: Any, default: Any) -> str | None:
    """How a framework would fill the parameter: `Depends()` and its like, as default or in `Annotated`."""
    for mark in (default, *getattr(hint, "__metadata__", ())):
        for kind in type(mark).__mro__:
            if kind.__module__.partition(".")[0] in _FILLERS:
                return f"{type(mark).__name__.lstrip('_')}()"
    return None


def author_function(function: Any) -> Any:
    """The function that a `functools.partial` was made of, or the function itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations, resolved. One of the result that cannot be is as good as none."""
    target = inspect.unwrap(author_function(function))
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


def _input_schema(raw: dict[str, Any], parameters: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    properties = raw.get("properties", {})
    for name, (_, default) in parameters.items():
        if name in properties and default is not inspect.Parameter.empty and not _is_field(default):
            try:
                properties[name].setdefault("default", default.decode() if isinstance(default, bytes) else plain(default))
            except Exception:
                pass  # a default without JSON form simply is not shown
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if raw.get("required"):
        schema["required"] = raw["required"]
    schema["additionalProperties"] = False
    if "$defs" in raw:
        schema["$defs"] = raw["$defs"]
    return schema


def _is_field(default: Any) -> bool:
    """Whether it is a `Field(…)`, which is in the schema already. Where pydantic is not loaded, or half, nothing is."""
    field = getattr(sys.modules.get("pydantic.fields"), "FieldInfo", None)
    return field is not None and isinstance(default, field)
