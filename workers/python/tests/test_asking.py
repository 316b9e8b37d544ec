"""Questions to the client: frames, answers, answers sent along, and what goes wrong."""

from __future__ import annotations

import pytest

from harness import ASKABLE, Worker

TOOLS = """
    import asyncio
    from fastmcp import Context
    from fastmcp.prompts import prompt
    from fastmcp.resources import resource
    from fastmcp.server.elicitation import AcceptedElicitation, CancelledElicitation, DeclinedElicitation
    from fastmcp.tools import tool

    NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    events = []

    @tool
    async def name(ctx: Context, key: str | None = None) -> str:
        match await ctx.elicit("Who?", str, key=key):
            case AcceptedElicitation(data=data):
                return f"accepted {data}"
            case DeclinedElicitation():
                return "declined"
            case CancelledElicitation():
                return "cancelled"

    @tool
    async def three(ctx: Context) -> list:
        name, said, roots = await asyncio.gather(
            ctx.elicit("Who?", NUMBER, key="k"),
            ctx.sample(["Hello", {"role": "assistant", "content": "Yes?"}], "Be brief", temperature=0.5,
                       max_tokens=9, model_preferences=["big", "small"]),
            ctx.list_roots(),
        )
        return [name.data, said.text, said.role, said.model, said.stop_reason, [(r.uri, r.name) for r in roots]]

    @tool
    async def twice(ctx: Context) -> list:
        return [(await ctx.elicit("1", int)).data, (await ctx.elicit("2", int)).data]

    @tool
    async def same(ctx: Context) -> list:
        return [(await ctx.elicit("1", int, key="k")).data, (await ctx.elicit("2", int, key="k")).data]

    @tool
    async def at_once(ctx: Context, count: int, key: str | None = None) -> list:
        asked = [ctx.elicit(str(n), int, key=key) for n in range(count)]
        return [repr(it) if isinstance(it, Exception) else it.data
                for it in await asyncio.gather(*asked, return_exceptions=True)]

    @tool
    async def survives(ctx: Context, size: int = 0) -> str:
        try:
            return (await ctx.elicit("?" * (size or 1), int)).action
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    @tool
    async def group(ctx: Context) -> str:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ctx.sample("x"))
            tasks.create_task(asyncio.sleep(600))

    @tool
    async def background(ctx: Context) -> str:
        async def ask():
            try:
                await ctx.elicit("late?", int)
            finally:
                events.append("ended")
        global task
        task = asyncio.create_task(ask())
        await asyncio.sleep(0)
        return "first"

    @tool
    async def waits(ctx: Context) -> str:
        try:
            await ctx.elicit("now?", int)
        finally:
            events.append("cleaned")

    @tool
    async def seen() -> list:
        await asyncio.sleep(0)
        return list(events)

    @tool
    def from_thread(ctx: Context) -> str:
        return ctx.elicit("?", int)

    @tool
    def half_sync(ctx: Context):
        async def rest():
            return (await ctx.elicit("?", int)).data
        return rest()

    @tool
    async def facts(ctx: Context) -> list:
        return [ctx.client_capabilities, ctx.client_info]

    @prompt
    async def asks(ctx: Context) -> str:
        return str((await ctx.elicit("?", int)).data)

    @resource("test://asks")
    async def asks_too(ctx: Context) -> str:
        return str(await ctx.list_roots())
"""


@pytest.fixture(scope="module")
def served(venv, workers) -> Worker:
    return workers(venv).write("t.py", TOOLS).start("--max-frame", "100000")


def accept(**content):
    return {"action": "accept", "content": content}


def test_question_and_answer(served):
    client = served.connect()
    call = client.ask("name")
    frame = client.receive()
    schema = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}
    params = {"message": "Who?", "requestedSchema": schema}
    question = {"key": "elicitation-1", "method": "elicitation/create", "params": params}
    assert frame == {"op": "ask", "id": call, "questions": [question]}
    client.reply(call, "elicitation-1", result=accept(value="Ada"))
    assert client.receive()["result"] == "accepted Ada"


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_user_may_not_want_to_answer(served, action):
    client = served.connect()
    call = client.ask("name", key="mine")
    assert client.receive()["questions"][0]["key"] == "mine"
    client.reply(call, "mine", result={"action": action})
    assert client.receive()["result"].startswith(action)


def test_questions_of_one_turn_leave_in_one_frame_and_are_answered_in_any_order(served):
    client = served.connect()
    call = client.ask("three", call_id="t")
    questions = {it["key"]: it for it in client.receive()["questions"]}
    assert list(questions) == ["k", "sampling-1", "roots-1"]
    assert questions["k"]["params"]["requestedSchema"]["properties"] == {"n": {"type": "integer"}}
    assert questions["sampling-1"]["params"] == {
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "Hello"}},
            {"role": "assistant", "content": {"type": "text", "text": "Yes?"}},
        ],
        "maxTokens": 9,
        "systemPrompt": "Be brief",
        "temperature": 0.5,
        "modelPreferences": {"hints": [{"name": "big"}, {"name": "small"}]},
    }
    assert questions["roots-1"] == {"key": "roots-1", "method": "roots/list", "params": {}}
    client.reply(call, "roots-1", result={"roots": [{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}]})
    content = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    client.reply(call, "sampling-1", result={"role": "assistant", "content": content, "model": "m", "stopReason": "e"})
    client.reply(call, "k", result=accept(n=3))
    roots = [["file:///a", "A"], ["file:///b", None]]
    assert client.receive()["result"] == [{"n": 3}, "one\ntwo", "assistant", "m", "e", roots]


def test_questions_of_different_turns_have_frames_and_keys_of_their_own(served):
    client = served.connect()
    call = client.ask("twice")
    for number in (1, 2):
        (question,) = client.receive()["questions"]
        assert question["key"] == f"elicitation-{number}"
        client.reply(call, question["key"], result=accept(value=number))
    assert client.receive()["result"] == [1, 2]


def test_answers_sent_along_are_used_once_and_only_if_they_fit(served):
    client = served.connect()
    inputs = {"k": accept(value=1), "other": accept(value=5)}
    call = client.ask("same", caller={**ASKABLE, "inputs": inputs})
    assert client.receive()["questions"][0]["params"]["message"] == "2", "the first was answered already"
    client.reply(call, "k", result=accept(value=2))
    assert client.receive()["result"] == [1, 2]
    for bad in (5, None, {}, {"action": "accept", "content": {"value": []}}, {"action": "maybe"}):
        call = client.ask("name", key="k", caller={**ASKABLE, "inputs": {"k": bad}})
        assert client.receive()["op"] == "ask", "what does not fit is asked for"
        client.reply(call, "k", result={"action": "decline"})
        assert client.receive()["result"] == "declined"
    client.ask("name", caller={**ASKABLE, "inputs": ["k"]})
    assert client.receive()["op"] == "ask"


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ({"result": 5}, "no action"),
        ({"result": {"action": "yes"}}, "no action"),
        ({"result": {"action": "accept", "content": []}}, "not an object"),
        ({"result": {"action": "accept"}}, "value is missing"),
        ({"result": {"action": "accept", "content": {"value": {}}}}, "valid string"),
        ({"error": {"code": "ask_failed", "message": "timed out"}}, "timed out"),
        ({"error": "broken"}, "did not answer"),
        ({}, "did not answer"),
    ],
)
def test_answer_that_does_not_fit_fails_the_question(served, outcome, message):
    client = served.connect()
    call = client.ask("name", key="k")
    client.receive()
    client.reply(call, "k", **outcome)
    error = client.receive()["error"]
    assert error["code"] == "ask_failed"
    assert message in error["message"]


@pytest.mark.parametrize(
    ("key", "result"),
    [
        ("k", accept(n="three")),
        ("sampling-1", {"role": "robot", "content": {"type": "text", "text": ""}}),
        ("sampling-1", {"role": "assistant"}),
        ("sampling-1", {"role": "assistant", "content": ["text"]}),
        ("roots-1", {}),
        ("roots-1", {"roots": ["file:///a"]}),
    ],
)
def test_each_kind_of_answer_is_checked(served, key, result):
    client = served.connect()
    call = client.ask("three")
    client.receive()
    client.reply(call, key, result=result)
    assert client.receive()["error"]["code"] == "ask_failed"
    assert client.request("ping")["ok"]


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": None}, {"elicitation": True}, {"sampling": {}}])
def test_client_that_did_not_declare_it_is_not_asked(served, capabilities):
    client = served.connect()
    client.ask("name", caller={**ASKABLE, "capabilities": capabilities})
    error = client.receive()["error"]
    assert error["code"] == "missing_capability"
    assert error["details"] == {"requiredCapabilities": {"elicitation": {}}}


def test_caller_that_is_no_client_cannot_be_asked(served):
    assert served.error("name")["code"] == "missing_capability"
    assert served.call("facts")["result"] == [{}, None]


def test_form_mode_is_asked_of_clients_that_have_it(served):
    client = served.connect()
    client.ask("name", caller={**ASKABLE, "capabilities": {"elicitation": {"url": {}}}})
    assert client.receive()["error"]["details"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}
    client.ask("name", caller={**ASKABLE, "capabilities": {"elicitation": {"url": {}, "form": {}}}})
    assert client.receive()["op"] == "ask"


def test_missing_capability_in_a_task_group_is_one(served):
    client = served.connect()
    client.ask("group", caller={**ASKABLE, "capabilities": {}})
    error = client.receive()["error"]
    assert error["code"] == "missing_capability"
    assert error["details"] == {"requiredCapabilities": {"sampling": {}}}


def test_what_is_known_of_the_client(served):
    client = served.connect()
    client.ask("facts", caller={**ASKABLE, "clientInfo": {"name": "c", "version": "1"}})
    assert client.receive()["result"] == [ASKABLE["capabilities"], {"name": "c", "version": "1"}]


def test_failed_question_can_be_caught(served):
    client = served.connect()
    call = client.ask("survives")
    client.receive()
    client.reply(call, "elicitation-1", error={"code": "ask_failed", "message": "no answer in 60 s"})
    assert client.receive()["result"] == "AskFailed: no answer in 60 s"


def test_question_over_the_limit_of_a_frame_fails(served):
    client = served.connect()
    client.ask("survives", size=100_000)
    assert "limit of a frame is 100000" in client.receive()["result"]
    call = client.ask("survives", size=99_000)
    assert client.receive()["op"] == "ask"
    client.reply(call, "elicitation-1", result={"action": "cancel"})
    assert client.receive()["result"] == "cancel"


def test_at_most_32_questions_are_open(served):
    client = served.connect()
    call = client.ask("at_once", count=33)
    questions = client.receive()["questions"]
    assert len(questions) == 32
    for number, question in enumerate(questions):
        client.reply(call, question["key"], result=accept(value=number))
    result = client.receive()["result"]
    assert result[:32] == list(range(32))
    assert "more than 32" in result[32]


def test_two_open_questions_cannot_have_one_key(served):
    client = served.connect()
    call = client.ask("at_once", count=2, key="k")
    assert len(client.receive()["questions"]) == 1
    client.reply(call, "k", result=accept(value=1))
    result = client.receive()["result"]
    assert result[0] == 1
    assert "open already" in result[1]


def test_asking_needs_an_async_function(served):
    client = served.connect()
    client.ask("from_thread")
    assert "async def" in client.receive()["error"]["message"]
    call = client.ask("half_sync")
    assert client.receive()["op"] == "ask"
    client.reply(call, "elicitation-1", result=accept(value=7))
    assert client.receive()["result"] == 7


def test_answers_nobody_waits_for_are_dropped(served):
    client = served.connect()
    client.reply("nothing", "k", result={})
    call = client.ask("name", key="k")
    client.receive()
    client.reply(call, "other", result=accept(value="x"))
    client.reply(call, 5, result=accept(value="x"))
    client.send(op="answer", target=[], key="k", result={})
    client.reply(call, "k", result=accept(value="y"))
    client.reply(call, "k", result=accept(value="z"))
    assert client.receive()["result"] == "accepted y"
    client.reply(call, "k", result=accept(value="z"))
    assert client.request("answer", target=call, key="k", result={})["result"] == {"answered": False}


def test_one_connection_cannot_answer_anothers_question(served):
    client, other = served.connect(), served.connect()
    call = client.ask("name", call_id="shared", key="k")
    client.receive()
    assert other.request("answer", target=call, key="k", result={})["result"] == {"answered": False}
    assert client.request("answer", target=call, key="k", result=accept(value="x"))["result"] == {"answered": True}
    assert client.receive()["result"] == "accepted x"


def test_answer_that_cannot_be_read_fails_its_question(served):
    client = served.connect()
    call = client.ask("name", call_id="t", key='a"é')
    client.receive()
    client.send_raw(b'{"op":"answer","target":"t","key":"a\\"\\u00e9","result":{"x":"\\ud800"}}\n')
    assert "cannot be read" in client.receive()["error"]["message"]
    client.ask("name", call_id="t", key="k")
    client.receive()
    client.reply(call, "k", result={"x": "x" * 200_000})
    assert "longer than 100000 bytes" in client.receive()["error"]["message"]
    assert client.request("ping")["ok"]


def test_cancelled_call_stops_waiting(served):
    client = served.connect()
    call = client.ask("waits")
    client.receive()
    client.send(op="cancel", target=call)
    assert client.receive()["error"]["code"] == "cancelled"
    assert "cleaned" in client.call("seen")["result"]
    client.reply(call, "elicitation-1", result=accept(value=1))
    assert client.request("ping")["ok"]


def test_question_left_open_ends_with_its_call(served):
    client = served.connect()
    client.ask("background")
    frames = [client.receive()]
    if frames[0].get("op") == "ask":
        frames.append(client.receive())
    assert frames[-1]["result"] == "first"
    assert "ended" in client.call("seen")["result"]


def test_prompts_and_resources_ask_too(served):
    client = served.connect()
    client.send(id="p", op="prompts.get", prompt="asks", caller=ASKABLE)
    assert client.receive()["op"] == "ask"
    client.reply("p", "elicitation-1", result=accept(value=4))
    assert client.receive()["result"]["messages"] == [{"role": "user", "content": {"type": "text", "text": "4"}}]
    client.send(id="r", op="resources.read", uri="test://asks", caller=ASKABLE)
    assert client.receive()["questions"][0]["method"] == "roots/list"
    client.reply("r", "roots-1", result={"roots": []})
    assert client.receive()["result"]["contents"][0]["text"] == "[]"
