"""Arguments that come as text: those of prompts, and the parts of a URI.

A text that the parameter's type accepts as it is stays so (pydantic reads numbers, dates and flags from text). Where it
does not, the text may be the JSON of a value that fits: that is how a client gives a list or an object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_core import ValidationError

from . import jsontext


def reading_text(validate: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    """The check of arguments that also takes JSON text for them."""

    def validate_text(arguments: Any) -> dict[str, Any]:
        try:
            return validate(arguments)
        except ValidationError as error:
            refused = {item["loc"][0] for item in error.errors(include_url=False) if item["loc"]}
            if not isinstance(arguments, dict):
                raise
            decoded = {name: _decoded(value) if name in refused else value for name, value in arguments.items()}
            if decoded == arguments:
                raise
        return validate(decoded)

    return validate_text


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return jsontext.loads(value.encode("utf-8"))
    except ValueError:
        return value
