"""Asking the user: the form a client shows for a response type, and what came of it.

A form is one flat object of texts, numbers, flags and choices; that is all MCP has. Types that are no object are asked
for as its one field `value`. The types of answers are FastMCP's; where the real package is loaded, they are its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, get_origin

from pydantic_core import ValidationError

from . import whole_pydantic
from .file_errors import one_line
from .raw_schema import Mismatch, RawSchema
from .schema import Invalid

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_PRIMITIVES = frozenset({"string", "number", "integer", "boolean"})
_MODULE = "fastmcp.server.elicitation"

MAX_URL = 4096
"""Characters of a page's address, as the gateway has it."""


class _ByAction(type):
    """Instances are told by their action, so that a file that got these classes before the real package was loaded
    still recognises an answer made after."""

    action: str

    def __instancecheck__(cls, value: Any) -> bool:
        return getattr(value, "action", None) == cls.action


@dataclass
class AcceptedElicitation(metaclass=_ByAction):
    """The user answered; `data` is of the response type."""

    data: Any
    action: Literal["accept"] = "accept"

    def __class_getitem__(cls, kind: Any) -> type:
        """`AcceptedElicitation[str]` in an annotation, as FastMCP's has it."""
        return cls


@dataclass
class DeclinedElicitation(metaclass=_ByAction):
    """The user said no."""

    action: Literal["decline"] = "decline"


@dataclass
class CancelledElicitation(metaclass=_ByAction):
    """The user closed the form."""

    action: Literal["cancel"] = "cancel"


class Unfit(Exception):
    """A client's answer is not what was asked for; the message says why."""


@dataclass(slots=True)
class Form:
    """What is asked, and how the content of an answer is read."""

    schema: dict[str, Any]
    read: Callable[[Any], Any]


def form_of(response_type: Any) -> Form:
    """The form for a response type. `TypeError` if a form cannot ask for it."""
    if response_type is None:
        return Form({"type": "object", "properties": {}}, lambda content: content)
    if isinstance(response_type, dict):
        return _of_dict(response_type)
    if isinstance(response_type, list):
        return _of_list(response_type)
    if get_origin(response_type) in (list, Literal) or response_type in (str, int, float, bool):
        return _wrapped(response_type)
    if isinstance(response_type, type) and issubclass(response_type, Enum):
        return _wrapped(response_type)
    adapter, schema = _adapter(response_type)
    return Form(_flat(schema), adapter.validate_python)


def labelled(form: Form, title: str | None, description: str | None) -> Form:
    """The form with a title and a description at its only field. `TypeError` if the author's type has fields of its own."""
    labels = {"title": title, "description": description}
    given = {name: text for name, text in labels.items() if text is not None}
    if not given:
        return form
    if list(form.schema["properties"]) != ["value"]:
        raise TypeError("response_title and response_description are for a response_type that is no object: name its fields")
    value = {**form.schema["properties"]["value"], **given}
    return Form({**form.schema, "properties": {"value": value}}, form.read)


def page(url: Any) -> str:
    """The address of a page. `ValueError` if a client may not open it: other schemes run code or open programs."""
    text = str(url)
    scheme, found, rest = text.partition("://")
    if not found or scheme.lower() not in ("http", "https") or not rest:
        raise ValueError("elicit_url opens a page: its url begins with https:// or http://")
    if len(text) > MAX_URL or not all("!" <= letter <= "~" for letter in text):
        raise ValueError(f"elicit_url: a url has at most {MAX_URL} characters, of ASCII and without blanks")
    return text


def new_id() -> str:
    """An id for the question for a page, as clients of 2025-11-25 want one."""
    return os.urandom(16).hex()


def agreement(result: Any) -> Any:
    """The answer to the question for a page: it has no content."""
    if isinstance(result, dict):
        result = {key: value for key, value in result.items() if key != "content"}
    return outcome(Form({}, lambda content: None), result)


def outcome(form: Form, result: Any) -> Any:
    """The answer as the author gets it. `Unfit` if a client may not answer so."""
    if not isinstance(result, dict) or result.get("action") not in ("accept", "decline", "cancel"):
        raise Unfit("the answer has no action accept, decline or cancel")
    real = sys.modules.get(_MODULE)
    if result["action"] != "accept":
        declined = result["action"] == "decline"
        name = "DeclinedElicitation" if declined else "CancelledElicitation"
        kind = getattr(real, name, DeclinedElicitation if declined else CancelledElicitation)
        return kind()
    content = result.get("content")
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise Unfit("the answer's content is not an object")
    try:
        data = form.read(content)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        shown = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'content'}: {item['msg']}" for item in found[:3])
        raise Unfit(f"the answer does not fit the form: {shown}") from None
    except Mismatch as error:
        shown = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.complaints[:3])
        raise Unfit(f"the answer does not fit the form: {shown}") from None
    return getattr(real, "AcceptedElicitation", AcceptedElicitation)(data=data)


def _of_dict(given: dict[Any, Any]) -> Form:
    """A JSON Schema of type object as it is, or FastMCP's `{"low": {"title": "Low"}}`: one of these."""
    if given.get("type") == "object":
        try:
            schema = RawSchema(given, "response_type")
        except Invalid as error:
            raise TypeError(str(error)) from None

        def read(content: Any) -> Any:
            schema.check(content)
            return content

        return Form(schema.schema, read)
    return _choosing({"type": "string", "oneOf": _titled(given)}, Literal[tuple(given)])


def _of_list(given: list[Any]) -> Form:
    """`["a", "b"]`: one of these; `[["a", "b"]]` or `[{"a": {"title": "A"}}]`: any of these."""
    if given and all(isinstance(choice, str) for choice in given):
        return _choosing({"type": "string", "enum": given}, Literal[tuple(given)])
    if len(given) == 1 and isinstance(given[0], dict):
        items: dict[str, Any] = {"anyOf": _titled(given[0])}
        return _choosing({"type": "array", "items": items}, list[Literal[tuple(given[0])]])  # type: ignore[misc]
    if len(given) == 1 and isinstance(given[0], list) and given[0] and all(isinstance(it, str) for it in given[0]):
        items = {"type": "string", "enum": given[0]}
        return _choosing({"type": "array", "items": items}, list[Literal[tuple(given[0])]])  # type: ignore[misc]
    raise TypeError("a list as response_type holds the choices: texts, or one list or dict of them")


def _titled(choices: dict[Any, Any]) -> list[dict[str, str]]:
    if not choices or not all(isinstance(key, str) and isinstance(it, dict) for key, it in choices.items()):
        raise TypeError(
            "a dict as response_type is a JSON Schema of type object, or choices like {'low': {'title': 'Low'}}"
        )
    return [{"const": key, "title": str(about.get("title", key))} for key, about in choices.items()]


def _choosing(schema: dict[str, Any], kind: Any) -> Form:
    whole_pydantic.bring_in()
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    return Form(_one_field(schema), lambda content: adapter.validate_python(_value(content)))


def _wrapped(kind: Any) -> Form:
    adapter, schema = _adapter(kind)
    flat = _flat({"type": "object", "properties": {"value": schema}, "$defs": schema.pop("$defs", {})})
    return Form(_one_field(flat["properties"]["value"]), lambda content: adapter.validate_python(_value(content)))


def _one_field(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"value": schema}, "required": ["value"]}


def _value(content: dict[str, Any]) -> Any:
    if "value" not in content:
        raise Unfit("the answer does not fit the form: value is missing")
    return content["value"]


def _adapter(kind: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    # Here already: it came with the first function that takes a `Context`, so that no question holds up the loop.
    whole_pydantic.bring_in()
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        return adapter, adapter.json_schema(schema_generator=GenerateJsonSchema)
    except Exception as error:
        raise TypeError(f"no form for this response_type: {one_line(error)}") from None


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without references and titles of pydantic's making; `TypeError` if a form cannot show a field."""
    definitions = schema.get("$defs", {})
    if "$ref" in schema:
        schema = definitions.get(str(schema["$ref"]).rpartition("/")[2], {})
    if schema.get("type") != "object" or "properties" not in schema:
        raise TypeError("a response_type is a text, number, flag, choice, or an object of such fields")
    properties = {name: _field(name, field, definitions) for name, field in schema.get("properties", {}).items()}
    flat: dict[str, Any] = {"type": "object", "properties": properties}
    if schema.get("required"):
        flat["required"] = schema["required"]
    return flat


def _field(name: str, field: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    field = _resolved(field, definitions)
    for union in ("anyOf", "oneOf"):
        branches = [_resolved(branch, definitions) for branch in field.get(union, ())]
        others = [branch for branch in branches if branch.get("type") != "null"]
        if branches and len(others) == 1:  # `X | None`: a field that may stay empty
            rest = {key: value for key, value in field.items() if key != union}
            if rest.get("default", ...) is None:
                del rest["default"]
            field = {**others[0], **rest}
        elif branches and all("const" in branch for branch in branches):
            return field
    if isinstance(choice := field.pop("const", None), str):
        field["enum"] = [choice]
    if field.get("type") == "array":
        items = field["items"] = _resolved(field.get("items", {}), definitions)
        items.pop("title", None)
        if isinstance(choice := items.pop("const", None), str):
            items["enum"] = [choice]
        if "enum" in items or "anyOf" in items and all("const" in branch for branch in items["anyOf"]):
            return field
        raise TypeError(f"{name}: a form asks for a list only where its items are choices")
    if field.get("type") in _PRIMITIVES or "enum" in field:
        return field
    raise TypeError(f"{name}: a form asks for texts, numbers, flags and choices only")


def _resolved(field: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The field with its definition in place of the reference: clients need not follow any."""
    field = dict(field)
    if "$ref" in field:
        target = dict(definitions.get(str(field.pop("$ref")).rpartition("/")[2], {}))
        target.pop("title", None)  # the name of a class
        field = {**target, **field}
    elif isinstance(parts := field.get("allOf"), list) and len(parts) == 1:  # how early pydantic adds to a reference
        del field["allOf"]
        field = {**_resolved(parts[0], definitions), **field}
    return field
