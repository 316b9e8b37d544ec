"""What tool files declare, read from their syntax trees. The code is compiled, and nothing of it is run.

Reads {"files": [[name, source], ...]} and writes one object per file, in the same order.
"""
import ast
import json
import re
import sys
import warnings

warnings.simplefilter("ignore")

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""A name of a tool that the core serves."""


def aliases(tree):
    names = {"tool"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.update(it.asname for it in node.names if it.name == "tool" and it.asname)
    return names


def decorator_of(function, names):
    for node in function.decorator_list:
        target = node.func if isinstance(node, ast.Call) else node
        if isinstance(target, ast.Name) and target.id in names:
            return node
        if isinstance(target, ast.Attribute) and target.attr == "tool":
            return node
    return None


def enclosing_functions(tree):
    """For each function inside others, the outermost of them."""
    found = {}

    def visit(node, outermost):
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, FUNCTIONS)
            if is_function and outermost is not None:
                found[child] = outermost
            visit(child, outermost or (child if is_function else None))

    visit(tree, None)
    return found


def bound_names(tree):
    """All names that the file gives a meaning; None if an `import *` may give any."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if alias.name == "*":
                    return None
                names.add(alias.asname or alias.name.partition(".")[0])
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def called_names(tree):
    """Functions that something in the file calls, and that which the core calls by its name."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {"register_tools"} | {it.id for it in calls if isinstance(it, ast.Name)}


def first_name(decorator):
    """`mcp` of `@mcp.tool()`."""
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def has_option(decorator, name):
    return isinstance(decorator, ast.Call) and any(it.arg == name for it in decorator.keywords)


def is_switched_off(decorator):
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    return any(it.arg == "enabled" and getattr(it.value, "value", None) is False for it in keywords)


def unservable(function, decorator, name):
    """Why the core refuses the function as a tool, or None."""
    if not NAME.fullmatch(name):
        return "the name of a tool is 1 to 128 of the characters A-Z a-z 0-9 _ . -"
    if is_switched_off(decorator):
        return "enabled=False switches it off"
    if has_option(decorator, "input_schema"):
        return None
    arguments = function.args
    if arguments.posonlyargs:
        return f"the positional-only parameter {arguments.posonlyargs[0].arg} cannot be given by name; remove the `/`"
    if arguments.vararg is not None:
        return f"*{arguments.vararg.arg} cannot be given by name; name the parameters"
    if arguments.kwarg is not None:
        return f"**{arguments.kwarg.arg} has no schema; name the parameters"
    return None


def text_option(decorator, name):
    if not isinstance(decorator, ast.Call):
        return None
    values = [it.value for it in decorator.keywords if it.arg == name]
    if name == "name" and not values:
        values = decorator.args[:1]
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
    return None


def clean(text):
    """A lone surrogate is no text that JSON can carry."""
    return text.encode("utf-8", "replace").decode()


def untyped(function):
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [it for it in (arguments.vararg, arguments.kwarg) if it is not None]
    return [it.arg for it in every if it.annotation is None]


def inspect(name, source):
    try:
        source = source.encode()
        tree = ast.parse(source, filename=name)
        # Some mistakes show only here: `return` outside a function, for example.
        compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return {"filename": name, "error": f"line {error.lineno or 1}: {error.msg}", "tools": []}
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return {"filename": name, "error": str(error) or type(error).__name__, "tools": []}
    return {"filename": name, "error": None, "tools": tools_of(tree)}


def tools_of(tree):
    names, bound, called, inside = aliases(tree), bound_names(tree), called_names(tree), enclosing_functions(tree)
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    decorated = [(node, decorator_of(node, names)) for node in sorted(functions, key=lambda node: node.lineno)]
    decorated = [(function, decorator) for function, decorator in decorated if decorator is not None]
    # Such a file cannot be imported, so that none of its tools is served.
    unbound = None
    for function, decorator in decorated:
        first = first_name(decorator)
        if function not in inside and bound is not None and first is not None and first not in bound:
            unbound = unbound or f"{first} in its decorator is not defined; add `from fastmcp.tools import tool`"
    tools, served = [], {}
    for function, decorator in decorated:
        documentation = ast.get_docstring(function)
        tool = clean(text_option(decorator, "name") or function.name)
        problem = unbound or unservable(function, decorator, tool)
        outer = inside.get(function)
        if problem is None and outer is not None and outer.name not in called:
            problem = f"it stands inside {outer.name}, which nothing calls on import; move it out of that function"
        if problem is None:
            first = served.setdefault(tool, function)
            if first is not function:
                problem = f"another tool has this name already, on line {first.lineno}; rename one of them"
        tools.append({
            "name": tool,
            "description": clean(text_option(decorator, "description") or documentation or ""),
            "line": function.lineno,
            "untyped": untyped(function),
            "documented": bool(documentation and documentation.strip()),
            "problem": problem and clean(problem),
        })
    return tools


asked = json.load(sys.stdin.buffer)
json.dump([inspect(name, source) for name, source in asked["files"]], sys.stdout)
