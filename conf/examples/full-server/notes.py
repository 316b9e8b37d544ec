"""A small notebook: a resource list, a template with completion, a prompt, and tools that report and ask."""

from dataclasses import dataclass

from fastmcp import Context
from fastmcp.prompts import prompt
from fastmcp.resources import resource
from fastmcp.tools import tool

_notes: dict[str, str] = {"today": "Water the plants."}


def _names(value: str) -> list[str]:
    return [name for name in _notes if name.startswith(value)]


@resource("notes://index", title="All notes", mime_type="application/json")
def index() -> list[str]:
    """The names of all notes."""
    return sorted(_notes)


@resource("notes://{name}", title="A note", mime_type="text/plain", complete={"name": _names})
def note(name: str) -> str:
    """One note by its name."""
    return _notes.get(name, "")


@prompt(title="Summarise notes", complete={"tone": ["plain", "cheerful"]})
def summarise(tone: str = "plain") -> str:
    """Asks for a summary of everything noted."""
    listed = "\n".join(f"- {name}: {text}" for name, text in sorted(_notes.items()))
    return f"Summarise these notes in a {tone} tone:\n{listed}"


@dataclass
class Confirmation:
    """What is asked before something is lost."""

    delete: bool


@tool
async def write_note(name: str, text: str, ctx: Context) -> str:
    """Writes a note. Clients that subscribed to it are told."""
    await ctx.report_progress(1, 2, "writing")
    _notes[name] = text
    await ctx.send_resource_updated(f"notes://{name}")
    await ctx.report_progress(2, 2, "written")
    return f"{name} has {len(text)} characters"


@tool
async def delete_note(name: str, ctx: Context) -> str:
    """Deletes a note after asking whoever called."""
    answer = await ctx.elicit(f"Delete the note {name!r}?", Confirmation)
    if answer.action != "accept" or not answer.data.delete:
        return f"{name} stays"
    _notes.pop(name, None)
    await ctx.info(f"{name} was deleted")
    return f"{name} is gone"
