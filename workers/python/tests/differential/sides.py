"""Runs the generated files on both sides, and brings what each says into one form.

Ours is the real worker behind its socket. What the gateway makes of its answers (`mcp-upstream/src/content/tool.rs`,
tested there) is repeated in `_result`, so that both sides are compared as a client sees them.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.context import Context
from harness import ASKABLE, Worker

from .forms import filled
from .signatures import Arguments, Case, files

HERE = Path(__file__).resolve().parent
LIMIT_SECONDS = 900
AT_ONCE = 64
"""Calls that are written before their answers are read."""

CALLER = {**ASKABLE, "logLevel": "debug", "capabilities": {**ASKABLE["capabilities"], "elicitation": {"form": {}, "url": {}}}}

_COMPLAINT = re.compile(r"^(\S.*)\n  (.*) \[type=([a-z_0-9]+)", re.MULTILINE)


@dataclass
class Side:
    """What one side did with the cases."""

    versions: dict[str, str]
    context: list[str] = field(default_factory=list)
    """The public names of a Context."""
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Functions that are no tools, and why."""
    outcomes: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    """What came of each call, by the function and the call's number."""


def calls_of(cases: list[Case], side: Side) -> Iterator[tuple[str, int, Arguments]]:
    """All calls of the functions that a side has as tools."""
    for case in cases:
        if case.name in side.tools:
            for number, arguments in enumerate(case.calls):
                yield case.name, number, arguments


def write(cases: list[Case], folder: Path, sources: Mapping[str, str] | None = None) -> list[str]:
    """Puts the tool files and what they import into a folder; the names of their modules. Without `sources`, the files are those
    of the cases together."""
    sources = files(cases) if sources is None else sources
    for name, source in {**sources, "shapes.py": (HERE / "shapes.py").read_text()}.items():
        (folder / name).write_text(source)
    return [name.removesuffix(".py") for name in sources]


def answer_to(question: dict[str, Any]) -> dict[str, Any]:
    """The answer of the user or the model of both sides to a question."""
    if question["method"] == "sampling/createMessage":
        return {"role": "assistant", "model": "m", "content": {"type": "text", "text": "said"}}
    schema = question["params"].get("requestedSchema")
    return {"action": "accept", **({} if schema is None else {"content": filled(schema)})}


def ours(cases: list[Case], worker: Worker, sources: Mapping[str, str] | None = None) -> Side:
    """Runs the cases in a worker."""
    write(cases, worker.tools, sources)
    worker.start("--import-timeout", "60")
    side = Side({"pydantic": _version(worker.venv)})
    side.context = sorted(name for name in dir(Context) if not name.startswith("_"))
    for tool in worker.ready["tools"]:
        side.tools[tool["name"]] = {key: value for key, value in tool.items() if key not in ("filename", "context")}
    for issue in worker.ready["issues"]:
        name, _, message = issue["message"].partition(": ")
        side.refused[name] = message
    client = worker.connect()
    waiting: dict[int, tuple[str, int]] = {}
    told: dict[int, list[Any]] = {}

    def read() -> None:
        frame = client.receive()
        if frame.get("op") == "ask":
            for question in frame["questions"]:
                client.reply(frame["id"], question["key"], result=answer_to(question))
        elif "op" in frame:
            told.setdefault(frame["id"], []).append(_told([frame["op"], frame["params"]]))
        else:
            side.outcomes[waiting.pop(frame["id"])] = {**_result(frame), "told": told.pop(frame["id"], [])}

    for call_id, (name, number, arguments) in enumerate(calls_of(cases, side)):
        waiting[call_id] = (name, number)
        client.send(id=call_id, op="tools.call", tool=name, arguments=arguments, caller=CALLER)
        while len(waiting) >= AT_ONCE:
            read()
    while waiting:
        read()
    return side


def _version(venv: Path) -> str:
    source = "import pydantic; print(pydantic.VERSION)"
    return subprocess.check_output([venv / "bin/python", "-c", source], text=True).strip()


def _result(frame: dict[str, Any]) -> dict[str, Any]:
    """The result of `tools/call` that the gateway makes of a worker's answer."""
    if not frame["ok"]:
        error = frame["error"]
        text = error["message"] if error["code"] == "tool_error" else f"{error['code']}: {error['message']}"
        refused = [[".".join(map(str, it["loc"])), it["msg"], it["type"]] for it in error["details"].get("errors", ())]
        failed = {"isError": True, "content": [{"type": "text", "text": text}]}
        return {**failed, "refused": refused} if error["code"] == "invalid_arguments" else failed
    value, content = frame["result"], frame.get("content")
    result: dict[str, Any] = {"isError": False, "content": content}
    if content is None:
        result["content"] = [{"type": "text", "text": value if isinstance(value, str) else as_json(value)}]
    if content is None or value is not None:
        result["structuredContent"] = value if isinstance(value, dict) else {"result": value}
    if "meta" in frame:
        result["_meta"] = frame["meta"]
    return result


def as_json(value: Any) -> str:
    """The JSON text of a value, as workers write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def theirs(
    cases: list[Case], python: Path, folder: Path, sources: Mapping[str, str] | None = None, mode: str = "auto"
) -> Side:
    """Runs the cases in FastMCP, in one process of its environment."""
    modules = write(cases, folder, sources)
    calls = [
        {"call": index, "tool": case.name, "arguments": arguments, "number": number}
        for index, (case, number, arguments) in enumerate(
            (case, number, arguments) for case in cases for number, arguments in enumerate(case.calls)
        )
    ]
    lines = "".join(json.dumps(call) + "\n" for call in calls)
    command = [str(python), str(HERE / "fastmcp_side.py"), str(folder), mode, *modules]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 0, f"FastMCP's side failed:\n{done.stderr[-4000:]}"
    side = Side({})
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if "versions" in said:
            side.versions, side.context = said["versions"], said["context"]
        elif "tool" in said:
            side.tools[said["tool"]["name"]] = said["tool"]
        elif "refused" in said:
            side.refused[said["refused"]] = said["message"]
        else:
            call = calls[said["call"]]
            side.outcomes[call["tool"], call["number"]] = {**_their_result(said), "told": [_told(it) for it in said["told"]]}
    return side


def _their_result(said: dict[str, Any]) -> dict[str, Any]:
    if "raised" in said:
        return {"raised": said["raised"]}
    result = {key: value for key, value in said["result"].items() if key != "resultType"}
    meta = {key: value for key, value in result.pop("_meta", {}).items() if key != "io.modelcontextprotocol/serverInfo"}
    if meta:
        result["_meta"] = meta
    text = result["content"][0].get("text", "") if result["content"] else ""
    if result["isError"] and re.match(r"\d+ validation errors? for ", text) and (found := _COMPLAINT.findall(text)):
        result["refused"] = [list(complaint) for complaint in found]
    return result


def _told(said: list[Any]) -> list[Any]:
    """What a Context said, without what was not; the numbers of progress as JSON compares them, 1 being 1.0."""
    kind, params = said
    return [kind, {key: float(it) if isinstance(it, int) else it for key, it in params.items() if it is not None}]
