"""What tools, resources and prompts have in common: a function, and the texts and extras its author gave with it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, Protocol

from . import docstrings
from .decorator import OPTIONS, REFUSED
from .schema import Invalid, author_function

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Target(Protocol):
    """A function that a call can run."""

    @property
    def name(self) -> str: ...

    @property
    def function(self) -> Callable[..., Any]: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def context_parameter(self) -> str | None: ...


def check(kind: str, function: Any, options: dict[str, Any]) -> None:
    """`Invalid` if the decorated thing is no function that can be called, or a keyword is unknown."""
    for keyword, instead in REFUSED.items():
        if options.get(keyword) is not None:
            raise Invalid(f"{keyword}= is not supported: {instead}")
    if unknown := sorted(set(options) - OPTIONS[kind] - set(REFUSED)):
        raise Invalid(f"@{kind} does not know the keyword {unknown[0]}")
    if kind != "tool" and task_of(options) == "required":
        raise Invalid("only tools run as background tasks; let task= be optional")
    if inspect.isclass(function) or not callable(function):
        raise Invalid(f"only functions can be {kind}s")
    if kind != "tool" and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise Invalid(f"a generator cannot be a {kind}; return a list")
    if inspect.isfunction(function) and _is_bare_method(function):
        owner, _, name = function.__qualname__.rpartition(".")
        raise Invalid(
            f"a method in a class body has no object to be called on; after the class write {kind}({owner}().{name}), "
            "or put @staticmethod above if it needs none"
        )


def task_of(options: dict[str, Any]) -> str | None:
    """`optional` or `required`, if clients may or must run the function as a background task."""
    mode = _mode("task", options.get("task")) or _mode("execution", options.get("execution"))
    return None if mode == "forbidden" else mode


def _mode(keyword: str, given: Any) -> str | None:
    """The mode in a bool, a text, FastMCP's TaskConfig, MCP's ToolExecution, or a dict of either."""
    if given is None or isinstance(given, bool):
        return "optional" if given else None
    names = ("mode", "taskSupport", "task_support")
    if isinstance(given, dict):
        found = [given[name] for name in names if name in given]
    elif isinstance(given, str):
        found = [given]
    else:
        found = [getattr(given, name) for name in names if getattr(given, name, None) is not None]
    if not found and keyword == "execution":
        return None
    if not found or found[0] not in ("forbidden", "optional", "required"):
        raise Invalid(f'{keyword}= is True, False, "optional", "required" or "forbidden"')
    return str(found[0])


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
_OBJECTS = ("self", "cls", "this", "me", "klass", "instance")


def _is_bare_method(function: Any) -> bool:
    """Whether the function stands in a class body and takes the object as its first parameter, under any name."""
    owner, _, name = function.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if not owner or owner.endswith("<locals>") or first is None or first.kind not in _POSITIONAL:
        return False
    there = _class_member(function, owner, name)
    if isinstance(there, staticmethod):
        return False
    if there is function or isinstance(there, classmethod):
        return True
    # The class cannot be found, or holds something else under the name by now.
    bare = first.annotation is inspect.Parameter.empty and first.name.startswith("_")
    return first.name.strip("_") in _OBJECTS or bare


def _class_member(function: Any, owner: str, name: str) -> Any:
    """The member of the function's class that has the function's name; None if the class cannot be found."""
    found: Any = sys.modules.get(function.__module__)
    for part in owner.split("."):
        found = getattr(found, part, None)
    return vars(found).get(name) if inspect.isclass(found) else None


def is_async(function: Any) -> bool:
    """Whether calling it gives something to run on the loop."""
    call = getattr(type(function), "__call__", None)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def name_of(kind: str, function: Any, given: Any) -> str:
    """The name given, or the function's own; `Invalid` if clients could not say it."""
    if not (name := given):
        target = author_function(function)
        name = getattr(function, "__name__", None) or getattr(target, "__name__", None) or type(target).__name__
    if name == "<lambda>":
        raise Invalid(f'a lambda has no name of its own; give one: {kind}("name")(lambda: ...)')
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(f"a {kind} name is 1 to 128 of the characters A-Z a-z 0-9 _ . -")
    return name


def title_of(name: str) -> str:
    """`list_issues` → `List Issues`; capitals inside a word stay."""
    return " ".join(word[:1].upper() + word[1:] for word in re.split(r"[_\-. ]+", name) if word)


def described(function: Any, given: Any, schema: dict[str, Any] | None = None) -> str:
    """The description given, or the docstring's. What the docstring says of parameters goes to the schema's."""
    target = author_function(function)
    documented, parameters = docstrings.parse(inspect.getdoc(target) or "")
    if not inspect.isroutine(target):  # an object that can be called: its class says what it is, the method the rest
        inner, parameters = docstrings.parse(inspect.getdoc(target.__call__) or "")
        documented = documented or inner
    properties = schema["properties"] if schema is not None else {}
    for name, said in parameters.items():
        if name in properties:
            properties[name].setdefault("description", said)
    return documented if given is None else text("description", given) or ""


def text(keyword: str, value: Any) -> str | None:
    """The value if it is a string or not given."""
    if value is None or isinstance(value, str):
        return value
    raise Invalid(f"{keyword} must be a string")


def annotations_of(given: Any) -> dict[str, Any]:
    """MCP's hints, as a dict or as an object of the mcp package."""
    if given is None:
        return {}
    given = _dumped(given)
    if not isinstance(given, dict):
        raise Invalid("annotations must be a dict")
    return given


def extras(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """`icons` and `_meta`, as far as they were given."""
    found: dict[str, Any] = {}
    if icons := options.get("icons"):
        found["icons"] = _icons(icons)
    if meta := options.get("meta"):
        if not isinstance(meta, dict):
            raise Invalid("meta must be a dict")
        found["_meta"] = meta
    if (app := options.get("app")) is not None and app is not False:
        # Imported only when needed, since most namespaces have no pages.
        from .pages import ui_of

        found["_meta"] = {**found.get("_meta", {}), "ui": ui_of(kind, app)}
    if labels := _labels(options):
        meta = found.setdefault("_meta", {})
        found["_meta"] = {**meta, "fastmcp": {**_dict(meta.get("fastmcp")), **labels}}
    return found


def _labels(options: dict[str, Any]) -> dict[str, Any]:
    """`tags` and `version`, where FastMCP publishes them."""
    labels: dict[str, Any] = {}
    if tags := options.get("tags"):
        if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
            raise Invalid("tags must be a set of strings")
        labels["tags"] = sorted(tags)
    if (version := options.get("version")) is not None:
        labels["version"] = str(version)
    return labels


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _icons(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, (list, tuple)):
        raise Invalid("icons must be a list")
    icons = [_dumped(icon) for icon in given]
    for icon in icons:
        if not isinstance(icon, dict) or not isinstance(icon.get("src"), str):
            raise Invalid("an icon is a dict with its address as src")
    return icons


def _dumped(value: Any) -> Any:
    """The plain form of an object of the mcp package."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return value
