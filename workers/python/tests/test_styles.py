"""The three ways in which a file may hold tools: decorators, `register_tools(registry)`, one function per file."""

from __future__ import annotations

CONTRACT = '''
from pydantic import BaseModel, ConfigDict, Field
from app.registry import ToolDefinition, ToolRegistry


class AddInput(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = Field(description="First number")
    b: int = Field(description="Second number")


class Loose(BaseModel):
    a: int = 1


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 1


async def handle(payload: AddInput) -> int:
    return payload.a + payload.b


def handle_loose(payload: Loose) -> str:
    """From the handler."""
    return f"{type(payload).__name__} {payload.a} {isinstance(payload, Loose)}"


def handle_open(payload: Open) -> dict:
    return payload.model_dump()


def register_tools(registry: ToolRegistry) -> None:
    registry.register(ToolDefinition(name="add_numbers", description="Adds two numbers.", input_model=AddInput, handler=handle))
    registry.register(ToolDefinition("loose", "", Loose, handle_loose))
    registry.register(ToolDefinition("open", "Takes more.", Open, handle_open))
'''

DECORATED = '''
from fastmcp.tools import tool

@tool
def decorated(n: int) -> int:
    """Decorated."""
    return n
'''

WORD_COUNT = '''
def word_count(text: str) -> int:
    """Count words in a text."""
    return len(text.split())
'''


def files(worker):
    return {file["file"]: file for file in worker.ready["files"]}


def test_a_contract_is_a_tool_that_its_model_validates(plain_worker):
    plain_worker.write("v1.py", CONTRACT).start()
    tools = {tool["name"]: tool for tool in plain_worker.ready["tools"]}
    assert list(tools) == ["add_numbers", "loose", "open"]
    schema = tools["add_numbers"]["inputSchema"]
    assert schema["properties"]["a"] == {"type": "integer", "description": "First number"}
    assert schema["required"] == ["a", "b"]
    assert schema["additionalProperties"] is False
    assert tools["add_numbers"]["description"] == "Adds two numbers."
    assert tools["loose"]["description"] == "From the handler."
    assert plain_worker.value("add_numbers", a=1, b=2) == 3
    for tool, arguments in (("add_numbers", {"a": 1, "b": 2, "c": 3}), ("add_numbers", {"a": 1}), ("loose", {"c": 3})):
        assert plain_worker.error(tool, **arguments)["code"] == "invalid_arguments"
    assert plain_worker.value("loose") == "Loose 1 True"
    assert plain_worker.value("open", c=3) == {"a": 1, "c": 3}
    assert files(plain_worker) == {"v1.py": {"file": "v1.py", "takenFor": "register_tools", "tools": 3}}


def test_all_styles_live_in_one_folder_and_each_file_says_what_it_is(plain_worker):
    plain_worker.write("a.py", DECORATED).write("b.py", CONTRACT).write("word_count.py", WORD_COUNT)
    plain_worker.write("helpers.py", "def shorten(text): ...\n").write("broken.py", "def (:\n")
    plain_worker.start("--style", "vault")
    assert plain_worker.tool_names() == ["decorated", "add_numbers", "loose", "open", "word_count"]
    assert plain_worker.value("word_count", text="Hello world") == 2
    tool = next(it for it in plain_worker.ready["tools"] if it["name"] == "word_count")
    assert tool["description"] == "Count words in a text."
    assert tool["inputSchema"]["properties"] == {"text": {"type": "string"}}
    taken = {name: file["takenFor"] for name, file in files(plain_worker).items()}
    assert taken == {
        "a.py": "decorators",
        "b.py": "register_tools",
        "broken.py": "skipped",
        "helpers.py": "skipped",
        "word_count.py": "function",
    }
    assert "helpers" in files(plain_worker)["helpers.py"]["reason"]
    assert "line 1" in files(plain_worker)["broken.py"]["reason"]


def test_a_file_may_decorate_and_register(plain_worker):
    plain_worker.write("both.py", DECORATED + CONTRACT).start()
    assert plain_worker.tool_names() == ["decorated", "add_numbers", "loose", "open"]
    assert plain_worker.value("decorated", n=7) == 7
    assert plain_worker.value("add_numbers", a=1, b=2) == 3
    assert plain_worker.ready["issues"] == []
    taken = {"file": "both.py", "takenFor": "decorators+register_tools", "tools": 4}
    assert files(plain_worker) == {"both.py": taken}


def test_a_name_that_a_file_decorates_and_registers_belongs_to_the_decorated_function(plain_worker):
    plain_worker.write("both.py", DECORATED.replace("decorated", "loose") + CONTRACT).start()
    assert plain_worker.tool_names() == ["loose", "add_numbers", "open"]
    assert plain_worker.value("loose", n=7) == 7
    [issue] = plain_worker.ready["issues"]
    assert (issue["code"], issue["subject"]) == ("duplicate_tool", "both.py")
    assert files(plain_worker)["both.py"]["tools"] == 3


def test_a_register_tools_that_raises_leaves_the_decorated_functions_of_its_file(plain_worker):
    raising = "from app.registry import ToolDefinition\n\ndef register_tools(registry):\n    raise ValueError('no database')\n"
    plain_worker.write("both.py", DECORATED + raising).start()
    assert plain_worker.tool_names() == ["decorated"]
    [issue] = plain_worker.ready["issues"]
    assert issue["message"].startswith("register_tools raised ValueError: no database (both.py line ")
    file = files(plain_worker)["both.py"]
    assert (file["takenFor"], file["tools"], file["reason"]) == ("decorators", 1, issue["message"])


def test_a_register_tools_that_takes_too_long_leaves_the_decorated_functions_of_its_file(plain_worker):
    slow = "from app.registry import ToolDefinition\n\ndef register_tools(registry):\n    while True: pass\n"
    plain_worker.write("both.py", DECORATED + slow).start("--import-timeout", "0.5")
    assert plain_worker.tool_names() == ["decorated"]
    assert files(plain_worker)["both.py"]["reason"] == "register_tools took longer than 0.5 s"


def test_a_register_tools_for_something_else_is_not_called_and_the_file_says_so(plain_worker, tmp_path):
    marker = tmp_path / "called"
    other = f"\ndef register_tools(mcp):\n    open({str(marker)!r}, 'w')\n"
    plain_worker.write("other.py", DECORATED + other)
    plain_worker.write("named.py", DECORATED.replace("decorated", "register_tools")).start()
    assert plain_worker.tool_names() == ["register_tools", "decorated"]
    assert not marker.exists()
    assert plain_worker.ready["issues"] == []
    file = files(plain_worker)["other.py"]
    assert (file["takenFor"], file["tools"]) == ("decorators", 1)
    assert file["reason"].startswith("register_tools was not called, since the file decorates tools")
    assert "reason" not in files(plain_worker)["named.py"]


def test_a_function_is_a_tool_by_its_name_only_where_the_folder_says_so(plain_worker, tmp_path):
    marker = tmp_path / "executed"
    plain_worker.write("word_count.py", f"open({str(marker)!r}, 'w')\n" + WORD_COUNT).start()
    assert plain_worker.tool_names() == []
    assert plain_worker.ready["issues"] == []
    assert files(plain_worker)["word_count.py"]["takenFor"] == "skipped"
    assert not marker.exists()


def test_what_cannot_be_served_says_why_in_one_line_and_the_rest_serves(plain_worker):
    plain_worker.write("good.py", "def good(n: int) -> int:\n    return n\n")
    plain_worker.write("bare.py", "def bare(text, n: int):\n    return text\n")
    plain_worker.write("raising.py", "def register_tools(registry):\n    raise ValueError('no database')\n")
    plain_worker.write("missing.py", "def register_tools(registry):\n    import not_there_at_all\n")
    plain_worker.write(
        "wrong.py",
        """
        from app.registry import ToolDefinition

        def register_tools(registry):
            registry.register(ToolDefinition("no_model", "", dict, print))
            registry.register(ToolDefinition("Bad name!", "", dict, print))
        """,
    )
    plain_worker.write("odd.py", "def register_tools(registry):\n    registry.register('x')\n")
    plain_worker.start("--style", "vault")
    assert plain_worker.tool_names() == ["good"]
    issues = {}
    for issue in plain_worker.ready["issues"]:
        issues.setdefault(issue["subject"], []).append((issue["code"], issue["message"]))
    assert set(issues) == {"bare.py", "raising.py", "missing.py", "wrong.py", "odd.py"}
    [(code, message)] = issues["raising.py"]
    assert code == "import_error"
    assert message == "register_tools raised ValueError: no database (raising.py line 2)"
    assert issues["missing.py"][0][0] == "dependency_error"
    [(code, message)] = issues["bare.py"]
    assert code == "invalid_tool" and message.startswith("no annotation for text:") and "line 1" in message
    assert [code for code, _ in issues["wrong.py"]] == ["invalid_tool", "invalid_tool"]
    assert "pydantic model" in issues["wrong.py"][0][1]
    assert "ToolDefinition" in issues["odd.py"][0][1]
    assert all("\n" not in message for found in issues.values() for _, message in found)
    assert files(plain_worker)["raising.py"]["takenFor"] == "skipped"
