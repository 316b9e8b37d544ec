"""Tools that a file registers on a server object of its own: `mcp = FastMCP()`, then `@mcp.tool` or `mcp.add_tool(f)`.

The gateway is the server here, and no server object of a file is run. Where the decorators of such an object leave a
trace on the function, the function is served all the same (`recognise`); what is registered in a way that leaves none
is found in the source, so that its author hears what to write instead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_CLASSES = ("FastMCP", "MCPServer")
_KINDS = {"tool": "tool", "resource": "resource", "prompt": "prompt"}
_ADDITIONS = {"add_tool": "tool", "add_resource": "resource", "add_prompt": "prompt"}
_PACKAGES = ("fastmcp", "mcp")


@dataclass(slots=True)
class Missed:
    """One registration on a server object."""

    kind: str
    function: str
    server: str
    line: int

    def advice(self) -> str:
        how = "" if self.kind != "resource" else '("scheme://where")'
        return (
            f"{self.function}: registered only on the server object {self.server}, which is not run here; write "
            f"`from fastmcp.{self.kind}s import {self.kind}` and put @{self.kind}{how} on the function (line {self.line})"
        )


def is_addition(node: ast.Call) -> bool:
    """Whether it is a call like `mcp.add_tool(…)`."""
    return isinstance(node.func, ast.Attribute) and node.func.attr in _ADDITIONS


def registered_on(tree: ast.Module) -> Iterator[Missed]:
    """What the file registers on server objects that it makes at its top level, by decorator or by call."""
    servers = {target.id for target in _servers(tree)}
    if not servers:
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in node.decorator_list:
                call = decorator.func if isinstance(decorator, ast.Call) else decorator
                if (found := _on(call, servers)) is not None and found[1] in _KINDS:
                    yield Missed(_KINDS[found[1]], node.name, found[0], node.lineno)
        elif isinstance(node, ast.Call) and (found := _on(node.func, servers)) is not None and node.args:
            kind = _ADDITIONS.get(found[1]) or _KINDS.get(found[1])
            name = _name(node.args[0])
            if kind is not None and name:
                yield Missed(kind, name, found[0], node.lineno)


def hint(error: BaseException, tree: ast.Module) -> str:
    """What to add to an import error of a file that makes a server: it needs none, nor the package."""
    if not isinstance(error, ImportError) or (error.name or "").partition(".")[0] not in _PACKAGES:
        return ""
    if next(_servers(tree), None) is None:
        return ""
    return "; no server object is needed here: write `from fastmcp.tools import tool` and put @tool on the functions"


def _servers(tree: ast.Module) -> Iterator[ast.Name]:
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
            if _name(node.value.func).rpartition(".")[2] in _CLASSES:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (target for target in targets if isinstance(target, ast.Name))


def _on(node: ast.expr, servers: set[str]) -> tuple[str, str] | None:
    """Server and method of `mcp.method`."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in servers:
        return node.value.id, node.attr
    return None


def _name(node: ast.expr) -> str:
    """`search`, and `tools.search`; nothing for other expressions."""
    if isinstance(node, ast.Attribute):
        owner = _name(node.value)
        return f"{owner}.{node.attr}" if owner else node.attr
    return node.id if isinstance(node, ast.Name) else ""
