"""What tools raise, in the contract's codes: WRK-12, EX-52."""

from __future__ import annotations

import pytest

from harness import Worker

TOOLS = '''
    import asyncio, os, sys, time
    from fastmcp.exceptions import ToolError
    from fastmcp.tools import tool, ToolResult

    @tool
    def says_it_failed():
        return ToolResult(content="no such city", is_error=True)

    @tool
    def boom() -> str:
        """Always fails."""
        raise KeyError("GITHUB_TOKEN")

    @tool
    def needs_package() -> str:
        """Imports something absent."""
        import package_that_is_not_there
        return "x"

    class Unprintable(Exception):
        def __str__(self):
            raise ValueError("no text")

    class OwnBase(BaseException): ...

    def recurse():
        recurse()

    def chained():
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise RuntimeError("second") from error

    def group():
        raise ExceptionGroup("several", [KeyError("a"), ValueError("b")])

    def long_message():
        raise ValueError("x" * 1_000_000)

    def long_traceback():
        def level(n):
            if n == 0:
                raise ValueError("bottom")
            exec(f"def f{n}(n):\\n    level(n - 1)", {"level": level}, scope := {})
            scope[f"f{n}"](n)
        level(300)

    def lone_surrogate():
        raise ValueError("\\udc80")

    def of_the_tool():
        raise ToolError("no such city")

    def grouped(*others):
        def run():
            raise ExceptionGroup("several", [ExceptionGroup("inner", [ToolError("no such city")]), *others])
        return run

    def raiser(error):
        def run():
            raise error
        return run

    WAYS = {
        "exit": lambda: sys.exit("bye"), "quit": raiser(SystemExit()), "interrupt": raiser(KeyboardInterrupt()),
        "recursion": recurse, "memory": raiser(MemoryError()), "unprintable": raiser(Unprintable()),
        "own_base": raiser(OwnBase("mine")), "chained": chained, "group": group, "long_message": long_message,
        "long_traceback": long_traceback, "lone_surrogate": lone_surrogate, "stop": raiser(StopIteration(1)),
        "cancelled": raiser(asyncio.CancelledError()), "generator_exit": raiser(GeneratorExit()),
        "no_text": raiser(ValueError()), "tool_error": of_the_tool, "tool_errors": grouped(ToolError("nor street")),
        "tool_error_and_more": grouped(KeyError("a")),
    }

    @tool
    def fail(way: str):
        WAYS[way]()

    @tool
    async def fail_async(way: str):
        WAYS[way]()

    @tool
    async def fail_later(way: str):
        await asyncio.sleep(0)
        WAYS[way]()

    @tool
    async def leave_a_bomb():
        """A background task that wants to end the process, and one that stops the loop."""
        async def bomb():
            sys.exit(3)
        asyncio.create_task(bomb())
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)
        return "left"

    @tool
    def returns_coroutine():
        async def inner():
            await asyncio.sleep(0)
            return "awaited"
        return inner()

    @tool
    async def alive() -> int:
        return os.getpid()
'''


@pytest.fixture(scope="module")
def served(venv, workers) -> Worker:
    return workers(venv).write("t.py", TOOLS).start()


def test_exception_is_an_internal_error_with_its_traceback(served):
    error = served.error("boom")
    assert error["code"] == "internal_error"
    assert error["message"] == "KeyError: 'GITHUB_TOKEN'"
    trace = error["details"]["traceback"]
    assert "in boom" in trace and "raise KeyError" in trace
    assert "calls.py" not in trace and "threads.py" not in trace


@pytest.mark.parametrize("tool", ["fail", "fail_async", "fail_later"])
def test_a_tool_error_is_a_text_for_the_model_alone(served, tool):
    alone = {"code": "tool_error", "message": "no such city", "details": {}}
    assert served.error(tool, way="tool_error") == alone
    assert served.error("says_it_failed") == alone


def test_tool_errors_in_an_exception_group_count_and_what_is_beside_them_is_traced(served):
    alone = {"code": "tool_error", "message": "no such city\nnor street", "details": {}}
    assert served.error("fail", way="tool_errors") == alone
    error = served.error("fail", way="tool_error_and_more")
    assert (error["code"], error["message"]) == ("tool_error", "no such city")
    assert "KeyError: 'a'" in error["details"]["traceback"]


def test_missing_package_is_a_dependency_error(served):
    error = served.error("needs_package")
    assert error["code"] == "dependency_error"
    assert "package_that_is_not_there" in error["message"]
    assert error["details"]["module"] == "package_that_is_not_there"
    assert "in needs_package" in error["details"]["traceback"]


@pytest.mark.parametrize("tool", ["fail", "fail_async", "fail_later"])
@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("exit", "SystemExit: bye"),
        ("quit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("recursion", "RecursionError: "),
        ("memory", "MemoryError"),
        ("unprintable", "Unprintable"),
        ("own_base", "OwnBase: mine"),
        ("chained", "RuntimeError: second"),
        ("group", "ExceptionGroup: several"),
        ("long_message", "ValueError: xxx"),
        ("long_traceback", "ValueError: bottom"),
        ("lone_surrogate", "ValueError: \ufffd"),
        ("cancelled", "CancelledError"),
        ("generator_exit", "GeneratorExit"),
        ("no_text", "ValueError"),
    ],
)
def test_whatever_a_tool_raises_the_worker_lives_on(served, tool, way, message):
    error = served.error(tool, way=way)
    assert error["code"] == "internal_error"
    assert error["message"].startswith(message)
    assert len(error["message"]) < 5000
    assert len(error["details"]["traceback"]) <= 16 * 1024 + 1
    assert served.value("alive") == served.process.pid


def test_stop_iteration_from_a_sync_tool(served):
    assert served.error("fail", way="stop")["code"] == "internal_error"


def test_cause_is_part_of_the_traceback(served):
    trace = served.error("fail", way="chained")["details"]["traceback"]
    assert "ZeroDivisionError" in trace and "direct cause" in trace


def test_background_tasks_cannot_end_the_worker(served):
    assert served.value("leave_a_bomb") == "left"
    assert served.value("alive") == served.process.pid


def test_coroutine_from_a_sync_function_is_awaited(served):
    assert served.value("returns_coroutine") == "awaited"
