"""Schemas given as they are: what is checked agrees with a full implementation of JSON Schema."""

from __future__ import annotations

import jsonschema
import pytest

from app.raw_schema import Mismatch, RawSchema
from app.schema import Invalid
from harness import Worker

ADDRESS = {"$anchor": "there", "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMAS = [
    {"type": "object"},
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 3}},
        "additionalProperties": False,
    },
    {"type": "object", "properties": {"a": {"type": ["string", "null"], "minLength": 2}}, "required": ["a"]},
    {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 9}},
    {"type": "object", "properties": {"a": {"enum": [1, "x", None]}, "b": {"const": True}}},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "maxItems": 2}}},
    {"type": "object", "$defs": {"at": ADDRESS}, "properties": {"a": {"$ref": "#/$defs/at"}, "b": {"$ref": "#there"}}},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "maxProperties": 9},
    {"type": "object", "allOf": [{"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}]},
    {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"type": "object", "not": {"required": ["a"]}},
    {
        "type": "object",
        "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
        "then": {"required": ["b"]},
        "else": {"required": ["c"]},
    },
    {"type": "object", "properties": {"a": False, "b": True}},
]
VALUES = [
    {},
    *({"a": value} for value in (0, 1, 2.0, 2.5, 4, True, None, "x", "xy", [], ["x"], ["x", "y", "z"], [1], {})),
    {"b": True},
    {"b": 1},
    {"a": 1, "b": 2},
    {"a": 2, "c": 3},
    {"a": {"city": "Berlin"}, "b": {"city": 5}},
    {"a": {"a": {"a": {}}}},
    {"a": {"a": 5}},
    [],
    "text",
    None,
]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("value", VALUES)
def test_check_agrees_with_the_standard(schema, value):
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    try:
        RawSchema(schema, "schema").check(value)
        fits = True
    except Mismatch:
        fits = False
    assert fits == expected


def test_complaint_says_where():
    with pytest.raises(Mismatch) as caught:
        RawSchema(SCHEMAS[6], "schema").check({"a": {"city": 5}})
    assert caught.value.complaints == [{"loc": ["a", "city"], "msg": "must be of type string", "type": "type"}]


def test_schema_without_end_is_given_up():
    endless = {"type": "object", "anyOf": [{"$ref": "#"}, {"$ref": "#"}], "allOf": [{"$ref": "#"}]}
    with pytest.raises(Mismatch, match="too deeply"):
        RawSchema(endless, "schema").check({})


@pytest.mark.parametrize("schema", [None, [], {"type": "string"}, {}, {"type": "object", "required": "a"}])
def test_what_is_no_schema_of_an_object_is_refused(schema):
    with pytest.raises(Invalid):
        RawSchema(schema, "schema")


TOOLS = """
    from fastmcp import Context
    from fastmcp.tools import tool

    SCHEMA = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "x-own": [1],
              "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}

    @tool(input_schema=SCHEMA)
    async def anything(ctx: Context, **given) -> dict:
        return given

    @tool(input_schema=SCHEMA)
    def named(a, b="default") -> list:
        return [a, b]

    @tool(input_schema=SCHEMA)
    def too_few(a): ...

    @tool(input_schema=SCHEMA)
    def needs_more(a, b, c): ...

    @tool(input_schema={"type": "array"})
    def no_object(**given): ...
"""


@pytest.fixture(scope="module")
def served(venv, workers) -> Worker:
    return workers(venv).write("t.py", TOOLS).start()


def test_given_schema_is_published_as_it_is(served):
    schema = served.tool("anything")["inputSchema"]
    assert list(schema) == ["$schema", "type", "x-own", "properties", "required"]
    assert served.tool("named")["inputSchema"] == schema


def test_calls_are_checked_and_unknown_names_go_where_they_are_taken(served):
    assert served.value("anything", a=1, z=[2]) == {"a": 1, "z": [2]}
    assert served.value("named", a=1) == [1, "default"]
    error = served.error("anything", a="1")
    assert error["code"] == "invalid_arguments"
    assert error["details"] == {"errors": [{"loc": ["a"], "msg": "must be of type integer", "type": "type"}]}
    assert served.error("anything")["message"] == "a: missing"
    assert served.error("named", a=1, z=2)["message"] == "z: unexpected argument"
    assert served.error("anything", a=1, ctx=5)["message"] == "ctx: unexpected argument"


def test_function_and_schema_must_agree(served):
    messages = [issue["message"] for issue in served.ready["issues"]]
    assert [issue["code"] for issue in served.ready["issues"]] == ["invalid_tool"] * 3
    assert "no parameter b" in messages[0]
    assert "does not require b" in messages[1]
    assert "type object" in messages[2]
