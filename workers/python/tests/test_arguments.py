"""The check before the call: WRK-11, EX-52."""

from __future__ import annotations

import pytest

from harness import Worker

TOOLS = '''
    import datetime, enum, uuid
    from typing import Annotated, Literal
    from pydantic import AfterValidator, BaseModel, Field
    from fastmcp.tools import tool

    class Color(enum.Enum):
        RED = "red"

    class Point(BaseModel):
        x: int

    @tool
    def add(a: float, b: float) -> float:
        """Add two numbers together."""
        return a + b

    @tool
    async def kinds(
        color: Color = Color.RED, point: Point | None = None, when: datetime.date | None = None,
        ids: set[int] = frozenset(), key: uuid.UUID | None = None, data: bytes = b"",
    ) -> list[str]:
        return [type(item).__name__ for item in (color, point, when, ids, key, data)]

    @tool
    def defaults(a: list = [], b: int = Field(default=7), c: list = Field(default_factory=list)) -> list:
        a.append(1)
        return [a, b, c]

    @tool
    def limited(n: Annotated[int, Field(ge=1, le=3)], choice: Literal["a", "b"] = "a") -> int:
        return n

    def explode(value):
        raise RuntimeError("validator broke")

    @tool
    def odd(value: Annotated[int, AfterValidator(explode)]) -> int: ...

    @tool
    def aliased(value: int = Field(alias="the-value")) -> int:
        return value

    @tool
    def items(values: list[int]) -> int:
        return len(values)

    @tool
    def nothing() -> str:
        return "called"
'''


@pytest.fixture(scope="module")
def served(venv, workers) -> Worker:
    return workers(venv).write("t.py", TOOLS).start()


def test_valid_arguments_reach_the_tool(served):
    assert served.value("add", a=2, b=3.5) == 5.5
    kinds = served.value(
        "kinds",
        color="red",
        point={"x": 1},
        when="2020-01-02",
        ids=[1, 1],
        key="12345678-1234-5678-1234-567812345678",
        data="text",
    )
    assert kinds == ["Color", "Point", "date", "set", "UUID", "bytes"]


def test_missing_argument_is_refused(served):
    error = served.error("add", a=1)
    assert error["code"] == "invalid_arguments"
    assert error["details"]["errors"] == [{"loc": ["b"], "msg": "Field required", "type": "missing"}]
    assert error["message"] == "b: Field required"


def test_wrong_type_is_refused_without_repeating_the_value(served):
    frame = served.call("add", a="hunter2", b=2)
    assert frame["error"]["code"] == "invalid_arguments"
    assert frame["error"]["details"]["errors"][0]["loc"] == ["a"]
    assert "hunter2" not in str(frame)


def test_surplus_arguments_are_refused(served):
    error = served.error("nothing", extra=1)
    assert (error["code"], error["details"]["errors"][0]["loc"]) == ("invalid_arguments", ["extra"])


def test_constraints_are_checked(served):
    assert served.error("limited", n=9)["code"] == "invalid_arguments"
    assert served.error("limited", n=1, choice="c")["code"] == "invalid_arguments"
    assert served.value("limited", n=3, choice="b") == 3


@pytest.mark.parametrize("arguments", ["[]", "null", '"x"', "1", "[[1]]"])
def test_arguments_that_are_no_object_are_refused(served, arguments):
    client = served.connect()
    client.send_raw(f'{{"id":1,"op":"tools.call","tool":"nothing","arguments":{arguments}}}\n'.encode())
    assert client.receive()["error"]["code"] == "invalid_arguments"


def test_the_functions_own_defaults_hold(served):
    assert served.value("defaults") == [[1], 7, []]
    assert served.value("defaults") == [[1], 7, []], "what a call changes is a copy, as in FastMCP"
    assert served.value("defaults", b=1, c=[2]) == [[1], 1, [2]]


def test_alias_is_the_name_outside(served):
    assert served.value("aliased", **{"the-value": 3}) == 3
    assert served.error("aliased", value=3)["code"] == "invalid_arguments"


def test_validator_that_breaks_is_the_tools_fault(served):
    error = served.error("odd", value=1)
    assert error["code"] == "internal_error"
    assert "validator broke" in error["message"]


def test_complaints_are_bounded(served):
    error = served.error("items", values=["x"] * 5000)
    assert len(error["details"]["errors"]) == 100
    assert "and 4997 more" in error["message"]


LIKE_FASTMCP = """
    import dataclasses, enum
    from typing import Annotated, Any
    from pydantic import BaseModel, Field
    from typing_extensions import TypedDict
    from fastmcp.tools import tool

    @dataclasses.dataclass
    class Pair:
        left: int
    class Options(TypedDict):
        depth: int

    @tool
    def open_types(pair: Pair, options: Options) -> list[Any]: return [pair, options]

    @tool
    def first(a: int | str = 1): ...
    @tool
    def second(a: str | int = 1): ...

    @tool
    def required(a: Any = ...) -> Any: return a
    @tool
    def own_default(a: Annotated[int, Field(default=3)] = 4) -> int: return a
    @tool
    def renamed(a: Annotated[int, Field(alias="other")] = 4) -> int: return a
    @tool
    def raw(data: bytes = b"raw", no_text: bytes = b"\\xff", no_json: Annotated[Any, Field(title="T")] = object()): ...
    """


@pytest.fixture(scope="module")
def like_fastmcp(plain_venv, workers):
    worker = workers(plain_venv).write("t.py", LIKE_FASTMCP).start()
    assert worker.ready["issues"] == []
    return worker


def test_dataclasses_and_typed_dicts_take_what_pydantic_lets_them_take(like_fastmcp):
    given = {"pair": {"left": 1, "more": 2}, "options": {"depth": 1, "more": 2}}
    assert like_fastmcp.value("open_types", **given) == [{"left": 1}, {"depth": 1}]
    for schema in like_fastmcp.tool("open_types")["inputSchema"]["properties"].values():
        assert "additionalProperties" not in schema
    assert like_fastmcp.error("open_types", **given, more=1)["code"] == "invalid_arguments"


def test_a_union_keeps_its_order_whatever_was_declared_before(like_fastmcp):
    def types(name: str) -> list[str]:
        return [it["type"] for it in like_fastmcp.tool(name)["inputSchema"]["properties"]["a"]["anyOf"]]

    assert (types("first"), types("second")) == (["integer", "string"], ["string", "integer"])


def test_an_ellipsis_as_default_means_required(like_fastmcp):
    assert like_fastmcp.tool("required")["inputSchema"]["required"] == ["a"]
    assert like_fastmcp.error("required")["code"] == "invalid_arguments"


def test_the_signatures_default_goes_before_one_in_annotated(like_fastmcp):
    assert like_fastmcp.tool("own_default")["inputSchema"]["properties"]["a"]["default"] == 4
    assert like_fastmcp.value("own_default") == 4


def test_a_default_is_shown_under_an_alias(like_fastmcp):
    assert like_fastmcp.tool("renamed")["inputSchema"]["properties"] == {"other": {"type": "integer", "default": 4}}
    assert (like_fastmcp.value("renamed"), like_fastmcp.value("renamed", other=5)) == (4, 5)


def test_a_default_of_bytes_is_shown_as_it_would_be_given(like_fastmcp):
    properties = like_fastmcp.tool("raw")["inputSchema"]["properties"]
    assert properties["data"]["default"] == "raw"
    assert "default" not in properties["no_text"]
    assert properties["no_json"] == {"title": "T"}
    assert "Warning" not in like_fastmcp.log()
