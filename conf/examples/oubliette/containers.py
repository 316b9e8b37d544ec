"""Containers and images: this example has no container runtime behind it, and says so.

To have one, replace the bodies: the names and parameters are what droids know.
"""

from typing import NoReturn

from fastmcp.exceptions import ToolError
from fastmcp.tools import tool


def _not_configured() -> NoReturn:
    raise ToolError("not configured")


@tool
def container_list(project: str | None = None) -> list[dict[str, str]]:
    """List the containers of a project, or of all projects."""
    _not_configured()


@tool
def container_start(project: str, image: str | None = None) -> dict[str, str]:
    """Start the container of a project."""
    _not_configured()


@tool
def container_stop(project: str) -> dict[str, str]:
    """Stop the container of a project."""
    _not_configured()


@tool
def container_logs(project: str, lines: int = 100) -> str:
    """The last lines that the container of a project wrote."""
    _not_configured()


@tool
def container_exec(project: str, command: list[str]) -> str:
    """Run a command in the container of a project."""
    _not_configured()


@tool
def image_rebuild(image: str | None = None) -> dict[str, str]:
    """Build the image of the containers anew."""
    _not_configured()
