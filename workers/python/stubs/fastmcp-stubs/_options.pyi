"""Keywords of the decorators."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypedDict

from .apps import AppConfig
from .resources.security import ResourceSecurity

class _Dumpable(Protocol):
    """An object of the package `mcp`, such as its `Icon` and `ToolAnnotations`."""

    def model_dump(self) -> dict[str, Any]: ...

class _Common(TypedDict, total=False):
    name: str
    title: str | None
    description: str | None
    icons: Sequence[Mapping[str, Any] | _Dumpable] | None
    meta: dict[str, Any] | None
    tags: Collection[str] | None
    version: str | int | None
    enabled: bool
    task: Any

_Completions = Mapping[str, Sequence[str] | Callable[..., Any]] | None

class ToolOptions(_Common, total=False):
    annotations: Mapping[str, Any] | _Dumpable | None
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    timeout: float | None
    run_in_thread: bool
    exclude_args: Collection[str] | None
    execution: Any
    ask_first: bool
    app: AppConfig | Mapping[str, Any] | None

class ResourceOptions(_Common, total=False):
    annotations: Mapping[str, Any] | _Dumpable | None
    mime_type: str | None
    size: int | None
    complete: _Completions
    security: ResourceSecurity | None
    cache_ttl: float | None
    app: AppConfig | Mapping[str, Any] | None

class PromptOptions(_Common, total=False):
    complete: _Completions
