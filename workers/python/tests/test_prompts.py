"""Prompts: arguments as text, messages, and completion of arguments."""

from __future__ import annotations

import pytest

from harness import Worker

TOOLS = '''
    import asyncio, enum
    from typing import Annotated, Literal
    from fastmcp import Context
    from fastmcp.prompts import Message, prompt
    from fastmcp.resources import resource
    from pydantic import BaseModel, Field

    class Color(enum.Enum):
        RED = "red"
        GREEN = "green"

    class Point(BaseModel):
        x: int

    @prompt
    def plain() -> str:
        """What it is for."""
        return "do it"

    @prompt("renamed", title="Given", description="Said", icons=[{"src": "data:,"}], meta={"k": 1})
    async def original(topic: Annotated[str, "what about"], tone: str = "kind") -> str:
        return f"{tone} {topic}"

    @prompt
    def typed(number: int, many: list[int] = [], point: Point | None = None, flag: bool = False, text: str = "",
              color: Color = Color.RED, loose=None) -> str:
        return repr((number, many, point, flag, text, color, loose))

    @prompt
    def forms() -> list:
        return [
            "text",
            Message("said", role="assistant"),
            {"role": "user", "content": "dict"},
            {"role": "assistant", "content": {"type": "resource_link", "uri": "x://y", "name": "y"}},
            Message(b"\\x89PNG\\r\\n\\x1a\\n"),
            Message({"plain": "data"}),
            {"type": "text", "text": "block"},
            Message(Point(x=1)),
        ]

    @prompt
    def bad_role():
        return {"role": "system", "content": "x"}

    @prompt
    def raises():
        return Message("x", role="system")

    @prompt
    async def context(ctx: Context) -> str:
        await ctx.info("hello")
        return ctx.request_id

    def cities(value: str) -> list:
        return [value + "is", value + "k"]

    async def streets(value, others):
        await asyncio.sleep(0)
        return {"values": [f"{others.get('city')} {value} {n}" for n in range(150)], "total": 1000}

    def broken(value):
        raise RuntimeError("no")

    @prompt(complete={"city": cities, "street": streets, "known": ["Alpha", "alps", "beta"], "broken": broken,
                      "wrong": lambda value: 5, "none": lambda value: None})
    def complete(city="", street="", known="", broken="", wrong="", none="", color: Color | None = None,
                 level: Literal[1, 2, 10] = 1, flag: bool = False, free: str = "") -> str:
        return ""

    @resource("x://{id}", complete={"id": range_of} if (range_of := ["1", "12"]) else {})
    def template(id: str) -> str:
        return id
'''


@pytest.fixture(scope="module")
def served(venv, workers) -> Worker:
    return workers(venv).write("p.py", TOOLS).start()


def get(worker: Worker, prompt: object, **fields) -> dict:
    client = worker.connect()
    try:
        return client.request("prompts.get", prompt=prompt, **fields)
    finally:
        client.close()


def said(worker: Worker, prompt: str, **arguments) -> str:
    frame = get(worker, prompt, arguments=arguments)
    assert frame["ok"], frame
    (message,) = frame["result"]["messages"]
    return message["content"]["text"]


def complete(worker: Worker, name: str, value: object, ref: object = None, **params) -> dict:
    client = worker.connect()
    ref = {"type": "ref/prompt", "name": "complete"} if ref is None else ref
    try:
        return client.request(
            "completion.complete", params={"ref": ref, "argument": {"name": name, "value": value}, **params}
        )
    finally:
        client.close()


def values(worker: Worker, *arguments, **params) -> dict:
    frame = complete(worker, *arguments, **params)
    assert frame["ok"], frame
    return frame["result"]["completion"]


def test_definitions_are_as_lists_show_them(served):
    by_name = {it["definition"]["name"]: it for it in served.ready["prompts"]}
    assert by_name["plain"] == {
        "definition": {"name": "plain", "title": "Plain", "description": "What it is for."},
        "filename": "p.py",
        "context": False,
    }
    assert by_name["renamed"]["definition"] == {
        "name": "renamed",
        "title": "Given",
        "description": "Said",
        "arguments": [
            {"name": "topic", "description": "what about", "required": True},
            {"name": "tone", "required": False},
        ],
        "icons": [{"src": "data:,"}],
        "_meta": {"k": 1},
    }
    typed = {it["name"]: it for it in by_name["typed"]["definition"]["arguments"]}
    assert "description" not in typed["number"]
    assert '"type":"array"' in typed["many"]["description"]
    assert '"red"' in typed["color"]["description"]
    assert by_name["context"]["context"] is True
    assert served.ready["completions"] is True
    assert served.ready["issues"] == []


def test_text_becomes_one_message_of_the_user(served):
    assert get(served, "plain")["result"] == {
        "description": "What it is for.",
        "messages": [{"role": "user", "content": {"type": "text", "text": "do it"}}],
    }
    assert said(served, "renamed", topic="x") == "kind x"


def test_arguments_are_read_from_text(served):
    frame = said(served, "typed", number="5", many="[1,2]", point='{"x": 3}', flag="true", text="7", color="green")
    assert frame == "(5, [1, 2], Point(x=3), True, '7', <Color.GREEN: 'green'>, None)"
    assert said(served, "typed", number="5", text="[1]", loose="[1]").endswith("'[1]', <Color.RED: 'red'>, '[1]')")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"number": "many"},
        {"number": "1", "many": "[1,"},
        {"number": "1", "point": '{"x":"y"}'},
        {"number": "1", "x": ""},
        {"number": "1", "text": 5},
        [],
        "text",
    ],
)
def test_arguments_that_do_not_fit_are_refused(served, arguments):
    assert get(served, "typed", arguments=arguments)["error"]["code"] == "invalid_arguments"


def test_forms_of_messages(served):
    messages = get(served, "forms")["result"]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", *["user"] * 4]
    blocks = [message["content"] for message in messages]
    assert [block["type"] for block in blocks] == ["text", "text", "text", "resource_link", "image", *["text"] * 3]
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    assert texts == ["text", "said", "dict", '{"plain":"data"}', "block", '{"x":1}']
    assert blocks[4]["mimeType"] == "image/png"


def test_messages_of_nobody_are_refused(served):
    assert "a message is" in get(served, "bad_role")["error"]["message"]
    assert "user or assistant" in get(served, "raises")["error"]["message"]


@pytest.mark.parametrize("prompt", ["nobody", "", None, 5, []])
def test_unknown_prompt(served, prompt):
    assert get(served, prompt)["error"]["code"] == "prompt_not_found"


def test_context(served):
    client = served.connect()
    client.send(id="c", op="prompts.get", prompt="context", caller={"era": "legacy", "logLevel": "info"})
    frame = {"op": "log", "id": "c", "params": {"level": "info", "data": "hello"}}
    assert client.receive() == frame
    assert client.receive()["result"]["messages"][0]["content"]["text"] == "c"


def test_lists_and_choices_complete_by_what_was_typed(served):
    assert values(served, "known", "AL") == {"values": ["Alpha", "alps"], "total": 2, "hasMore": False}
    assert values(served, "known", "")["values"] == ["Alpha", "alps", "beta"]
    assert values(served, "color", "g")["values"] == ["green"]
    assert values(served, "level", "1")["values"] == ["1", "10"]
    assert values(served, "flag", "t")["values"] == ["true"]
    assert values(served, "free", "x") == {"values": [], "total": 0, "hasMore": False}
    assert values(served, "unknown", "x")["values"] == []


def test_functions_complete_as_they_like(served):
    assert values(served, "city", "par")["values"] == ["paris", "park"]
    found = values(served, "street", "a", context={"arguments": {"city": "Rome"}})
    assert (len(found["values"]), found["values"][0]) == (100, "Rome a 0")
    assert (found["total"], found["hasMore"]) == (1000, True)
    assert values(served, "none", "")["values"] == []
    assert complete(served, "broken", "")["error"]["code"] == "internal_error"
    assert complete(served, "wrong", "")["error"]["code"] == "internal_error"


def test_templates_complete(served):
    ref = {"type": "ref/resource", "uri": "x://{id}"}
    assert values(served, "id", "12", ref)["values"] == ["12"]


@pytest.mark.parametrize(
    "ref", [{}, 5, {"type": "ref/prompt", "name": "nobody"}, {"type": "ref/resource", "uri": "y://{id}"}, {"type": "x"}]
)
def test_unknown_reference(served, ref):
    assert complete(served, "x", "", ref)["error"]["code"] == "invalid_arguments"


def test_completion_needs_name_and_value(served):
    assert complete(served, "city", 5)["error"]["code"] == "invalid_arguments"
    client = served.connect()
    assert client.request("completion.complete")["error"]["code"] == "invalid_arguments"
    assert client.request("completion.complete", params=[])["error"]["code"] == "invalid_arguments"


def test_what_cannot_be_a_prompt_is_reported(plain_worker):
    plain_worker.write(
        "p.py",
        """
        from fastmcp.prompts import prompt

        @prompt
        def a(*args): ...

        @prompt("two words")
        def b(): ...

        @prompt(complete={"x": []})
        def c(): ...

        @prompt(annotations={})
        def d(): ...

        @prompt
        def e(): ...

        @prompt("e")
        def f(): ...
        """,
    ).start()
    codes = [issue["code"] for issue in plain_worker.ready["issues"]]
    assert codes == ["invalid_prompt"] * 4 + ["duplicate_prompt"]
    assert plain_worker.ready["completions"] is False
