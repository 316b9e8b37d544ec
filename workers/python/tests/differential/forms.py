"""What the user of both sides fills into a form. For both processes, so it imports nothing of either."""

from __future__ import annotations

from typing import Any

_VALUES: dict[str, Any] = {"string": "Ada", "integer": 1, "number": 1.5, "boolean": True}


def filled(schema: dict[str, Any]) -> dict[str, Any]:
    """A value for each field: the first choice, or the same for each type."""
    return {name: _value(field) for name, field in schema.get("properties", {}).items()}


def _value(field: dict[str, Any]) -> Any:
    if choices := field.get("enum"):
        return choices[0]
    return _VALUES[field["type"]]
