"""`fastmcp` for tool files, with or without the package.

Stand-ins for `fastmcp` and `fastmcp.tools` sit in `sys.modules` and give `tool` and `Context`, which is all that most
tool files want. Anything else asked of them, an attribute or a submodule, brings in the real package (it takes seconds
to import), after which the stand-ins forward to it.

Which files need more is decided from their imports before the first one is executed (`needs_real`); forwarding catches
what only shows later, such as a library of the namespace that builds on fastmcp.

In fastmcp 2.x `fastmcp.tools.tool` is a module. It is made callable, rather than replaced by a function, so that
`from fastmcp.tools import tool` decorates while `from fastmcp.tools.tool import Tool` goes on to work. Later versions
have the decorator but no such module; a small one is put in its place.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from .context import Context
from .decorator import tool

_SUPPLIED: dict[str, frozenset[str]] = {
    "fastmcp": frozenset({"tools", "Context"}),
    "fastmcp.tools": frozenset({"tool"}),
}


class _StandIn(ModuleType):
    """A module that gives what we supply, and otherwise becomes the real one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        _promote()
        return getattr(sys.modules[self.__name__], name)


class _CallableModule(ModuleType):
    """The module `fastmcp.tools.tool` of fastmcp 2.x, usable as the decorator that later versions have there."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return tool(*args, **options)


class _SubmoduleFinder(MetaPathFinder):
    """Asked for a submodule of a stand-in: brings in the real package and hands over its submodule."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if isinstance(sys.modules.get(fullname.rpartition(".")[0]), _StandIn):
            _promote()
            return ModuleSpec(fullname, _Handover(importlib.import_module(fullname)))
        return None


class _Handover(Loader):
    def __init__(self, real: ModuleType) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns what stands in `sys.modules` afterwards, not the module it made for us.
        sys.modules[module.__name__] = self._real


_finder = _SubmoduleFinder()


def install() -> None:
    """Puts the stand-ins in place. Idempotent; does nothing but patch where the real package is imported already."""
    if "fastmcp" in sys.modules:
        _patch_real()
        return
    root, tools = _StandIn("fastmcp"), _StandIn("fastmcp.tools")
    for module in (root, tools):
        module.__path__ = []
        module.__spec__ = ModuleSpec(module.__name__, None, is_package=True)
        sys.modules[module.__name__] = module
    root.tools = tools  # type: ignore[attr-defined]
    root.Context = Context  # type: ignore[attr-defined]
    tools.tool = tool  # type: ignore[attr-defined]
    sys.meta_path.append(_finder)


def needs_real(tree: ast.Module) -> bool:
    """Whether the file's own imports name more of fastmcp than the stand-ins have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            if any(_inside(alias.name) and alias.name not in _SUPPLIED for alias in node.names):
                return True
        elif isinstance(node, ast.ImportFrom) and not node.level and _inside(node.module or ""):
            supplied = _SUPPLIED.get(node.module or "")
            if supplied is None or any(alias.name not in supplied for alias in node.names):
                return True
    return False


def use_real() -> bool:
    """Imports the real package; False if it is missing or broken, which then shows in the file that asks for it."""
    try:
        _promote()
    except Exception:
        return False
    return True


def _inside(name: str) -> bool:
    return name == "fastmcp" or name.startswith("fastmcp.")


def _promote() -> None:
    """Replaces the stand-ins in `sys.modules` by the real package."""
    if not isinstance(sys.modules.get("fastmcp"), _StandIn):
        return
    if PathFinder.find_spec("fastmcp") is None:
        raise ModuleNotFoundError(
            "No module named 'fastmcp': the runtime itself has only `tool` and `Context`; "
            "for more, add fastmcp to requirements.txt",
            name="fastmcp",
        )
    stand_ins = {name: sys.modules.pop(name) for name in _SUPPLIED if name in sys.modules}
    try:
        importlib.import_module("fastmcp.tools")
    except BaseException:
        for name in [name for name in sys.modules if _inside(name)]:
            del sys.modules[name]
        sys.modules.update(stand_ins)
        raise
    _patch_real()


def _patch_real() -> None:
    """Makes the decorator `fastmcp.tools.tool` and `from fastmcp.tools.tool import Tool` work in every version."""
    tools = importlib.import_module("fastmcp.tools")
    name = "fastmcp.tools.tool"
    found = getattr(tools, "tool", None)
    if isinstance(found, ModuleType):
        if not callable(found):
            found.__class__ = _CallableModule
        return
    if found is None:
        tools.tool = tool  # type: ignore[attr-defined]
    if name not in sys.modules and PathFinder.find_spec(name, getattr(tools, "__path__", None)) is None:
        old = _CallableModule(name, "What fastmcp 2.x has in this module.")
        for exported in ("Tool", "FunctionTool", "ToolResult"):
            if hasattr(tools, exported):
                setattr(old, exported, getattr(tools, exported))
        sys.modules[name] = old
