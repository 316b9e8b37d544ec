"""Pages of MCP Apps: FastMCP's `app=`, settings of pages in lists and in contents, and settings that are refused."""

from __future__ import annotations

import pytest

from harness import Worker

SOURCE = '''
    from fastmcp.apps import AppConfig, ResourceCSP, ResourcePermissions
    from fastmcp.resources import resource
    from fastmcp.tools import tool

    PAGE = "ui://sales/chart.html"

    @tool(app=AppConfig(resource_uri=PAGE), meta={"x": 1}, tags={"t"})
    def show(): ...

    @tool(app={"resourceUri": PAGE, "visibility": ["app"]})
    def refresh(): ...

    @tool(app=False)
    def plain(): ...

    @resource(PAGE, app=AppConfig(
        csp=ResourceCSP(connect_domains=["https://api.example.com"], later=["x"]),
        permissions=ResourcePermissions(clipboard_write={}), prefers_border=True, domain=None))
    def chart() -> str:
        return "<p>chart</p>"

    @resource("ui://sales/raw.html", mime_type="text/html", meta={"ui": {"prefersBorder": True}})
    def raw():
        return [{"text": "<p></p>", "_meta": {"ui": {"prefersBorder": False}}}, {"text": "<p></p>"}]

    @resource("notes://all")
    def notes() -> str:
        return "n"
'''
UI = {
    "csp": {"connectDomains": ["https://api.example.com"], "later": ["x"]},
    "permissions": {"clipboardWrite": {}},
    "prefersBorder": True,
}


@pytest.fixture(scope="module")
def served(plain_venv, workers) -> Worker:
    worker = workers(plain_venv).write("sales.py", SOURCE).start()
    assert worker.ready["issues"] == []
    return worker


def definitions(served: Worker, kind: str) -> dict[str, dict]:
    found = [entry.get("definition", entry) for entry in served.ready[kind]]
    return {entry["name"]: entry for entry in found}


def test_a_tool_names_its_page_and_who_may_call_it(served):
    tools = definitions(served, "tools")
    ui = {"resourceUri": "ui://sales/chart.html"}
    assert tools["show"]["_meta"] == {"x": 1, "ui": ui, "fastmcp": {"tags": ["t"]}}
    assert tools["refresh"]["_meta"] == {"ui": {**ui, "visibility": ["app"]}}
    assert "_meta" not in tools["plain"]


def test_a_page_has_its_media_type_and_its_settings_in_the_list_and_where_it_is_read(served):
    pages = definitions(served, "resources")
    assert pages["chart"]["mimeType"] == "text/html;profile=mcp-app"
    assert pages["chart"]["_meta"] == {"ui": UI}
    assert pages["raw"]["mimeType"] == "text/html"
    assert "mimeType" not in pages["notes"] and "_meta" not in pages["notes"]
    [read] = served.connect().request("resources.read", uri="ui://sales/chart.html")["result"]["contents"]
    assert read == {
        "uri": "ui://sales/chart.html",
        "mimeType": "text/html;profile=mcp-app",
        "text": "<p>chart</p>",
        "_meta": {"ui": UI},
    }


def test_settings_in_a_content_take_precedence_over_those_of_the_page(served):
    both = served.connect().request("resources.read", uri="ui://sales/raw.html")["result"]["contents"]
    assert [read["_meta"]["ui"]["prefersBorder"] for read in both] == [False, True]
    [read] = served.connect().request("resources.read", uri="notes://all")["result"]["contents"]
    assert "_meta" not in read


REFUSALS = {
    "@resource('ui://x', app=AppConfig(resource_uri='ui://y'))": "a resource is the page itself",
    "@resource('ui://x', app={'visibility': ['app']})": "visibility is for tools",
    "@tool(app=AppConfig(visibility=['nobody']))": "visibility is a list of 'app' and 'model'",
    "@tool(app={'visibility': 'model'})": "visibility is a list of 'app' and 'model'",
    "@tool(app={'resource_uri': 'https://x'})": "resource_uri begins with ui://",
    "@tool(app=AppConfig(resource_uri=7))": "resource_uri is the URI of a page",
    "@resource('ui://x', app=AppConfig(csp=ResourceCSP(connect_domains='https://a')))": "a list of origins",
}


def test_invalid_settings_are_refused_with_a_sentence(plain_worker):
    head = "from fastmcp.apps import AppConfig, ResourceCSP\nfrom fastmcp.resources import resource\n"
    head += "from fastmcp.tools import tool\n"
    for index, decorator in enumerate(REFUSALS):
        plain_worker.write(f"t{index}.py", f"{head}{decorator}\ndef f(): ...\n")
    issues = plain_worker.start().issues()
    for index, message in enumerate(REFUSALS.values()):
        assert message in issues[f"t{index}.py"]["message"], issues[f"t{index}.py"]
