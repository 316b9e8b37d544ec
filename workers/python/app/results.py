"""From what a tool returns to JSON. The rules are stated in the README ("Results"); this is where they live.

Almost every value is plain JSON already and is written at once. Only what the encoder refuses is walked here.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set, ValuesView
from enum import Enum
from itertools import islice
from types import GeneratorType
from typing import Any

from pydantic_core import to_jsonable_python

from . import blocks, jsontext


MAX_YIELDED = 1_000_000
"""Items of a generator. A longer list would hardly fit into an answer, and a generator may never end."""
TOO_MANY = f"the generator yields more than {MAX_YIELDED} items; return a page of them"

Encode = Callable[[Any], tuple[bytes, bytes | None]]
"""From what a function returned to the JSON text of the result, and that of content blocks beside it."""


class Unserialisable(Exception):
    """The value has no JSON form; the message says which part of it."""


class WrongType(Exception):
    """The value does not fit the tool's output schema; the message says where, and what was expected."""


_MISSING_OF_PANDAS = ("NaTType", "NAType")
"""The classes of `pandas.NaT`, which is also a `datetime`, and `pandas.NA`."""


def encode(value: Any) -> tuple[bytes, bytes | None]:
    """The JSON text of the value, and that of its content blocks if it has any."""
    try:
        return jsontext.dumps_plain(value), None
    except (TypeError, ValueError, RecursionError):
        pass
    value = drained(value)
    parts = blocks.split(value)
    if parts is None:
        return jsontext.dumps_any(plain(value)), None
    result, content = parts
    return jsontext.dumps_any(plain(result)), jsontext.dumps_any(plain(content))


def drained(value: Any) -> Any:
    """The list of what a generator yields, so that a function may `yield` its results; any other value as it is."""
    if not isinstance(value, GeneratorType):
        return value
    items = list(islice(value, MAX_YIELDED + 1))
    if len(items) > MAX_YIELDED:
        value.close()
        raise Unserialisable(TOO_MANY)
    return items


def plain(value: Any) -> Any:
    """The value made of JSON's own types only."""
    return _plain(value, "$", set(), 0)


def text(value: str) -> str:
    """A string that can be written as UTF-8: halves of surrogate pairs are joined, lone ones replaced."""
    if value.isascii():
        return value
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _plain(value: Any, path: str, above: set[int], depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, path, above, depth + 1)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b64encode(value).decode("ascii")
    if depth > jsontext.MAX_DEPTH:
        raise Unserialisable(f"the result is nested deeper than {jsontext.MAX_DEPTH} levels")
    if id(value) in above:
        raise Unserialisable(f"circular reference: {_type_name(value)} at {path} contains itself")
    above.add(id(value))
    try:
        return _container_or_leaf(value, path, above, depth + 1)
    finally:
        above.discard(id(value))


def _container_or_leaf(value: Any, path: str, above: set[int], depth: int) -> Any:
    if _is_model(value):
        return _plain(_dumped(lambda: value.model_dump(mode="json", by_alias=True), value, path), path, above, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        serializer = getattr(type(value), "__pydantic_serializer__", None)
        if serializer is not None and getattr(type(value), "__is_pydantic_dataclass__", True):
            dumped = _dumped(lambda: serializer.to_python(value, mode="json", by_alias=True), value, path)
            return _plain(dumped, path, above, depth)
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), f"{path}.{name}", above, depth) for name in names}
    if isinstance(value, Mapping):
        return {(name := _key(key, path)): _plain(item, f"{path}.{name}", above, depth) for key, item in value.items()}
    if isinstance(value, Set):
        try:
            value = sorted(value)
        except TypeError:
            value = list(value)
    if isinstance(value, (Sequence, ValuesView, deque)):
        return [_plain(item, f"{path}[{index}]", above, depth) for index, item in enumerate(value)]
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return _plain(value.tolist(), path, above, depth)
    if type(value).__name__ in _MISSING_OF_PANDAS and type(value).__module__.startswith("pandas."):
        return None
    if isinstance(value, Iterator):
        # Not drained: it may never end.
        raise Unserialisable(f"cannot turn {_type_name(value)} at {path} into JSON; return a list instead")
    return _plain(_dumped(lambda: to_jsonable_python(value), value, path), path, above, depth)


def _is_model(value: Any) -> bool:
    """Nothing is one where nobody has imported what models are made of, or a thread is only about to."""
    model = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return model is not None and isinstance(value, model)


def _dumped(dump: Any, value: Any, path: str) -> Any:
    try:
        return dump()
    except (ValueError, TypeError, RecursionError) as error:  # PydanticSerializationError is a ValueError
        reason = "" if "Unable to serialize unknown type" in str(error) else f" ({error})"
        raise Unserialisable(f"cannot turn {_type_name(value)} at {path} into JSON{reason}") from None


def _key(key: Any, path: str) -> str:
    """Object keys are the text their JSON value would have: the same that JSON libraries write for numbers and null."""
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return text(key)
    if key is None:
        return "null"
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int):
        return int.__repr__(key)
    if isinstance(key, float):
        return float.__repr__(key)
    value = _plain(key, f"{path}.<key>", set(), 0)
    return value if isinstance(value, str) else jsontext.dumps_any(value).decode("utf-8")


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
