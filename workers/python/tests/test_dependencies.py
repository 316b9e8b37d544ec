"""`Depends()`: parameters that the worker fills, in every form a factory may have, and that no client sees."""

from __future__ import annotations

import pytest

from harness import ASKABLE, Worker

TOOLS = '''
    from contextlib import asynccontextmanager, contextmanager
    from typing import Annotated
    from fastmcp import Context
    from fastmcp.dependencies import CurrentContext, Depends
    from fastmcp.prompts import prompt
    from fastmcp.resources import resource
    from fastmcp.tools import tool

    events = []

    def user():
        events.append("user")
        return "ada"

    async def later(name: str = Depends(user)):
        return name.upper()

    @contextmanager
    def opened(name: str = Depends(user)):
        events.append("opened")
        try:
            yield f"store of {name}"
        finally:
            events.append("closed")

    @asynccontextmanager
    async def opened_later():
        events.append("opened")
        try:
            yield "async store"
        finally:
            events.append("closed")

    def of_call(ctx: Context):
        return ctx.request_id

    def scaled(by: int, offset: int = 1):
        return 10 * by + offset

    def taken():
        found = list(events)
        events.clear()
        return found

    @tool
    def plain(a: int, who: str = Depends(user), store: str = Depends(opened)) -> list:
        return [a, who, store, list(events)]

    @tool
    async def on_the_loop(a: int, who: str = Depends(later), store: str = Depends(opened_later)) -> list:
        return [a, who, store]

    @tool
    def annotated(who: Annotated[str, Depends(user)]) -> str: return who

    @tool
    def with_context(found: str = Depends(of_call)) -> bool: return bool(found)

    @tool
    def with_both(ctx: Context = CurrentContext(), found: str = Depends(of_call)) -> bool: return ctx.request_id == found

    @tool
    def bound(n: int = Depends(scaled, by=2), m: int = Depends(scaled, by=3, offset=0)) -> list: return [n, m]

    @tool
    def yields(store: str = Depends(opened)):
        yield store
        yield "closed" in events

    @tool
    async def yields_later(store: str = Depends(opened_later)):
        def steps():
            yield store
            yield "closed" in events
        return steps()

    @tool
    def fails(store: str = Depends(opened)):
        raise ValueError("inside")

    @tool
    def trace() -> list: return taken()

    @resource("who://{name}")
    def page(name: str, who: str = Depends(user)) -> str: return f"{name} for {who}"

    @prompt
    async def greet(topic: str, who: str = Depends(later)) -> str: return f"{topic} for {who}"
'''


@pytest.fixture(scope="module")
def served(plain_venv, workers) -> Worker:
    worker = workers(plain_venv).write("t.py", TOOLS).start()
    assert worker.ready["issues"] == []
    return worker


@pytest.fixture(autouse=True)
def nothing_happened(served):
    served.value("trace")


def test_clients_neither_see_nor_give_them(served):
    for name, seen in {"plain": ["a"], "on_the_loop": ["a"], "annotated": [], "with_context": [], "bound": []}.items():
        assert list(served.tool(name)["inputSchema"]["properties"]) == seen, name
    assert served.error("plain", a=1, who="root")["code"] == "invalid_arguments"
    (prompt,) = served.ready["prompts"]
    assert [it["name"] for it in prompt["definition"]["arguments"]] == ["topic"]


def test_values_context_managers_and_awaitables_are_filled_in(served):
    assert served.value("plain", a=1) == [1, "ada", "store of ada", ["user", "opened"]]
    assert served.value("trace") == ["user", "opened", "closed"]
    assert served.value("on_the_loop", a=2) == [2, "ADA", "async store"]
    assert served.value("trace") == ["user", "opened", "closed"]
    assert served.value("annotated") == "ada"
    assert served.value("bound") == [21, 30]


def test_the_context_of_the_call_reaches_factories(served):
    assert served.value("with_context") is True and served.value("with_both") is True
    assert served.tool("with_context")["context"] is True
    client = served.connect()
    assert client.answer(client.ask("with_context", caller=ASKABLE))["result"] is True


def test_what_was_opened_is_closed_after_a_failure_and_after_the_last_item(served):
    assert served.error("fails")["message"] == "ValueError: inside"
    assert served.value("trace")[-1] == "closed"
    assert served.value("yields") == ["store of ada", False]
    assert served.value("trace")[-1] == "closed"
    assert served.value("yields_later") == ["async store", False]
    assert served.value("trace")[-1] == "closed"


def test_resources_and_prompts_have_them_too(served):
    client = served.connect()
    read = client.request("resources.read", uri="who://x")["result"]
    assert read["contents"][0]["text"] == "x for ada"
    got = client.request("prompts.get", prompt="greet", arguments={"topic": "t"})["result"]
    assert got["messages"][0]["content"]["text"] == "t for ADA"


REFUSED = {
    "async def f(): ...\n@tool\ndef t(a=Depends(f)): ...": "a is filled by an async function, which a plain one cannot await",
    "def f(b): ...\n@tool\ndef t(a=Depends(f)): ...": "a is filled by f, whose parameter b nobody fills",
    "def f(b: int = Depends(3)): ...\n": "Depends() takes the function that makes the value, not int",
    "def f(): ...\n@tool(input_schema={'type': 'object'})\ndef t(a=Depends(f)): ...": "cannot stand beside input_schema=",
    "@tool\ndef t(a=CurrentContext()): ...": "A parameter annotated with Context gets the context",
}


def test_a_factory_that_cannot_be_called_is_refused_with_a_sentence(plain_worker):
    for index, source in enumerate(REFUSED):
        imports = "from fastmcp.dependencies import CurrentContext, Depends\nfrom fastmcp.tools import tool\n"
        plain_worker.write(f"t{index}.py", f"{imports}{source}\n@tool\ndef other{index}(): ...\n")
    issues = plain_worker.start().issues()
    for index, (source, message) in enumerate(REFUSED.items()):
        assert message in issues[f"t{index}.py"]["message"], source
