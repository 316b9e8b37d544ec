"""What the watch tells on standard output: a function that keeps the loop from turning, calls that wait for a thread."""

from __future__ import annotations

import json

import pytest

from harness import appears

TOOLS = """
    import asyncio, os, time
    from pathlib import Path
    from typing import Annotated
    from fastmcp import Context
    from fastmcp.tools import tool
    from fastmcp.resources import resource
    from pydantic import AfterValidator
    from . import _helper

    @tool
    async def compute(until: str) -> str:
        return _helper.spin(until)

    @tool
    async def sleeps(until: str) -> str:
        while not os.path.exists(until):
            time.sleep(0.05)
        return "done"

    @tool
    async def leaves_work(begin: str, until: str) -> str:
        async def work():
            while not os.path.exists(begin):
                await asyncio.sleep(0.005)
            _helper.spin(until)
        global task
        task = asyncio.create_task(work())
        return "done"

    def slowly(value: str) -> str:
        while not os.path.exists(value): pass
        return value

    @tool
    def checks(until: Annotated[str, AfterValidator(slowly)]) -> str:
        return "done"

    @tool
    def in_a_thread(begun: str, until: str) -> str:
        Path(begun).touch()
        while not os.path.exists(until):
            time.sleep(0.005)
        return "done"

    @resource("file://{name}")
    async def a_file(name: str) -> str:
        return _helper.spin("/" + name.replace("|", "/"))
"""
HELPER = """
    import os

    def spin(until):
        while not os.path.exists(until):
            pass
        return "done"
"""


@pytest.fixture
def served(worker):
    return worker.write("slow.py", TOOLS).write("_helper.py", HELPER).start()


def said(worker):
    return json.loads(worker.stdout_line())


def test_function_that_computes_on_the_loop_is_named_with_its_request_and_place(served, tmp_path):
    client, go = served.connect(), tmp_path / "go"
    client.send(id=7, op="tools.call", tool="compute", arguments={"until": str(go)}, request="r-1")
    told = said(served)
    assert told["running_ms"] >= 2000
    assert told["place"] in ("_helper.py:5 in spin", "_helper.py:6 in spin"), "the innermost line of the tool files"
    del told["running_ms"], told["place"]
    assert told == {"op": "blocked", "subject": "compute", "request": "r-1", "id": 7}
    assert not served.has_said_more(), "it is told once"
    go.touch()
    assert client.answer(7)["result"] == "done"
    assert said(served) == {"op": "unblocked"}


def test_place_is_in_the_tool_file_where_a_library_blocks(served, tmp_path):
    client, go = served.connect(), tmp_path / "go"
    client.start("sleeps", until=str(go))
    assert said(served)["place"].startswith("slow.py:")
    go.touch()


def test_resource_and_argument_check_that_block_are_named(served, tmp_path):
    client = served.connect()
    first, second = tmp_path / "first", tmp_path / "second"
    client.send(id=1, op="resources.read", uri=f"file://{str(first)[1:].replace('/', '|')}", request="r-1")
    told = said(served)
    assert (told["subject"], told["request"], told["id"]) == ("a_file", "r-1", 1)
    first.touch()
    assert said(served) == {"op": "unblocked"}
    client.send(id=2, op="tools.call", tool="checks", arguments={"until": str(second)}, request="r-2")
    told = said(served)
    assert (told["subject"], told["request"]) == ("checks", "r-2")
    assert told["place"].endswith("in slowly")
    second.touch()
    assert said(served) == {"op": "unblocked"}


def test_work_that_a_call_left_on_the_loop_is_told_by_its_place(served, tmp_path):
    begin, go = tmp_path / "begin", tmp_path / "go"
    assert served.value("leaves_work", begin=str(begin), until=str(go)) == "done"
    begin.touch()
    told = said(served)
    assert (told["subject"], told["request"]) == ("", "")
    assert told["place"].endswith("in spin")
    go.touch()
    assert said(served) == {"op": "unblocked"}


def test_calls_that_wait_for_a_thread_are_counted_once(served, tmp_path):
    client, begun, go = served.connect(), tmp_path / "begun", tmp_path / "go"
    calls = [client.start("in_a_thread", begun=str(begun), until=str(go)) for _ in range(3)]
    assert appears(begun)
    counted = 0
    while counted < 2:
        told = said(served)
        assert told["op"] == "waited", "a sync function does not block the loop"
        counted += told["count"]
    go.touch()
    for call in calls:
        assert client.answer(call)["result"] == "done"
    assert counted == 2
    # A blocked loop is told of next, so nothing was counted twice.
    again = tmp_path / "again"
    client.start("compute", until=str(again))
    assert said(served)["op"] == "blocked"
    again.touch()
