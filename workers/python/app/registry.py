"""`register_tools(registry)`: tools of ToolDock v1, each a contract (a pydantic model) and a handler that takes it.

    from app.registry import ToolDefinition, ToolRegistry

    def register_tools(registry: ToolRegistry) -> None:
        registry.register(ToolDefinition(name="add", description="Adds.", input_model=AddInput, handler=add))

The handler gets a model that was validated; it may be async. Arguments that the model does not name are refused, unless
the model itself says otherwise.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import declaration, whole_pydantic
from .decorator import UNSET
from .definitions import inlined
from .file_errors import one_line
from .output_schema import encoder_of, output_schema_of
from .schema import Invalid, hints_of
from .tools import Tool

FUNCTION = "register_tools"
"""What a file of this style defines."""

MAX_TOOLS = 10_000
"""Definitions of one file."""

_PAYLOAD = "payload"


@dataclass
class ToolDefinition:
    """One tool of version 1."""

    name: str
    description: str
    input_model: Any
    handler: Callable[..., Any]


@dataclass
class ToolRegistry:
    """What a file registers its tools with."""

    definitions: list[ToolDefinition] = field(default_factory=list)

    def register(self, definition: ToolDefinition) -> None:
        """Adds a tool."""
        if not isinstance(definition, ToolDefinition):
            raise TypeError(f"register() takes a ToolDefinition, not {type(definition).__name__}")
        if len(self.definitions) >= MAX_TOOLS:
            raise ValueError(f"a file registers at most {MAX_TOOLS} tools")
        self.definitions.append(definition)

    def __iter__(self) -> Iterator[ToolDefinition]:
        return iter(self.definitions)


class _Supplier:
    """Finds `app.registry`, the name that files of version 1 import this module by, and a package `app` around it where
    neither the folder nor the environment has one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "app":
            return ModuleSpec(fullname, self, is_package=True)
        if fullname == "app.registry":
            return ModuleSpec(fullname, self)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "app.registry":
            # The import system returns what stands in `sys.modules` afterwards, not the module it made for us.
            sys.modules[module.__name__] = sys.modules[__name__]


def is_wanted(tree: ast.Module) -> bool:
    """Whether the file imports `app.registry`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(alias.name == "app.registry" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and not node.level:
            if node.module == "app.registry":
                return True
            if node.module == "app" and any(alias.name == "registry" for alias in node.names):
                return True
    return False


def install() -> None:
    """Lets tool files import `app.registry`. The last to be asked: an `app` of the author's goes first."""
    sys.meta_path.append(_Supplier())


def collected(register_tools: Callable[[ToolRegistry], Any]) -> ToolRegistry:
    """What the function registers. Raises what the function raises."""
    if not callable(register_tools) or inspect.iscoroutinefunction(register_tools):
        raise TypeError(f"{FUNCTION} must be a plain function that takes the registry")
    registry = ToolRegistry()
    register_tools(registry)
    return registry


def make_contract_tool(definition: ToolDefinition, filename: str) -> Tool:
    """The tool of a definition. `Invalid` if it cannot be one."""
    handler = definition.handler
    if not callable(handler) or inspect.isclass(handler):
        raise Invalid("handler must be a function that takes the validated model")
    name = declaration.name_of("tool", handler, definition.name)
    if not isinstance(definition.description, str):
        raise Invalid("description must be a string")
    schema, validate = _contract(definition.input_model)
    try:
        hints = hints_of(handler)
    except Invalid:
        hints = {}  # what the handler returns is all that is read of them
    public: dict[str, Any] = {
        "name": name,
        "title": declaration.title_of(name),
        "description": declaration.described(handler, definition.description or None),
        "inputSchema": inlined(schema),
    }
    output = output_schema_of(hints, UNSET)
    if output is not None:
        public["outputSchema"] = output
    public["filename"] = filename
    function, asynchronous = _taking_payload(handler)
    return Tool(
        name=name,
        function=function,
        is_async=asynchronous,
        validate=validate,
        context_parameter=None,
        encode=encoder_of(hints, output),
        timeout=None,
        public=public,
    )


def _contract(model: Any) -> tuple[dict[str, Any], Callable[[Any], dict[str, Any]]]:
    """Schema and check of a model."""
    whole_pydantic.bring_in()
    from pydantic import BaseModel

    from .modelled import NoFieldTitles

    if not (inspect.isclass(model) and issubclass(model, BaseModel)):
        raise Invalid("input_model must be a pydantic model class")
    if model.model_config.get("extra") is None:
        model = type(model.__name__, (model,), {"model_config": {"extra": "forbid"}, "__module__": model.__module__})
    try:
        schema = model.model_json_schema(schema_generator=NoFieldTitles)
    except Exception as error:
        raise Invalid(f"no schema for input_model: {one_line(error)}") from None
    if schema.get("type") != "object":
        raise Invalid("input_model must describe an object")
    schema.pop("title", None)
    schema.pop("description", None)
    schema.setdefault("properties", {})
    return schema, lambda given: {_PAYLOAD: model.model_validate(given)}


def _taking_payload(handler: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
    """The handler with its one argument by a name of ours, and whether it runs on the loop."""
    if declaration.is_async(handler):

        async def run_async(*, payload: Any) -> Any:
            return await handler(payload)

        return run_async, True

    def run(*, payload: Any) -> Any:
        return handler(payload)

    return run, False
