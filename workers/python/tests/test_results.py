"""What tools return, in JSON: WRK-24, Q-28 and the rules of the README."""

from __future__ import annotations

import base64
import re

import pytest

from harness import Worker

TOOLS = """
    import collections, dataclasses, datetime, decimal, enum, ipaddress, pathlib, uuid
    from pydantic import BaseModel, Field, field_serializer
    from pydantic.dataclasses import dataclass as pydantic_dataclass
    from fastmcp.tools import tool

    class Color(enum.Enum):
        RED = "red"

    class Level(enum.IntEnum):
        HIGH = 3

    class Name(str): ...

    class Model(BaseModel):
        when: datetime.date
        tag: str = Field(serialization_alias="the-tag")
        amount: decimal.Decimal = decimal.Decimal("1.50")
        ratio: float = float("nan")

        @field_serializer("tag")
        def shout(self, value: str) -> str:
            return value.upper()

    @dataclasses.dataclass
    class Box:
        inner: object
        _hidden: int = 1

    @pydantic_dataclass
    class Strict:
        when: datetime.date

    Pair = collections.namedtuple("Pair", "left right")

    class Opaque: ...

    def cycle():
        a = []
        a.append({"again": a})
        return a

    def deep(levels):
        value = []
        for _ in range(levels):
            value = [value]
        return value

    UTC = datetime.timezone.utc
    PNG = b"\\x89PNG\\r\\n\\x1a\\n" + bytes(8)
    WAV = b"RIFF\\x00\\x00\\x00\\x00WAVEfmt "

    reordered = collections.OrderedDict(a=1, b=2, c=3)
    reordered.move_to_end("a")

    class Doubling(dict):
        def items(self):
            return [(key, value * 2) for key, value in super().items()]

    CASES = {
        "string": "x", "number": 1.5, "integer": 3, "true": True, "false": False, "null": None,
        "list": [1, "a", None], "object": {"a": {"b": [1]}},
        "datetime": datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC),
        "naive": datetime.datetime(2020, 1, 2, 3, 4, 5, 60),
        "date": datetime.date(2020, 1, 2), "time": datetime.time(3, 4),
        "timedelta": datetime.timedelta(days=1, hours=2, seconds=3),
        "decimal": decimal.Decimal("0.10"), "uuid": uuid.UUID(int=5), "path": pathlib.Path("/a/b"),
        "ip": ipaddress.ip_address("127.0.0.1"),
        "enum": Color.RED, "int_enum": Level.HIGH, "name": Name("n"),
        "set": {3, 1, 2}, "frozenset": frozenset({"b", "a"}), "mixed_set": {1}, "tuple": (1, (2,)),
        "pair": Pair(1, 2), "deque": collections.deque([1]), "range": range(3), "keys": {"a": 1}.keys(),
        "ordered": collections.OrderedDict(a=1), "counter": collections.Counter("aab"),
        "nan": float("nan"), "infinite": [float("inf"), {"x": -float("inf")}],
        "model": Model(when=datetime.date(2020, 1, 2), tag="t"),
        "box": Box(Box({1})), "strict": Strict(when=datetime.date(2020, 1, 2)),
        "nested": {"list": [Color.RED, {datetime.date(2020, 1, 2)}]},
        "keys_of_all_kinds": {1: "a", 1.5: "b", None: "c", True: "d", Color.RED: "e", datetime.date(2020, 1, 2): "f", (1, 2): "g"},
        "big": 2**70, "big_inside": [2**64, -2**63 - 1, datetime.date(2020, 1, 2)],
        "reordered": reordered, "doubling": Doubling(a=1), "edges": [2**63, 2**64 - 1, -2**63, 2**53 + 1],
        "floats": [0.1 + 0.2, 1e16, 5e-324, 1.7976931348623157e308, -0.0, 100.0],
        "surrogates": "\\ud83c\\udf0d and \\udc80",
        "bytes_inside": {"data": b"\\xff\\x00"},
        "png": PNG, "wav": bytearray(WAV), "binary": b"\\x00\\x01", "pdf": b"%PDF-1.7",
        "mixed": ["caption", PNG, {"n": 1}], "blocks_dict": {"type": "text", "text": "plain"},
        "cycle": cycle(), "too_deep": deep(5000), "deep": deep(100), "a_bit_too_deep": deep(300), "long": [[]] * 1000, "opaque": {"items": [1, Opaque()]}, "generator": iter([1]),
    }

    @tool
    async def give(case: str):
        return CASES[case]

    @tool
    def give_from_thread(case: str):
        return CASES[case]
"""

PLAIN = {
    "string": "x", "number": 1.5, "integer": 3, "true": True, "false": False, "null": None,
    "list": [1, "a", None], "object": {"a": {"b": [1]}},
    "datetime": "2020-01-02T03:04:05Z", "naive": "2020-01-02T03:04:05.000060", "date": "2020-01-02", "time": "03:04:00",
    "timedelta": "P1DT2H3S", "decimal": "0.10", "uuid": "00000000-0000-0000-0000-000000000005", "path": "/a/b",
    "ip": "127.0.0.1", "enum": "red", "int_enum": 3, "name": "n",
    "set": [1, 2, 3], "frozenset": ["a", "b"], "mixed_set": [1], "tuple": [1, [2]],
    "pair": [1, 2], "deque": [1], "range": [0, 1, 2], "keys": ["a"], "ordered": {"a": 1}, "counter": {"a": 2, "b": 1},
    "nan": None, "infinite": [None, {"x": None}],
    "model": {"when": "2020-01-02", "the-tag": "T", "amount": "1.50", "ratio": None},
    "box": {"inner": {"inner": [1], "_hidden": 1}, "_hidden": 1}, "strict": {"when": "2020-01-02"},
    "nested": {"list": ["red", ["2020-01-02"]]},
    "keys_of_all_kinds": {"1": "d", "1.5": "b", "null": "c", "red": "e", "2020-01-02": "f", "[1,2]": "g"},
    "big": 2**70, "big_inside": [2**64, -(2**63) - 1, "2020-01-02"],
    "reordered": {"b": 2, "c": 3, "a": 1}, "doubling": {"a": 2}, "edges": [2**63, 2**64 - 1, -(2**63), 2**53 + 1],
    "floats": [0.1 + 0.2, 1e16, 5e-324, 1.7976931348623157e308, -0.0, 100.0],
    "surrogates": "🌍 and \ufffd",
    "bytes_inside": {"data": "/wA="},
    "blocks_dict": {"type": "text", "text": "plain"},
}  # fmt: skip


@pytest.fixture(scope="module")
def served(venv, workers) -> Worker:
    worker = workers(venv).write("t.py", TOOLS).start()
    assert worker.ready["issues"] == []
    return worker


@pytest.fixture(scope="module", params=["give", "give_from_thread"])
def give(request, served):
    client = served.connect()
    yield lambda case: client.call(request.param, case=case)
    client.close()


@pytest.mark.parametrize("case", PLAIN)
def test_value_becomes_json(give, case):
    frame = give(case)
    assert frame["ok"], frame
    assert "content" not in frame
    # Their texts, since `==` overlooks order, signs of zero, and whether a number is a float.
    assert repr(frame["result"]) == repr(PLAIN[case])


def block_data(block):
    return base64.b64decode(block["data"])


def test_image_and_audio_bytes_become_blocks(give):
    frame = give("png")
    assert list(frame) == ["id", "ok", "result", "content", "latency_ms"]
    assert frame["result"] is None
    (block,) = frame["content"]
    assert (block["type"], block["mimeType"]) == ("image", "image/png")
    assert block_data(block).startswith(b"\x89PNG")
    (block,) = give("wav")["content"]
    assert (block["type"], block["mimeType"]) == ("audio", "audio/wav")


def test_other_bytes_become_an_embedded_resource(give):
    (block,) = give("binary")["content"]
    assert block["type"] == "resource"
    assert block["resource"]["mimeType"] == "application/octet-stream"
    assert base64.b64decode(block["resource"]["blob"]) == b"\x00\x01"
    assert block["resource"]["uri"]
    assert give("pdf")["content"][0]["resource"]["mimeType"] == "application/pdf"


def test_list_with_a_block_in_it_keeps_places(give):
    frame = give("mixed")
    assert frame["result"] == ["caption", None, {"n": 1}]
    assert [block["type"] for block in frame["content"]] == ["text", "image", "text"]
    assert frame["content"][2]["text"] == '{"n":1}'


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("cycle", r"circular reference: list at \$\[0\]\.again"),
        ("too_deep", "nested deeper"),
        ("a_bit_too_deep", "nested deeper"),
        ("opaque", r"Opaque at \$\.items\[1\]"),
        ("generator", "list_iterator at \\$ "),
    ],
)
def test_what_has_no_json_form_says_where(give, case, message):
    frame = give(case)
    assert frame["error"]["code"] == "internal_error"
    assert re.search(message, frame["error"]["message"]), frame


def test_reasonable_depth_passes(give):
    value, depth = give("deep")["result"], 0
    while value:
        (value,) = value
        depth += 1
    assert depth == 100


def test_long_is_not_deep(give):
    assert give("long")["result"] == [[]] * 1000


def test_what_pandas_calls_missing_is_null(plain_worker):
    """By the names of the classes, since `NaT` is also a `datetime`; the package itself is a large download."""
    plain_worker.write(
        "t.py",
        """
        import datetime
        from fastmcp.tools import tool

        class NaTType(datetime.datetime):
            __module__ = "pandas._libs.tslibs.nattype"
        class NAType:
            __module__ = "pandas._libs.missing"

        @tool
        def missing() -> list: return [NaTType(1, 1, 1), NAType(), datetime.datetime(2020, 1, 2)]
        """,
    ).start()
    assert plain_worker.value("missing") == [None, None, "2020-01-02T00:00:00"]


GENERATORS = """
    from pydantic import BaseModel
    from fastmcp.exceptions import ToolError
    from fastmcp.tools import tool, ToolResult

    class User(BaseModel):
        name: str
    class Row(User):
        password: str = "hunter2"

    @tool
    def sync(n: int) -> list[int]:
        yield from range(n)
    @tool
    async def asynchronous(n: int):
        for i in range(n):
            yield i
    @tool(run_in_thread=False)
    def on_the_loop():
        yield 1
    @tool
    def returned(n: int):
        return (i * i for i in range(n))
    @tool
    def rows() -> list[User]:
        yield Row(name="Ada")
    @tool
    def pictures():
        yield "caption"
        yield b"\\x89PNG\\r\\n\\x1a\\n"
    @tool
    async def breaks():
        yield 1
        raise ToolError("half way")
    @tool
    def endless():
        while True:
            yield None
    @tool
    async def endless_too():
        while True:
            yield None

    @tool
    def list_result(): return ToolResult(structured_content=[1])
    @tool
    def meta_result(): return ToolResult("a", meta={"a": [1, float("nan")], 2: b"b"})
    @tool
    def no_meta_result(): return ToolResult("a", meta={})
    @tool
    def taken_meta_result(): return ToolResult("a", meta={"tooldock/error": 1})
    @tool
    def list_meta_result(): return ToolResult("a", meta=[1])
    """


@pytest.fixture(scope="module")
def generators(plain_venv, workers):
    worker = workers(plain_venv).write("t.py", GENERATORS).start()
    assert worker.ready["issues"] == []
    return worker


def test_what_a_generator_yields_is_a_list(generators):
    assert generators.value("sync", n=3) == generators.value("asynchronous", n=3) == [0, 1, 2]
    assert (generators.value("on_the_loop"), generators.value("returned", n=3)) == ([1], [0, 1, 4])
    assert generators.value("rows") == [{"name": "Ada"}]
    assert [block["type"] for block in generators.call("pictures")["content"]] == ["text", "image"]
    assert generators.error("breaks") == {"code": "tool_error", "message": "half way", "details": {}}


@pytest.mark.parametrize("tool", ["endless", "endless_too"])
def test_a_generator_without_an_end_is_given_up(generators, tool):
    error = generators.error(tool)
    assert error["code"] == "internal_error"
    assert error["message"] == "the generator yields more than 1000000 items; return a page of them"


def test_a_tool_result_that_fastmcp_refuses_is_refused(generators):
    assert "structured_content must be a dict or None. Got list: [1]." in generators.error("list_result")["message"]
    assert "'tooldock/error' of meta belongs to the protocol" in generators.error("taken_meta_result")["message"]
    assert "meta must be a dict or None. Got list" in generators.error("list_meta_result")["message"]


def test_the_meta_of_a_tool_result_stands_beside_its_content(generators):
    frame = generators.call("meta_result")
    assert frame["meta"] == {"a": [1, None], "2": "Yg=="}
    assert frame["content"] == [{"type": "text", "text": "a"}]
    assert "meta" not in generators.call("no_meta_result")
