"""Which files become tools, in which order, and what is said about the rest: DRP-04…07, DRP-16, DRP-17, DRP-24."""

from __future__ import annotations

import os

import pytest

from harness import Worker

TOOL = '''
from fastmcp.tools import tool

@tool
def {name}() -> str:
    """From {file}."""
    return "{file}"
'''


def tool_file(worker: Worker, filename: str, name: str) -> None:
    worker.write(filename, TOOL.format(name=name, file=filename))


def test_order_is_file_name_then_definition(plain_worker):
    plain_worker.write(
        "b.py",
        """
        from fastmcp.tools import tool

        @tool
        def zebra(): ...

        @tool
        async def ant(): ...
        """,
    )
    tool_file(plain_worker, "a.py", "middle")
    tool_file(plain_worker, "c.py", "alpha")
    plain_worker.start()
    assert plain_worker.tool_names() == ["middle", "zebra", "ant", "alpha"]
    assert [tool["filename"] for tool in plain_worker.ready["tools"]] == ["a.py", "b.py", "b.py", "c.py"]


def test_duplicate_names_first_file_wins_and_is_reported(plain_worker):
    tool_file(plain_worker, "b.py", "x")
    tool_file(plain_worker, "a.py", "x")
    tool_file(plain_worker, "c.py", "x")
    plain_worker.start()
    assert plain_worker.tool_names() == ["x"]
    assert plain_worker.value("x") == "a.py"
    issues = plain_worker.issues()
    assert set(issues) == {"b.py", "c.py"}
    assert {issue["code"] for issue in issues.values()} == {"duplicate_tool"}
    assert "a.py" in issues["b.py"]["message"]
    assert "line 4" in issues["b.py"]["message"]


def test_metadata_helpers_and_files_without_tools_are_silently_left_alone(plain_worker, tmp_path):
    marker = tmp_path / "executed"
    tool_file(plain_worker, "tools.py", "served")
    for filename in (
        "_helper.py",
        ".hidden.py",
        "__init__.py",
        "sub/inner.py",
        "__pycache__/x.py",
        "data.pyc",
        "x.txt",
    ):
        tool_file(plain_worker, filename, "not_served_" + str(abs(hash(filename))))
    plain_worker.write("plain.py", f"open({str(marker)!r}, 'w')\ndef helper(): ...\n")
    plain_worker.write("requirements.txt", "").write("tooldock.yaml", "").write("README.md", "").write("LICENSE", "")
    (plain_worker.tools / "folder.py").mkdir()
    plain_worker.start()
    assert plain_worker.tool_names() == ["served"]
    assert plain_worker.ready["issues"] == []
    assert not marker.exists(), "a file without tools is not even imported"


BROKEN = {
    "syntax.py": ("def broken(:\n    pass\n", "import_error", "SyntaxError", "line 1"),
    "indent.py": ("def f():\nreturn 1\n", "import_error", "IndentationError", "line 2"),
    "nul.py": ("@tool\ndef f(): ...\n\0", "import_error", "null bytes", ""),
    "raises.py": ("from fastmcp.tools import tool\n\nraise KeyError('boom')\n@tool\ndef f(): ...\n", "import_error", "KeyError: 'boom'", "raises.py line 3"),
    "absent.py": ("from fastmcp.tools import tool\nimport package_not_there\n@tool\ndef f(): ...\n", "dependency_error", "package_not_there", "absent.py line 2"),
    "exits.py": ("import sys\nfrom fastmcp.tools import tool\n@tool\ndef f(): ...\nsys.exit(0)\n", "exit_at_import", "exit(0)", "exits.py line 5"),
    "interrupt.py": ("from fastmcp.tools import tool\n@tool\ndef f(): ...\nraise KeyboardInterrupt\n", "import_error", "KeyboardInterrupt", "line 4"),
    "deep.py": ("x = " + "(" * 5000 + ")" * 5000 + "\n", "import_error", "", ""),
    "endless.py": ("from fastmcp.tools import tool\n@tool\ndef f(): ...\nwhile True:\n    try:\n        while True: pass\n    except Exception: pass\n", "import_timeout", "1 s", ""),
    "sleeps.py": ("import time\nfrom fastmcp.tools import tool\n@tool\ndef f(): ...\ntime.sleep(3600)\n", "import_timeout", "1 s", ""),
    "recursion.py": ("from fastmcp.tools import tool\n@tool\ndef f(): ...\ndef g(): g()\ng()\n", "import_error", "RecursionError", "recursion.py line 4"),
    "needs.py": ("import fastmcp\nfrom fastmcp.tools import tool\n@tool\ndef f(): ...\nfastmcp.FastMCP('x')\n", "dependency_error", "add fastmcp to requirements.txt", "needs.py line 5"),
    "uses.py": ("import _broken\nfrom fastmcp.tools import tool\n@tool\ndef f(): ...\n", "import_error", "ZeroDivisionError", "_broken.py line 2"),
}  # fmt: skip


@pytest.fixture(scope="module")
def beside_broken_files(venv, workers) -> Worker:
    worker = workers(venv)
    tool_file(worker, "hello.py", "say_hello")
    tool_file(worker, "zzz.py", "last")
    worker.write("_broken.py", "# a helper\n1 / 0\n")
    for filename, (source, *_) in BROKEN.items():
        (worker.tools / filename).write_text(source)
    return worker.start("--import-timeout", "1")


@pytest.mark.parametrize("filename", BROKEN)
def test_broken_file_is_skipped_and_reported(beside_broken_files, filename):
    _, code, what, where = BROKEN[filename]
    issue = beside_broken_files.issues()[filename]
    assert issue["code"] == code
    assert what in issue["message"]
    assert where in issue["message"]
    assert "\n" not in issue["message"]
    assert filename in beside_broken_files.log()


def test_files_beside_broken_ones_are_served(beside_broken_files):
    assert beside_broken_files.tool_names() == ["say_hello", "last"]
    assert len(beside_broken_files.ready["issues"]) == len(BROKEN)
    assert beside_broken_files.value("say_hello") == "hello.py"


def test_only_regular_files_inside_the_folder_are_read(plain_worker, tmp_path):
    (tmp_path / "outside.py").write_text(TOOL.format(name="outside", file="outside.py"))
    tool_file(plain_worker, "inside.py", "inside")
    (plain_worker.tools / "out.py").symlink_to(tmp_path / "outside.py")
    (plain_worker.tools / "dangling.py").symlink_to(tmp_path / "nothing.py")
    (plain_worker.tools / "alias.py").symlink_to("inside.py")
    os.mkfifo(plain_worker.tools / "pipe.py")
    plain_worker.start()
    assert plain_worker.tool_names() == ["inside"]
    assert plain_worker.ready["tools"][0]["filename"] == "alias.py"
    issues = plain_worker.issues()
    assert "leads out" in issues["out.py"]["message"]
    assert "leads out" in issues["dangling.py"]["message"]
    assert "not a regular file" in issues["pipe.py"]["message"]
    assert issues["inside.py"]["code"] == "duplicate_tool"


def test_siblings_import_each_other_without_sys_path(plain_worker):
    plain_worker.write("_helper.py", "import sys\ncount = 0\ndef shout(x):\n    return x.upper()\n")
    plain_worker.write("shapes/__init__.py", "from .square import area\n")
    plain_worker.write("shapes/square.py", "from .. import _helper\ndef area(a):\n    return a * a\n")
    plain_worker.write("json.py", TOOL.format(name="own_json", file="json.py"))
    plain_worker.write(
        "main.py",
        """
        import sys
        import _helper
        import json
        import shapes.square
        from _helper import shout
        from . import _helper as relative
        from .math_tools import add
        from fastmcp.tools import tool

        @tool
        def everything() -> dict:
            import math_tools
            return {
                "same": _helper is relative and math_tools.add is add,
                "shout": shout("x"),
                "area": shapes.area(3) + shapes.square.area(1),
                "json": json.dumps([1]),
                "path": sys.path,
            }
        """,
    )
    plain_worker.write(
        "math_tools.py", "from fastmcp.tools import tool\n@tool\ndef add(a: int, b: int) -> int:\n    return a + b\n"
    )
    plain_worker.start()
    assert plain_worker.ready["issues"] == []
    assert plain_worker.tool_names() == ["own_json", "everything", "add"], "an imported tool stays its file's"
    seen = plain_worker.value("everything")
    assert str(plain_worker.tools) not in seen.pop("path")
    assert seen == {"same": True, "shout": "X", "area": 10, "json": "[1]"}


def test_helper_that_is_a_link_to_the_outside_is_refused(plain_worker, tmp_path):
    (tmp_path / "secret.py").write_text("value = 1\n")
    (plain_worker.tools / "_link.py").symlink_to(tmp_path / "secret.py")
    plain_worker.write("t.py", "import _link\n" + TOOL.format(name="f", file="t.py"))
    plain_worker.start()
    assert "leads out of the tools folder" in plain_worker.issues()["t.py"]["message"]


def test_tools_made_by_a_helper_belong_to_the_file_that_makes_them(plain_worker):
    plain_worker.write(
        "_factory.py",
        """
        from fastmcp.tools import tool as mark

        def my_tool(function):
            return mark(function, title="Made")

        @mark
        def in_helper(): ...
        """,
    )
    plain_worker.write("t.py", "from _factory import my_tool\n@my_tool\ndef made(): ...\n").start()
    assert plain_worker.tool_names() == ["made"]
    assert plain_worker.tool("made")["title"] == "Made"


def test_nothing_is_written_into_the_folder(plain_worker):
    plain_worker.write("_helper.py", "x = 1\n").write("t.py", "import _helper\n" + TOOL.format(name="f", file="t.py"))
    plain_worker.start()
    assert sorted(os.listdir(plain_worker.tools)) == ["_helper.py", "t.py"]


def test_tool_file_is_executed_once_and_in_the_worker_only(plain_worker, tmp_path):
    marker = tmp_path / "pids"
    plain_worker.write(
        "t.py",
        f"import os\nopen({str(marker)!r}, 'a').write(f'{{os.getpid()}} ')\n" + TOOL.format(name="f", file="t.py"),
    )
    plain_worker.write("other.py", "import t\n" + TOOL.format(name="g", file="other.py"))
    plain_worker.start()
    assert marker.read_text().split() == [str(plain_worker.process.pid)]


def test_odd_file_names_are_served(plain_worker):
    for index, filename in enumerate(["my-tool.py", "v1.2.py", "grüße.py"]):
        tool_file(plain_worker, filename, f"tool_{index}")
    plain_worker.start()
    assert plain_worker.ready["issues"] == []
    assert sorted(plain_worker.tool_names()) == ["tool_0", "tool_1", "tool_2"]


def test_print_and_warnings_at_import_do_not_disturb_the_ready_line(plain_worker):
    plain_worker.write(
        "t.py", "import os\nprint('noise')\nos.write(1, b'noise')\n" + TOOL.format(name="f", file="t.py")
    )
    plain_worker.start()
    assert plain_worker.tool_names() == ["f"]
    assert "noise" in plain_worker.log()


def test_resources_and_prompts_are_reason_enough_to_import_a_file(plain_worker):
    plain_worker.write("r.py", "from fastmcp.resources import resource as r\n\n@r('x://r')\ndef one(): ...\n")
    plain_worker.write("p.py", "from fastmcp import prompts\n\n@prompts.prompt\ndef two(): ...\n")
    plain_worker.write("call.py", "from fastmcp.prompts import prompt\nprompt(lambda: 'x', name='three')\n")
    plain_worker.start()
    assert plain_worker.ready["issues"] == []
    assert [it["filename"] for it in plain_worker.ready["resources"]] == ["r.py"]
    assert [it["definition"]["name"] for it in plain_worker.ready["prompts"]] == ["three", "two"]


def test_one_name_may_be_a_tool_a_prompt_and_a_resource(plain_worker):
    plain_worker.write(
        "t.py",
        """
        from fastmcp.prompts import prompt
        from fastmcp.resources import resource
        from fastmcp.tools import tool

        @tool
        @prompt
        @resource("x://same")
        def same() -> str:
            return "same"

        @resource("x://same/{id}")
        def again(id): ...

        @resource("x://same/{id}", enabled=False)
        def off(id): ...
        """,
    )
    plain_worker.start()
    ready = plain_worker.ready
    assert ready["issues"] == []
    assert [len(ready[kind]) for kind in ("tools", "prompts", "resources", "resourceTemplates")] == [1, 1, 1, 1]


def test_helpers_of_the_package_are_the_same_under_every_import(plain_worker):
    plain_worker.write(
        "t.py",
        """
        import fastmcp
        import fastmcp.exceptions
        import fastmcp.server.elicitation as elicitation
        from fastmcp import prompts, resources
        from fastmcp.server import elicitation as again
        from fastmcp.tools import ToolResult, tool

        @tool
        def same() -> bool:
            return elicitation is again and fastmcp.server.elicitation is again and fastmcp.resources is resources

        @tool
        def result(error: bool = False) -> ToolResult:
            blocks = ["text", b"\\x89PNG\\r\\n\\x1a\\n", {"type": "resource", "resource": {"uri": "x:y", "text": "t"}}]
            return ToolResult(content=blocks, structured_content={"n": 1}, is_error=error)

        @tool
        def refuses():
            raise fastmcp.exceptions.ToolError("not today")
        """,
    )
    plain_worker.start()
    assert plain_worker.value("same") is True
    frame = plain_worker.call("result")
    assert frame["result"] == {"n": 1}
    assert [block["type"] for block in frame["content"]] == ["text", "image", "resource"]
    assert plain_worker.error("result", error=True)["message"] == "text"
    assert plain_worker.error("refuses") == {"code": "tool_error", "message": "not today", "details": {}}


def test_a_helper_named_like_the_runtimes_package_is_the_authors(worker):
    worker.write("app.py", "NAME = 'the author'\n")
    worker.write(
        "t.py",
        """
        import app, sys
        from app import NAME
        from fastmcp.tools import tool

        @tool
        def whose() -> str: return app.NAME
        @tool
        async def late() -> str:
            from app import NAME
            return NAME
        @tool
        def boom(): raise ValueError("x")
        """,
    ).start()
    assert worker.ready["issues"] == []
    assert worker.value("whose") == worker.value("late") == "the author"
    assert "threads.py" not in worker.error("boom")["details"]["traceback"]


def test_without_a_helper_of_that_name_there_is_none(plain_worker):
    plain_worker.write("t.py", "import app\nfrom fastmcp.tools import tool\n@tool\ndef f(): ...\n").start()
    assert plain_worker.issues()["t.py"]["message"].startswith("No module named 'app'")
