"""Processes that `multiprocessing` starts anew for a tool, by spawn or forkserver.

What such a process is to run reaches it as the name of a function in a module, `tooldock_tools.report` say. So it gets
the same finder as the worker; files are imported when they are asked for.
"""

from __future__ import annotations

from . import command_line, shim
from .modules import ToolModules


def prepare(arguments: list[str]) -> None:
    """Makes the tool files importable. `arguments` are those of the worker, as `multiprocessing` hands them over."""
    try:
        options = command_line.parse(arguments[1:])
    except SystemExit:
        return  # a tool changed `sys.argv`; then its modules are not found, and the error says which
    shim.install()
    ToolModules(options.tools).install()
