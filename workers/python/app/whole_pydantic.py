"""The one way to pydantic's Python half, which is imported late or never.

By then tool files have run, and may have put folders before everything else in `sys.path`. So it is imported with the
path the worker started with: a `random.py` in such a folder is not what pydantic means.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_AT_START = list(sys.path)
_lock = threading.RLock()
_is_here = False

failure: Exception | None = None
"""Why it could not be imported. A worker that finds out while it loads does not serve."""


@contextmanager
def path_at_start() -> Iterator[None]:
    """Imports inside do not see what tool code did to `sys.path`."""
    with _lock:
        now, sys.path = sys.path, list(_AT_START)
        try:
            yield
        finally:
            sys.path = now


def bring_in() -> None:
    """Imports `modelled`, and with it pydantic; after this both may be imported anywhere."""
    global _is_here, failure
    if _is_here:
        return
    with path_at_start():
        try:
            importlib.import_module(".modelled", __package__)
        except Exception as error:
            failure = error
            raise
        _is_here = True
