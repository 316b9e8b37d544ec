"""Which pydantic there is, without importing it: that would be half of the start of a worker that may not need it."""

from __future__ import annotations

import functools
import os
import re
from importlib.util import find_spec


@functools.cache
def installed() -> str:
    """`2.12.5`. `ImportError` if there is none."""
    spec = find_spec("pydantic")
    if spec is None:
        raise ModuleNotFoundError("No module named 'pydantic'", name="pydantic")
    return _written(spec.origin) or _imported()


def at_least(*wanted: int) -> bool:
    """Whether it is this version or a later one."""
    numbers = re.findall(r"\d+", installed())
    return tuple(map(int, numbers[: len(wanted)])) >= wanted


def _written(origin: str | None) -> str | None:
    """As its own source says: a line in the file beside `__init__.py`, since its first version."""
    if origin is None:
        return None
    try:
        with open(os.path.join(os.path.dirname(origin), "version.py"), encoding="utf-8") as file:
            found = re.search(r"^VERSION = ['\"](\d+\.\d+[^'\"]*)['\"]", file.read(), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return found[1] if found else None


def _imported() -> str:
    import pydantic

    return str(pydantic.VERSION)
