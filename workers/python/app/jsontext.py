"""JSON text in and out.

Reading goes through pydantic's own parser: it is as fast as orjson, always there, exact for integers of any size, and
strict (no NaN, no lone surrogates). Writing goes through orjson when it is importable, else the C encoder of the
standard library, both set up so that they accept the same values and mean the same by them. Whatever they do not accept
is put into plain JSON values first (`results.plain`) and then written by `dumps_any`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder as json_encoder
from typing import Any

MAX_DEPTH = 254
"""Levels of a result, the most that orjson writes. Nobody reads more, and most JSON parsers stop before."""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _loads_stdlib(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _choose_loads() -> Callable[[bytes], Any]:
    try:
        from pydantic_core import from_json

        from_json(b"1", allow_inf_nan=False)
    except (ImportError, TypeError):  # an early pydantic 2
        return _loads_stdlib

    def loads(line: bytes) -> Any:
        return from_json(line, allow_inf_nan=False)

    return loads


def _refuse_value(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is not plain JSON")


def _choose_stdlib_dumps() -> Callable[[Any], bytes]:
    """One encoder object for good: `json.dumps` with arguments builds two per call, which costs more than the work."""
    try:
        encode = json_encoder.c_make_encoder(  # type: ignore[attr-defined]
            None, _refuse_value, json_encoder.encode_basestring, None, ":", ",", False, False, False
        )
        encode([], 0)
    except Exception:  # an interpreter without the C accelerator, or with another signature
        text = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_refuse_value)
        return lambda value: text.encode(value).encode("utf-8")
    return lambda value: "".join(encode(value, 0)).encode("utf-8")


def _deeper(value: Any, levels: int) -> bool:
    """Whether containers are nested deeper than that. The standard library's own limit varies with the version."""
    level = [value]
    while level and levels >= 0:
        levels -= 1
        items: list[Any] = []
        for container in level:
            items.extend(container.values() if isinstance(container, dict) else container)
        level = [item for item in items if isinstance(item, (list, dict, tuple))]
    return bool(level)


def _choose_plain_dumps(fallback: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    try:
        import orjson
    except ImportError:

        def dumps_stdlib(value: Any) -> bytes:
            text = fallback(value)
            if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
                raise ValueError("nested too deeply")
            return text

        return dumps_stdlib
    # It would write an OrderedDict in the order of its keys' first insertion, and never ask a dict of somebody's own.
    options = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
    dumps = orjson.dumps
    return lambda value: dumps(value, None, options)


loads: Callable[[bytes], Any] = _choose_loads()
"""Parses one frame; `ValueError` if it is not JSON."""

dumps_any: Callable[[Any], bytes] = _choose_stdlib_dumps()
"""Writes plain JSON values, integers of any size included."""

dumps_plain: Callable[[Any], bytes] = _choose_plain_dumps(dumps_any)
"""Writes a value if it is plain JSON as it stands; else `TypeError`, `ValueError` or `RecursionError`."""
