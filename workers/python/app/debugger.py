"""`--debug`: the worker waits until a debugger is attached, before it loads tool files.

Only a gateway with `serve --dev` and `TOOLDOCK_DEBUG=NAMESPACE` starts a worker so. `debugpy` comes from the namespace's
environment. It listens on loopback alone: whoever connects runs code as the gateway's user.
"""

from __future__ import annotations

import os
from typing import Any

from . import stdio

ADDRESS = "127.0.0.1"
PORTS = range(5678, 5688)
"""Ports in the order of preference; the first is the one that editors propose. Where all are taken, any other."""

IMPORT_LIMIT = 86_400.0
"""Seconds that a tool file may take to be imported, in place of `--import-timeout`: it may stand at a breakpoint."""

_QUIET = "PYDEVD_DISABLE_FILE_VALIDATION"
"""Variable without which debugpy warns of modules that are frozen into the interpreter. None of them is a tool file."""


class DebuggerMissing(Exception):
    """The environment has no debugpy that can be imported; the message says what to do."""


def wait() -> None:
    """Returns once a debugger is attached."""
    os.environ[_QUIET] = "1"
    try:
        debugpy = _debugpy()
        # Programs that tools start are not debugged: they would wait for an editor of their own.
        debugpy.configure(subProcess=False)
        _, port = debugpy.listen((ADDRESS, _free_port()))
    finally:
        del os.environ[_QUIET]
    stdio.log(f"attach to {ADDRESS}:{port}: the worker waits for a debugger (TOOLDOCK_DEBUG)", "warning")
    debugpy.wait_for_client()
    stdio.log("a debugger is attached")


def _debugpy() -> Any:
    """The package of the namespace's environment."""
    try:
        import debugpy
    except ImportError as error:
        missing = getattr(error, "name", None) == "debugpy"
        cause = "there is no debugpy" if missing else f"debugpy cannot be imported: {error}"
        raise DebuggerMissing(
            f"TOOLDOCK_DEBUG names this namespace, and {cause} in its environment: write debugpy into requirements.txt"
        ) from None
    return debugpy


def _free_port() -> int:
    import socket

    for port in (*PORTS, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESS, port))
                probe.listen()
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return 0
