"""`ctx: Context`: progress, log, notifications, request id."""

from __future__ import annotations

import pytest

from harness import ASKABLE, Worker

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

    @tool
    async def levels(ctx: Context):
        await ctx.debug("debug")
        await ctx.notice({"k": [1]}, logger_name="mine")
        await ctx.critical("critical", extra={"k": 1})
        await ctx.log(object, level="emergency")

    @tool
    async def bad_level(ctx: Context):
        await ctx.log("x", level="loud")

    @tool
    def from_thread(ctx: Context, count: int = 2) -> str:
        for step in range(count):
            ctx.report_progress(step)
        ctx.info("between")
        ctx.report_progress(count)
        ctx.send_tool_list_changed()
        ctx.warning("last")
        return "done"

    @tool
    async def changes(ctx: Context):
        await ctx.send_tool_list_changed()
        await ctx.send_prompt_list_changed()
        await ctx.send_resource_list_changed()
        await ctx.send_resource_updated("test://x")
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


def told(client) -> list:
    """The frames up to the answer."""
    frames = [client.receive()]
    while "op" in frames[-1]:
        frames.append(client.receive())
    assert frames.pop()["ok"]
    return frames


def test_log_messages_are_sent_to_clients(served):
    client = served.connect()
    call = client.ask("levels")
    frames = told(client)
    assert {(frame["op"], frame["id"]) for frame in frames} == {("log", call)}
    assert [frame["params"] for frame in frames] == [
        {"level": "debug", "data": "debug"},
        {"level": "notice", "logger": "mine", "data": {"k": [1]}},
        {"level": "critical", "data": {"msg": "critical", "extra": {"k": 1}}},
        {"level": "emergency", "data": "<class 'object'>"},
    ]


@pytest.mark.parametrize(
    ("caller", "levels"),
    [
        ({"era": "modern", "logLevel": "critical"}, ["critical", "emergency"]),
        ({"era": "modern", "logLevel": "debug"}, ["debug", "notice", "critical", "emergency"]),
        ({"era": "legacy", "logLevel": "critical"}, ["debug", "notice", "critical", "emergency"]),
    ],
)
def test_level_of_a_single_request_holds_to_its_end_and_that_of_a_session_is_the_gateways_business(
    served, caller, levels
):
    client = served.connect()
    client.ask("levels", caller=caller)
    assert [frame["params"]["level"] for frame in told(client)] == levels


@pytest.mark.parametrize("caller", [None, 5, [], {"era": "none"}, {"era": "modern", "capabilities": {}}])
def test_callers_that_name_no_level_get_no_log(served, caller):
    client = served.connect()
    client.ask("levels", caller=caller)
    assert told(client) == []


def test_level_must_be_one_of_mcps(served):
    assert "log level is one of debug" in served.error("bad_level")["message"]


def test_progress_is_left_out_for_a_client_that_did_not_ask(served):
    client = served.connect()
    client.ask("steps", caller={**ASKABLE, "progress": False})
    assert told(client) == []


@pytest.mark.parametrize("count", [2, 2000])
def test_threads_tell_in_order_and_only_progress_in_a_row_is_skipped(served, count):
    client = served.connect()
    client.ask("from_thread", count=count)
    frames = told(client)
    kinds = [frame["op"] for frame in frames]
    assert kinds[-4:] == ["log", "progress", "notify", "log"]
    assert set(kinds[:-4]) == {"progress"}
    steps = [frame["params"]["progress"] for frame in frames if frame["op"] == "progress"]
    assert steps == sorted(steps)
    assert steps[-2:] == [count - 1, count]


def test_notifications(served):
    client = served.connect()
    call = client.ask("changes")
    notify = {"op": "notify", "id": call}
    assert told(client) == [
        {**notify, "method": "notifications/tools/list_changed"},
        {**notify, "method": "notifications/prompts/list_changed"},
        {**notify, "method": "notifications/resources/list_changed"},
        {**notify, "method": "notifications/resources/updated", "params": {"uri": "test://x"}},
    ]
