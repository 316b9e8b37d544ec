"""JSON Schemas that an author gives as they are: published unchanged, and enough of them checked.

Checked are `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `items`, the limits of numbers,
lengths and list sizes, `allOf`, `anyOf`, `oneOf`, `not`, `if`/`then`/`else`, and `$ref` inside the schema (`#`,
`#/$defs/x`, `#anchor`). What else a schema says (`format`, `pattern`, `uniqueItems`, …) is for its readers. The rule
does not depend on what is installed: the same schema means the same in every namespace.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from .results import Unserialisable, plain
from .schema import Arguments, Invalid, filler_of, means_context

_MAX_DEPTH = 64
"""Steps into schema and value together; a schema that refers to itself ends here."""

_MAX_STEPS = 100_000
"""Subschemas tried on one value: alternatives that refer to each other could otherwise multiply without end."""

_BOUNDS: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("minimum", lambda value, bound: value >= bound, "must be at least {}"),
    ("maximum", lambda value, bound: value <= bound, "must be at most {}"),
    ("exclusiveMinimum", lambda value, bound: value > bound, "must be greater than {}"),
    ("exclusiveMaximum", lambda value, bound: value < bound, "must be less than {}"),
)


class Mismatch(Exception):
    """The value is not what the schema says; `complaints` are like pydantic's: `loc`, `msg`, `type`."""

    def __init__(self, complaints: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(complaint["msg"] for complaint in complaints))
        self.complaints = complaints


def arguments_by_schema(function: Callable[..., Any], hints: dict[str, Any], given: Any) -> Arguments:
    """What a call must look like where the author gave the schema. `Invalid` if function and schema do not agree."""
    schema = RawSchema(given, "input_schema")
    context: str | None = None
    names: set[str] = set()
    takes_all = False
    required = set(schema.schema.get("required", ()))
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL or parameter.kind is parameter.POSITIONAL_ONLY:
            raise Invalid(f"{name} cannot be given by name")
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_all = True
        elif means_context(hints.get(name, Any)):
            if context is not None:
                raise Invalid(f"two parameters are the context: {context}, {name}")
            context = name
        else:
            if filler := filler_of(hints.get(name, Any), parameter.default):
                raise Invalid(f"{name} is filled by {filler}, which cannot stand beside input_schema=; call it in the body")
            names.add(name)
            if parameter.default is parameter.empty and name not in required:
                raise Invalid(f"input_schema does not require {name}, so the parameter needs a default")
    if not takes_all and (missing := sorted(set(schema.schema.get("properties", ())) - names)):
        raise Invalid(f"the function has no parameter {missing[0]}, which input_schema names, and no **kwargs")

    def validate(arguments: Any) -> dict[str, Any]:
        schema.check(arguments)
        refused = [] if takes_all else sorted(set(arguments) - names)
        if context is not None and context in arguments:
            refused.append(context)
        if refused:
            raise Mismatch([_complaint((name,), "unexpected argument", "unexpected_argument") for name in refused])
        return dict(arguments)

    return Arguments(schema.schema, validate, context)


class RawSchema:
    """A JSON Schema of type object."""

    max_steps = _MAX_STEPS

    def __init__(self, given: Any, what: str) -> None:
        if not isinstance(given, dict) or given.get("type") != "object":
            raise Invalid(f"{what} must be a JSON Schema of type object")
        try:
            self.schema: dict[str, Any] = plain(given)
        except Unserialisable as error:
            raise Invalid(f"{what}: {error}") from None
        if not isinstance(self.schema.get("properties", {}), dict):
            raise Invalid(f"{what}: properties must be an object")
        if not _names(self.schema.get("required", [])):
            raise Invalid(f"{what}: required must be a list of names")
        self._anchors = dict(_anchors(self.schema, 0))
        self._steps = 0

    def check(self, value: Any) -> None:
        """`Mismatch` if the value is not what the schema says."""
        self._steps = 0
        complaints = list(self._complaints(value, self.schema, (), 0))
        if complaints:
            raise Mismatch(complaints)

    def _fits(self, value: Any, schema: Any, depth: int) -> bool:
        return next(self._complaints(value, schema, (), depth), None) is None

    def _complaints(self, value: Any, schema: Any, path: tuple[Any, ...], depth: int) -> Iterator[dict[str, Any]]:
        if schema is False:
            yield _complaint(path, "not allowed here", "false_schema")
        if not isinstance(schema, dict):
            return
        self._steps += 1
        if depth > _MAX_DEPTH or self._steps > self.max_steps:
            raise Mismatch([_complaint(path, "nested too deeply to be checked", "recursion")])
        if isinstance(reference := schema.get("$ref"), str):
            yield from self._complaints(value, self._resolve(reference), path, depth + 1)
        kinds = schema.get("type")
        if kinds is not None and not any(_is(value, kind) for kind in (kinds if isinstance(kinds, list) else [kinds])):
            wanted = " or ".join(kinds) if isinstance(kinds, list) else kinds
            yield _complaint(path, f"must be of type {wanted}", "type")
            return
        if isinstance(choices := schema.get("enum"), list) and not any(_same(value, choice) for choice in choices):
            yield _complaint(path, f"must be one of {_listed(choices)}", "enum")
        if "const" in schema and not _same(value, schema["const"]):
            yield _complaint(path, f"must be {_listed([schema['const']])}", "const")
        if isinstance(value, dict):
            yield from self._in_object(value, schema, path, depth)
        elif isinstance(value, list):
            yield from self._in_list(value, schema, path, depth)
        elif isinstance(value, str):
            yield from _sized(len(value), schema, path, "Length", "characters")
        elif _is(value, "number"):
            for keyword, holds, message in _BOUNDS:
                if _is(bound := schema.get(keyword), "number") and not holds(value, bound):
                    yield _complaint(path, message.format(bound), keyword)
        yield from self._combined(value, schema, path, depth)

    def _in_object(
        self, value: dict[str, Any], schema: dict[str, Any], path: tuple[Any, ...], depth: int
    ) -> Iterator[dict[str, Any]]:
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        if _names(required := schema.get("required", [])):
            for name in required:
                if name not in value:
                    yield _complaint((*path, name), "missing", "missing")
        rest = schema.get("additionalProperties", True)
        patterns = "patternProperties" in schema  # not checked, so neither is what else there may be
        for name, item in value.items():
            if name in properties:
                yield from self._complaints(item, properties[name], (*path, name), depth + 1)
            elif rest is False and not patterns:
                yield _complaint((*path, name), "unexpected name", "unexpected")
            elif not patterns:
                yield from self._complaints(item, rest, (*path, name), depth + 1)

    def _in_list(
        self, value: list[Any], schema: dict[str, Any], path: tuple[Any, ...], depth: int
    ) -> Iterator[dict[str, Any]]:
        yield from _sized(len(value), schema, path, "Items", "items")
        if "items" in schema and "prefixItems" not in schema:
            for index, item in enumerate(value):
                yield from self._complaints(item, schema["items"], (*path, index), depth + 1)

    def _combined(
        self, value: Any, schema: dict[str, Any], path: tuple[Any, ...], depth: int
    ) -> Iterator[dict[str, Any]]:
        for part in _schemas(schema.get("allOf")):
            yield from self._complaints(value, part, path, depth + 1)
        if (parts := _schemas(schema.get("anyOf"))) and not any(self._fits(value, part, depth + 1) for part in parts):
            yield _complaint(path, "fits none of the alternatives", "anyOf")
        if parts := _schemas(schema.get("oneOf")):
            fitting = sum(self._fits(value, part, depth + 1) for part in parts)
            if fitting != 1:
                yield _complaint(path, f"must fit one of the alternatives, fits {fitting}", "oneOf")
        if "not" in schema and self._fits(value, schema["not"], depth + 1):
            yield _complaint(path, "must not be like this", "not")
        if "if" in schema:
            branch = "then" if self._fits(value, schema["if"], depth + 1) else "else"
            yield from self._complaints(value, schema.get(branch, True), path, depth + 1)

    def _resolve(self, reference: str) -> Any:
        if reference == "#":
            return self.schema
        if not reference.startswith("#/"):
            return self._anchors.get(reference.removeprefix("#"), True)  # another document: not ours to fetch
        found: Any = self.schema
        for step in reference[2:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, dict) else None
        return True if found is None else found


def _anchors(schema: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(schema, dict):
        if isinstance(name := schema.get("$anchor"), str):
            yield name, schema
        for item in schema.values():
            yield from _anchors(item, depth + 1)
    elif isinstance(schema, list):
        for item in schema:
            yield from _anchors(item, depth + 1)


def _sized(
    size: int, schema: dict[str, Any], path: tuple[Any, ...], suffix: str, unit: str
) -> Iterator[dict[str, Any]]:
    least, most = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
    if isinstance(least, int) and size < least:
        yield _complaint(path, f"must have at least {least} {unit}", f"min{suffix}")
    if isinstance(most, int) and size > most:
        yield _complaint(path, f"must have at most {most} {unit}", f"max{suffix}")


def _is(value: Any, kind: Any) -> bool:
    if kind == "integer":
        return not isinstance(value, bool) and (isinstance(value, int) or isinstance(value, float) and value % 1 == 0)
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "null":
        return value is None
    wanted = {"object": dict, "array": list, "string": str, "boolean": bool}.get(kind)
    return wanted is None or isinstance(value, wanted)  # a type nobody knows says nothing


def _same(one: Any, other: Any) -> bool:
    """JSON's equality: `1` and `true` differ."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _schemas(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _listed(values: list[Any]) -> str:
    shown = ", ".join(map(repr, values[:10]))
    return shown if len(values) <= 10 else f"{shown}, …"


def _complaint(path: tuple[Any, ...], message: str, kind: str) -> dict[str, Any]:
    return {"loc": list(path), "msg": message, "type": kind}
