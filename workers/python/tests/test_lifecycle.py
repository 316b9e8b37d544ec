"""How a worker starts and ends: sockets, generations, shutdown, boot failures, the command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from environments import RUNTIME, environment
from harness import Worker

TOOLS = """
    import asyncio, os, sys
    from fastmcp.tools import tool

    @tool
    def hello() -> str:
        return "hello"

    @tool
    async def slow(marker: str):
        try:
            await asyncio.sleep(600)
        finally:
            open(marker, "w").close()

    @tool
    def stuck():
        import threading
        threading.Event().wait()

    @tool
    def non_daemon_thread():
        import threading
        threading.Thread(target=threading.Event().wait, daemon=False).start()

    @tool
    def where() -> dict:
        return {"cwd": os.getcwd(), "path": sys.path, "prefix": sys.prefix, "environ": dict(os.environ)}
"""


def test_shutdown_answers_cancels_and_exits_with_0(worker, tmp_path):
    worker.write("t.py", TOOLS).start()
    client = worker.connect()
    running = client.start("slow", marker=str(tmp_path / "cleaned"))
    stuck = client.start("stuck")
    assert client.request("ping")["ok"], "both calls run"
    client.send(id="bye", op="shutdown")
    frames = {frame["id"]: frame for frame in (client.receive() for _ in range(3))}
    assert frames["bye"]["result"] == {"shutdown": True}
    assert frames[running]["error"]["code"] == "cancelled"
    assert frames[stuck]["error"]["code"] == "cancelled"
    assert client.at_end()
    assert worker.exit_status() == 0
    assert (tmp_path / "cleaned").exists(), "a cancelled tool gets to clean up"
    assert worker.socket.exists(), "a worker never unlinks the public path"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_a_shutdown(worker, number):
    worker.write("t.py", TOOLS).start()
    client = worker.connect()
    running = client.start("stuck")
    assert client.request("ping")["ok"]
    worker.process.send_signal(number)
    assert client.answer(running)["error"]["code"] == "cancelled"
    assert worker.exit_status() == 0


def test_signal_right_after_the_ready_line_is_heard(worker):
    worker.write("t.py", TOOLS).start()
    worker.process.terminate()
    assert worker.exit_status() == 0


def test_thread_of_a_tool_does_not_keep_the_process_alive(worker):
    worker.write("t.py", TOOLS).start()
    assert worker.call("non_daemon_thread")["ok"]
    worker.process.terminate()
    assert worker.exit_status() == 0


def test_next_generation_takes_over_the_path_and_the_old_one_serves_on(plain_worker):
    old = plain_worker.write("t.py", TOOLS).start("--generation", "1")
    before = old.connect()
    new = Worker(old.data, old.venv).start("--generation", "2")
    try:
        assert new.connect().greeting["generation"] == 2
        assert before.call("hello")["result"] == "hello"
        old.process.terminate()
        assert old.exit_status() == 0
        assert new.call("hello")["result"] == "hello", "the old one did not take the socket with it"
    finally:
        new.stop()


def test_stale_sockets_are_in_nobodys_way(plain_worker):
    worker = plain_worker.write("t.py", TOOLS)
    for name in ("ns.sock", "ns.3.sock"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(worker.socket.parent / name))
    worker.start("--generation", "3")
    assert worker.call("hello")["ok"]
    assert os.listdir(worker.socket.parent) == ["ns.sock"]


def test_only_a_socket_is_removed_from_the_bind_path(plain_worker):
    worker = plain_worker.write("t.py", TOOLS)
    precious = worker.socket.parent / "ns.0.sock"
    precious.write_text("not a socket")
    said, status = worker.failure()
    assert (said, status) == ({}, 2)
    assert precious.read_text() == "not a socket"


def test_socket_path_that_is_too_long_is_said_in_one_line(plain_worker):
    plain_worker.socket = plain_worker.socket.parent / ("x" * 100) / "ns.sock"
    said, status = plain_worker.failure()
    assert (said, status) == ({}, 2)
    (line,) = plain_worker.log().splitlines()
    assert "too long" in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-frame", "10"],
        ["--sync-concurrency", "0"],
        ["--import-timeout", "nan"],
        ["--generation", "x"],
        ["--what"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_status_2(plain_worker, arguments):
    said, status = plain_worker.failure(*arguments)
    assert (said, status) == ({}, 2)
    assert arguments[0] in plain_worker.log()


def test_missing_folder_is_a_boot_failure(plain_worker):
    plain_worker.spawn("--tools", "/nowhere/at/all")
    said = json.loads(plain_worker.stdout_line())
    assert said["op"] == "failed"
    assert "/nowhere/at/all" in said["message"]
    assert plain_worker.exit_status() == 3


def test_empty_folder_serves_no_tools(plain_worker):
    plain_worker.start()
    assert plain_worker.ready["tools"] == []
    assert plain_worker.ready["issues"] == []


def test_pydantic_1_is_a_dependency_error(tmp_path):
    worker = Worker(tmp_path, environment("pydantic<2"))
    said, status = worker.write("t.py", TOOLS).failure()
    assert (said["op"], said["code"], status) == ("failed", "dependency_error", 3)
    assert "pydantic 1." in said["message"]
    worker.stop()


def test_missing_pydantic_is_a_dependency_error(tmp_path):
    worker = Worker(tmp_path, environment())
    said, status = worker.write("t.py", TOOLS).failure()
    assert (said["op"], said["code"], status) == ("failed", "dependency_error", 3)
    assert "No module named 'pydantic'" in said["message"]
    worker.stop()


def test_oldest_pydantic_2_serves(tmp_path):
    oldest = "2.4.2" if sys.version_info < (3, 13) else "2.8.2" if sys.version_info < (3, 14) else "2.12.0"
    worker = Worker(tmp_path, environment(f"pydantic=={oldest}"))
    worker.write("t.py", TOOLS).write(
        "a.py", "from fastmcp.tools import tool\n@tool\ndef add(a: int, b: int = 2) -> int:\n    return a + b\n"
    )
    worker.start()
    try:
        assert worker.value("add", a=1) == 3
        assert worker.error("add", a="x")["code"] == "invalid_arguments"
    finally:
        worker.stop()


def test_by_hand_from_the_sources_folder_with_another_interpreter(plain_venv, tmp_path):
    """No --tools, no environment variables, not even the right Python: the worker finds its own."""
    worker = Worker(tmp_path, plain_venv).write("t.py", TOOLS)
    venvs = tmp_path / "venvs"
    venvs.mkdir()
    (venvs / "ns").symlink_to(plain_venv)
    command = [os.path.join(sys.base_prefix, "bin", "python3"), "-m", "app.worker_main", "--namespace", "ns"]
    command += ["--socket", "workers/ns.sock", "--venv", "venvs/ns"]
    worker.process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(RUNTIME), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert json.loads(worker.stdout_line())["op"] == "ready"
        seen = worker.value("where")
        assert seen["cwd"] == str(worker.tools)
        assert os.path.realpath(seen["prefix"]) == os.path.realpath(plain_venv)
    finally:
        worker.stop()


def test_loop_is_asyncios_own_for_tools_that_patch_it(worker):
    worker.write("nest_asyncio.py", "").write("t.py", TOOLS + """
    import nest_asyncio

    @tool
    async def loop() -> str:
        return type(asyncio.get_running_loop()).__module__
""").start()
    assert worker.value("loop").startswith("asyncio.")


def test_environment_and_path_are_left_as_they_were(worker):
    worker.write("t.py", TOOLS).start(env={"GITHUB_TOKEN": "from outside"})
    seen = worker.value("where")
    assert set(seen["environ"]) - {"LC_CTYPE"} == {"PATH", "PYTHONSAFEPATH", "GITHUB_TOKEN"}
    assert str(worker.tools) not in seen["path"]
    assert "" not in seen["path"]
