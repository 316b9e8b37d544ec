"""Cancelling: the op, a client that leaves, threads that cannot be stopped: WRK-17."""

from __future__ import annotations

import select
import time

import pytest

from harness import DEADLINE, Worker, appears

TOOLS = """
    import asyncio, os, threading
    from fastmcp.tools import tool

    @tool
    async def wait(started: str, ended: str, finished: str = ""):
        open(started, "w").close()
        try:
            await asyncio.sleep(600)
            open(finished, "w").close()
        finally:
            open(ended, "w").close()

    @tool
    async def stubborn(started: str):
        open(started, "w").close()
        while True:
            try:
                await asyncio.sleep(0.01)
                if os.path.exists(started + ".end"):
                    return "late"
            except asyncio.CancelledError:
                pass

    @tool
    def block(started: str, ended: str):
        open(started, "w").close()
        while not os.path.exists(ended):
            threading.Event().wait(0.005)
        open(ended + ".seen", "w").close()
        return "late"

    @tool
    def quick() -> int:
        return threading.active_count()

    @tool
    async def threads() -> int:
        return sum(thread.name == "sync-tool" for thread in threading.enumerate())

    @tool
    async def hello() -> str:
        return "hello"
"""


@pytest.fixture(scope="module")
def served(venv, workers) -> Worker:
    return workers(venv).write("t.py", TOOLS).start()


def test_cancelled_async_call_answers_cancelled_and_its_tool_is_stopped(served, tmp_path):
    client = served.connect()
    started, ended, finished = (tmp_path / name for name in ("started", "ended", "finished"))
    call = client.start("wait", started=str(started), ended=str(ended), finished=str(finished))
    assert appears(started)
    client.send(id="c", op="cancel", target=call)
    frames = {frame["id"]: frame for frame in (client.receive(), client.receive())}
    assert frames["c"]["result"] == {"cancelled": True}
    assert frames[call]["error"]["code"] == "cancelled"
    assert appears(ended)
    assert not finished.exists()


def test_cancel_without_id_is_answered_by_the_call_alone(served, tmp_path):
    client = served.connect()
    call = client.start("wait", started=str(tmp_path / "s"), ended=str(tmp_path / "e"))
    assert appears(tmp_path / "s")
    client.send(op="cancel", target=call)
    assert client.receive()["error"]["code"] == "cancelled"
    assert client.call("hello")["ok"]


@pytest.mark.parametrize("target", ["nothing", 7, None, [], {}])
def test_cancel_of_nothing_says_so(served, target):
    client = served.connect()
    assert client.request("cancel", target=target)["result"] == {"cancelled": False}
    client.send(op="cancel", target=target)
    assert client.request("ping")["ok"]


def test_one_connection_cannot_cancel_anothers_call(served, tmp_path):
    mine, other = served.connect(), served.connect()
    call = mine.start("wait", call_id="shared", started=str(tmp_path / "s"), ended=str(tmp_path / "e"))
    assert appears(tmp_path / "s")
    assert other.request("cancel", target=call)["result"] == {"cancelled": False}
    assert mine.request("cancel", target=call)["result"] == {"cancelled": True}


def test_id_is_free_again_after_the_cancel(served, tmp_path):
    client = served.connect()
    client.start("stubborn", call_id="x", started=str(tmp_path / "s"))
    assert appears(tmp_path / "s")
    client.send(op="cancel", target="x")
    assert client.answer("x")["error"]["code"] == "cancelled"
    client.start("hello", call_id="x")
    assert client.answer("x")["result"] == "hello"
    (tmp_path / "s.end").touch()
    assert client.request("ping")["ok"], "the late answer of the first is dropped"


def test_client_that_leaves_cancels_its_calls(served, tmp_path):
    client = served.connect()
    client.start("wait", started=str(tmp_path / "s"), ended=str(tmp_path / "e"), finished=str(tmp_path / "f"))
    assert appears(tmp_path / "s")
    client.close()
    assert appears(tmp_path / "e")
    assert not (tmp_path / "f").exists()


def test_cancelled_sync_call_is_abandoned_and_its_late_result_dropped(served, tmp_path):
    client = served.connect()
    call = client.start("block", started=str(tmp_path / "s"), ended=str(tmp_path / "e"))
    assert appears(tmp_path / "s")
    assert client.request("cancel", target=call)["result"] == {"cancelled": True}
    before = client.call("quick")["result"]
    (tmp_path / "e").touch()
    assert appears(tmp_path / "e.seen")
    deadline = time.monotonic() + DEADLINE
    while client.call("quick")["result"] >= before:
        assert time.monotonic() < deadline, "the abandoned thread never ended"


def test_queued_sync_call_is_cancelled_without_running(served, tmp_path):
    client = served.connect()
    first = client.start("block", started=str(tmp_path / "s1"), ended=str(tmp_path / "e1"))
    second = client.start("block", started=str(tmp_path / "s2"), ended=str(tmp_path / "e2"))
    assert appears(tmp_path / "s1")
    client.send(op="cancel", target=second)
    assert client.answer(second)["error"]["code"] == "cancelled"
    (tmp_path / "e1").touch()
    assert client.answer(first)["result"] == "late"
    assert client.call("quick")["ok"]
    assert not (tmp_path / "s2").exists()


def test_fourth_abandoned_thread_asks_for_a_new_worker(worker, tmp_path):
    worker.write("t.py", TOOLS).start()
    client = worker.connect()
    for number in range(4):
        call = client.start("block", started=str(tmp_path / f"s{number}"), ended=str(tmp_path / "never"))
        assert appears(tmp_path / f"s{number}")
        client.send(op="cancel", target=call)
        frames = [client.receive() for _ in range(2 if number == 3 else 1)]
        notices = [frame for frame in frames if "op" in frame]
        assert bool(notices) == (number == 3)
    assert notices[0]["op"] == "recycle"
    assert "4 threads" in notices[0]["reason"]
    assert client.call("quick")["ok"], "it serves until it is replaced"
    late = worker.connect()
    assert late.receive()["op"] == "recycle"


def test_abandoned_threads_are_bounded_and_calls_go_on_when_they_end(plain_worker, tmp_path):
    client = plain_worker.write("t.py", TOOLS).start().connect()
    started, ended = tmp_path / "started", tmp_path / "ended"
    refused = 0
    for _ in range(60):
        call = client.start("block", started=str(started), ended=str(ended))
        while not started.exists():
            if select.select([client.socket], [], [], 0.01)[0]:
                break  # refused at once
        if started.exists():
            started.unlink()
            client.send(op="cancel", target=call)
            assert client.answer(call)["error"]["code"] == "cancelled"
        else:
            error = client.answer(call)["error"]
            assert error["message"].startswith("threads of cancelled calls take all places")
            refused += 1
    assert refused == 60 - 32
    assert client.call("threads")["result"] == 32
    ended.touch()
    deadline = time.monotonic() + DEADLINE
    while client.call("threads")["result"] > 0 and time.monotonic() < deadline:
        pass
    assert client.call("quick")["ok"]
