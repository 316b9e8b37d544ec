"""Results that do not fit their tool's output schema: found before they are sent, whoever the client is.

Clients of MCP check `structuredContent` against the schema and raise far from the mistake; others would take the value
as it is. What fits is sent as `results` writes it. What does not, and what pydantic converts to the annotated type
(`"5"` where an int is annotated), is sent converted. Anything else is a `WrongType`.

The usual value costs one strict check by pydantic's core. Only where that says no is the JSON held against the schema:
a `datetime` is a fine `str` once it is written.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable
from typing import Any, get_args, get_origin

from pydantic_core import SchemaValidator, ValidationError

from . import blocks, jsontext, plain_types, results, whole_pydantic
from .raw_schema import Mismatch, RawSchema
from .results import Encode, WrongType

_LAZY = (collections.abc.Iterable, collections.abc.Iterator, collections.abc.Generator)
"""Types whose check does not look at the items."""


def checked_by_type(hint: Any, schema: dict[str, Any]) -> Encode:
    """Writes what fits the schema that this return annotation gave, and what becomes so by pydantic's conversions."""
    fits = _ResultSchema(schema, is_of_type=True)
    strictly, convert = _validators(hint)

    def encode(value: Any) -> tuple[bytes, bytes | None]:
        value = results.drained(value)
        if _holds(strictly, value):
            try:
                return jsontext.dumps_plain(value), None
            except (TypeError, ValueError, RecursionError):
                pass  # not JSON's own types: a Decimal passes for a float, and is written as text
        if (parts := blocks.split(value)) is not None:
            return _with_blocks(parts, fits)
        sent = results.plain(value)
        if (complaint := fits.complaint(sent)) is not None:
            sent = _converted(value, convert, hint, fits, complaint)
        return jsontext.dumps_any(sent), None

    return encode


def checked_by_schema(encode: Encode, schema: dict[str, Any]) -> Encode:
    """Writes with `encode`, and refuses what does not fit the schema that the author gave."""
    fits = _ResultSchema(schema)

    def checked(value: Any) -> tuple[bytes, bytes | None]:
        result, content = encode(value)
        if content is not None and result == b"null":
            return result, content  # content alone has no data to check
        try:
            sent = jsontext.loads(result)
        except ValueError:
            return result, content  # nested deeper than the parser reads
        fits.check(sent)
        return result, content

    return checked


def wrong_type(error: ValidationError, hint: Any) -> WrongType:
    """What pydantic says of a result, without the result."""
    found = error.errors(include_url=False, include_input=False)[0]
    return WrongType(_unfit(f"return annotation {name_of(hint)}", "annotation", found))


def name_of(hint: Any) -> str:
    """The annotation as its author would write it."""
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def _unfit(whole: str, what: str, complaint: Any) -> str:
    where = ".".join(map(str, complaint["loc"])) or "the result"
    return f"the result does not fit the {whole}: {where}: {complaint['msg']}; return what the {what} says, or change it"


def _with_blocks(parts: tuple[Any, Any], fits: _ResultSchema) -> tuple[bytes, bytes]:
    """The author says what is shown, and what is data."""
    result, content = results.plain(parts[0]), results.plain(parts[1])
    if isinstance(result, dict):
        fits.check_data(result)
    return jsontext.dumps_any(result), jsontext.dumps_any(content)


def _converted(
    value: Any, convert: Callable[[Any], Any], hint: Any, fits: _ResultSchema, complaint: dict[str, Any]
) -> Any:
    """The value as pydantic converts it to the annotated type; `WrongType` if that fails or gives another misfit."""
    try:
        sent = results.plain(convert(value))
        if fits.complaint(sent) is None:
            return sent
    except ValidationError as error:
        raise wrong_type(error, hint) from None
    except results.Unserialisable:
        pass  # a lazy type's items are checked when somebody asks for them
    raise WrongType(_unfit(f"return annotation {name_of(hint)}", "annotation", complaint))


def _holds(check: Callable[[Any], bool] | None, value: Any) -> bool:
    try:
        return check is not None and check(value)
    except Exception:  # cycles, and objects that fail when they are looked at: `results` says where
        return False


def _validators(hint: Any) -> tuple[Callable[[Any], bool] | None, Callable[[Any], Any]]:
    """Whether a value is of the type as it is, and the value converted to it. A type that cannot be checked by its values
    alone has the latter only."""
    if (plain := plain_types.schemas_of(hint)) is not None:
        core: Any = plain[0]
        return SchemaValidator(core, {"strict": True}).isinstance_python, SchemaValidator(core).validate_python
    whole_pydantic.bring_in()
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(hint)
    validator = adapter.validator
    if _is_lazy(hint):
        return None, validator.validate_python
    return lambda value: validator.isinstance_python(value, strict=True), validator.validate_python


def _is_lazy(hint: Any) -> bool:
    kind = get_origin(hint) or hint
    return any(kind is lazy for lazy in _LAZY) or any(map(_is_lazy, get_args(hint)))


class _ResultSchema(RawSchema):
    """The schema of a tool's `structuredContent`, which is an object as it is and any other value as `result`.

    What takes too long to be decided is no reason to refuse a result.
    """

    max_steps = 5_000_000

    def __init__(self, schema: dict[str, Any], *, is_of_type: bool = False) -> None:
        super().__init__(schema, "output_schema")
        self._of_value: Any = None
        if is_of_type:  # an object where a list is annotated is none, whatever it is sent as
            is_wrapped = schema.get("x-fastmcp-wrap-result") is True
            self._of_value = self.schema["properties"]["result"] if is_wrapped else self.schema

    def complaint(self, result: Any) -> dict[str, Any] | None:
        """What is wrong first with a result."""
        if self._of_value is not None:
            return self._first(result, self._of_value)
        return self._first(result if isinstance(result, dict) else {"result": result}, self.schema)

    def check(self, result: Any) -> None:
        """`WrongType` if the result does not fit."""
        self._refuse(self.complaint(result))

    def check_data(self, structured: dict[str, Any]) -> None:
        """`WrongType` if this does not fit as `structuredContent`."""
        self._refuse(self._first(structured, self.schema))

    def _refuse(self, complaint: dict[str, Any] | None) -> None:
        if complaint is not None:
            raise WrongType(_unfit("output schema", "schema", complaint))

    def _first(self, value: Any, schema: Any) -> dict[str, Any] | None:
        self._steps = 0
        try:
            return next(self._complaints(value, schema, (), 0), None)
        except Mismatch:
            return None  # too deep to be checked

    def _in_list(self, value: list[Any], schema: dict[str, Any], path: tuple[Any, ...], depth: int) -> Any:
        yield from super()._in_list(value, schema, path, depth)
        if isinstance(first := schema.get("prefixItems"), list):
            for index, (item, part) in enumerate(zip(value, first, strict=False)):
                yield from self._complaints(item, part, (*path, index), depth + 1)
