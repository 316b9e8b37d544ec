"""Projects: what droids work on."""

from typing import Any

from _store import NAME_MAX, all_projects, changing, new_id, now, project_folder, projects, read, write
from fastmcp.exceptions import ToolError
from fastmcp.tools import tool


@tool
def project_create(name: str, description: str = "") -> dict[str, Any]:
    """Create new project. Its name must not be taken."""
    name = name.strip()
    if not 0 < len(name) <= NAME_MAX:
        raise ToolError(f"a project's name has 1 to {NAME_MAX} characters")
    with changing():
        if any(project["name"] == name for project in all_projects()):
            raise ToolError("project already exists")
        project = {"id": new_id("proj"), "name": name, "description": description, "created": now()}
        folder = projects() / project["id"]
        (folder / "sessions").mkdir(parents=True)
        (folder / "workspaces").mkdir()
        write(folder / "project.json", project)
    return project


@tool
def project_list() -> list[dict[str, Any]]:
    """List all projects, the oldest first."""
    return all_projects()


@tool
def project_get(project: str) -> dict[str, Any]:
    """One project, by its id or its name."""
    return read(project_folder(project) / "project.json")
