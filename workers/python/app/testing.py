"""A plugin for pytest that calls an author's tools in a real worker.

`call("add", a=1, b=2)` returns the value. A failure is a `ToolFailed` with the code, the message and the details that a client
gets. `answers` has the answers to a tool's questions, by key: `call("book", city="Rome", answers={"elicitation-1": "Monday"})`.
A text, number or flag answers a form with a single field. `call.progress` and `call.logs` are the reports of the last call.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from types import ModuleType
from typing import Any

CALL_LIMIT = 300.0
"""Maximum time without a line from the worker during a call, in seconds."""


class ToolFailed(Exception):
    """Error of a failed call, as a client gets it."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('code')}: {error.get('message')}")
        self.code = error.get("code")
        self.message = error.get("message")
        self.details = error.get("details") or {}


class Call:
    """Value of the fixture `call`: a client of a worker that serves the namespace."""

    def __init__(self, connection: socket.socket, declared: dict[str, Any]) -> None:
        connection.settimeout(CALL_LIMIT)
        self._file = connection.makefile("rwb")
        self._id = 0
        self.tools = [tool["name"] for tool in declared["tools"]]
        self.progress: list[dict[str, Any]] = []
        self.logs: list[dict[str, Any]] = []

    def __call__(self, tool: str, /, *, answers: dict[str, Any] | None = None, **arguments: Any) -> Any:
        self._id += 1
        self.progress, self.logs = [], []
        caller = {
            "era": "modern",
            "capabilities": {"elicitation": {}, "sampling": {}, "roots": {}},
            "logLevel": "debug",
            "progress": True,
        }
        self._send({"id": self._id, "op": "tools.call", "tool": tool, "arguments": arguments, "caller": caller})
        while True:
            frame = json.loads(self._file.readline() or b'{"op":"gone"}')
            if frame.get("op") == "gone":
                raise ToolFailed({"code": "worker_unavailable", "message": "the worker ended during the call"})
            if frame.get("id") != self._id:
                continue
            match frame.get("op"):
                case None if frame["ok"]:
                    return frame["result"] if "content" not in frame or frame["result"] is not None else frame["content"]
                case None:
                    raise ToolFailed(frame["error"])
                case "progress":
                    self.progress.append(frame["params"])
                case "log":
                    self.logs.append(frame["params"])
                case "ask":
                    for question in frame["questions"]:
                        self._answer(question, answers or {})

    def _answer(self, question: dict[str, Any], answers: dict[str, Any]) -> None:
        key = question["key"]
        answer: dict[str, Any] = {"op": "answer", "target": self._id, "key": key}
        if key in answers:
            answer["result"] = _result_of(question, answers[key])
        else:
            message = f"the test has no answer for {key}: give answers={{{key!r}: …}} to the call"
            answer["error"] = {"code": -1, "message": message}
        self._send(answer)

    def _send(self, frame: dict[str, Any]) -> None:
        self._file.write(json.dumps(frame).encode() + b"\n")
        self._file.flush()


def _result_of(question: dict[str, Any], given: Any) -> Any:
    """Returns the result that a client would send. `given` is that result, or a short form such as a text."""
    method = question["method"]
    if method == "elicitation/create" and not (isinstance(given, dict) and "action" in given):
        if not isinstance(given, dict):
            schema = question["params"].get("requestedSchema") or {}
            given = {next(iter(schema.get("properties") or {"value": {}})): given}
        return {"action": "accept", "content": given}
    if method == "sampling/createMessage" and isinstance(given, str):
        return {"role": "assistant", "model": "test", "content": {"type": "text", "text": given}}
    if method == "roots/list" and isinstance(given, list):
        return {"roots": [{"uri": it} if isinstance(it, str) else it for it in given]}
    return given


class Plugin:
    """Starts one worker for all tests of a run."""

    def __init__(self, namespace: str, tools: str) -> None:
        self._namespace = namespace
        self._tools = tools

    def worker(self) -> Iterator[Call]:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "s")
            command = [sys.executable, "-m", "app.worker_main", "--namespace", self._namespace, "--socket", path]
            command += ["--venv", sys.prefix, "--tools", self._tools, "--no-greeting"]
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
                try:
                    said = json.loads(process.stdout.readline() or "{}")  # type: ignore[union-attr]
                    if said.get("op") != "ready":
                        raise RuntimeError(said.get("message") or "the worker ended before it was ready")
                    with socket.socket(socket.AF_UNIX) as connection:
                        connection.connect(path)
                        yield Call(connection, said)
                finally:
                    process.kill()


def main(arguments: list[str]) -> int:
    """Runs pytest with the fixture `call`. Returns the exit status."""
    # Every other option is for pytest.
    parser = argparse.ArgumentParser(prog="tooldock test", add_help=False, allow_abbrev=False)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--tools", required=True)
    options, rest = parser.parse_known_args(arguments)
    try:
        import pytest
    except ImportError:
        print("tooldock: pytest is no package of the namespace; write pytest into requirements.txt and reload", file=sys.stderr)
        return 2
    plugin = Plugin(options.namespace, options.tools)

    @pytest.fixture(scope="session", name="_tooldock_worker")
    def worker() -> Iterator[Call]:
        yield from plugin.worker()

    @pytest.fixture
    def call(_tooldock_worker: Call) -> Call:
        return _tooldock_worker

    # Newer versions of pytest want fixtures of a session outside of classes.
    fixtures = ModuleType("tooldock_fixtures")
    fixtures.worker, fixtures.call = worker, call  # type: ignore[attr-defined]

    sys.path.insert(0, options.tools)
    return int(pytest.main(["-p", "no:cacheprovider", "--rootdir", options.tools, *(rest or [options.tools])], plugins=[fixtures]))
