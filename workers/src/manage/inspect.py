"""What tool files declare, read from their syntax trees. The code is compiled, and nothing of it is run.

Reads {"files": [[name, source], ...]} and writes one object per file, in the same order.
"""
import ast
import json
import sys
import warnings

warnings.simplefilter("ignore")


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
    names = aliases(tree)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    tools = []
    for function in sorted(functions, key=lambda node: node.lineno):
        decorator = decorator_of(function, names)
        if decorator is None:
            continue
        documentation = ast.get_docstring(function)
        tools.append({
            "name": clean(text_option(decorator, "name") or function.name),
            "description": clean(text_option(decorator, "description") or documentation or ""),
            "line": function.lineno,
            "untyped": untyped(function),
            "documented": bool(documentation and documentation.strip()),
        })
    return {"filename": name, "error": None, "tools": tools}


asked = json.load(sys.stdin.buffer)
json.dump([inspect(name, source) for name, source in asked["files"]], sys.stdout)
