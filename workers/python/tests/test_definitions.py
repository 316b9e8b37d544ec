"""Schemas without references, and without what only repeats a name."""

from __future__ import annotations

from app import definitions
from app.definitions import inlined

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "title": "Point"}
BARE = {"type": "object", "properties": {"x": {"type": "integer"}}}


def test_references_are_replaced_and_what_stands_beside_them_goes_first():
    found = inlined({"properties": {"a": {"$ref": "#/$defs/Point", "description": "Here."}}, "$defs": {"Point": POINT}})
    assert found == {"properties": {"a": {**BARE, "description": "Here."}}}


def test_definitions_of_definitions_are_replaced():
    box = {"properties": {"at": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]}}}
    found = inlined({"items": {"$ref": "#/$defs/Box"}, "$defs": {"Box": box, "Point": POINT}})
    assert found == {"items": {"properties": {"at": {"anyOf": [BARE, {"type": "null"}]}}}}


def test_a_type_with_itself_inside_keeps_its_definition_but_not_at_the_root():
    tree = {"type": "object", "properties": {"children": {"items": {"$ref": "#/$defs/Tree"}}}, "title": "Tree"}
    bare = {key: value for key, value in tree.items() if key != "title"}
    found = inlined({"$ref": "#/$defs/Tree", "$defs": {"Tree": tree}})
    assert found == {**bare, "$defs": {"Tree": bare}}


def test_a_schema_that_would_grow_too_large_keeps_its_definitions(monkeypatch):
    monkeypatch.setattr(definitions, "MAX_NODES", 12)
    twice = {"anyOf": [{"$ref": "#/$defs/Point"}] * 2, "$defs": {"Point": POINT}}
    assert "$defs" not in inlined(twice)
    more = {"anyOf": [{"$ref": "#/$defs/Point"}] * 9, "$defs": {"Point": POINT}}
    assert inlined(more)["anyOf"] == more["anyOf"]


def test_what_is_an_authors_own_stays():
    schema = {
        "properties": {"$ref": {"type": "string"}, "discriminator": {"default": {"$ref": "#/$defs/Point"}}},
        "examples": [{"$ref": "#/$defs/Point"}],
    }
    assert inlined({**schema, "$defs": {"Point": {**POINT, "title": "A place"}}}) == schema
    found = inlined({"$ref": "#/$defs/Point", "$defs": {"Point": {**POINT, "title": "A place"}}})
    assert found["title"] == "A place"


def test_a_discriminator_goes_with_the_definitions_it_names():
    branches = {"discriminator": {"propertyName": "x", "mapping": {"p": "#/$defs/Point"}}, "oneOf": [{"$ref": "#/$defs/Point"}]}
    assert inlined({**branches, "$defs": {"Point": POINT}}) == {"oneOf": [BARE]}
