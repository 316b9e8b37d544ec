"""What a Python file of a tools folder is taken for, before any of its code runs.

| style | the file | where |
|---|---|---|
| `decorators` | decorates functions with `@tool`, `@resource` or `@prompt` | everywhere |
| `register_tools` | has a function `register_tools(registry)` | everywhere |
| `function` | has a function named like the file, which is the tool | where the folder's style is `vault` |

The first that fits counts, but for a file that decorates and has a `register_tools(registry)` for `app.registry`, which it
imports: such a file gives both (`decorators+register_tools`). A file that none fits is not executed.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from typing import Any

from . import registry, server_objects
from .decorator import Registration
from .schema import Invalid, author_function

DECORATORS = "decorators"
REGISTER_TOOLS = "register_tools"
MIXED = "decorators+register_tools"
FUNCTION = "function"
SKIPPED = "skipped"

VAULT = "vault"
"""The style of a folder in which a function may be a tool by its name alone."""

KINDS = ("tool", "resource", "prompt")


@dataclass(slots=True)
class SourceFile:
    """One file, what it was taken for, and how many tools it gave."""

    file: str
    taken_for: str
    tools: int = 0
    reason: str | None = None

    def public(self) -> dict[str, Any]:
        said: dict[str, Any] = {"file": self.file, "takenFor": self.taken_for, "tools": self.tools}
        if self.reason is not None:
            said["reason"] = self.reason
        return said


def of(tree: ast.Module, filename: str, folder_style: str | None) -> SourceFile:
    """What the file is taken for."""
    if _may_declare(tree):
        return SourceFile(filename, DECORATORS)
    if _binds(tree, registry.FUNCTION):
        return SourceFile(filename, REGISTER_TOOLS)
    stem = filename.removesuffix(".py")
    if folder_style != VAULT:
        return SourceFile(filename, SKIPPED, reason="no @tool, and no register_tools(registry)")
    if any(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == stem for node in tree.body):
        return SourceFile(filename, FUNCTION)
    reason = f"no @tool, no register_tools(registry), and no function named like the file: {stem}"
    return SourceFile(filename, SKIPPED, reason=reason)


def is_mixed(file: SourceFile, tree: ast.Module, register_tools: Any, registrations: list[Registration]) -> bool:
    """Whether `register_tools` gives tools beside those that the file decorates. If not, the file says why.

    Files that register on a server object of their own often have a function of that name, which takes the server and is
    not for us to call. A file of ToolDock v1 imports `app.registry`.
    """
    if any(author_function(it.function) is register_tools for it in registrations):
        return False
    if registry.is_wanted(tree):
        return True
    file.reason = (
        f"{registry.FUNCTION} was not called, since the file decorates tools: import ToolDefinition from app.registry in "
        "this file, or move the function into a file of its own"
    )
    return False


def function_of(module: Any, filename: str) -> Any:
    """The function that is the tool of its file. `Invalid` if it does not say what its arguments are."""
    name = filename.removesuffix(".py")
    function = getattr(module, name, None)
    if not inspect.isroutine(function):
        raise Invalid(f"{name} is no function any more once the file was executed")
    parameters = inspect.signature(function).parameters.values()
    bare = [it.name for it in parameters if it.annotation is inspect.Parameter.empty]
    if bare:
        raise Invalid(f"no annotation for {', '.join(bare)}: write what each argument is, such as {bare[0]}: str")
    return function


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether the file has something of that name at its top level."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return True
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return True
        if isinstance(node, ast.Assign) and any(isinstance(it, ast.Name) and it.id == name for it in node.targets):
            return True
    return False


def _may_declare(tree: ast.Module) -> bool:
    """Whether the file decorates with something called like one of the decorators, or calls one of them."""
    aliases = set(KINDS)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            aliases.update(alias.asname for alias in node.names if alias.name in KINDS and alias.asname)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in node.decorator_list:
                name = _last_name(decorator)
                if name in aliases or any(kind in name.lower() for kind in KINDS):
                    return True
        elif isinstance(node, ast.Call) and (_last_name(node) in aliases or server_objects.is_addition(node)):
            return True
    return False


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Attribute):
        # `@tools.register` counts as well as `@registry.tool`.
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        return node.attr if node.attr in KINDS else f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
