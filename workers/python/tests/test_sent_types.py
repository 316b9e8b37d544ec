"""Whatever a tool returns, as its annotation says, fits the output schema that was published, in the eyes of both official
SDKs: the Python one validates with jsonschema, the TypeScript one with ajv, which checks formats, too."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import json
import pathlib
import re
import uuid
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import jsonschema
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typing_extensions import NotRequired, TypedDict

import typescript
from app import output_schema

_OFFSET = r"(?:z|[+-]\d\d(?::?\d\d)?)"
FORMATS = {  # as ajv-formats reads them
    "date": r"\d{4}-\d\d-\d\d",
    "time": rf"\d\d:\d\d:\d\d(?:\.\d+)?{_OFFSET}",
    "date-time": rf"\d{{4}}-\d\d-\d\d[t ]\d\d:\d\d:\d\d(?:\.\d+)?{_OFFSET}",
    "duration": r"P(?!$)((\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?|(\d+W)?)",
    "uuid": r"(?:urn:uuid:)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}",
    "ipv4": r"\d{1,3}(\.\d{1,3}){3}",
}
"""No other format may be in a schema of ours: nobody would have looked whether it holds."""

CHECKER = jsonschema.FormatChecker(formats=())
for _name, _pattern in FORMATS.items():
    CHECKER.checks(_name)(lambda value, it=re.compile(_pattern, re.I): not isinstance(value, str) or it.fullmatch(value))


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Mixed(enum.Enum):
    TEXT = "a"
    NUMBER = 1
    PAIR = (1, "x")


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: float
    y: int


@dataclasses.dataclass
class Box:
    width: float
    made: dt.datetime
    tags: set[str] = dataclasses.field(default_factory=set)


class Options(TypedDict):
    price: decimal.Decimal
    note: NotRequired[str]


class Inner(pydantic.BaseModel):
    at: dt.time
    lasts: dt.timedelta
    color: Color


class Outer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    id: uuid.UUID
    score: float | None = None
    finite: pydantic.FiniteFloat = 0.0
    inner: Inner
    others: dict[int, Inner] = {}
    user_name: str = pydantic.Field("n", alias="userName")

    @pydantic.field_serializer("score")
    def _seen(self, value):
        return {"seen": value}

    @pydantic.computed_field
    @property
    def doubled(self) -> float:
        return self.finite * 2


Renamed = Annotated[int, pydantic.PlainSerializer(str, return_type=str)]

texts = st.text(max_size=8)
floats = st.floats()
datetimes = st.datetimes() | st.datetimes(timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=-5, minutes=-30))]))
times = st.times() | st.times(timezones=st.just(dt.UTC))
spans = st.timedeltas()
decimals = st.decimals(allow_nan=True, allow_infinity=True)
inners = st.builds(Inner, at=times, lasts=spans, color=st.sampled_from(Color))
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, texts), (int, st.integers()), (float, floats), (bool, st.booleans()), (list, st.lists(floats)),
    (dict, st.dictionaries(texts, floats)), (dt.datetime, datetimes), (dt.date, st.dates()), (dt.time, times),
    (dt.timedelta, spans), (decimal.Decimal, decimals), (uuid.UUID, st.uuids()), (pathlib.Path, st.builds(pathlib.Path, texts)),
    (ipaddress.IPv4Address, st.ip_addresses(v=4)), (ipaddress.IPv6Address, st.ip_addresses(v=6)),
    (Color, st.sampled_from(Color)), (Number, st.sampled_from(Number)), (Mixed, st.sampled_from(Mixed)),
    (Rights, st.integers(0, 3).map(Rights)), (Literal["a", 1], st.sampled_from(["a", 1])),
    (Point, st.builds(Point, floats, st.integers())), (tuple[int, str], st.tuples(st.integers(), texts)),
    (frozenset[int], st.frozensets(st.integers())), (set[float], st.sets(floats)), (tuple[float, ...], st.lists(floats).map(tuple)),
    (Box, st.builds(Box, floats, datetimes, st.sets(texts))), (Inner, inners),
    (Options, st.fixed_dictionaries({"price": st.decimals(allow_nan=False, allow_infinity=False)}, optional={"note": texts})),
    (Outer, st.builds(Outer, id=st.uuids(), score=st.none() | floats, finite=st.floats(allow_nan=False, allow_infinity=False, width=16), inner=inners, others=st.dictionaries(st.integers(), inners, max_size=2))),
    (pydantic.AnyUrl, st.sampled_from(["https://example.com/a|b", "mailto:é@example.com", "x://[::1]/"]).map(pydantic.AnyUrl)),
    (pydantic.SecretStr, st.builds(pydantic.SecretStr, texts)), (pydantic.AwareDatetime, datetimes.filter(lambda it: it.tzinfo)),
    (Annotated[float, pydantic.Field(ge=0)], st.floats(min_value=0)),
    (dict[Color, int], st.dictionaries(st.sampled_from(Color), st.integers())),
    (dict[Number, int], st.dictionaries(st.sampled_from(Number), st.integers())),
    (dict[dt.date, float], st.dictionaries(st.dates(), floats)), (dict[decimal.Decimal, int], st.dictionaries(st.decimals(allow_nan=False), st.integers())),
    (Renamed, st.integers()),
    (Annotated[str, pydantic.Field(pattern=r"(?i)^(?P<word>[a-z]+)\z")], st.sampled_from(["a", "BC"])),
    (dict[Annotated[str, pydantic.Field(pattern=r"\A(?i:key)")], int], st.dictionaries(st.sampled_from(["key", "KEYS"]), st.integers())),
    (Annotated[float, pydantic.Field(multiple_of=0.1)], st.sampled_from([0.1, 0.3, 0.7])),
    (Annotated[int, pydantic.Field(ge=-3, lt=9)], st.integers(-3, 8)),
    (Annotated[list[int], pydantic.Field(max_length=2)], st.lists(st.integers(), max_size=2)),
]


def _around(leaf: tuple[Any, st.SearchStrategy[Any]]):
    hint, values = leaf
    yield hint, values
    yield list[hint], st.lists(values, max_size=3)
    yield dict[str, hint], st.dictionaries(texts, values, max_size=3)
    yield Optional[hint], st.none() | values
    yield Union[hint, list[hint]], values | st.lists(values, max_size=2)


CASES = [case for leaf in LEAVES for case in _around(leaf)]


def _wrong_in_python(schema: dict[str, Any], value: Any) -> dict[str, str]:
    """What the Python SDK's validator says, made stricter: it would not look at formats."""
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(schema, format_checker=CHECKER).iter_errors(value)
    )
    return {"python": error.message} if error else {}


@pytest.fixture(scope="module", params=["python", "typescript"])
def wrong(request):
    """What a client of this SDK has against a result, given the schema it was announced with."""
    if request.param == "python":
        yield _wrong_in_python
        return
    validators = typescript.start()
    yield validators.wrong
    validators.stop()


@pytest.mark.parametrize(
    ("format", "value"), [("date-time", "2026-01-02T03:04:05"), ("time", "03:04:05"), ("duration", "1 day"), ("uuid", "7")]
)
def test_the_validators_check_formats(wrong, format, value):
    schema = {"type": "object", "properties": {"result": {"type": "string", "format": format}}}
    assert wrong(schema, {"result": value})


@pytest.mark.parametrize(("hint", "values"), CASES, ids=[str(hint) for hint, _ in CASES])
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_results_fit_the_schema_they_were_announced_with(wrong, hint, values, data):
    schema = output_schema.output_schema_of({"return": hint})
    assert schema is None or schema["type"] == "object"
    if schema is None:
        return  # one that depends on the value
    assert set(_formats(schema)) <= set(FORMATS)
    result, content = output_schema.encoder_of({"return": hint}, schema)(data.draw(values))
    value = json.loads(result)
    assert content is None
    sent = value if isinstance(value, dict) else {"result": value}  # as the gateway does
    assert wrong(schema, sent) == {}


def _formats(schema: Any):
    if isinstance(schema, dict):
        if isinstance(schema.get("format"), str):
            yield schema["format"]
        for item in schema.values():
            yield from _formats(item)
    elif isinstance(schema, list):
        for item in schema:
            yield from _formats(item)


@pytest.mark.parametrize(
    "hint", [hint for hint, _ in LEAVES if hint not in (Mixed, Outer, list)], ids=str
)
def test_most_types_have_a_schema(hint):
    assert output_schema.output_schema_of({"return": hint}) is not None


MODELS = '''
    import dataclasses
    from dataclasses import dataclass
    from pydantic import BaseModel, Field
    from typing_extensions import TypedDict
    from fastmcp.tools import tool, ToolResult

    class Public(BaseModel):
        name: str
        born: int = Field(0, alias="bornIn")

    class Row(Public):
        password: str = "hunter2"

    @dataclass
    class Shape:
        sides: int
        raw: bytes = b""

    @dataclass
    class Secret(Shape):
        password: str = "hunter2"

    class Part(TypedDict):
        name: str

    ROW = {"name": "Ada", "password": "hunter2"}

    @tool
    def subclass() -> Public: return Row(name="Ada")
    @tool
    def dictionary() -> Public: return ROW
    @tool
    def rows() -> list[Public]: return [Row(name="Ada"), ROW]
    @tool
    def by_key() -> dict[str, Public | None]: return {"a": ROW, "b": None}
    @tool(output_schema=None)
    def without_schema() -> Public: return Row(name="Ada")
    @tool
    async def later() -> Public: return Row(name="Ada")
    @tool
    def shape() -> Shape: return Secret(3)
    @tool
    def bytes_in_it() -> Shape: return Shape(3, b"\\xff")
    @tool
    def part() -> Part: return ROW
    @tool
    def object_with_attributes() -> Public: return type("Orm", (), ROW)()
    @tool
    def unfit() -> Public: return {"password": "hunter2"}
    @tool
    def nothing() -> Public: return None
    @tool
    def said_by_hand() -> Public: return ToolResult(content="shown", structured_content={"any": 1})
    @tool
    def without_annotation(): return Row(name="Ada")
'''


@pytest.fixture(scope="module")
def served(venv, workers):
    worker = workers(venv).write("t.py", MODELS).start()
    assert worker.ready["issues"] == []
    return worker


ADA = {"name": "Ada", "bornIn": 0}


@pytest.mark.parametrize(
    ("tool", "sent"),
    {
        "subclass": ADA,
        "dictionary": ADA,
        "rows": [ADA, ADA],
        "by_key": {"a": ADA, "b": None},
        "without_schema": ADA,
        "later": ADA,
        "shape": {"sides": 3, "raw": ""},
        "bytes_in_it": {"sides": 3, "raw": "/w=="},
        "part": {"name": "Ada"},
        "object_with_attributes": ADA,
        "said_by_hand": {"any": 1},
        "without_annotation": ADA | {"password": "hunter2"},
    }.items(),
)
def test_a_model_as_return_annotation_decides_what_is_sent(served, tool, sent):
    assert served.value(tool) == sent


@pytest.mark.parametrize("tool", ["unfit", "nothing"])
def test_a_result_that_is_not_the_annotated_model_is_not_sent(served, tool):
    error = served.error(tool)
    assert error["code"] == "output_type"
    assert error["message"].startswith("the result does not fit the return annotation Public: ")
    assert "hunter2" not in json.dumps(error)


def test_failures_have_no_place_in_an_output_schema(served):
    assert served.tool("subclass")["outputSchema"]["properties"] == {
        "name": {"type": "string"},
        "bornIn": {"type": "integer", "default": 0},
    }
