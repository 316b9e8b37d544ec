"""Tools that a file registers on a server object: `mcp = FastMCP()`, then `@mcp.tool` or `mcp.add_tool(f)`.

The gateway is the server here, and no server object of a file is run. Where the decorators of such an object leave a
trace on the function, the function is served all the same (`recognise`); what is registered in a way that leaves none
is found in the source, so that its author hears what to write instead.

Whose class the object is of does not matter: each SDK names its methods alike, and the object may come from a function
or from another file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_CLASSES = ("FastMCP", "MCPServer")
_KINDS = {"tool": "tool", "resource": "resource", "resource_template": "resource", "prompt": "prompt"}
_ADDITIONS = {
    "add_tool": "tool",
    "add_resource": "resource",
    "add_resource_fn": "resource",
    "add_template": "resource",
    "add_prompt": "prompt",
}
_HANDLERS = {"call_tool": "tool", "read_resource": "resource", "get_prompt": "prompt"}
"""Decorators of low-level servers: one function answers for all tools."""
_PACKAGES = ("fastmcp", "mcp")
_FUNCTION_KEYWORDS = ("fn", "func", "function", "handler", "tool", "resource", "prompt")


@dataclass(slots=True)
class Missed:
    """One registration on a server object."""

    kind: str
    function: str
    server: str
    line: int
    is_handler: bool = False

    def advice(self) -> str:
        how = "" if self.kind != "resource" else '("scheme://where")'
        write = f"write `from fastmcp.{self.kind}s import {self.kind}` and put @{self.kind}{how} on"
        if self.is_handler:
            return (
                f"{self.function}: answers for all {self.kind}s of the server object {self.server}, which is not run here; "
                f"{write} a function for each (line {self.line})"
            )
        return (
            f"{self.function}: registered only on the server object {self.server}, which is not run here; "
            f"{write} the function (line {self.line})"
        )


def is_addition(node: ast.Call) -> bool:
    """Whether it is a call like `mcp.add_tool(…)`."""
    return isinstance(node.func, ast.Attribute) and node.func.attr in _ADDITIONS


def registered_on(tree: ast.Module) -> Iterator[Missed]:
    """The functions that the file registers on server objects, by decorator or by call."""
    others = _no_servers(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in node.decorator_list:
                call = decorator.func if isinstance(decorator, ast.Call) else decorator
                if (found := _on(call, others)) is None:
                    continue
                server, method = found
                if (kind := _KINDS.get(method)) is not None:
                    yield Missed(kind, node.name, server, node.lineno)
                elif (kind := _HANDLERS.get(method)) is not None and isinstance(decorator, ast.Call):
                    yield Missed(kind, node.name, server, node.lineno, is_handler=True)
        elif isinstance(node, ast.Call):
            yield from _called(node, others)


def hint(error: BaseException, tree: ast.Module) -> str:
    """What to add to an import error of a file that makes a server: it needs none, nor the package."""
    if not isinstance(error, ImportError) or (error.name or "").partition(".")[0] not in _PACKAGES:
        return ""
    if next(_servers(tree), None) is None and next(registered_on(tree), None) is None:
        return ""
    return (
        "; no server object is needed here: write `from fastmcp.tools import tool` and put @tool on the functions, or "
        "`server: FILE` into tooldock.yaml to run this file as an MCP server"
    )


def _called(node: ast.Call, others: set[str]) -> Iterator[Missed]:
    """Functions registered by a call: `mcp.add_tool(f)`, `mcp.tool(f)`, `mcp.tool("name")(f)`, `FastMCP(tools=[f])`."""
    method = node.func.func if isinstance(node.func, ast.Call) else node.func
    if (found := _on(method, others)) is not None:
        server, name = found
        kind = _ADDITIONS.get(name) or _KINDS.get(name)
        if kind is not None and (function := _registered(node)):
            yield Missed(kind, function, server, node.lineno)
    elif _class(node) in _CLASSES:
        for keyword in node.keywords:
            if keyword.arg in ("tools", "resources", "prompts") and isinstance(keyword.value, (ast.List, ast.Tuple)):
                for element in keyword.value.elts:
                    if function := _subject(element):
                        yield Missed(keyword.arg[:-1], function, _class(node), node.lineno)


def _registered(node: ast.Call) -> str:
    """The name of the function that a call passes to a server object."""
    given = node.args[:1] + [it.value for it in node.keywords if it.arg in _FUNCTION_KEYWORDS]
    return next((name for it in given if (name := _subject(it))), "")


def _subject(node: ast.expr) -> str:
    """`search` for `search` and `Tool.from_function(search)`; the class's name for `TextResource(…)`."""
    if isinstance(node, ast.Call):
        inside = _registered(node)
        return inside if inside and _class(node) not in _CLASSES else _class(node)
    return _name(node)


def _no_servers(tree: ast.Module) -> set[str]:
    """Names that are no server objects, though they have such methods: modules of the decorators, and agents."""
    names = {"fastmcp", "tools", "resources", "prompts"} & _imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
            if _class(node.value).endswith("Agent"):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {_name(target) for target in targets}
    return names


def _imported(tree: ast.Module) -> set[str]:
    """Names imported from the package fastmcp, which has the decorators' modules."""
    froms = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "fastmcp")
    return {alias.asname or alias.name for node in froms for alias in node.names}


def _servers(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
            if _class(node.value) in _CLASSES:
                yield from (node.targets if isinstance(node, ast.Assign) else [node.target])


def _on(node: ast.expr, others: set[str]) -> tuple[str, str] | None:
    """Server and method of `mcp.method`, `app.mcp.method`, `self.mcp.method`, `server().method`."""
    if not isinstance(node, ast.Attribute):
        return None
    owner = node.value
    server = f"{_name(owner.func)}()" if isinstance(owner, ast.Call) and _name(owner.func) else _name(owner)
    if not server or server in others or server.partition(".")[0] in others:
        return None
    return server, node.attr


def _class(node: ast.Call) -> str:
    return _name(node.func).rpartition(".")[2]


def _name(node: ast.expr) -> str:
    """`search`, and `tools.search`; nothing for other expressions."""
    if isinstance(node, ast.Attribute):
        owner = _name(node.value)
        return f"{owner}.{node.attr}" if owner else node.attr
    return node.id if isinstance(node, ast.Name) else ""
