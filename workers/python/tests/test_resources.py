"""Resources and templates: what is announced, which URI finds which, what a read returns."""

from __future__ import annotations

import base64

import pytest

from harness import Worker

TOOLS = '''
    import asyncio, enum, threading
    from typing import Literal
    from fastmcp import Context
    from fastmcp.exceptions import NotFoundError, ResourceError
    from fastmcp.resources import resource
    from pydantic import BaseModel

    class Point(BaseModel):
        x: int

    @resource("test://text", title="Some text", mime_type="text/markdown", size=4, annotations={"priority": 0.5},
              icons=[{"src": "data:,"}], meta={"k": 1}, tags={"labelled"})
    def text() -> str:
        """What it is."""
        return "text"

    @resource("test://bytes", name="Any name: it is only shown")
    async def data() -> bytes:
        return b"\\x89PNG\\r\\n\\x1a\\n"

    @resource("test://json")
    def json_value() -> dict:
        return {"a": [1, Point(x=2)]}

    @resource("test://several", mime_type="text/plain")
    def several():
        return [{"text": "a"}, {"uri": "test://b", "text": "b", "mimeType": "text/x"}, {"blob": b"c"},
                {"blob": "Yw==", "_meta": {"k": 1}}]

    @resource("test://rows")
    def rows():
        return [{"text": "a", "id": 1}]

    @resource("test://nothing")
    def nothing():
        return []

    @resource("test://fails")
    def fails():
        raise RuntimeError("broken")

    @resource("test://refuses")
    def refuses():
        raise ResourceError("come back later")

    @resource("test://unserialisable")
    def unserialisable():
        return object()

    @resource("test://context")
    async def context(ctx: Context) -> str:
        await ctx.report_progress(1)
        return ctx.request_id

    @resource("test://thread")
    def thread() -> str:
        return threading.current_thread().name

    @resource("test://waits")
    async def waits():
        await asyncio.sleep(600)

    @resource("item://{id}")
    def item(id: int) -> str:
        if id == 404:
            raise NotFoundError("there is no item 404")
        return f"item {id}"

    @resource("item://{name}")
    def item_by_name(name: str) -> str:
        return f"named {name}"

    @resource("item://special")
    def special() -> str:
        return "special"

    @resource("file:///{path*}{?lines,tags*}")
    async def file(path: str, lines: int = 10, tags: list[str] = []) -> list:
        return [path, lines, tags]

    @resource("opt://{kind}/{flag}")
    def typed(kind: Literal["a", "b"], flag: bool) -> list:
        return [kind, flag]
'''


@pytest.fixture(scope="module")
def served(venv, workers) -> Worker:
    return workers(venv).write("r.py", TOOLS).start()


def read(worker: Worker, uri: object) -> dict:
    client = worker.connect()
    try:
        return client.request("resources.read", uri=uri)
    finally:
        client.close()


def contents(worker: Worker, uri: str) -> list:
    frame = read(worker, uri)
    assert frame["ok"], frame
    assert list(frame["result"]) == ["contents"]
    return frame["result"]["contents"]


def text(worker: Worker, uri: str) -> str:
    (content,) = contents(worker, uri)
    assert content["uri"] == uri
    return content["text"]


def test_definitions_are_as_lists_show_them(served):
    by_uri = {it["definition"]["uri"]: it for it in served.ready["resources"]}
    assert by_uri["test://text"] == {
        "definition": {
            "uri": "test://text",
            "name": "text",
            "title": "Some text",
            "description": "What it is.",
            "mimeType": "text/markdown",
            "size": 4,
            "annotations": {"priority": 0.5},
            "icons": [{"src": "data:,"}],
            "_meta": {"k": 1, "fastmcp": {"tags": ["labelled"]}},
        },
        "filename": "r.py",
        "context": False,
    }
    assert by_uri["test://bytes"]["definition"]["name"] == "Any name: it is only shown"
    assert by_uri["test://context"]["context"] is True
    templates = [it["definition"]["uriTemplate"] for it in served.ready["resourceTemplates"]]
    assert templates == ["item://{id}", "item://{name}", "file:///{path*}{?lines,tags*}", "opt://{kind}/{flag}"]
    assert served.ready["tools"] == []
    assert served.ready["issues"] == []


def test_results_become_contents(served):
    assert contents(served, "test://text") == [{"uri": "test://text", "mimeType": "text/markdown", "text": "text"}]
    (content,) = contents(served, "test://bytes")
    assert (content["mimeType"], base64.b64decode(content["blob"])) == ("image/png", b"\x89PNG\r\n\x1a\n")
    (content,) = contents(served, "test://json")
    assert (content["mimeType"], content["text"]) == ("application/json", '{"a":[1,{"x":2}]}')
    assert text(served, "test://rows") == '[{"text":"a","id":1}]', "these are data, no contents"
    assert text(served, "test://nothing") == "[]"


def test_several_contents(served):
    assert contents(served, "test://several") == [
        {"uri": "test://several", "mimeType": "text/plain", "text": "a"},
        {"uri": "test://b", "mimeType": "text/x", "text": "b"},
        {"uri": "test://several", "mimeType": "text/plain", "blob": "Yw=="},
        {"uri": "test://several", "mimeType": "text/plain", "blob": "Yw==", "_meta": {"k": 1}},
    ]


@pytest.mark.parametrize("uri", ["test://unknown", "", "no uri", "opt://c/true", "opt://a/maybe", None, 5])
def test_unknown_uri_is_not_found(served, uri):
    error = read(served, uri)["error"]
    assert error["code"] == "resource_not_found"


def test_exact_uri_goes_before_templates_and_templates_by_their_types(served):
    assert text(served, "item://special") == "special"
    assert text(served, "item://5") == "item 5"
    assert text(served, "item://five") == "named five"
    assert text(served, "item://a%2Fb") == "named a/b"


def test_parameters_are_typed(served):
    assert text(served, "file:///a/b%20c?lines=3&tags=x&tags=y") == '["a/b c",3,["x","y"]]'
    assert text(served, "file:///a") == '["a",10,[]]'
    assert text(served, "opt://b/true") == '["b",true]'


def test_function_says_that_there_is_nothing(served):
    error = read(served, "item://404")["error"]
    assert (error["code"], error["message"]) == ("resource_not_found", "there is no item 404")


def test_failures(served):
    error = read(served, "test://fails")["error"]
    assert (error["code"], error["message"]) == ("internal_error", "RuntimeError: broken")
    assert read(served, "test://refuses")["error"]["message"] == "come back later"
    assert "cannot turn object" in read(served, "test://unserialisable")["error"]["message"]


def test_context_and_threads(served):
    client = served.connect()
    client.send(id="c", op="resources.read", uri="test://context")
    assert client.receive()["op"] == "progress"
    assert client.receive()["result"]["contents"][0]["text"] == "c"
    assert text(served, "test://thread") == "sync-tool"


def test_read_can_be_cancelled(served):
    client = served.connect()
    client.send(id="w", op="resources.read", uri="test://waits")
    assert client.request("cancel", target="w")["result"] == {"cancelled": True}
    client.send(id="w", op="resources.read", uri="test://text")
    assert client.answer("w")["ok"]


def test_what_cannot_be_a_resource_is_reported(plain_worker):
    plain_worker.write(
        "r.py",
        """
        from fastmcp.resources import resource

        @resource("no-scheme")
        def a(): ...

        @resource("x://{id}")
        def b(): ...

        @resource("x://{id}")
        def c(id, other): ...

        @resource("x://{id}{?q}")
        def d(id, q): ...

        @resource("x://{id}")
        def e(id, other=1): ...

        @resource("x://plain")
        def f(id): ...

        @resource("x://ok", size=-1)
        def g(): ...

        @resource("x://ok", colour="red")
        def h(): ...

        @resource("x://ok", complete={"id": []})
        def i(): ...

        @resource("x://{id}", complete={"id": 5})
        def j(id): ...

        @resource("x://ok")
        def k():
            yield 1

        @resource("x://ok", icons=[{"href": "x"}])
        def l(): ...

        @resource("x://ok")
        def m(): ...

        @resource("x://ok")
        def n(): ...
        """,
    )
    plain_worker.write("s.py", "from fastmcp.resources import resource\n\n@resource\ndef x(): ...\n")
    plain_worker.start()
    *invalid, duplicate, broken = plain_worker.ready["issues"]
    assert {issue["code"] for issue in invalid} == {"invalid_resource"}
    assert len(invalid) == 12
    assert duplicate["code"] == "duplicate_resource"
    assert "x://ok is already defined in r.py" in duplicate["message"]
    assert broken["code"] == "import_error"
    assert "needs the URI" in broken["message"]
    assert [it["definition"]["name"] for it in plain_worker.ready["resources"]] == ["m"]
