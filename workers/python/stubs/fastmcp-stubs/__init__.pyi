"""The names of `fastmcp` that ToolDock's workers supply without the package. Other names come from the package itself."""

from typing import Any

from ._context import Context as Context

def __getattr__(name: str) -> Any: ...
