"""Sessions: conversations of droids within a project, kept as one line for each event."""

import json
from pathlib import Path
from typing import Any

from _store import changing, new_id, now, project_folder, projects, session_file
from fastmcp.exceptions import ToolError
from fastmcp.tools import tool

EVENTS_MAX = 10_000
TEXT_MAX = 64 * 1024


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _append(file: Path, event: dict[str, Any]) -> None:
    with open(file, "a", encoding="utf-8") as log:
        log.write(json.dumps(event) + "\n")


@tool
def session_create(project: str, title: str = "") -> dict[str, Any]:
    """Begin a session in a project, which is named by its id or its name."""
    with changing():
        folder = project_folder(project)
        session = {"id": new_id("sess"), "project": folder.name, "title": title, "created": now()}
        _append(folder / "sessions" / f"{session['id']}.jsonl", session)
    return session


@tool
def session_message(session: str, text: str) -> dict[str, Any]:
    """Add a message to a session."""
    if len(text) > TEXT_MAX:
        raise ToolError(f"a message has at most {TEXT_MAX} characters")
    with changing():
        file = session_file(session)
        number = len(_lines(file))
        if number > EVENTS_MAX:
            raise ToolError(f"a session has at most {EVENTS_MAX} events; begin another one")
        event = {"number": number, "kind": "message", "text": text, "at": now()}
        _append(file, event)
    return event


@tool
def session_list(project: str | None = None) -> list[dict[str, Any]]:
    """List the sessions of a project, or of all projects."""
    folders = [project_folder(project)] if project else sorted(projects().glob("proj_*"))
    files = [file for folder in folders for file in (folder / "sessions").glob("sess_*.jsonl")]
    return sorted((_lines(file)[0] for file in files), key=lambda session: (session["created"], session["id"]))


@tool
def session_get(session: str) -> dict[str, Any]:
    """One session, and how many events it has."""
    first, *events = _lines(session_file(session))
    return {**first, "events": len(events)}


@tool
def session_events(session: str, after: int = 0) -> list[dict[str, Any]]:
    """The events of a session after a number, at most 1000 of them."""
    return [event for event in _lines(session_file(session))[1:] if event["number"] > after][:1000]
