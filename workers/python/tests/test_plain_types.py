"""What `plain_types` writes down by hand is what pydantic makes: the same JSON."""

from __future__ import annotations

import inspect
import itertools
import json
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from app import modelled, output_schema, plain_types, pydantic_version, sent_types
from pydantic_core import ValidationError

EMPTY = inspect.Parameter.empty

SCALARS = [str, int, float, bool]
PLAIN = [
    *SCALARS,
    Any,
    list,
    dict,
    *(list[kind] for kind in [*SCALARS, Any, list[int], dict[str, float]]),
    *(dict[str, kind] for kind in [*SCALARS, Any, list[str], dict[str, bool]]),
    *(kind | None for kind in [*SCALARS, list, dict, list[int], dict[str, int]]),
    Optional[str],
    Union[None, int],
    list[int | None],
    dict[str, str | None],
]
OTHERS = [
    bytes,
    tuple,
    set[int],
    int | str,
    int | str | None,
    Any | None,
    dict[int, str],
    Literal["a"],
    list[bytes],
    dict[str, set],
    type("Own", (), {}),
    Annotated[str, "a", "b"],
    Annotated[str, 1],
    Annotated[bytes, "a"],
    list[Annotated[str, "a"]],
    inspect.Parameter,
]
VALUES = [
    None, True, False, 0, 1, -1, 2**70, 1.0, 1.5, float("inf"), "", "text", "1", "1.5", "1.0", "true", "off", "nan", b"b",
    [], [1], ["1", None], [[1, "2"]], [{"a": 1.5}], {}, {"a": 1}, {"a": "1"}, {"a": None}, {"a": [1]}, {"a": {"b": True}},
    {1: 2}, (1, 2), {3}, object,
]  # fmt: skip


def shown(outcome):
    """A result with the types of its parts, or what pydantic complains about."""
    value, complaints = outcome
    return repr(value), complaints


def outcome_of(check, value):
    try:
        return check(value), None
    except ValidationError as error:
        return None, (error.errors(include_url=False, include_input=False), str(error.title))


@pytest.mark.parametrize("hint", PLAIN, ids=str)
def test_schema_and_check_are_pydantics(hint):
    parameters = {"first": (hint, EMPTY), "_second": (hint, None)}
    ours, check = plain_types.arguments(parameters)
    theirs, their_check = modelled.arguments(parameters)
    assert json.dumps(ours["properties"]) == json.dumps(theirs["properties"])
    assert ours["required"] == theirs["required"] == ["first"]
    for value in VALUES:
        for given in ({"first": value}, {"first": value, "_second": value}):
            assert shown(outcome_of(check, given)) == shown(outcome_of(their_check, given)), (hint, given)


@pytest.mark.parametrize("hint", PLAIN, ids=str)
@pytest.mark.parametrize("text", ["what it is", "", " two\n lines "], ids=["text", "empty", "lines"])
def test_a_described_parameter_is_described_as_by_pydantic(hint, text):
    parameters = {"a": (Annotated[hint, text], EMPTY), "b": (Annotated[hint, text], "default")}
    ours, _ = plain_types.arguments(parameters)
    assert json.dumps(ours["properties"]) == json.dumps(modelled.arguments(parameters)[0]["properties"])


@pytest.mark.parametrize("hint", PLAIN, ids=str)
def test_the_schema_of_a_result_is_pydantics(hint):
    assert json.dumps(output_schema.schema_of(hint)) == json.dumps(sent_types.schema_of(hint))


def test_names_that_are_missing_or_unknown_are_refused_alike():
    parameters = {"a": (int, EMPTY), "b": (str, "x")}
    _, check = plain_types.arguments(parameters)
    _, their_check = modelled.arguments(parameters)
    for given in ({}, {"a": 1, "c": 2}, {"b": "y"}, None, [], "text", {"a": 1, "b": "y"}, {1: 2}):
        assert shown(outcome_of(check, given)) == shown(outcome_of(their_check, given)), given
    assert plain_types.arguments({})[1]({}) == {}


@pytest.mark.parametrize("hint", OTHERS, ids=str)
def test_other_types_are_left_to_pydantic(hint):
    assert plain_types.schemas_of(hint) is None
    assert plain_types.arguments({"a": (int, EMPTY), "b": (hint, EMPTY)}) is None


def test_a_default_that_may_say_more_is_left_to_pydantic():
    from pydantic import Field

    assert plain_types.arguments({"a": (int, Field(ge=1))}) is None
    assert plain_types.arguments({"a": (int, object())}) is None


def test_an_older_pydantic_makes_all_schemas_itself(monkeypatch):
    monkeypatch.setattr(plain_types, "_is_known", False)
    assert plain_types.schemas_of(str) is None
    assert plain_types.arguments({"a": (int, EMPTY)}) is None


def test_every_pair_of_plain_parameters_is_plain():
    for first, second in itertools.product(PLAIN, repeat=2):
        assert plain_types.arguments({"a": (first, EMPTY), "b": (second, EMPTY)}) is not None


LOADED = """
    import sys

    from fastmcp.tools import tool

    @tool
    async def loaded(names: list[str], depth: int | None = None) -> dict[str, bool]:
        return {name: name in sys.modules for name in names}
    """
PYTHON_HALF = ["pydantic.main", "pydantic.type_adapter", "pydantic.json_schema"]


def test_a_worker_of_plain_tools_does_without_pydantics_python_half(worker):
    worker.write("t.py", LOADED).start()
    rarely = [*PYTHON_HALF, "argparse", "importlib.abc", "importlib.metadata", "urllib.parse"]
    found = worker.connect().request("tools.call", tool="loaded", arguments={"names": [*rarely, "pydantic_core"]})
    assert found["result"] == {**dict.fromkeys(rarely, False), "pydantic_core": True}


def test_one_tool_that_needs_it_brings_it_in(worker):
    worker.write("t.py", LOADED).write("u.py", "from fastmcp.tools import tool\n\n@tool\ndef u(a: bytes): ...\n")
    worker.start()
    found = worker.connect().request("tools.call", tool="loaded", arguments={"names": PYTHON_HALF})
    assert found["result"] == dict.fromkeys(PYTHON_HALF, True)
    assert worker.tool("u")["inputSchema"]["properties"]["a"] == {"type": "string", "format": "binary"}


TAKES_A_CONTEXT = {
    "tool": "from fastmcp.tools import tool\n@tool\ndef f(ctx: Context): ...\n",
    "raw": "from fastmcp.tools import tool\n@tool(input_schema={'type': 'object'})\ndef f(ctx: Context): ...\n",
    "resource": "from fastmcp.resources import resource\n@resource('a://b')\ndef f(ctx: Context): ...\n",
    "prompt": "from fastmcp.prompts import prompt\n@prompt\ndef f(ctx: Context): ...\n",
}


@pytest.mark.parametrize("kind", TAKES_A_CONTEXT)
def test_who_may_ask_has_pydantic_before_the_loop_runs(plain_worker, kind):
    plain_worker.write("t.py", LOADED).write("u.py", "from fastmcp import Context\n" + TAKES_A_CONTEXT[kind]).start()
    assert plain_worker.value("loaded", names=PYTHON_HALF) == dict.fromkeys(PYTHON_HALF, True)


def test_what_the_core_refuses_is_left_to_pydantic(monkeypatch):
    monkeypatch.setitem(plain_types._LEAVES, str, lambda: ({"type": "of-the-past"}, {"type": "string"}))
    assert plain_types.arguments({"a": (str, EMPTY)}) is None
    assert plain_types.arguments({"a": (int, EMPTY)}) is not None


def test_the_version_is_the_one_that_would_be_imported():
    import pydantic

    assert pydantic_version.installed() == pydantic.VERSION
    assert pydantic_version.at_least(2) and not pydantic_version.at_least(99, 0)


def test_a_version_that_cannot_be_read_is_asked_of_the_package_itself(tmp_path):
    (tmp_path / "version.py").write_text("from .elsewhere import VERSION\n")
    assert pydantic_version._written(str(tmp_path / "__init__.py")) is None
    assert pydantic_version._written(str(tmp_path / "nowhere" / "__init__.py")) is None
    assert pydantic_version._written(None) is None
    (tmp_path / "version.py").write_text('"""The version."""\n\nVERSION = \'2.0b3\'\n')
    assert pydantic_version._written(str(tmp_path / "__init__.py")) == "2.0b3"
