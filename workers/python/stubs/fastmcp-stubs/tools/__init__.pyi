from collections.abc import Callable
from typing import Any, TypeVar, Unpack, overload

from .._options import ToolOptions

_F = TypeVar("_F", bound=Callable[..., Any])

@overload
def tool(name_or_fn: str | None = None, /, **options: Unpack[ToolOptions]) -> Callable[[_F], _F]:
    """`@tool()`, `@tool("name")` or `@tool(name=…, title=…, …)`: the function is a tool."""

@overload
def tool(name_or_fn: _F, /, **options: Unpack[ToolOptions]) -> _F:
    """`@tool`, or `tool(function, name=…, …)`: the function is a tool."""

class ToolResult:
    """What a tool returns to say itself what is shown (`content`) and what is data (`structured_content`)."""

    content: list[dict[str, Any]]
    structured_content: dict[str, Any] | None
    meta: dict[str, Any] | None
    is_error: bool
    def __init__(
        self, content: Any = None, structured_content: Any = None, meta: Any = None, is_error: bool = False
    ) -> None: ...

def __getattr__(name: str) -> Any: ...
