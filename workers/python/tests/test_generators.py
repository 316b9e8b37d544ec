"""A generator that an async tool returns runs in a thread: its steps hold up nobody else."""

from __future__ import annotations

import pytest

from harness import Worker, appears

TOOLS = """
    import contextvars, os, threading
    from fastmcp.tools import tool

    REGION = contextvars.ContextVar("region", default="none")

    def steps(started: str, ended: str):
        open(started, "w").close()
        while not os.path.exists(ended):
            threading.Event().wait(0.005)
        yield "done"
        open(ended + ".seen", "w").close()

    @tool
    async def slow(started: str, ended: str):
        return steps(started, ended)

    async def later(started: str, ended: str):
        return steps(started, ended)

    @tool
    def from_thread(started: str, ended: str):
        return later(started, ended)

    @tool(timeout=0.2)
    async def limited(started: str, ended: str):
        return steps(started, ended)

    @tool
    async def region() -> list[str]:
        REGION.set("eu")
        return (REGION.get() for _ in range(2))

    @tool
    async def where():
        return (threading.current_thread().name for _ in range(1))

    @tool(run_in_thread=False)
    def where_all_is():
        return (threading.current_thread().name for _ in range(1))

    @tool
    async def hello() -> str:
        return "hello"
"""


@pytest.fixture(scope="module")
def served(plain_venv, workers) -> Worker:
    return workers(plain_venv).write("t.py", TOOLS).start()


@pytest.mark.parametrize("tool", ["slow", "from_thread"])
def test_other_calls_go_on_while_a_generator_works(served, tmp_path, tool):
    client = served.connect()
    call = client.start(tool, started=str(tmp_path / "s"), ended=str(tmp_path / "e"))
    assert appears(tmp_path / "s")
    assert client.call("hello")["result"] == "hello"
    (tmp_path / "e").touch()
    assert client.answer(call)["result"] == ["done"]


def test_a_call_whose_generator_works_is_cancelled_at_once(served, tmp_path):
    client = served.connect()
    call = client.start("slow", started=str(tmp_path / "s"), ended=str(tmp_path / "e"))
    assert appears(tmp_path / "s")
    client.send(op="cancel", target=call)
    assert client.answer(call)["error"]["code"] == "cancelled"
    (tmp_path / "e").touch()
    assert appears(tmp_path / "e.seen")
    assert client.call("hello")["result"] == "hello", "the late answer is dropped"


def test_the_time_limit_of_a_tool_ends_its_generator(served, tmp_path):
    error = served.error("limited", started=str(tmp_path / "s"), ended=str(tmp_path / "e"))
    assert error["code"] == "execution_timeout"
    (tmp_path / "e").touch()


def test_a_generator_sees_the_variables_of_its_function(served):
    assert served.value("region") == ["eu", "eu"]


def test_a_generator_of_a_tool_for_the_loop_stays_there(served):
    assert served.value("where") == ["sync-tool"]
    assert served.value("where_all_is") == ["MainThread"]
