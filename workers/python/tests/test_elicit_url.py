"""`ctx.elicit_url`: a page that the user is asked to open; and the labels of a form's only field."""

from __future__ import annotations

from typing import Any

import pytest

from harness import ASKABLE, Client, Worker

TOOLS = """
    from fastmcp import Context
    from fastmcp.server.elicitation import AcceptedElicitation
    from fastmcp.tools import tool

    @tool
    async def visit(url: str, ctx: Context) -> list:
        answer = await ctx.elicit_url("Please log in.", url)
        return [answer.action, getattr(answer, "data", "no data")]

    @tool
    async def labelled(ctx: Context) -> str:
        answer: AcceptedElicitation[str] = await ctx.elicit("?", str, response_title="Name", response_description="In full.")
        return answer.data

    @tool
    async def twice(ctx: Context) -> str:
        return await ctx.elicit("?", {"type": "object", "properties": {"a": {"type": "string"}}}, response_title="Name")

    @tool
    async def thinks(keyword: str, ctx: Context) -> str:
        return (await ctx.sample("?", **{keyword: [1]})).text
"""
PAGE = "https://example.com/login?x=1"
OPENS = {**ASKABLE, "capabilities": {"elicitation": {"url": {}}, "sampling": {}}}


@pytest.fixture(scope="module")
def served(plain_venv, workers) -> Worker:
    return workers(plain_venv).write("t.py", TOOLS).start()


def asked(client: Client, caller: Any = OPENS, url: str = PAGE) -> tuple[Any, dict[str, Any]]:
    call = client.ask("visit", caller=caller, url=url)
    return call, client.receive()


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"action": "accept"}, ["accept", None]),
        ({"action": "accept", "content": {"stray": 1}}, ["accept", None]),
        ({"action": "decline"}, ["decline", "no data"]),
        ({"action": "cancel"}, ["cancel", "no data"]),
    ],
)
def test_a_page_is_asked_for_in_url_mode_and_the_answer_has_no_data(served, result, expected):
    client = served.connect()
    call, question = asked(client, {**OPENS, "era": "modern"})
    (found,) = question["questions"]
    assert (found["key"], found["method"]) == ("elicitation-1", "elicitation/create")
    assert found["params"] == {"mode": "url", "message": "Please log in.", "url": PAGE}
    client.reply(call, "elicitation-1", result=result)
    assert client.answer(call)["result"] == expected


def test_clients_of_earlier_revisions_get_an_id_of_each_question(served):
    client = served.connect()
    ids = [asked(client)[1]["questions"][0]["params"].pop("elicitationId") for _ in range(2)]
    assert len(set(ids)) == 2 and all(len(it) == 32 for it in ids)


@pytest.mark.parametrize("declared", [{}, {"form": {}}, {"url": None}])
def test_a_client_that_opens_no_pages_reads_the_address_in_the_error(served, declared):
    caller = {**ASKABLE, "capabilities": {"elicitation": declared}}
    _, answer = asked(served.connect(), caller)
    assert answer["error"]["code"] == "missing_capability"
    assert answer["error"]["details"] == {"requiredCapabilities": {"elicitation": {"url": {}}}}
    assert answer["error"]["message"].endswith(f"elicitation.url. Open this link in a browser, and call again: Please log in. {PAGE}")


NO_PAGES = [
    "javascript:alert(1)",
    "file:///etc/passwd",
    "https://",
    "https://a b",
    "https://ü",
    "x",
    f"https://{'a' * 4096}",
]


@pytest.mark.parametrize("url", NO_PAGES)
def test_only_addresses_of_pages_are_sent(served, url):
    _, answer = asked(served.connect(), url=url)
    assert answer["error"]["message"].startswith("ValueError: elicit_url")


def test_the_only_field_of_a_form_has_the_labels_and_other_forms_have_their_own(served):
    client = served.connect()
    call = client.ask("labelled")
    schema = client.receive()["questions"][0]["params"]["requestedSchema"]
    assert schema["properties"] == {"value": {"type": "string", "title": "Name", "description": "In full."}}
    client.reply(call, "elicitation-1", result={"action": "accept", "content": {"value": "Ada"}})
    assert client.answer(call)["result"] == "Ada"
    refused = client.answer(client.ask("twice"))
    assert "are for a response_type that is no object" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ("tools", "tools= is not supported: call functions in the body"),
        ("result_type", "result_type= is not supported: ask for JSON in the message"),
        ("tols", "ctx.sample does not know the keyword tols"),
    ],
)
def test_keywords_of_sampling_that_are_not_there_say_what_to_do(served, keyword, message):
    client = served.connect()
    assert message in client.answer(client.ask("thinks", keyword=keyword))["error"]["message"]
