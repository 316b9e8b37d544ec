"""Forms for response types, and how answers are read back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from app.elicitation import (
    AcceptedElicitation,
    CancelledElicitation,
    DeclinedElicitation,
    Unfit,
    form_of,
    outcome,
)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Person:
    name: str
    age: Annotated[int, Field(description="in years", ge=0)] = 30
    nick: str | None = None
    color: Color = Color.RED
    tags: list[Literal["a", "b"]] = field(default_factory=list)


class Model(BaseModel):
    email: str = Field(json_schema_extra={"format": "email"})
    likes: bool | None = None


class Typed(TypedDict):
    n: float
    kind: Literal["x"]


def value(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"value": schema}, "required": ["value"]}


CHOICES = {"low": {"title": "Low"}, "high": {}}
TITLED = [{"const": "low", "title": "Low"}, {"const": "high", "title": "high"}]


@pytest.mark.parametrize(
    ("response_type", "schema"),
    [
        (None, {"type": "object", "properties": {}}),
        (str, value({"type": "string"})),
        (bool, value({"type": "boolean"})),
        (Literal["a", "b"], value({"type": "string", "enum": ["a", "b"]})),
        (Literal["a"], value({"type": "string", "enum": ["a"]})),
        (Color, value({"type": "string", "enum": ["red", "blue"]})),
        (["a", "b"], value({"type": "string", "enum": ["a", "b"]})),
        ([["a", "b"]], value({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}})),
        (list[Color], value({"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}})),
        (CHOICES, value({"type": "string", "oneOf": TITLED})),
        ([CHOICES], value({"type": "array", "items": {"anyOf": TITLED}})),
        ({"type": "object", "x": 1}, {"type": "object", "x": 1}),
    ],
)
def test_form_of_simple_types(response_type, schema):
    form = form_of(response_type).schema
    if "enum" in str(schema):  # titles and the order of keys are pydantic's business
        form["properties"]["value"].pop("title", None)
    assert form == schema


def test_form_of_objects_is_flat():
    schema = form_of(Person).schema
    assert "$ref" not in str(schema)
    assert schema["required"] == ["name"]
    properties = schema["properties"]
    assert properties["name"]["type"] == "string"
    assert properties["age"]["description"] == "in years"
    assert (properties["age"]["minimum"], properties["age"]["default"]) == (0, 30)
    assert properties["nick"]["type"] == "string"
    assert "default" not in properties["nick"]
    assert (properties["color"]["enum"], properties["color"]["default"]) == (["red", "blue"], "red")
    assert properties["tags"]["items"]["enum"] == ["a", "b"]
    model = form_of(Model).schema["properties"]
    assert (model["email"]["format"], model["likes"]["type"]) == ("email", "boolean")
    assert form_of(Typed).schema["properties"]["kind"]["enum"] == ["x"]


@pytest.mark.parametrize(
    "response_type",
    [dict[str, int], list[int], list[Person], int | str, [], [1], [[]], {}, {"a": 1}, {"type": "string"}, object(), 5],
)
def test_type_that_no_form_asks_for_is_refused(response_type):
    with pytest.raises(TypeError):
        form_of(response_type)


def test_nested_objects_are_refused():
    class Outer(BaseModel):
        inner: Model

    with pytest.raises(TypeError, match="inner"):
        form_of(Outer)


@pytest.mark.parametrize(
    ("response_type", "content", "data"),
    [
        (None, None, {}),
        (int, {"value": 5}, 5),
        (Color, {"value": "red"}, Color.RED),
        (list[Color], {"value": ["red"]}, [Color.RED]),
        (CHOICES, {"value": "high"}, "high"),
        ([CHOICES], {"value": ["high"]}, ["high"]),
        ({"type": "object"}, {"x": 1}, {"x": 1}),
        (Person, {"name": "Ada"}, Person("Ada")),
        (Typed, {"n": 1, "kind": "x"}, {"n": 1.0, "kind": "x"}),
        (Model, {"email": "a@b", "likes": True}, Model(email="a@b", likes=True)),
    ],
)
def test_accepted_data_is_of_the_response_type(response_type, content, data):
    answer = outcome(form_of(response_type), {"action": "accept", "content": content})
    assert isinstance(answer, AcceptedElicitation)
    assert answer.data == data
    assert not isinstance(answer, DeclinedElicitation | CancelledElicitation)


@pytest.mark.parametrize(
    ("response_type", "content"),
    [
        (int, {"value": "many"}),
        (int, {}),
        (["a"], {"value": "b"}),
        ([["a"]], {"value": ["b"]}),
        (Person, {}),
        ({"type": "object", "required": ["a"]}, {}),
        (None, 5),
    ],
)
def test_content_that_does_not_fit_is_refused(response_type, content):
    with pytest.raises(Unfit):
        outcome(form_of(response_type), {"action": "accept", "content": content})


def test_refusals_need_no_content():
    assert isinstance(outcome(form_of(int), {"action": "decline"}), DeclinedElicitation)
    assert isinstance(outcome(form_of(int), {"action": "cancel", "content": 5}), CancelledElicitation)
