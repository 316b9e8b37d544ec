"""Where the tools of this namespace keep things: a folder for each project, below one home folder.

    HOME/projects/proj_<id>/project.json
    HOME/projects/proj_<id>/sessions/sess_<id>.jsonl      the first line is the session, the others are its events
    HOME/projects/proj_<id>/workspaces/<name>/

A file is replaced by a rename, and names that come from a caller never lead out of their folder.
"""

import fcntl
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastmcp.exceptions import ToolError

NAME_MAX = 100
_ID = re.compile(r"(proj|sess)_[a-z0-9]{12}")
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def home() -> Path:
    """The folder of everything."""
    named = os.environ.get("OUBLIETTE_HOME")
    # In the namespace's own folder, which its sandbox leaves it. Reloads pass over folders whose names begin with a dot.
    folder = Path(named) if named else Path(__file__).resolve().parent / ".oubliette"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def projects() -> Path:
    folder = home() / "projects"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def changing() -> Iterator[None]:
    """One change at a time, also across processes."""
    with open(home() / ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_id(kind: str) -> str:
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
    return f"{kind}_" + "".join(secrets.choice(alphabet) for _ in range(12))


def write(path: Path, value: Any) -> None:
    """Replaces a file in one step."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def all_projects() -> list[dict[str, Any]]:
    found = [read(file) for file in projects().glob("proj_*/project.json")]
    return sorted(found, key=lambda project: (project["created"], project["id"]))


def project_folder(project: str) -> Path:
    """The folder of a project that is named by its id or by its name."""
    if _ID.fullmatch(project):
        folder = projects() / project
        if (folder / "project.json").is_file():
            return folder
    for known in all_projects():
        if known["name"] == project:
            return projects() / known["id"]
    raise ToolError("project not found")


def session_file(session: str) -> Path:
    if _ID.fullmatch(session):
        for file in projects().glob(f"proj_*/sessions/{session}.jsonl"):
            return file
    raise ToolError("session not found")


def workspace_folder(project: str, name: str) -> Path:
    if not _FOLDER.fullmatch(name):
        raise ToolError("a workspace's name has letters, digits, dots, dashes and underscores, and at most 100 of them")
    return project_folder(project) / "workspaces" / name
