"""What generated signatures are made of: types with values that fit, and values that are tried on all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Type:
    """An annotation as an author writes it."""

    text: str
    fitting: tuple[Any, ...]
    """JSON values that fit."""
    defaults: tuple[str, ...] = ()
    """Python expressions an author could give as the default."""
    kind: str = ""
    """`number`, `text` or `items`: the constraints that go with it."""
    others: tuple[Any, ...] = field(default=())
    """Further values to try on this type."""


PROBES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 1.0, 1.5, -0.0, 1e3, 10**20, 2**53 + 1,
    "", " ", "0", "1", " 1 ", "-1", "1.0", "1.5", "1e3", "1_000", "true", "True", "yes", "off", "null", "nan", "inf",
    "abc", "a", "red", "RED", "é", "🦀", "[1]", '{"x": 1}',
    [], [1], ["a"], ["1"], [1, 1], [1, "a"], [None], [[1]], [1.5],
    {}, {"x": 1}, {"x": "1", "y": 2, "z": 3}, {"a": 1}, {"1": "a"}, {"a": None}, {"depth": 1},
    "2020-01-02", "2020-01-02T03:04:05", "2020-01-02T03:04:05Z", "2020-01-02T03:04:05+02:00", "03:04:05", "P1DT2H", "1 00:00:01",
    1577934245, "00000000-0000-0000-0000-000000000001", "127.0.0.1", "http://example.com", "aGk=",
)  # fmt: skip

TYPES: tuple[Type, ...] = (
    Type("int", (3, "4", 5.0), ("5", "-1"), "number"),
    Type("float", (1.5, 2, "2.5"), ("0.5", "1", "float('inf')"), "number"),
    Type("bool", (True, False, "true", 0), ("True", "False")),
    Type("str", ("text", ""), ("'t'", "''"), "text"),
    Type("bytes", ("raw",), ("b'r'",)),
    Type("None", (None,), ("None",)),
    Type("Any", (1, "a", [1], {"a": [None]}), ("None", "1", "...")),
    Type("object", (1, [1]), ("None",)),
    Type("list", ([1, "a"], []), ("[1]", "[]"), "items"),
    Type("dict", ({"a": 1}, {}), ("{'a': 1}",), "items"),
    Type("tuple", ([1, "a"],), ("()", "(1, 2)"), "items"),
    Type("set", ([1, "a"],), ("{1}",), "items"),
    Type("list[int]", ([1, "2"],), ("[1, 2]",), "items"),
    Type("list[Any]", ([1, None],), ("[]",), "items"),
    Type("list[list[float]]", ([[1], [2.5]],), ("[[1.5]]",), "items"),
    Type("list[dict[str, int]]", ([{"a": 1}],), ("[]",)),
    Type("list[str | None]", (["a", None],), ("[None]",)),
    Type("dict[str, int]", ({"a": "1"},), ("{'a': 1}",), "items"),
    Type("dict[str, Any]", ({"a": [1]},), ("{}",)),
    Type("dict[str, list[str]]", ({"a": ["b"]},), ("{}",)),
    Type("dict[int, str]", ({"1": "a"},), ("{1: 'a'}",), "", ({"a": "b"},)),
    Type("dict[Color, int]", ({"red": 1},), ("{}",)),
    Type("tuple[int, str]", ([1, "a"],), ("(1, 'a')",), "", ([1],)),
    Type("tuple[int, ...]", ([1, 2],), ("(1,)",), "items"),
    Type("tuple[()]", ([],), ("()",)),
    Type("set[int]", ([1, "1", 2],), ("{1}", "set()"), "items"),
    Type("frozenset[str]", (["a", "b"],), ("frozenset('a')",), "items"),
    Type("collections.deque[int]", ([1],), ("collections.deque([1])",)),
    Type("Sequence[int]", ([1, 2],), ("()", "[1]")),
    Type("Mapping[str, float]", ({"a": 1},), ("{}",)),
    Type("Iterable[int]", ([1, "2"],), ("()",)),
    Type("int | None", (1, None), ("None", "3"), "number"),
    Type("float | None", (1, None), ("None", "0.5"), "number"),
    Type("Optional[str]", ("a", None), ("None", "'a'"), "text"),
    Type("bool | None", (True, None), ("None",)),
    Type("list[int] | None", ([1], None), ("None", "[1]"), "items"),
    Type("dict[str, Any] | None", ({"a": 1}, None), ("None",)),
    Type("int | str", (1, "1", "a"), ("1", "'a'")),
    Type("str | int", (1, "1"), ("1",)),
    Type("int | float", (1, 1.5), ("1",)),
    Type("bool | int", (True, 1), ("1",)),
    Type("str | list[str]", ("a", ["a"]), ("'a'",)),
    Type("int | str | None", (1, None), ("None",)),
    Type("dict | list", ({}, []), ("None",)),
    Type("Point | str", ({"x": 1}, "a"), ("'a'",)),
    Type("Literal['a', 'b']", ("a", "b"), ("'a'",)),
    Type("Literal[1, '1', True]", (1, "1", True), ("1",)),
    Type("Literal['only']", ("only",), ("'only'",)),
    Type("Literal['a', None]", ("a", None), ("None",)),
    Type("Color", ("red", "blue"), ("Color.red",)),
    Type("Color | None", ("red", None), ("None", "Color.blue")),
    Type("Level", (1, 2, "2"), ("Level.low",)),
    Type("Right", (1, 3), ("Right.read", "Right.read | Right.write")),
    Type("list[Color]", (["red"],), ("[Color.red]",)),
    Type("datetime.datetime", ("2020-01-02T03:04:05", "2020-01-02T03:04:05Z"), ("datetime.datetime(2020, 1, 2)",)),
    Type("datetime.date", ("2020-01-02",), ("datetime.date(2020, 1, 2)",)),
    Type("datetime.time", ("03:04:05",), ("datetime.time(3)",)),
    Type("datetime.timedelta", ("P1D", 60), ("datetime.timedelta(days=1)",)),
    Type("decimal.Decimal", ("1.10", 2), ("decimal.Decimal('1.5')",), "number"),
    Type("uuid.UUID", ("00000000-0000-0000-0000-000000000001",), ("uuid.UUID(int=1)",)),
    Type("pathlib.Path", ("/tmp/x", "a/b"), ("pathlib.Path('a')",)),
    Type("ipaddress.IPv4Address", ("127.0.0.1",), ("ipaddress.IPv4Address('127.0.0.1')",)),
    Type("AnyUrl", ("http://example.com/a",), ("None",)),
    Type("SecretStr", ("hush",), ("None",)),
    Type("Json", ("[1]",), ("None",)),
    Type("complex", ("1+2j", 3), ("1j",)),
    Type("typing.Pattern", ("a+",), ("None",), "", ("(",)),
    Type("StrictInt", (1,), ("1",)),
    Type("StrictStr", ("a",), ("'a'",)),
    Type("StrictBool", (True,), ("True",)),
    Type("PositiveInt", (1,), ("1", "-1")),
    Type("conint(ge=1, lt=3)", (1, 2), ("1",)),
    Type("constr(pattern='^a', max_length=2)", ("ab",), ("'a'",)),
    Type("UserId", (1,), ("UserId(1)",)),
    Type("Names", (["a"],), ("None",)),
    Type("Point", ({"x": 1}, {"x": "1", "y": 2, "z": 3}), ("Point(x=1)",), "", ({"y": 1}, {"x": None})),
    Type("Point | None", ({"x": 1}, None), ("None", "Point(x=1)")),
    Type("list[Point]", ([{"x": 1}],), ("[]", "[Point(x=1)]")),
    Type("dict[str, Point]", ({"a": {"x": 1}},), ("{}",)),
    Type("Named", ({"name": "n", "where": {"x": 1}},), ("None",), "", ({"name": ""}, {"name": "n", "more": 1})),
    Type("Aliased", ({"from": 1, "until": 3},), ("None",), "", ({"from_": 1},)),
    Type("Open", ({"a": 2, "b": 3},), ("Open()",)),
    Type("Tree", ({"value": 1, "children": [{"value": 2}]},), ("None",)),
    Type("Either", ({"kind": "cat"}, {"kind": "dog", "tricks": ["sit"]}), ("None",), "", ({"kind": "cow"}, {})),
    Type("Pair", ({"left": 1},), ("Pair(1)",), "", ({"right": "a"}, {"left": 1, "more": 2}, [1, "a"])),
    Type("Options", ({"depth": 1, "label": "l"},), ("{'depth': 1}",), "", ({"label": "l"}, {"depth": 1, "more": 1})),
    Type("Spot", ([1, 2],), ("Spot(1)",), "", ({"row": 1}, [1])),
    Type("type[int]", (), ("int",)),
    Type("Opaque", (), ("None",)),
    Type("typing.Callable[[int], int]", (), ("None",)),
    Type("'Point'", ({"x": 1},), ("None",)),
    Type("'list[Missing]'", ([],), ("None",)),
)  # fmt: skip

CONSTRAINTS: dict[str, tuple[str, ...]] = {
    "number": ("ge=2", "gt=0, le=10", "lt=5", "multiple_of=2"),
    "text": ("min_length=2", "max_length=3", "pattern='^t'"),
    "items": ("min_length=1", "max_length=1"),
    "": (),
}

SAID: tuple[str, ...] = (
    "description='What it is.'",
    "title='Shown'",
    "examples=[1, 2]",
    "deprecated=True",
    "json_schema_extra={'x-own': 1}",
    "strict=True",
)
"""What an author may say of any parameter with `Field`."""

MARKS: tuple[str, ...] = (
    "'What it is.'",
    "'One.', 'Two.'",
    "AfterValidator(even)",
    "BeforeValidator(stripped)",
    "PlainSerializer(str)",
    "Field(ge=0), 'What it is.'",
    "Field(description='First.'), Field(description='Second.')",
    "Field(default=3)",
    "Field(alias='other')",
    "Field(validation_alias='other')",
    "Field(validation_alias=AliasChoices('one', 'two'))",
    "object()",
)
"""What may stand in `Annotated[int, …]`."""

NAMES: tuple[str, ...] = (
    *("_x", "copy", "json", "schema", "model_config", "class_", "type", "id", "args", "kwargs", "context", "ctx", "self"),
    *("cls", "arguments", "return_", "validate", "title", "name", "é", "model_fields", "dict", "Field", "__x__"),
)  # fmt: skip
"""Names of parameters that could mean something to whoever reads the signature."""
