"""`--debug`: a worker waits for an editor, stops at its breakpoints, and no time limit of the worker ends that."""

from __future__ import annotations

import itertools
import json
import re
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from environments import environment
from harness import DEADLINE, Worker

DEBUGPY = ("pydantic>=2", "debugpy>=1.8")

TOOL = """
    import time
    from fastmcp.tools import tool

    loaded = "at import"

    @tool(timeout=0.01)
    def add(a: int, b: int) -> int:
        total = a + b
        return total

    @tool(timeout=0.01)
    async def slow(a: int) -> int:
        doubled = 2 * a
        return doubled
"""
LINES = {"import": 5, "add": 10, "slow": 15}


class Editor:
    """A client of the Debug Adapter Protocol, as editors are."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._seen: list[dict[str, Any]] = []

    def close(self) -> None:
        self._socket.close()

    def send(self, command: str, **arguments: Any) -> int:
        number = next(self._numbers)
        body = json.dumps({"seq": number, "type": "request", "command": command, "arguments": arguments}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return number

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        number = self.send(command, **arguments)
        answer = self.message(lambda it: it["type"] == "response" and it["request_seq"] == number)
        assert answer["success"], answer
        return answer.get("body", {})

    def event(self, name: str) -> dict[str, Any]:
        return self.message(lambda it: it["type"] == "event" and it["event"] == name).get("body", {})

    def message(self, wanted: Any) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE
        while True:
            for message in self._seen:
                if wanted(message):
                    self._seen.remove(message)
                    return message
            assert select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))[0], self._seen
            piece = self._socket.recv(65536)
            assert piece, "the adapter hung up"
            self._buffer += piece
            while (found := re.match(rb"Content-Length: (\d+)\r\n\r\n", self._buffer)) is not None:
                end = found.end() + int(found[1])
                if len(self._buffer) < end:
                    break
                self._seen.append(json.loads(self._buffer[found.end() : end]))
                self._buffer = self._buffer[end:]

    def attach(self, path: str, *lines: int) -> None:
        """Attaches with breakpoints, after which the worker goes on."""
        self.ask("initialize", adapterID="tests", linesStartAt1=True, pathFormat="path")
        self.send("attach", justMyCode=True)
        self.event("initialized")
        places = [{"line": line} for line in lines]
        self.ask("setBreakpoints", source={"path": path}, breakpoints=places)
        self.ask("configurationDone")

    def value_at_stop(self, expression: str) -> str:
        """Waits for a stop at a breakpoint; an expression's value there."""
        thread = self.event("stopped")["threadId"]
        frame = self.ask("stackTrace", threadId=thread)["stackFrames"][0]
        value = self.ask("evaluate", expression=expression, frameId=frame["id"], context="watch")["result"]
        self.ask("continue", threadId=thread)
        return value


@pytest.fixture
def waiting(tmp_path) -> Iterator[tuple[Worker, Editor]]:
    worker = Worker(tmp_path, environment(*DEBUGPY)).write("t.py", TOOL)
    worker.spawn("--debug", "--import-timeout", "0.01")
    editor = Editor(port_of(worker))
    yield worker, editor
    editor.close()
    worker.stop()


def port_of(worker: Worker) -> int:
    """The port that the log names."""
    deadline = time.monotonic() + DEADLINE
    while not (found := re.search(r"attach to 127\.0\.0\.1:(\d+)", worker.log())):
        assert time.monotonic() < deadline, worker.log()
        select.select([], [], [], 0.01)
    return int(found[1])


def test_the_worker_waits_and_stops_at_breakpoints_without_time_limits(waiting):
    worker, editor = waiting
    assert "frozen modules" not in worker.log()
    assert not worker.has_said_more()  # no ready line before an editor is there
    editor.attach(str(worker.tools / "t.py"), *LINES.values())
    assert editor.value_at_stop("__name__") != ""
    worker.ready = json.loads(worker.stdout_line())
    assert worker.tool_names() == ["add", "slow"]
    client = worker.connect()
    for call, expression, value, result in (
        (("add", {"a": 1, "b": 2}), "total", "3", 3),
        (("slow", {"a": 4}), "doubled", "8", 8),
    ):
        number = client.ask(call[0], **call[1])
        assert editor.value_at_stop(expression) == value
        assert client.answer(number)["result"] == result


def test_the_port_is_on_loopback_alone_and_a_second_worker_takes_another(waiting, tmp_path):
    worker, editor = waiting
    other = Worker(tmp_path / "other", worker.venv, namespace="other").write("t.py", TOOL).spawn("--debug")
    try:
        assert port_of(other) != port_of(worker)
        inodes = {line.split()[1] for line in listening() if int(line.split()[1].rpartition(":")[2], 16) == port_of(worker)}
        assert {it.partition(":")[0] for it in inodes} == {"0100007F"}
    finally:
        other.stop()


def listening() -> list[str]:
    with open("/proc/net/tcp") as table:
        return [line for line in table.read().splitlines()[1:] if line.split()[3] == "0A"]


def test_without_debugpy_the_worker_says_what_to_write(plain_worker):
    failure, status = plain_worker.write("t.py", TOOL).failure("--debug")
    assert (failure["code"], status) == ("dependency_error", 3)
    assert failure["message"] == (
        "TOOLDOCK_DEBUG names this namespace, and there is no debugpy in its environment: write debugpy into requirements.txt"
    )


def test_without_the_option_nothing_listens_and_limits_hold(tmp_path):
    worker = Worker(tmp_path, environment(*DEBUGPY)).write("t.py", TOOL.replace("total = a + b", "time.sleep(60)")).start()
    try:
        assert "attach to" not in worker.log()
        assert worker.error("add", a=1, b=2)["code"] == "execution_timeout"
    finally:
        worker.stop()
