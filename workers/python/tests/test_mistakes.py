"""Twenty mistakes that authors of tools make: each says, in an issue of the namespace or in the answer to a call, what to
change. The issues are what the log, `/ready` and `/reload` show."""

from __future__ import annotations

import pytest

from harness import Worker

HEAD = "from fastmcp.tools import tool\n"

LOADING = {
    "the package is not in requirements.txt": (
        HEAD + "import flask_of_nobody\n@tool\ndef f(): ...",
        "dependency_error",
        ["No module named 'flask_of_nobody'", "line 2", "write flask_of_nobody into requirements.txt"],
    ),
    "a syntax error": (HEAD + "@tool\ndef f(:\n    ...", "import_error", ["SyntaxError", "line 3"]),
    "code at the top level that fails": (
        HEAD + "import os\nKEY = os.environ['NOT_THERE']\n@tool\ndef f(): ...",
        "import_error",
        ["KeyError: 'NOT_THERE'", "line 3"],
    ),
    "a script that exits": (HEAD + "import sys\n@tool\ndef f(): ...\nsys.exit(1)", "exit_at_import", ["calls exit(1)", "line 5"]),
    "an endless top level": (HEAD + "@tool\ndef f(): ...\nwhile True: pass", "import_timeout", ["took longer than 1 s"]),
    "the decorator is not imported": ("@tool\ndef f(): ...", "import_error", ["name 'tool' is not defined", "line 1"]),
    "a server object": (
        "from fastmcp import FastMCP\nmcp = FastMCP('x')\n@mcp.tool\ndef f(): ...",
        "dependency_error",
        ["no server object is needed here", "write `from fastmcp.tools import tool`"],
    ),
    "a method in a class body": (
        HEAD + "class Shop:\n    @tool\n    def f(self, a: int): ...",
        "invalid_tool",
        ["after the class write tool(Shop().f)", "line 3"],
    ),
    "a method whose object has another name": (
        HEAD + "class Shop:\n    @tool\n    def f(this, a: int): ...",
        "invalid_tool",
        ["after the class write tool(Shop().f)", "@staticmethod", "line 3"],
    ),
    "a method without an object": (
        HEAD + "class Shop:\n    @tool\n    def f(a: int): ...",
        "invalid_tool",
        ["a method in a class body has no object"],
    ),
    "a method of a class": (
        HEAD + "class Shop:\n    @classmethod\n    @tool\n    def f(shop, a: int): ...",
        "invalid_tool",
        ["a method in a class body has no object"],
    ),
    "a method of a class in a function": (
        HEAD + "def make():\n    class Shop:\n        @tool\n        def f(_self, a: int): ...\nmake()",
        "invalid_tool",
        ["a method in a class body has no object"],
    ),
    "a server object of another SDK": (
        HEAD + "class App:\n    def tool(self, f): return f\ndef make(): return App()\napp = make()\n@app.tool\ndef f(): ...\n@tool\ndef g(): ...",
        "invalid_tool",
        ["f: registered only on the server object app", "put @tool on the function", "line 7"],
    ),
    "a server object that is handed a function": (
        HEAD
        + "class App:\n    def add_tool(self, fn, name=''): pass\nclass House:\n    def __init__(self): self.mcp = App()\n"
        + "house = House()\ndef f(): ...\nhouse.mcp.add_tool(fn=f, name='x')\n@tool\ndef g(): ...",
        "invalid_tool",
        ["f: registered only on the server object house.mcp", "line 8"],
    ),
    "a low-level server beside tools": (
        HEAD
        + "class Server:\n    def call_tool(self): return lambda f: f\nserver = Server()\n"
        + "@server.call_tool()\nasync def handle(name, arguments): ...\n@tool\ndef g(): ...",
        "invalid_tool",
        ["handle: answers for all tools of the server object server", "a function for each"],
    ),
    "keyword arguments without names": (HEAD + "@tool\ndef f(**options): ...", "invalid_tool", ["f: **options has no schema; name the parameters"]),
    "a type nobody can check": (
        HEAD + "class Own: ...\n@tool\ndef f(a: Own): ...",
        "invalid_tool",
        ["f: no schema for the parameters", "Own"],
    ),
    "a generator": (
        "from fastmcp.resources import resource\n@resource('a://b')\ndef f():\n    yield 1",
        "invalid_resource",
        ["a generator cannot be a resource; return a list"],
    ),
    "two tools of one name": (
        HEAD + "@tool\ndef f(): ...\n@tool(name='f')\ndef g(): ...",
        "duplicate_tool",
        ["f is already defined in", "line 4"],
    ),
    "a check of who calls": (HEAD + "@tool(auth=lambda ctx: True)\ndef f(): ...", "invalid_tool", ["auth= is not supported", "gateway's configuration"]),
    "a misspelled keyword": (HEAD + "@tool(desciption='x')\ndef f(): ...", "invalid_tool", ["@tool does not know the keyword desciption"]),
    "a resource without its URI": (
        "from fastmcp.resources import resource\n@resource\ndef f(): ...",
        "import_error",
        ['@resource needs the URI: @resource("scheme://where")', "line 2"],
    ),
}

CALLS = '''
    import asyncio
    from fastmcp import Context
    from fastmcp.tools import tool
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str

    @tool
    def imports_late():
        import flask_of_nobody

    @tool
    def own_class():
        return {"found": [object()]}

    @tool
    def unfit() -> Person:
        return {"nmae": "Ada"}

    @tool
    def asks(ctx: Context):
        return ctx.elicit("name?", str)

    @tool
    def crashes():
        data = {}
        return data["missing"]

    @tool
    def add(a: int, b: int = 0) -> int: return a + b
'''

CALLING = {
    "an import inside the function": ("imports_late", {}, "dependency_error", ["No module named 'flask_of_nobody'"]),
    "a result that is no JSON": ("own_class", {}, "internal_error", ["cannot turn object at $.found[0] into JSON"]),
    "a result that is not what the annotation says": (
        "unfit",
        {},
        "output_type",
        ["does not fit the return annotation Person: name: Field required", "return what the annotation says, or change it"],
    ),
    "asking from a sync function": ("asks", {}, "internal_error", ["needs an async function: write `async def` and `await`"]),
    "an exception nobody caught": ("crashes", {}, "internal_error", ["KeyError: 'missing'"]),
    "a client's wrong argument": ("add", {"a": "one"}, "invalid_arguments", ["a: Input should be a valid integer"]),
}


def _filename(mistake: str) -> str:
    return mistake.replace(" ", "_").replace(".", "_") + ".py"


@pytest.fixture(scope="module")
def served(plain_venv, workers) -> Worker:
    worker = workers(plain_venv).write("calls.py", CALLS)
    for mistake, (source, _, _) in LOADING.items():
        worker.write(_filename(mistake), source)
    return worker.start("--import-timeout", "1")


def test_there_are_twenty_of_them():
    assert len(LOADING) + len(CALLING) >= 20


@pytest.mark.parametrize("mistake", LOADING)
def test_a_mistake_in_a_file_is_an_issue_that_says_what_to_change(served, mistake):
    _, code, parts = LOADING[mistake]
    issue = served.issues()[_filename(mistake)]
    assert issue["code"] == code
    for part in parts:
        assert part in issue["message"]
    assert f"{issue['subject']}: {code}: {issue['message']}" in served.log()


@pytest.mark.parametrize("mistake", CALLING)
def test_a_mistake_that_shows_in_a_call_is_answered_with_what_to_change(served, mistake):
    tool, arguments, code, parts = CALLING[mistake]
    error = served.error(tool, **arguments)
    assert error["code"] == code
    for part in parts:
        assert part in error["message"]


def test_the_traceback_names_the_authors_file_and_line(served):
    assert 'calls.py", line 29, in crashes' in served.error("crashes")["details"]["traceback"]


def test_one_mistake_takes_no_other_tool_with_it(served):
    assert served.value("add", a=1, b=2) == 3
