"""What FastMCP's decorators promise is kept, or the function is refused with a sentence that says what to do instead."""

from __future__ import annotations

import json
import subprocess

import pytest
from app.decorator import OPTIONS, OWN, REFUSED

from environments import FASTMCP_CURRENT, environment
from harness import ASKABLE, Worker

TOOLS = '''
    import asyncio, functools, threading, time
    from fastmcp import Context
    from fastmcp.tools import tool
    from fastmcp.resources import resource, ResourceSecurity

    @tool(timeout=0.05)
    async def too_long():
        await asyncio.Event().wait()

    @tool(timeout=0.05)
    def too_long_in_a_thread():
        threading.Event().wait(60)

    @tool(timeout=30)
    def in_time(): return "done"

    @tool(timeout=0.05)
    async def asks(ctx: Context):
        return (await ctx.elicit("name?", str)).data

    @tool(run_in_thread=False)
    def on_the_loop(): return threading.current_thread() is threading.main_thread()

    @tool(exclude_args=["who"])
    def hidden(a: int, who: str = "nobody"): return [a, who]

    @tool(tags={"b", "a"}, version=2, meta={"own": 1, "fastmcp": {"x": 1}})
    def labelled(): ...

    @tool(task=True)
    def also_a_task(): return "here"

    def base(a: int, b: int, c: int = 3) -> int:
        """Adds.

        Args:
            b: The second.
        """
        return a + b + c
    tool(functools.partial(base, 1, c=4))

    class Holder:
        def __init__(self, n): self.n = n
        def times(self, a: int) -> int:
            """Multiplies."""
            return self.n * a
        @staticmethod
        @tool
        def static(a: int) -> int: return a
        @classmethod
        def named(cls) -> str: return cls.__name__
    tool(Holder(3).times)
    tool(Holder.named)

    @tool
    def remembers(x: int, items: list = [], more: dict = {"deep": [1]}) -> list:
        items.append(x)
        more["deep"].append(x)
        return [items, more["deep"]]

    @resource("file:///{path*}")
    def file(path: str) -> str: return path
    @resource("git:///{ref*}", security=ResourceSecurity(exempt_params={"ref"}))
    def ref(ref: str) -> str: return ref
    @resource("any:///{path*}", security=None)
    def anything(path: str) -> str: return path
    @resource("test://kept", cache_ttl=1.5)
    def kept() -> str: return "x"
    @resource("test://fresh")
    def fresh() -> str: return "x"
'''


@pytest.fixture(scope="module")
def served(plain_venv, workers) -> Worker:
    worker = workers(plain_venv).write("t.py", TOOLS).start("--sync-concurrency", "2")
    assert worker.ready["issues"] == []
    return worker


@pytest.mark.parametrize("tool", ["too_long", "too_long_in_a_thread"])
def test_timeout_gives_a_call_up(served, tool):
    assert served.error(tool) == {
        "code": "execution_timeout",
        "message": f"{tool} did not finish within the 0.05 s of its timeout=",
        "details": {},
    }
    assert served.value("in_time") == "done"


def test_time_spent_on_a_question_does_not_count_towards_timeout(served):
    client = served.connect()
    call = client.ask("asks", caller=ASKABLE)
    question = client.receive()
    assert question["op"] == "ask"
    assert client.call("too_long")["error"]["code"] == "execution_timeout"  # as long as the one that waits may take
    client.reply(call, "elicitation-1", result={"action": "accept", "content": {"value": "Ada"}})
    assert client.answer(call)["result"] == "Ada"


def test_run_in_thread_false_runs_on_the_loop(served):
    assert served.value("on_the_loop") is True


def test_excluded_arguments_are_not_for_clients(served):
    assert list(served.tool("hidden")["inputSchema"]["properties"]) == ["a"]
    assert served.value("hidden", a=1) == [1, "nobody"]
    assert served.error("hidden", a=1, who="root")["code"] == "invalid_arguments"


def test_tags_and_version_are_published_where_fastmcp_does(served):
    assert served.tool("labelled")["_meta"] == {
        "own": 1,
        "fastmcp": {"x": 1, "tags": ["a", "b"], "version": "2"},
    }
    assert served.value("also_a_task") == "here"


TASKS = {
    "task=True": "optional",
    "task='optional'": "optional",
    "task='required'": "required",
    "task={'mode': 'required'}": "required",
    "task=types.SimpleNamespace(mode='required')": "required",
    "execution={'taskSupport': 'optional'}": "optional",
    "execution=types.SimpleNamespace(taskSupport='required')": "required",
    "task=False": None,
    "task='forbidden'": None,
    "task=None": None,
    "execution={}": None,
}


def test_a_tool_says_whether_it_may_or_must_be_a_task(plain_worker):
    tools = "".join(f"@tool({given})\ndef f{index}(): ...\n" for index, given in enumerate(TASKS))
    plain_worker.write("tools.py", f"import types\nfrom fastmcp.tools import tool\n{tools}")
    plain_worker.start()
    for index, (given, task) in enumerate(TASKS.items()):
        assert plain_worker.tool(f"f{index}").get("task") == task, given


def test_a_task_may_ask_before_it_begins(plain_worker):
    source = "from fastmcp import Context\nfrom fastmcp.tools import tool\n"
    plain_worker.write("tools.py", f"{source}@tool(task=True, ask_first=True)\nasync def f(ctx: Context): ...\n")
    assert plain_worker.start().tool("f")["askFirst"] is True


def test_partials_are_tools_of_what_is_left_to_give(served):
    tool = served.tool("base")
    assert tool["description"] == "Adds."
    assert tool["inputSchema"]["properties"] == {
        "b": {"type": "integer", "description": "The second."},
        "c": {"type": "integer", "default": 4},
    }
    assert served.value("base", b=2) == 7


def test_bound_methods_are_tools(served):
    assert (served.value("times", a=2), served.value("named"), served.value("static", a=1)) == (6, "Holder", 1)
    assert list(served.tool("times")["inputSchema"]["properties"]) == ["a"]


def test_a_changed_default_is_not_the_next_callers(served):
    assert served.value("remembers", x=1) == [[1], [1, 1]]
    assert served.value("remembers", x=2) == [[2], [1, 2]]


def read(served: Worker, uri: str):
    return served.connect().request("resources.read", uri=uri)


@pytest.mark.parametrize("path", ["..%2Fetc", "a/%2E%2E/../b", "%2Fetc/passwd", "C:%5Cx", "a%00b"])
def test_values_that_lead_elsewhere_are_no_resource_unless_exempt(served, path):
    assert read(served, f"file:///{path}")["error"]["code"] == "resource_not_found"
    assert read(served, f"git:///{path}")["ok"] and read(served, f"any:///{path}")["ok"]


def test_harmless_paths_are_read(served):
    for path in ("a/../b", "v1..v2", "x.tar.gz"):
        assert read(served, f"file:///{path}")["result"]["contents"][0]["text"] == path


def test_how_long_a_resource_may_be_kept_is_said_where_it_is_declared(served):
    assert read(served, "test://kept")["result"]["ttlMs"] == 1500
    assert "ttlMs" not in read(served, "test://fresh")["result"]


REFUSALS = {
    "@tool(auth=lambda ctx: True)\ndef f(): ...": "auth= is not supported: nobody would check it here",
    "@tool(serializer=str)\ndef f(): ...": "serializer= is not supported: return the text itself",
    "@tool(app='ui://x')\ndef f(): ...": "app= is an AppConfig or a dict",
    "@tool(app=True)\ndef f(): ...": "app= of a page that Prefab draws is not supported",
    "@tool(app={'resourceUri': 'https://x'})\ndef f(): ...": "resource_uri begins with ui://",
    "@tool(timeout=0)\ndef f(): ...": "timeout= is a number of seconds above 0",
    "@tool(timeout=1, run_in_thread=False)\ndef f(): ...": "timeout= cannot stop a function with run_in_thread=False",
    "@tool(exclude_args=['a'])\ndef f(a: int): ...": "exclude_args: a needs a default",
    "@tool(task='sometimes')\ndef f(): ...": 'task= is True, False, "optional", "required" or "forbidden"',
    "@tool(task=True, ask_first=True)\ndef f(): ...": "ask_first=True is for a function with task= and a Context",
    "@tool(tags='one')\ndef f(): ...": "tags must be a set of strings",
    "@tool(nonsense=1)\ndef f(): ...": "does not know the keyword nonsense",
    "class C:\n    @tool\n    def f(self, a: int): ...": "after the class write tool(C().f)",
}


def test_promises_that_cannot_be_kept_are_refused_with_a_sentence(plain_worker):
    for index, source in enumerate(REFUSALS):
        plain_worker.write(f"t{index:02}.py", f"from fastmcp.tools import tool\n{source}\n")
    issues = plain_worker.start().issues()
    assert plain_worker.tool_names() == []
    for index, (source, message) in enumerate(REFUSALS.items()):
        issue = issues[f"t{index:02}.py"]
        assert issue["code"] == "invalid_tool" and message in issue["message"], source


SERVER = """
    from fastmcp import FastMCP
    mcp = FastMCP("mine")

    @mcp.tool
    def decorated(a: int) -> int: return a

    def added(a: int) -> int: return a
    mcp.add_tool(added)
"""


def test_a_server_object_without_the_package_is_reported_with_what_to_write(plain_worker):
    issue = plain_worker.write("t.py", SERVER).start().issues()["t.py"]
    assert issue["code"] == "dependency_error"
    assert "no server object is needed here: write `from fastmcp.tools import tool`" in issue["message"]


@pytest.fixture(scope="module")
def real(workers) -> Worker:
    """With the real package."""
    return (
        workers(environment(*FASTMCP_CURRENT))
        .write("server.py", SERVER)
        .write(
            "filled.py",
            """
            from typing import Annotated
            from fastmcp import Context
            from fastmcp.dependencies import CurrentContext, Depends, CurrentHeaders
            from fastmcp.tools import tool

            def who(): return "root"

            @tool
            def depends(a: int, user: str = Depends(who)): return user
            @tool
            def annotated(user: Annotated[str, Depends(who)]): return user
            @tool
            def headers(found: dict = CurrentHeaders()): return found
            @tool
            def bare(ctx=CurrentContext()): return ctx
            @tool
            async def context(a: int, ctx: Context = CurrentContext()): return [a, type(ctx).__name__]
            @tool(auth=lambda ctx: False)
            def guarded(): return "secret"
            """,
        )
        .start()
    )


@pytest.mark.fastmcp
def test_tools_only_a_server_object_knows_are_reported(real):
    assert real.value("decorated", a=2) == 2  # its decorator leaves a note on the function
    assert "added" not in real.tool_names()
    issue = real.issues()["server.py"]
    assert issue["code"] == "invalid_tool"
    assert issue["message"] == (
        "added: registered only on the server object mcp, which is not run here; write "
        "`from fastmcp.tools import tool` and put @tool on the function (line 9)"
    )


@pytest.mark.fastmcp
def test_dependencies_are_no_arguments_of_clients(real):
    messages = [issue["message"] for issue in real.ready["issues"] if issue["subject"] == "filled.py"]
    for name, filler in {"headers": "found", "bare": "ctx"}.items():
        (message,) = [it for it in messages if it.startswith(f"{name}: ")]
        assert f"{filler} is filled by " in message and "Depends() of a function of your own is" in message
    assert any(message.startswith("guarded: auth= is not supported") for message in messages)
    assert [tool for tool in real.tool_names() if tool != "decorated"] == ["depends", "annotated", "context"]
    assert (real.value("depends", a=1), real.value("annotated")) == ("root", "root")
    assert list(real.tool("depends")["inputSchema"]["properties"]) == ["a"]
    assert real.value("context", a=1) == [1, "Context"]


@pytest.mark.fastmcp
def test_every_keyword_of_its_decorators_is_kept_or_refused(real):
    python = real.venv / "bin" / "python"
    source = (
        "import inspect, json; from fastmcp.tools import tool; from fastmcp.resources import resource; "
        "from fastmcp.prompts import prompt; "
        "print(json.dumps({f.__name__: list(inspect.signature(f).parameters) for f in (tool, resource, prompt)}))"
    )
    found = json.loads(subprocess.check_output([python, "-c", source], text=True))
    for kind, keywords in found.items():
        assert set(keywords) - {"name_or_fn"} <= OPTIONS[kind] - OWN[kind] | set(REFUSED), kind
