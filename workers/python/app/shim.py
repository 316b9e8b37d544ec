"""`fastmcp` for tool files, with or without the package.

Stand-ins for `fastmcp` and a few of its modules sit in `sys.modules` and give the decorators, `Context` and the types
that go with them, which is all that most tool files want. Anything else asked of them, an attribute or a submodule,
brings in the real package (it takes seconds to import), after which the stand-ins forward to it.

Which files need more is decided from their imports before the first one is executed (`needs_real`); forwarding catches
what only shows later, such as a library of the namespace that builds on fastmcp.

In fastmcp 2.x `fastmcp.tools.tool` is a module, and so are `fastmcp.resources.resource` and `fastmcp.prompts.prompt`.
They are made callable, rather than replaced by functions, so that `from fastmcp.tools import tool` decorates while
`from fastmcp.tools.tool import Tool` goes on to work. Later versions have the decorators but no such modules; for tools
a small one is put in its place. Where a decorator is given a keyword that only ours has, ours takes it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from . import decorator
from .blocks import ToolResult
from .context import Context
from .exceptions import NotFoundError, PromptError, ResourceError, ToolError
from .messages import Message

_SUPPLIED: dict[str, dict[str, Any]] = {
    "fastmcp": {"Context": Context},
    "fastmcp.apps": {},
    "fastmcp.apps.config": {},
    "fastmcp.dependencies": {},
    "fastmcp.exceptions": {
        "NotFoundError": NotFoundError,
        "PromptError": PromptError,
        "ResourceError": ResourceError,
        "ToolError": ToolError,
    },
    "fastmcp.prompts": {"prompt": decorator.prompt, "Message": Message},
    "fastmcp.resources": {"resource": decorator.resource},
    "fastmcp.resources.security": {},
    "fastmcp.server": {},
    "fastmcp.server.elicitation": {},
    "fastmcp.tools": {"tool": decorator.tool, "ToolResult": ToolResult},
    "fastmcp.utilities": {},
    "fastmcp.utilities.types": {},
}
_PAGES = {
    name: "pages" for name in ("AppConfig", "ResourceCSP", "ResourcePermissions", "UI_EXTENSION_ID", "UI_MIME_TYPE")
}
_LATER = {
    "fastmcp.apps": _PAGES,
    "fastmcp.apps.config": _PAGES,
    "fastmcp.dependencies": {"CurrentContext": "injected", "Depends": "injected"},
    "fastmcp.resources": {"ResourceSecurity": "resource_security"},
    "fastmcp.resources.security": {"ResourceSecurity": "resource_security"},
    "fastmcp.server.elicitation": {
        "AcceptedElicitation": "elicitation",
        "CancelledElicitation": "elicitation",
        "DeclinedElicitation": "elicitation",
    },
    "fastmcp.utilities.types": {"Audio": "media", "File": "media", "Image": "media"},
}
"""Ours as well, each from the module here that is imported when a tool file asks for it."""
_DECORATORS: dict[str, tuple[str, Any]] = {
    "tool": ("fastmcp.tools", decorator.tool),
    "resource": ("fastmcp.resources", decorator.resource),
    "prompt": ("fastmcp.prompts", decorator.prompt),
}


class _StandIn(ModuleType):
    """A module that gives what we supply, and otherwise becomes the real one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name in _LATER.get(self.__name__, ()):
            supplier = importlib.import_module(f".{_LATER[self.__name__][name]}", __package__)
            vars(self)[name] = getattr(supplier, name)
            return vars(self)[name]
        _promote()
        return getattr(sys.modules[self.__name__], name)


class _CallableModule(ModuleType):
    """The module `fastmcp.tools.tool` of fastmcp 2.x, usable as the decorator that later versions have there; and
    likewise those of resources and prompts."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return _DECORATORS[self.__name__.rpartition(".")[2]][1](*args, **options)


class _SubmoduleFinder:
    """Asked for a submodule of a stand-in: brings in the real package and hands over its submodule."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if isinstance(sys.modules.get(fullname.rpartition(".")[0]), _StandIn):
            _promote()
            return ModuleSpec(fullname, _Handover(importlib.import_module(fullname)))
        return None


class _Handover:
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
    for name, supplied in _SUPPLIED.items():
        module = _StandIn(name)
        module.__path__ = []
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        vars(module).update(supplied)
        if name in _LATER:
            module.__all__ = [*supplied, *_LATER[name]]  # type: ignore[attr-defined]
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    sys.meta_path.append(_finder)


def needs_real(tree: ast.Module) -> bool:
    """Whether the file's own imports name more of fastmcp than the stand-ins have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            if any(_inside(alias.name) and alias.name not in _SUPPLIED for alias in node.names):
                return True
        elif isinstance(node, ast.ImportFrom) and not node.level and _inside(node.module or ""):
            supplied = _SUPPLIED.get(node.module or "")
            if supplied is None:
                return True
            for alias in node.names:
                ours = alias.name in supplied or alias.name in _LATER.get(node.module or "", ())
                if not ours and f"{node.module}.{alias.name}" not in _SUPPLIED:
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
            "No module named 'fastmcp': the runtime itself has only its decorators, `Context` and the like; "
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
    """Makes the decorators, and `from fastmcp.tools.tool import Tool`, work in every version."""
    for name in _DECORATORS:
        _patch_decorator(name)
    tools = importlib.import_module("fastmcp.tools")
    name = "fastmcp.tools.tool"
    if isinstance(tools.tool, ModuleType):
        return
    if name not in sys.modules and PathFinder.find_spec(name, getattr(tools, "__path__", None)) is None:
        old = _CallableModule(name, "What fastmcp 2.x has in this module.")
        for exported in ("Tool", "FunctionTool", "ToolResult"):
            if hasattr(tools, exported):
                setattr(old, exported, getattr(tools, exported))
        sys.modules[name] = old


def _patch_decorator(name: str) -> None:
    module_name, ours = _DECORATORS[name]
    module = importlib.import_module(module_name)
    found = getattr(module, name, None)
    if found is None:
        setattr(module, name, ours)
    elif isinstance(found, ModuleType):
        if not callable(found):
            found.__class__ = _CallableModule
    elif not hasattr(found, "__tooldock__"):
        setattr(module, name, _extended(found, ours, decorator.OWN[name]))


def _extended(real: Any, ours: Any, own: frozenset[str]) -> Any:
    """The real decorator, with the keywords that only ours has."""

    @functools.wraps(real)
    def decorate(*args: Any, **options: Any) -> Any:
        return real(*args, **options) if own.isdisjoint(options) else ours(*args, **options)

    decorate.__tooldock__ = True  # type: ignore[attr-defined]
    return decorate
