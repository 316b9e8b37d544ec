"""Workspaces: folders of a project, and the limits of this host."""

import shutil
from typing import Any

from _store import changing, home, project_folder, projects, workspace_folder
from fastmcp.exceptions import ToolError
from fastmcp.tools import tool


@tool
def workspace_create(project: str, name: str) -> dict[str, Any]:
    """Make an empty workspace in a project."""
    with changing():
        folder = workspace_folder(project, name)
        if folder.exists():
            raise ToolError("workspace already exists")
        folder.mkdir()
    return {"project": folder.parents[1].name, "name": name}


@tool
def workspace_list(project: str | None = None) -> list[dict[str, Any]]:
    """List the workspaces of a project, or of all projects."""
    folders = [project_folder(project)] if project else sorted(projects().glob("proj_*"))
    return [
        {"project": folder.name, "name": workspace.name}
        for folder in folders
        for workspace in sorted((folder / "workspaces").iterdir())
    ]


@tool
def workspace_delete(project: str, name: str) -> dict[str, Any]:
    """Delete a workspace with everything in it."""
    with changing():
        folder = workspace_folder(project, name)
        if not folder.is_dir():
            raise ToolError("workspace not found")
        shutil.rmtree(folder)
    return {"deleted": True, "project": folder.parents[1].name, "name": name}


@tool
def config_limits() -> dict[str, Any]:
    """The limits of this host."""
    disk = shutil.disk_usage(home())
    return {
        "projects": {"used": sum(1 for _ in projects().glob("proj_*"))},
        "message_characters": 64 * 1024,
        "session_events": 10_000,
        "disk_bytes_free": disk.free,
    }
