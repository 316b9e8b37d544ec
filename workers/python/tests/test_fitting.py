"""Results that do not fit their tool's output schema."""

from __future__ import annotations

import jsonschema
import pytest

TOOLS = '''
    import collections, datetime, decimal, enum, fractions, pathlib, uuid
    from collections.abc import Iterable
    from typing import Annotated, Any, Literal, Mapping, Optional, Sequence, Union

    import pydantic
    from pydantic import BaseModel, Field
    from fastmcp.tools import ToolResult, tool

    class Color(enum.Enum):
        RED = "red"

    class Level(enum.IntEnum):
        HIGH = 3

    class Model(BaseModel):
        n: int = 1

    def cycle():
        a = {}
        a["a"] = a
        return a

    def yields(*items):
        yield from items

    MOMENT = datetime.datetime(2020, 1, 2, 3, 4, 5)
    PNG = b"\\x89PNG\\r\\n\\x1a\\n" + bytes(8)
    VALUES = {
        "Any": [1, "x", None, {"a": 1}],
        "None": [None, 1, "x"],
        "str": ["x", "", MOMENT, pathlib.Path("/a"), uuid.UUID(int=5), decimal.Decimal("1.50"), Color.RED, PNG, 5, None, True, ["x"]],
        "int": [3, 2**80, 3.0, "5", True, Level.HIGH, "five", None, 1.5, PNG, [1]],
        "float": [1, 1.5, float("nan"), decimal.Decimal("1.5"), fractions.Fraction(1, 2), "x", None],
        "bool": [True, 1, "yes", "maybe"],
        "list": ["x", 1, [1, "a"]],
        "list[str]": [["a"], ("a", "b"), {"a"}, yields("a", "b"), [], "a", [1], ["a", None]],
        "list[dict]": [[{"a": 1}], [Model()], [1]],
        "dict": [{"a": 1}, {1: 2}, Model(), collections.OrderedDict(a=1), [1], None, "x", cycle()],
        "dict[str, int]": [{"a": 1}, {1: "2"}, {"a": "x"}],
        "Optional[int]": [None, 1, "x"],
        "Union[int, list[str]]": [1, ["a"], ["a", 1]],
        "Literal['a', 'b']": ["a", "c"],
        "Color": [Color.RED, "red", "green"],
        "datetime.datetime": [MOMENT, "2020-01-02", "soon", 5],
        "datetime.date": [datetime.date(2020, 1, 2), "2020-01-02", None],
        "decimal.Decimal": [decimal.Decimal("1.50"), 2, "1.5", None],
        "uuid.UUID": [uuid.UUID(int=5), 7],
        "pathlib.Path": [pathlib.Path("/a"), "/b", 7],
        "tuple[int, str]": [(1, "a"), [1, "a"], ("a", 1), (1,)],
        "set[int]": [{2, 1}, [1, 1], ["x"]],
        "Sequence[int]": [(1, 2), [1], "ab"],
        "Mapping[str, int]": [{"a": 1}, {"a": "b"}],
        "Iterable[int]": [yields(1, 2), yields(1, "x")],
        "Annotated[int, Field(ge=0)]": [1, -1],
        "Annotated[str, 'what it is']": ["x", 1],
    }

    def make(hint, value):
        async def function():
            return value
        function.__annotations__["return"] = eval(hint)
        return function

    for place, (hint, values) in enumerate(VALUES.items()):
        for index, value in enumerate(values):
            tool(name=f"t{place}_{index}")(make(hint, value))

    @tool(output_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    def given(value: dict) -> dict:
        return value

    @tool(output_schema=None)
    def unchecked() -> int:
        return "five"

    @tool
    def unfit_data() -> dict[str, int]:
        return ToolResult(content="shown", structured_content={"a": "x"})

    @tool
    def content_alone() -> int:
        return ToolResult(content="shown")

    @tool
    def sync() -> int:
        return "secret five"
'''

REFUSED = object()

SENT = {
    "Any": [1, "x", None, {"a": 1}],
    "None": [None, 1, "x"],
    "str": ["x", "", "2020-01-02T03:04:05", "/a", "00000000-0000-0000-0000-000000000005", "1.50", "red", None]
    + [REFUSED] * 4,
    "int": [3, 2**80, 3.0, 5, 1, 3, REFUSED, REFUSED, REFUSED, None, REFUSED],
    "float": [1, 1.5, None, 1.5, 0.5, REFUSED, None],
    "bool": [True, True, True, REFUSED],
    "list": ["x", 1, [1, "a"]],
    "list[str]": [["a"], ["a", "b"], ["a"], ["a", "b"], [], REFUSED, REFUSED, REFUSED],
    "list[dict]": [[{"a": 1}], [{"n": 1}], REFUSED],
    "dict": [{"a": 1}, {"1": 2}, {"n": 1}, {"a": 1}, REFUSED, REFUSED, REFUSED, "circular reference"],
    "dict[str, int]": [{"a": 1}, REFUSED, REFUSED],
    "Optional[int]": [None, 1, REFUSED],
    "Union[int, list[str]]": [1, ["a"], REFUSED],
    "Literal['a', 'b']": ["a", REFUSED],
    "Color": ["red", "red", REFUSED],
    "datetime.datetime": ["2020-01-02T03:04:05", "2020-01-02", "soon", "1970-01-01T00:00:05Z"],
    "datetime.date": ["2020-01-02", "2020-01-02", REFUSED],
    "decimal.Decimal": ["1.50", "2", "1.5", REFUSED],
    "uuid.UUID": ["00000000-0000-0000-0000-000000000005", REFUSED],
    "pathlib.Path": ["/a", "/b", REFUSED],
    "tuple[int, str]": [[1, "a"], [1, "a"], REFUSED, REFUSED],
    "set[int]": [[1, 2], [1, 1], REFUSED],
    "Sequence[int]": [[1, 2], [1], REFUSED],
    "Mapping[str, int]": [{"a": 1}, REFUSED],
    "Iterable[int]": [[1, 2], REFUSED],
    "Annotated[int, Field(ge=0)]": [1, REFUSED],
    "Annotated[str, 'what it is']": ["x", REFUSED],
}


@pytest.fixture(scope="module")
def served(venv, workers):
    worker = workers(venv).write("tools.py", TOOLS).start()
    assert worker.ready["issues"] == []
    return worker


@pytest.mark.parametrize("hint", SENT)
def test_what_fits_the_annotation_is_sent_and_what_does_not_is_an_error(served, hint):
    place = list(SENT).index(hint)
    for index, sent in enumerate(SENT[hint]):
        name = f"t{place}_{index}"
        frame = served.call(name)
        if sent is REFUSED:
            assert not frame["ok"] and frame["error"]["code"] == "output_type", (index, frame)
            assert frame["error"]["message"].startswith("the result does not fit the return annotation "), frame
        elif sent == "circular reference":
            assert sent in frame["error"]["message"]
        else:
            assert frame["ok"] and frame["result"] == sent, (index, frame)
            assert isinstance(frame["result"], bool) == isinstance(sent, bool), (index, frame)
            schema = served.tool(name).get("outputSchema")
            if schema is not None and "content" not in frame:
                structured = sent if isinstance(sent, dict) else {"result": sent}
                jsonschema.validate(structured, schema)


@pytest.mark.parametrize(
    ("tool", "message"),
    {
        "sync": "int: the result: Input should be a valid integer, unable to parse string as an integer; return what the annotation says, or change it",
        "t7_6": "list[str]: 0: Input should be a valid string; return what the annotation says, or change it",
        "t10_2": "dict[str, int]: a: Input should be a valid integer, unable to parse string as an integer; return what the annotation says, or change it",
    }.items(),
)
def test_the_error_says_where_the_result_does_not_fit_and_not_what_it_is(served, tool, message):
    error = served.error(tool)
    assert error["code"] == "output_type"
    assert error["message"] == f"the result does not fit the return annotation {message}"
    assert error["details"] == {}


def test_a_schema_of_the_authors_is_held_against_results(served):
    assert served.value("given", value={"n": 1, "more": True}) == {"n": 1, "more": True}
    for value, complaint in [({"n": "x"}, "n: must be of type integer"), ({}, "n: missing")]:
        error = served.error("given", value=value)
        assert error["code"] == "output_type"
        assert error["message"].startswith(f"the result does not fit the output schema: {complaint}; ")


def test_without_an_output_schema_nothing_is_checked(served):
    assert served.value("unchecked") == "five"


def test_the_data_of_a_tool_result_fits_and_content_alone_has_none(served):
    assert served.error("unfit_data")["code"] == "output_type"
    frame = served.call("content_alone")
    assert frame["result"] is None and frame["content"] == [{"type": "text", "text": "shown"}]


def test_a_worker_with_plain_types_refuses_without_the_python_half_of_pydantic(venv, workers):
    worker = workers(venv).write(
        "t.py",
        """
        from fastmcp.tools import tool
        import sys

        @tool
        def number() -> int: return "five"

        @tool
        def imported() -> bool: return "pydan" + "tic.main" in sys.modules
        """,
    ).start()
    assert worker.error("number")["code"] == "output_type"
    assert worker.value("imported") is False
