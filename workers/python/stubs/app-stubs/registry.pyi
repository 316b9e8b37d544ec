"""`register_tools(registry)`: tools of ToolDock v1."""

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

class ToolDefinition:
    """One tool of version 1."""

    name: str
    description: str
    input_model: type[BaseModel]
    handler: Callable[..., Any]
    def __init__(
        self, name: str, description: str, input_model: type[BaseModel], handler: Callable[..., Any]
    ) -> None: ...

class ToolRegistry:
    """What a file registers its tools with."""

    definitions: list[ToolDefinition]
    def __init__(self, definitions: list[ToolDefinition] = ...) -> None: ...
    def register(self, definition: ToolDefinition) -> None:
        """Adds a tool."""

    def __iter__(self) -> Iterator[ToolDefinition]: ...
