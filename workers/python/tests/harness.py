"""A real worker process on a real socket, and a client that never waits without a deadline."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

DEADLINE = 20.0
"""Seconds after which something that should have happened has not. Generous: test machines are busy."""

ASKABLE: dict[str, Any] = {
    "era": "legacy",
    "capabilities": {"elicitation": {}, "sampling": {}, "roots": {}},
    "logLevel": "info",
    "progress": True,
}
"""A caller that can be asked, and told, everything."""


def appears(path: Path) -> bool:
    """Waits for a file that a tool makes."""
    deadline = time.monotonic() + DEADLINE
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        select.select([], [], [], 0.005)
    return True


class Worker:
    """One worker process; its folder is laid out as the gateway's data directory."""

    def __init__(self, data: Path, venv: Path, *, namespace: str = "ns") -> None:
        self.data = data
        self.venv = venv
        self.namespace = namespace
        self.tools = data / "tools" / namespace
        self.tools.mkdir(parents=True, exist_ok=True)
        (data / "workers").mkdir(exist_ok=True)
        self.socket = data / "workers" / f"{namespace}.sock"
        self.log_file = data / "worker.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}
        self._clients: list[Client] = []

    def write(self, filename: str, source: str) -> Worker:
        path = self.tools / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return self

    def spawn(self, *arguments: str, env: dict[str, str] | None = None, python: Path | None = None) -> Worker:
        """Starts the process without waiting for anything."""
        command = [str(python or self.venv / "bin" / "python"), "-m", "app.worker_main"]
        command += ["--namespace", self.namespace, "--socket", str(self.socket), "--venv", str(self.venv)]
        command += ["--tools", str(self.tools), *arguments]
        environment = {"PATH": os.environ["PATH"], "PYTHONSAFEPATH": "1", **(env or {})}
        with open(self.log_file, "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=self.tools
            )
        return self

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> Worker:
        """Starts the process and waits until it serves."""
        self.spawn(*arguments, env=env)
        line = self.stdout_line()
        assert line, f"no ready line; log:\n{self.log()}"
        self.ready = json.loads(line)
        assert self.ready["op"] == "ready", self.ready
        return self

    def stdout_line(self) -> bytes:
        """The next line of standard output, or what came of it before its end."""
        assert self.process is not None and self.process.stdout is not None
        fd, line, deadline = self.process.stdout.fileno(), b"", time.monotonic() + DEADLINE
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"nothing on standard output; log:\n{self.log()}"
            piece = os.read(fd, 65536)
            if not piece:
                break
            line += piece
        return line

    def has_said_more(self) -> bool:
        """Whether there is another line on standard output by now."""
        assert self.process is not None and self.process.stdout is not None
        return bool(select.select([self.process.stdout.fileno()], [], [], 0)[0])

    def failure(self, *arguments: str) -> tuple[dict[str, Any], int]:
        """Starts a worker that cannot boot: what it says, and its exit status."""
        self.spawn(*arguments)
        line = self.stdout_line()
        return json.loads(line) if line else {}, self.exit_status()

    def exit_status(self) -> int:
        assert self.process is not None
        return self.process.wait(DEADLINE)

    def tool_names(self) -> list[str]:
        return [tool["name"] for tool in self.ready["tools"]]

    def tool(self, name: str) -> dict[str, Any]:
        (tool,) = [tool for tool in self.ready["tools"] if tool["name"] == name]
        return tool

    def issues(self) -> dict[str, dict[str, str]]:
        return {issue["subject"]: issue for issue in self.ready["issues"]}

    def connect(self, *, greeting: bool = True) -> Client:
        client = Client(self.socket)
        self._clients.append(client)
        if greeting:
            client.greeting = client.receive()
        return client

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """One call on a connection of its own."""
        client = self.connect()
        try:
            return client.call(tool, **arguments)
        finally:
            client.close()

    def value(self, tool: str, **arguments: Any) -> Any:
        frame = self.call(tool, **arguments)
        assert frame["ok"], frame
        return frame["result"]

    def error(self, tool: str, **arguments: Any) -> dict[str, Any]:
        frame = self.call(tool, **arguments)
        assert not frame["ok"], frame
        return frame["error"]

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"the worker ignored SIGTERM; log:\n{self.log()}") from None
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Client:
    """One connection."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE)
        self.socket.connect(str(path))
        self.greeting: dict[str, Any] | None = None
        self._ids = itertools.count(1)
        self._buffer = b""

    def send_raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, **request: Any) -> None:
        self.send_raw(json.dumps(request).encode() + b"\n")

    def start(self, tool: str, call_id: Any = None, **arguments: Any) -> Any:
        """Sends a call without waiting; its id."""
        call_id = next(self._ids) if call_id is None else call_id
        self.send(id=call_id, op="tools.call", tool=tool, arguments=arguments)
        return call_id

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.answer(self.start(tool, **arguments))

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        call_id = next(self._ids)
        self.send(id=call_id, op=op, **fields)
        return self.answer(call_id)

    def ask(self, tool: str, call_id: Any = None, *, caller: Any = ASKABLE, **arguments: Any) -> Any:
        """Starts a call of somebody who can be asked; its id."""
        call_id = next(self._ids) if call_id is None else call_id
        self.send(id=call_id, op="tools.call", tool=tool, arguments=arguments, caller=caller)
        return call_id

    def reply(self, call_id: Any, key: str, **outcome: Any) -> None:
        """Answers a question."""
        self.send(op="answer", target=call_id, key=key, **outcome)

    def answer(self, call_id: Any) -> dict[str, Any]:
        """The next answer to this id; frames without one (progress, notices) are skipped."""
        while True:
            frame = self.receive()
            if "op" not in frame and frame["id"] == call_id:
                return frame

    def receive_raw(self) -> bytes:
        """The next line, or nothing at the end."""
        while b"\n" not in self._buffer:
            piece = self.socket.recv(1 << 20)
            if not piece:
                line, self._buffer = self._buffer, b""
                return line
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def receive(self) -> dict[str, Any]:
        line = self.receive_raw()
        assert line, "the worker closed the connection"
        return json.loads(line)

    def at_end(self) -> bool:
        """Whether the worker closed the connection and nothing more came."""
        try:
            return self.receive_raw() == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()
