"""MCP servers made by files, as `app.server_main` checks and runs them with the SDK of `make test-environments`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from environments import ENVIRONMENTS, RUNTIME, leave_out

SERVER = """
from mcp.server.fastmcp import FastMCP

mcp = FastMCP("one")


@mcp.tool()
def add(a: int, b: int) -> int:
    print("printed by a tool")
    return a + b
"""
MESSAGES = (
    {
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    },
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 2, "b": 3}}},
)


class Folder:
    """A namespace's folder with files, in which tests start `app.server_main`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = ENVIRONMENTS / "clients-mcp1/bin/python"
        if not self.python.exists():
            leave_out("the files that make servers: make target/python-envs/clients-mcp1")

    def write(self, name: str, text: str) -> Folder:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def _command(self, *arguments: str) -> list[str]:
        return [str(self.python), "-m", "app.server_main", *arguments]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(RUNTIME), "PYTHONSAFEPATH": "1"}

    def check(self, target: str, limit: int = 20) -> tuple[dict, str]:
        command = self._command("--check", str(limit), target)
        done = subprocess.run(command, cwd=self.path, env=self._environment(), capture_output=True, text=True, check=False)
        return json.loads(done.stdout), done.stderr

    def answer(self, target: str) -> tuple[str, str]:
        """Returns the text that the tool answers, and the log."""
        process = subprocess.Popen(
            self._command(target),
            cwd=self.path,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for message in MESSAGES:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()
        lines = []
        while not lines or json.loads(lines[-1]).get("id") != 2:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            lines.append(line)
        rest, log = process.communicate(timeout=30)
        assert not rest and process.returncode == 0, log
        return json.loads(lines[-1])["result"]["content"][0]["text"], log


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "if __name__ == '__main__':\n    mcp.run()\n",
        "if __name__ == '__main__':\n    mcp.run(transport='streamable-http')\n",
        "if __name__ == '__main__':\n    import asyncio\n    asyncio.run(mcp.run_sse_async())\n",
        "if __name__ == '__main__':\n    import sys\n    sys.exit(mcp.run())\n",
        "if __name__ == '__main__':\n    print('runs no server')\n",
    ],
)
def test_a_server_is_run_over_its_standard_streams_however_the_file_runs_it(folder, ending):
    text, log = folder.write("server.py", SERVER + ending).answer("server.py")
    assert text == "5"
    assert "printed by a tool" in log


@pytest.mark.parametrize(
    ("ending", "target"),
    [
        ("second = FastMCP('x')\n", "server.py:mcp"),
        ("def make():\n    return mcp\n", "server.py:make"),
        ("async def make():\n    return mcp\n", "server.py:make"),
        ("def start():\n    mcp.run('sse')\n", "server.py:start"),
        ("if __name__ == '__main__':\n    raise ValueError\n", "server.py:mcp"),
        ("class App:\n    server = mcp\n", "server.py:App.server"),
    ],
)
def test_the_named_object_is_run(folder, ending, target):
    assert folder.write("server.py", SERVER + ending).answer(target)[0] == "5"


def test_files_beside_the_file_and_in_its_package_are_found(folder):
    folder.write("app.py", "WORD = 'app'\n").write("src/pkg/__init__.py", "").write("src/pkg/part.py", "from .server import mcp\n")
    folder.write("src/pkg/server.py", "from app import WORD\n" + SERVER + "assert __package__ == 'pkg'\n")
    folder.write("server.py", "from app import WORD\nfrom pkg.part import mcp\nimport json as plain\nassert plain.dumps\n")
    assert folder.answer("server.py")[0] == "5"
    assert folder.check("src/pkg/part.py")[0] == {"op": "checked", "empty": False}


@pytest.mark.parametrize(
    ("text", "target", "code", "message"),
    [
        ("import not_there", "s.py", "dependency_error", "s.py: No module named 'not_there'; write not_there into requirements.txt (s.py line 1)"),
        ("import bs4", "s.py", "dependency_error", "s.py: No module named 'bs4'; write beautifulsoup4 into requirements.txt (s.py line 1)"),
        ("\nraise ValueError('no\\ntable')", "s.py", "import_error", "s.py: ValueError: no (s.py line 2)"),
        ("def f(:", "s.py", "import_error", "s.py: SyntaxError: invalid syntax (s.py line 1)"),
        ("import sys\nsys.exit(2)", "s.py", "exit_at_import", "s.py: the file calls exit(2) when it is imported (s.py line 2)"),
        ("a = 1", "s.py:b", "no_server", "s.py has no b"),
        ("a = 1", "s.py:a", "no_server", "s.py has no server or function named a"),
        (SERVER, "s.py:m", "no_server", "s.py has no m; its servers are mcp"),
        ("", "t.py", "no_server", "t.py does not exist"),
        ("", "s.py", "no_server", "s.py makes no MCP server at its top level"),
        ("while True:\n    pass", "s.py", "import_timeout", "s.py: the import took longer than 2 s (s.py line "),
    ],
)
def test_a_file_that_cannot_be_run_is_told_in_a_sentence(folder, text, target, code, message):
    said, log = folder.write("s.py", text).check(target, limit=2)
    assert (said["op"], said["code"]) == ("failed", code)
    assert said["message"].startswith(message), said
    assert log.splitlines()[-1] == said["message"]


def test_a_server_that_registers_nothing_is_empty(folder):
    folder.write("s.py", "from mcp.server.fastmcp import FastMCP\nmcp = FastMCP('x')\n")
    folder.write("low.py", "from mcp.server import Server\nserver = Server('x')\n")
    folder.write("lists.py", "from mcp.server import Server\nserver = Server('x')\n@server.list_tools()\nasync def tools(): return []\n")
    assert folder.check("s.py")[0] == {"op": "checked", "empty": True}
    assert folder.check("low.py")[0] == {"op": "checked", "empty": True}
    assert folder.check("lists.py")[0] == {"op": "checked", "empty": False}
