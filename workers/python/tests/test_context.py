"""`ctx: Context`: progress, log, request id."""

from __future__ import annotations

import pytest

from harness import Worker

TOOLS = '''
    import asyncio
    from fastmcp import Context
    from fastmcp.tools import tool

    @tool
    async def steps(ctx: Context, count: int = 3) -> str:
        for step in range(1, count + 1):
            await ctx.report_progress(step, count, f"step {step}")
        await ctx.report_progress(0.5)
        return "done"

    @tool
    def sync_steps(ctx: Context) -> str:
        ctx.report_progress(1, total=2)
        ctx.info("from a thread")
        return ctx.request_id

    @tool
    async def many(ctx: Context) -> int:
        for step in range(1000):
            await ctx.report_progress(step)
        return 1000

    @tool
    async def logs(ctx: Context):
        await asyncio.gather(ctx.debug("one"), ctx.info("two"))
        await ctx.warning("three", logger_name="mine", extra={"k": 1})
        await asyncio.create_task(ctx.error("four"))

    @tool
    async def bad(ctx: Context):
        await ctx.report_progress(float("nan"))

    @tool
    async def late(ctx: Context):
        """Reports after its answer."""
        async def report():
            await asyncio.sleep(0)
            await ctx.report_progress(99)
            later.set()
        global later
        later = asyncio.Event()
        asyncio.create_task(report())

    @tool
    async def wait_for_late():
        await later.wait()
'''


@pytest.fixture(scope="module")
def served(venv, workers) -> Worker:
    return workers(venv).write("t.py", TOOLS).start()


def test_progress_arrives_in_order_before_the_answer(served):
    client = served.connect()
    client.start("steps", call_id="p")
    frames = [client.receive() for _ in range(5)]
    assert [frame.get("params") for frame in frames] == [
        {"progress": 1, "total": 3, "message": "step 1"},
        {"progress": 2, "total": 3, "message": "step 2"},
        {"progress": 3, "total": 3, "message": "step 3"},
        {"progress": 0.5},
        None,
    ]
    assert all(frame["op"] == "progress" and frame["id"] == "p" for frame in frames[:4])
    assert frames[4]["result"] == "done"


def test_sync_tools_report_by_calling(served):
    client = served.connect()
    client.start("sync_steps", call_id='"sync" é')
    frame = client.receive()
    assert (frame["op"], frame["params"]) == ("progress", {"progress": 1, "total": 2})
    assert client.receive()["result"] == '"sync" é'
    assert "info [sync_steps] from a thread" in served.log()


def test_flood_of_reports_does_not_starve_others(served):
    client = served.connect()
    client.start("many", call_id="m")
    client.send(id="ping", op="ping")
    order = []
    while len(order) < 2:
        frame = client.receive()
        if "op" not in frame:
            order.append(frame["id"])
    assert order == ["ping", "m"]


def test_log_methods_write_to_the_workers_log(served):
    assert served.call("logs")["ok"]
    log = served.log()
    for line in ("debug [logs] one", "info [logs] two", "warning [logs mine] three {'k': 1}", "error [logs] four"):
        assert line in log


def test_progress_must_be_a_number(served):
    assert "finite number" in served.error("bad")["message"]


def test_no_progress_after_the_answer(served):
    client = served.connect()
    client.start("late", call_id="l")
    assert client.receive()["ok"]
    client.start("wait_for_late", call_id="w")
    assert client.receive()["id"] == "w"
