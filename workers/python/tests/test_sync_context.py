"""Sync functions run in the context that their files left behind, each call in a copy of its own."""

from __future__ import annotations

TOOLS = """
    import contextvars, decimal, threading, warnings
    from fastmcp.tools import tool

    decimal.getcontext().prec = 50
    REGION = contextvars.ContextVar("region", default="none")
    REGION.set("eu")

    def third() -> str:
        return f"{decimal.Decimal(1) / 3} {REGION.get()}"

    @tool
    def in_thread() -> str: return third()
    @tool
    async def on_loop() -> str: return third()
    @tool
    def changes() -> str:
        decimal.getcontext().prec = 2
        REGION.set("us")
        return third()
"""


def test_what_was_set_while_loading_holds_in_def_as_in_async_def(plain_worker):
    plain_worker.write("t.py", TOOLS).start()
    expected = "0." + "3" * 50 + " eu"
    assert plain_worker.value("on_loop") == expected
    assert plain_worker.value("in_thread") == expected


def test_what_a_call_sets_ends_with_the_call(plain_worker):
    plain_worker.write("t.py", TOOLS).start()
    assert plain_worker.value("changes") == "0.33 us"
    assert plain_worker.value("in_thread") == "0." + "3" * 50 + " eu"
