"""What tools print, log and warn of reaches the log with its level and, where it is known, its request."""

from __future__ import annotations

import re

import pytest

from harness import ASKABLE, Worker

TOOLS = '''
    import asyncio, logging, os, sys, threading, warnings
    from fastmcp import Context
    from fastmcp.tools import tool

    log = logging.getLogger("mine")
    print("importing")
    log.info("imported")

    def say():
        print("printed")
        print("two\\nlines", file=sys.stderr)
        log.debug("not shown")
        log.info("logged %d", 1)
        log.warning("careful")
        log.error("broken")
        warnings.warn(f"old ways in {threading.current_thread().name}", FutureWarning)
        sys.stdout.write("no end")

    @tool
    def in_thread(): say()
    @tool
    async def on_loop(): say()
    @tool
    async def together(name: str, all: int):
        global arrived
        sys.stdout.write(f"{name} begins ")
        arrived = globals().get("arrived", 0) + 1
        while arrived < all:
            await asyncio.sleep(0)
        print(f"{name} ends")
    @tool
    async def with_context(ctx: Context): await ctx.warning("told")
    @tool
    def raw():
        os.write(1, b"from C\\n")
        sys.stdout.buffer.write(b"bytes\\n")
        sys.stdout.flush()
    @tool
    def own_handler():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("mine|%(message)s"))
        own = logging.getLogger("own")
        own.addHandler(handler)
        own.setLevel(logging.DEBUG)
        own.propagate = False
        own.debug("low"); own.critical("high")
    @tool
    def odd():
        print("\\ud800 \\x1e half")
        try: sys.stdout.write(b"x")
        except TypeError as error: return [str(error), sys.stdout.encoding, sys.stdout.fileno(), sys.stdout is sys.__stdout__]
    @tool
    def sync(): return "done"
'''


@pytest.fixture(scope="module")
def served(plain_venv, workers) -> Worker:
    return workers(plain_venv).write("t.py", TOOLS).write("bad.py", "@tool\ndef f(): ...").start("--addressed-log")


def call(worker: Worker, tool: str, request: str, **arguments):
    client = worker.connect()
    client.send(id=1, op="tools.call", tool=tool, arguments=arguments, request=request, caller=ASKABLE)
    frame = client.answer(1)
    assert frame["ok"], frame
    return frame["result"]


def lines(worker: Worker, request: str) -> list[tuple[str, str]]:
    found = [re.fullmatch("\x1e(.)(.*?)\x1f(.*)", line) for line in worker.log().split("\n")]
    return [(it[1], it[3]) for it in found if it and it[2] == request]


@pytest.mark.parametrize("tool", ["in_thread", "on_loop"])
def test_all_that_a_call_says_has_its_level_and_its_request(served, tool):
    call(served, tool, f"req-{tool}")
    said = lines(served, f"req-{tool}")
    assert said[:6] == [
        ("i", "printed"), ("i", "two"), ("i", "lines"), ("i", "mine: logged 1"), ("w", "mine: careful"), ("e", "mine: broken"),
    ]
    assert said[6][0] == "w" and re.fullmatch(r"t\.py:\d+: FutureWarning: old ways in .*", said[6][1])
    assert said[7] == ("i", "no end")


def test_what_files_say_while_they_load_has_a_level_and_no_request(served):
    said = lines(served, "")
    assert ("i", "importing") in said and ("i", "mine: imported") in said
    assert any(level == "w" and text.startswith("bad.py: import_error: ") for level, text in said)


def test_lines_of_calls_at_the_same_time_are_not_mixed(served):
    client = served.connect()
    names = ["a", "b", "c"]
    for name in names:
        client.send(id=name, op="tools.call", tool="together", arguments={"name": name, "all": 3}, request=f"at-once-{name}")
    answered = {client.receive()["id"] for _ in names}
    assert answered == set(names)
    for name in names:
        assert lines(served, f"at-once-{name}") == [("i", f"{name} begins {name} ends")]


def test_context_messages_and_own_handlers_keep_their_level(served):
    call(served, "with_context", "ctx")
    assert lines(served, "ctx") == [("w", "warning [with_context] told")]
    call(served, "own_handler", "own")
    assert lines(served, "own") == [("d", "mine|low"), ("e", "mine|high")]


def test_what_python_does_not_write_is_there_without_an_address(served):
    call(served, "raw", "raw")
    assert lines(served, "raw") == []
    assert "\nfrom C\n" in served.log() and "\nbytes\n" in served.log()


def test_odd_text_is_one_line_and_the_stream_is_a_stream(served):
    result = call(served, "odd", "odd")
    assert result == ["write() argument must be str, not bytes", "utf-8", 1, True]
    assert lines(served, "odd") == [("i", "\\ud800 \x1e half")]


def test_by_hand_lines_are_as_they_always_were(plain_worker):
    plain_worker.write("t.py", TOOLS).start()
    call(plain_worker, "in_thread", "x")
    assert "\x1e" not in plain_worker.log()
    assert "\nprinted\n" in plain_worker.log() and "\nmine: logged 1\n" in plain_worker.log()
