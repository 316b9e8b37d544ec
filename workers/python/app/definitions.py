"""JSON Schemas without `$defs`: every reference replaced by what it refers to.

Some clients do not follow references in a tool's schema (VS Code among them), and FastMCP sends none. A type that has
itself inside keeps its definitions, and so does a schema that would become too large.
"""

from __future__ import annotations

from typing import Any

MAX_NODES = 5000
"""Objects and lists of a schema without references. Larger ones keep them: a model pays for every word of it."""

_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Keywords whose keys are names of the author's."""
_DATA = frozenset({"default", "const", "enum", "examples"})
"""Keywords whose values are no schemas."""
_POINTER = "#/$defs/"


class _Kept(Exception):
    """The references cannot be replaced."""


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema without references, where that is possible; else with none at its root."""
    definitions = schema.get("$defs")
    if not definitions:
        return schema
    definitions = {name: without_class_title(inner, name) for name, inner in definitions.items()}
    root = {key: value for key, value in schema.items() if key != "$defs"}
    try:
        found: dict[str, Any] = _Inlining(definitions).of(root, ())
        return found
    except _Kept:
        target = definitions.get(str(root.pop("$ref", "")).removeprefix(_POINTER), {})
        return {**target, **root, "$defs": definitions}


def without_class_title(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """The schema of a class without the title that is only its name, which costs a model's tokens. Where two classes
    have one name, those of the definitions say the module, too."""
    if schema.get("title") != name.rpartition("__")[2]:
        return schema
    return {key: value for key, value in schema.items() if key != "title"}


class _Inlining:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._nodes = 0

    def of(self, node: Any, above: tuple[str, ...]) -> Any:
        """The node without references; `above` are the definitions it stands in."""
        if not isinstance(node, (dict, list)):
            return node
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _Kept
        if isinstance(node, list):
            return [self.of(item, above) for item in node]
        node = _without_discriminator(node)
        found = {key: self._value(key, value, above) for key, value in node.items() if key != "$ref"}
        reference = node.get("$ref")
        if reference is None:
            return found
        name = str(reference).removeprefix(_POINTER)
        if name in above or name not in self._definitions:
            raise _Kept
        return {**self.of(self._definitions[name], (*above, name)), **found}

    def _value(self, key: str, value: Any, above: tuple[str, ...]) -> Any:
        if key in _DATA:
            return value
        if key in _MAPS and isinstance(value, dict):
            return {name: self.of(inner, above) for name, inner in value.items()}
        return self.of(value, above)


def _without_discriminator(node: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI's `discriminator` names definitions, and says nothing that the branches do not say with `const`."""
    if not isinstance(node.get("discriminator"), dict) or "oneOf" not in node:
        return node
    return {key: value for key, value in node.items() if key != "discriminator"}
