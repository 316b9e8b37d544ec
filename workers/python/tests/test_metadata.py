"""What is announced of a tool: names, texts, schemas: DRP-10, EX-03, EX-22, Q-41."""

from __future__ import annotations

import pytest

from harness import Worker

SOURCE = '''
    from __future__ import annotations
    import dataclasses, datetime, decimal, enum, functools, pathlib, typing, uuid
    from typing import Annotated, Any, Literal, Optional, Union
    from pydantic import BaseModel, Field
    from typing_extensions import NotRequired, TypedDict
    from fastmcp import Context
    from fastmcp.tools import tool

    if typing.TYPE_CHECKING:
        from nowhere import Unknown

    class Color(enum.Enum):
        RED = "red"
        BLUE = "blue"

    class Point(BaseModel):
        x: int
        y: int = 0

    @dataclasses.dataclass
    class Box:
        width: float

    class Options(TypedDict):
        deep: bool
        note: NotRequired[str]

    class Tree(BaseModel):
        children: list[Tree] = []

    @tool
    async def list_issues(owner: str, repo: str, state: str = "open") -> list[dict]:
        """List GitHub issues for a repository."""

    @tool()
    def bare_call(): ...

    @tool("renamed")
    def original(): ...

    @tool(
        name="full", title="A Title", description="Given.", tags={"a"}, meta={"version": 1}, timeout=3,
        annotations={"readOnlyHint": True}, output_schema={"type": "object", "properties": {"n": {"type": "integer"}}},
    )
    def whatever() -> str:
        """Not this."""

    @tool(enabled=False)
    def disabled(): ...

    @tool(annotations={"title": "From Annotations"})
    def annotated_title(): ...

    @tool
    def types(
        color: Color,
        point: Point,
        box: Box,
        options: Options,
        choice: Literal["a", "b"],
        maybe: Optional[int],
        limit: Annotated[int, Field(ge=1, le=10, description="How many.")] = 5,
        name: str = Field(default="n", description="A name."),
        needed: str = Field(description="Needed."),
        short: Annotated[str, "Short form."] = "s",
        anything=None,
        _under: int = 1,
        copy: bool = False,
        model_config: int = 0,
        when: datetime.date = datetime.date(2020, 1, 2),
        no_json: Any = object(),
        tint: Color = Color.RED,
    ): ...

    @tool
    def with_context(a: int, ctx: Context) -> int: ...

    @tool
    def with_optional_context(a: int, my_ctx: Context | None = None) -> int: ...

    @tool
    def unknown_return() -> Unknown:
        """Only the type checker knows what it returns."""

    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)
        return wrapper

    @tool
    @logged
    def wrapped(a: int = 1) -> int:
        return a

    # What return annotations imply.
    @tool
    def returns_nothing_said(): ...
    @tool
    def returns_none() -> None: ...
    @tool
    def returns_any() -> Any: ...
    @tool
    def returns_str() -> str: ...
    @tool
    def returns_optional() -> str | None: ...
    @tool
    def returns_list() -> list[Point]: ...
    @tool
    def returns_model() -> Point: ...
    @tool
    def returns_tree() -> Tree: ...
    @tool
    def returns_either() -> Point | str: ...
    @tool
    def returns_two_models() -> Point | Tree: ...
    @tool
    def returns_dict() -> dict[str, int]: ...
    @tool
    def returns_dataclass() -> Box: ...
    @tool
    def returns_typeddict() -> Options: ...
    @tool
    def returns_enum() -> Color: ...
    @tool
    def returns_bytes() -> bytes: ...
    @tool
    def returns_bytes_list() -> list[bytes]: ...
    @tool
    def returns_own_class() -> Plain: ...
    @tool
    def returns_decimal() -> decimal.Decimal: ...
    @tool(output_schema=None)
    def wants_none() -> str: ...

    class Plain: ...
'''


@pytest.fixture(scope="module")
def served(plain_venv, workers) -> Worker:
    worker = workers(plain_venv).write("t.py", SOURCE).start()
    assert worker.ready["issues"] == []
    return worker


def test_list_issues_is_announced_as_agreed(served):
    assert served.tool("list_issues") == {
        "name": "list_issues",
        "title": "List Issues",
        "description": "List GitHub issues for a repository.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "owner": {"type": "string"},
                "repo": {"type": "string"},
                "state": {"type": "string", "default": "open"},
            },
            "required": ["owner", "repo"],
            "additionalProperties": False,
        },
        "outputSchema": {
            "type": "object",
            "properties": {
                "result": {"type": "array", "items": {"type": "object", "additionalProperties": True}},
            },
            "required": ["result"],
            "x-fastmcp-wrap-result": True,
        },
        "filename": "t.py",
    }


def test_forms_of_the_decorator(served):
    names = served.tool_names()
    assert "bare_call" in names and "renamed" in names and "full" in names
    assert "original" not in names and "disabled" not in names
    full = served.tool("full")
    assert (full["title"], full["description"]) == ("A Title", "Given.")
    assert full["annotations"] == {"readOnlyHint": True}
    assert full["_meta"] == {"version": 1, "fastmcp": {"tags": ["a"]}}
    assert full["outputSchema"] == {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
    }
    assert served.tool("annotated_title")["title"] == "From Annotations"
    assert served.tool("bare_call")["inputSchema"] == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


def test_types_become_json_schema(served):
    schema = served.tool("types")["inputSchema"]
    properties = schema["properties"]
    assert "$defs" not in schema and "$ref" not in str(schema)
    assert schema["required"] == ["color", "point", "box", "options", "choice", "maybe", "needed"]
    assert properties["color"] == {"enum": ["red", "blue"], "type": "string"}
    assert properties["point"]["required"] == ["x"]
    assert properties["box"]["properties"] == {"width": {"type": "number"}}
    assert properties["options"]["required"] == ["deep"]
    assert properties["choice"]["enum"] == ["a", "b"]
    assert properties["maybe"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert properties["limit"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 10,
        "description": "How many.",
        "default": 5,
    }
    assert properties["name"] == {"type": "string", "default": "n", "description": "A name."}
    assert properties["needed"] == {"type": "string", "description": "Needed."}
    assert properties["short"] == {"type": "string", "description": "Short form.", "default": "s"}
    assert properties["anything"] == {"default": None}
    assert properties["_under"]["default"] == 1
    assert properties["copy"]["default"] is False
    assert properties["model_config"]["default"] == 0
    assert properties["when"]["default"] == "2020-01-02"
    assert properties["no_json"] == {}
    assert properties["tint"]["default"] == "red"


def test_context_is_not_in_the_schema(served):
    assert list(served.tool("with_context")["inputSchema"]["properties"]) == ["a"]
    assert list(served.tool("with_optional_context")["inputSchema"]["properties"]) == ["a"]


def test_wrapped_functions_keep_their_signature(served):
    assert served.tool("wrapped")["inputSchema"]["properties"] == {"a": {"type": "integer", "default": 1}}
    assert served.value("wrapped", a=4) == 4


def output(served: Worker, name: str):
    return served.tool(name).get("outputSchema")


@pytest.mark.parametrize(
    "name",
    "nothing_said none any either bytes bytes_list own_class".split(),
)
def test_uncertain_results_have_no_output_schema(served, name):
    assert output(served, f"returns_{name}") is None
    assert output(served, "wants_none") is None
    assert output(served, "unknown_return") is None


@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("str", {"type": "string"}),
        ("optional", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ("enum", {"enum": ["red", "blue"], "type": "string"}),
    ],
)
def test_results_that_are_never_objects_are_wrapped(served, name, inner):
    found = output(served, f"returns_{name}")
    assert found["x-fastmcp-wrap-result"] is True
    assert found["required"] == ["result"] and list(found["properties"]) == ["result"]
    assert found["properties"]["result"] == inner


def test_a_wrapped_schema_needs_no_definitions(served):
    found = output(served, "returns_list")
    assert found["properties"]["result"]["items"]["required"] == ["x"]
    assert "$defs" not in found
    assert output(served, "returns_decimal")["properties"]["result"]["type"] == "string"


@pytest.mark.parametrize("name", "model tree two_models dict dataclass typeddict".split())
def test_results_that_are_always_objects_are_described_as_they_are(served, name):
    found = output(served, f"returns_{name}")
    assert found["type"] == "object"
    assert "x-fastmcp-wrap-result" not in found


INVALID = {
    "@tool\ndef star(*values: int): ...": "*values",
    "@tool\ndef stars(**values: int): ...": "**values",
    "@tool\ndef positional(a: int, /): ...": "positional-only",
    "@tool\ndef opaque(a: Opaque): ...": "no schema for the parameters",
    "@tool\ndef unresolved(a: 'Nowhere'): ...": "Nowhere",
    "@tool('has space')\ndef spaced(): ...": "tool name",
    "@tool('')\ndef empty(): ...": None,
    "@tool\ndef grüße(): ...": "tool name",
    "@tool(colour='red')\ndef keyword(): ...": "colour",
    "@tool(output_schema={'type': 'array'})\ndef schema(): ...": "type object",
    "@tool(title=3)\ndef title(): ...": "title",
    "@tool(meta={'x': Opaque()})\ndef meta(): ...": "Opaque",
    "@tool\nclass Class: ...": "only functions",
    "tool(lambda: 1)": "a lambda has no name of its own",
    "@tool\ndef two(a: Context, b: Context): ...": "context",
    "import functools\ntool(functools.partial(max, 1))": "no signature found",
}


def test_what_cannot_be_a_tool_is_reported_and_its_neighbours_are_served(plain_worker):
    head = "from fastmcp import Context\nfrom fastmcp.tools import tool\nclass Opaque: ...\n"
    for index, source in enumerate(INVALID):
        plain_worker.write(f"t{index:02}.py", f"{head}{source}\n@tool\ndef fine_{index}(): ...\n")
    plain_worker.start()
    issues = plain_worker.issues()
    for index, (source, message) in enumerate(INVALID.items()):
        filename = f"t{index:02}.py"
        assert f"fine_{index}" in plain_worker.tool_names(), source
        if message is not None:
            assert issues[filename]["code"] == "invalid_tool", source
            assert message in issues[filename]["message"], source
            assert "\n" not in issues[filename]["message"]


def test_icons_and_context_are_announced(plain_worker):
    plain_worker.write(
        "t.py",
        """
        from fastmcp import Context
        from fastmcp.tools import tool

        @tool(icons=[{"src": "data:,", "mimeType": "image/png"}])
        def shown(ctx: Context): ...

        @tool
        def silent(): ...

        @tool(icons=["data:,"])
        def wrong(): ...
        """,
    ).start()
    assert plain_worker.tool("shown")["icons"] == [{"src": "data:,", "mimeType": "image/png"}]
    assert plain_worker.tool("shown")["context"] is True
    assert "context" not in plain_worker.tool("silent")
    assert "an icon is" in plain_worker.issues()["t.py"]["message"]
