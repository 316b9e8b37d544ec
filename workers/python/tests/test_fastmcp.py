"""Tool files written for fastmcp, with the package in two generations and without it: K-03, WRK-21."""

from __future__ import annotations

import pytest

from conftest import FASTMCP
from environments import environment
from harness import Worker

SIMPLE = '''
    from fastmcp import Context
    from fastmcp.tools import tool

    @tool
    async def greet(name: str, ctx: Context) -> str:
        """Greets."""
        await ctx.report_progress(1, 1)
        return f"Hello, {name}!"

    @tool
    def loaded() -> list[str]:
        import sys
        return [name for name in sys.modules if name.startswith(("fastmcp.settings", "mcp."))]
'''

NEEDS_MORE = '''
    import fastmcp
    from fastmcp import Context, FastMCP
    from fastmcp.tools import tool
    from fastmcp.tools.tool import Tool, ToolResult
    from fastmcp.utilities.types import Image
    from mcp.types import ResourceLink, TextContent

    server = FastMCP("inner")
    PNG = b"\\x89PNG\\r\\n\\x1a\\n"

    @tool
    def plain_form(a: int = 1) -> int:
        """Bare."""
        return a

    @tool("renamed", title="Given Title", tags={"x"})
    def original() -> str:
        return "renamed"

    @server.tool
    def on_a_server(a: int) -> int:
        """Registered on an object of its own."""
        return a * 2

    @tool
    async def with_context(ctx: Context) -> str:
        await ctx.info("hello")
        await ctx.report_progress(1)
        return ctx.request_id

    @tool
    def picture() -> Image:
        return Image(data=PNG, format="png")

    @tool
    def pictures() -> list:
        return ["caption", Image(data=PNG, format="png")]

    @tool
    def result() -> ToolResult:
        return ToolResult(content=[TextContent(type="text", text="shown")], structured_content={"n": 1})

    @tool
    def link() -> ResourceLink:
        return ResourceLink(type="resource_link", uri="file:///a", name="a")

    @tool
    def version() -> str:
        return fastmcp.__version__

    @tool
    def is_a_class() -> bool:
        return isinstance(Tool, type)
'''


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.fastmcp) for name in FASTMCP])
def fastmcp_venv(request):
    return environment(*FASTMCP[request.param])


@pytest.fixture(scope="module")
def rich(fastmcp_venv, workers) -> Worker:
    worker = workers(fastmcp_venv).write("rich.py", NEEDS_MORE).write("simple.py", SIMPLE)
    return worker.start("--import-timeout", "60")


def test_simple_file_works_without_the_package(worker):
    worker.write("t.py", SIMPLE).start()
    assert worker.value("greet", name="Ada") == "Hello, Ada!"


DEPENDING = """
    from contextlib import asynccontextmanager
    from fastmcp import Context, FastMCP
    from fastmcp.dependencies import Depends
    from fastmcp.tools import tool

    def caller(ctx: Context): return bool(ctx.request_id)

    @asynccontextmanager
    async def store():
        yield "opened"

    @tool
    def plain(known: bool = Depends(caller)) -> bool: return known

    @tool
    async def on_the_loop(found: str = Depends(store)) -> str: return found
"""


def test_dependencies_of_the_package_are_filled_in(fastmcp_venv, workers):
    worker = workers(fastmcp_venv).write("t.py", DEPENDING).start("--import-timeout", "60")
    assert worker.ready["issues"] == []
    assert [worker.tool(name)["inputSchema"]["properties"] for name in ("plain", "on_the_loop")] == [{}, {}]
    assert (worker.value("plain"), worker.value("on_the_loop")) == (True, "opened")


def test_simple_file_does_not_import_the_package(fastmcp_venv, workers):
    worker = workers(fastmcp_venv).write("t.py", SIMPLE).start()
    assert worker.ready["issues"] == []
    assert worker.value("greet", name="Ada") == "Hello, Ada!"
    assert worker.value("loaded") == []


def test_every_form_is_recognised(rich):
    assert rich.ready["issues"] == []
    names = "plain_form renamed on_a_server with_context picture pictures result link version is_a_class greet loaded"
    assert rich.tool_names() == names.split()
    assert rich.tool("renamed")["title"] == "Given Title"
    assert rich.tool("on_a_server")["description"] == "Registered on an object of its own."
    assert rich.tool("with_context")["inputSchema"]["properties"] == {}
    assert "outputSchema" not in rich.tool("picture")
    assert rich.tool("plain_form")["outputSchema"]["x-fastmcp-wrap-result"] is True


def test_every_form_can_be_called(rich):
    assert rich.value("plain_form", a=5) == 5
    assert rich.value("renamed") == "renamed"
    assert rich.value("on_a_server", a=4) == 8
    assert rich.value("is_a_class") is True
    assert rich.value("version")[0].isdigit()
    assert rich.value("greet", name="Ada") == "Hello, Ada!"


def test_real_context_annotation_gets_our_context(rich):
    client = rich.connect()
    client.start("with_context", call_id="c")
    assert client.receive()["op"] == "progress"
    assert client.receive()["result"] == "c"


def test_content_types_become_blocks(rich):
    frame = rich.call("picture")
    assert frame["result"] is None
    assert [(block["type"], block["mimeType"]) for block in frame["content"]] == [("image", "image/png")]
    frame = rich.call("pictures")
    assert frame["result"] == ["caption", None]
    assert [block["type"] for block in frame["content"]] == ["text", "image"]
    frame = rich.call("result")
    assert (frame["result"], frame["content"]) == ({"n": 1}, [{"type": "text", "text": "shown"}])
    (block,) = rich.call("link")["content"]
    assert (block["type"], block["uri"]) == ("resource_link", "file:///a")


def test_package_that_only_a_library_wants_is_found_on_demand(fastmcp_venv, workers):
    """The stand-ins give way while a call runs, and what was imported before goes on to work."""
    worker = workers(fastmcp_venv).write(
        "t.py",
        """
        import importlib
        import fastmcp
        from fastmcp.tools import tool

        @tool
        def by_attribute() -> str:
            return getattr(fastmcp, "Fast" + "MCP").__name__

        @tool
        def by_submodule() -> str:
            return importlib.import_module("fastmcp.server.context").__name__

        @tool
        def still_a_decorator() -> bool:
            from fastmcp.server.context import Context
            from fastmcp.tools import tool as again
            from fastmcp.tools.tool import Tool

            @again
            def inner(): ...

            return callable(inner) and Tool is fastmcp.tools.Tool and Context is fastmcp.server.context.Context
        """,
    )
    worker.start()
    assert worker.value("by_submodule") == "fastmcp.server.context"
    assert worker.value("by_attribute") == "FastMCP"
    assert worker.value("still_a_decorator") is True


def test_star_import_gives_the_answers_types_without_the_package(plain_worker):
    plain_worker.write(
        "t.py",
        """
        from fastmcp.server.elicitation import *
        from fastmcp.tools import tool

        @tool
        def names() -> list[str]:
            return [it.__name__ for it in (AcceptedElicitation, DeclinedElicitation, CancelledElicitation)]
        """,
    )
    plain_worker.start()
    assert plain_worker.value("names") == ["AcceptedElicitation", "DeclinedElicitation", "CancelledElicitation"]


def test_file_that_needs_more_says_what_to_add_when_it_is_missing(plain_worker):
    plain_worker.write("t.py", NEEDS_MORE).write("simple.py", SIMPLE).start()
    issue = plain_worker.issues()["t.py"]
    assert issue["code"] == "dependency_error"
    assert "add fastmcp to requirements.txt" in issue["message"]
    assert plain_worker.tool_names() == ["greet", "loaded"]


MORE_KINDS = '''
    import fastmcp
    from fastmcp import Context, FastMCP
    from fastmcp.exceptions import NotFoundError, ToolError
    from fastmcp.prompts import Message, prompt
    from fastmcp.resources import resource
    from fastmcp.server.elicitation import AcceptedElicitation, DeclinedElicitation
    from fastmcp.tools import tool
    from fastmcp.utilities.types import Image
    from mcp.types import ImageContent, PromptMessage, TextContent

    server = FastMCP("inner")

    @resource("test://static", name="static", mime_type="text/x", description="Said")
    def static() -> str:
        return "static"

    @resource("test://item/{id}", complete={"id": ["1"]})
    def item(id: int) -> dict:
        if id == 404:
            raise NotFoundError("none")
        return {"id": id}

    @server.resource("test://server/{name}")
    def on_server(name: str) -> str:
        return name

    @server.resource("test://server")
    async def static_on_server() -> bytes:
        return b"x"

    @prompt
    def messages(topic: str, n: int = 1) -> list:
        """Doc."""
        return [
            Message("said", role="assistant"),
            PromptMessage(role="user", content=TextContent(type="text", text=topic * n)),
            Image(data=b"\\x89PNG\\r\\n\\x1a\\n", format="png"),
        ]

    @prompt(complete={"word": ["a"]})
    def completed(word: str) -> str:
        return word

    @server.prompt(title="On a server")
    async def prompt_on_server(ctx: Context) -> str:
        return ctx.request_id

    @tool(input_schema={"type": "object", "properties": {"a": {}}})
    def raw(a=None):
        return a

    @tool
    async def ask(ctx: Context) -> list:
        answer = await ctx.elicit("?", int)
        match answer:
            case AcceptedElicitation(data=data):
                return [type(answer).__module__.partition(".")[0], data]
            case DeclinedElicitation():
                return [type(answer).__module__.partition(".")[0], "declined"]

    @tool
    def refuses():
        raise ToolError("not today")
'''


@pytest.fixture(scope="module")
def kinds(fastmcp_venv, workers) -> Worker:
    return workers(fastmcp_venv).write("kinds.py", MORE_KINDS).start("--import-timeout", "60")


def test_resources_and_prompts_of_every_form(kinds):
    assert kinds.ready["issues"] == []
    definitions = {it["definition"]["uri"]: it["definition"] for it in kinds.ready["resources"]}
    assert list(definitions) == ["test://static", "test://server"]
    assert (definitions["test://static"]["mimeType"], definitions["test://static"]["description"]) == ("text/x", "Said")
    templates = [it["definition"]["uriTemplate"] for it in kinds.ready["resourceTemplates"]]
    assert templates == ["test://item/{id}", "test://server/{name}"]
    prompts = [it["definition"] for it in kinds.ready["prompts"]]
    assert [it["name"] for it in prompts] == ["messages", "completed", "prompt_on_server"]
    assert (prompts[0]["description"], prompts[2]["title"]) == ("Doc.", "On a server")
    assert kinds.ready["completions"] is True


def test_resources_and_prompts_of_every_form_answer(kinds):
    client = kinds.connect()
    read = {
        uri: client.request("resources.read", uri=uri)
        for uri in ("test://static", "test://item/5", "test://item/404", "test://server/x", "test://server")
    }
    assert read["test://static"]["result"]["contents"][0]["text"] == "static"
    assert read["test://item/5"]["result"]["contents"][0]["text"] == '{"id":5}'
    assert read["test://item/404"]["error"]["code"] == "resource_not_found"
    assert read["test://server/x"]["result"]["contents"][0]["text"] == "x"
    assert read["test://server"]["result"]["contents"][0]["blob"] == "eA=="
    frame = client.request("prompts.get", prompt="messages", arguments={"topic": "t", "n": "2"})
    messages = frame["result"]["messages"]
    assert [message["role"] for message in messages] == ["assistant", "user", "user"]
    assert [message["content"]["type"] for message in messages] == ["text", "text", "image"]
    assert messages[1]["content"]["text"] == "tt"
    assert client.request("prompts.get", prompt="prompt_on_server")["ok"]


def test_keywords_of_ours_work_beside_the_package(kinds):
    client = kinds.connect()
    params = {"ref": {"type": "ref/prompt", "name": "completed"}, "argument": {"name": "word", "value": ""}}
    assert client.request("completion.complete", params=params)["result"]["completion"]["values"] == ["a"]
    assert kinds.tool("raw")["inputSchema"] == {"type": "object", "properties": {"a": {}}}
    assert kinds.error("refuses")["message"] == "not today"


def test_answers_are_of_the_packages_own_types(kinds):
    client = kinds.connect()
    for result, expected in (({"action": "accept", "content": {"value": 3}}, 3), ({"action": "decline"}, "declined")):
        call = client.ask("ask")
        client.receive()
        client.reply(call, "elicitation-1", result=result)
        package, data = client.receive()["result"]
        assert package in ("fastmcp", "mcp")
        assert data == expected


def test_types_got_before_the_package_came_still_match(fastmcp_venv, workers):
    worker = workers(fastmcp_venv).write(
        "t.py",
        """
        import importlib
        from fastmcp import Context
        from fastmcp.server.elicitation import AcceptedElicitation, DeclinedElicitation
        from fastmcp.tools import tool

        @tool
        async def ask(ctx: Context) -> list:
            importlib.import_module("fastmcp.server.elicitation")
            importlib.import_module("fastmcp.server.context")
            answer = await ctx.elicit("?", int)
            return [isinstance(answer, AcceptedElicitation), isinstance(answer, DeclinedElicitation), answer.data]
        """,
    )
    worker.start()
    client = worker.connect()
    call = client.ask("ask")
    client.receive()
    client.reply(call, "elicitation-1", result={"action": "accept", "content": {"value": 3}})
    assert client.receive()["result"] == [True, False, 3]
