"""Output schemas that are true of failures, too.

A failed call answers with `structuredContent: {"error": {code, message, details}}`. Some clients check whatever they
get against the tool's output schema, failed or not, and would show the model a complaint about the schema instead of
what went wrong. So the published schema has the failure as its other possibility. Successful results are described as
before: by the same properties, at the same place.
"""

from __future__ import annotations

from typing import Any

FAILURE: dict[str, Any] = {
    "type": "object",
    "properties": {"code": {"type": "string"}, "message": {"type": "string"}, "details": {"type": "object"}},
    "required": ["code", "message"],
}

_COMBINING = frozenset({"$ref", "$dynamicRef", "anyOf", "oneOf", "allOf", "not", "if"})


def admitting_failures(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of what a call answers, from the schema of what it returns. `schema` is not changed."""
    if _COMBINING.isdisjoint(schema):
        return _beside(schema)
    rest = dict(schema)
    output: dict[str, Any] = {"type": "object"}
    definitions = rest.pop("$defs", None)
    output["anyOf"] = [rest, {"properties": {"error": FAILURE}, "required": ["error"]}]
    if definitions:
        output["$defs"] = definitions
    return output


def _beside(schema: dict[str, Any]) -> dict[str, Any]:
    """With the properties left where a reader looks for them."""
    output = dict(schema)
    required = output.pop("required", [])
    own = schema.get("properties", {})
    failure = {"anyOf": [own["error"], FAILURE]} if "error" in own else FAILURE
    output["properties"] = {**own, "error": failure}
    if required:
        output["anyOf"] = [{"required": required}, {"required": ["error"]}]
    return output
