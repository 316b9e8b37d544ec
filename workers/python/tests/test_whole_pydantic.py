"""Pydantic's Python half comes late: tool code that ran before, or runs beside it, makes no difference."""

from __future__ import annotations

import json
import sys
from datetime import date
from types import ModuleType

import pytest
from app import results, schema

PLAIN = "from fastmcp.tools import tool\n\n@tool\ndef plain(a: int) -> int:\n    return a\n"
OTHER = "from fastmcp.tools import tool\n\n@tool\ndef other(a: bytes) -> int:\n    return len(a)\n"
RESULT = "from fastmcp.tools import tool\n\n@tool\ndef other(a: int) -> set[int]:\n    return {a}\n"
ASKING = "from fastmcp import Context\nfrom fastmcp.tools import tool\n\n@tool\ndef asking(ctx: Context): ...\n"
SWALLOWING = """
    from fastmcp.tools import tool

    try:
        import pydantic
    except ImportError:
        pass

    @tool
    def swallowing(): ...
    """


def test_half_imported_pydantic_does_not_disturb_results(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic.main", ModuleType("pydantic.main"))
    assert results.encode({"on": date(2020, 1, 2)}) == (b'{"on":"2020-01-02"}', None)


def test_half_imported_pydantic_does_not_disturb_schemas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic.fields", ModuleType("pydantic.fields"))

    def function(a: int = 1): ...

    assert schema.arguments_of(function, {"a": int}).schema["properties"] == {"a": {"default": 1, "type": "integer"}}


TAKEN_FOR_GRANTED = {
    "urllib": "urllib.parse.quote('a b')",
    "importlib": "importlib.metadata.version('pydantic')",
    "importlib ": "importlib.resources.files",
    "importlib  ": "importlib.abc.Loader",
    "importlib   ": "importlib.resources.abc.Traversable",
    "email": "email.utils.formatdate(0)",
    "email ": "email.message.Message()",
    "pydantic": "pydantic.types.PositiveInt",
    "pydantic ": "pydantic.fields.Field()",
}


@pytest.mark.parametrize("package", TAKEN_FOR_GRANTED)
@pytest.mark.parametrize("filename", ["t.py", "_helper.py"])
def test_submodules_that_were_always_there_still_are(plain_worker, package, filename):
    plain_worker.write("t.py", f"import _helper\n{PLAIN}").write("_helper.py", "")
    source = f"import {package}\n\nvalue = {TAKEN_FOR_GRANTED[package]}\n{PLAIN}"
    plain_worker.write(filename, source).start()
    assert plain_worker.issues() == {}
    assert plain_worker.value("plain", a=1) == 1


@pytest.mark.parametrize("source", [OTHER, RESULT, ASKING], ids=["parameter", "result", "context"])
def test_modules_in_a_tools_folder_on_the_path_are_not_pydantics(plain_worker, tmp_path, source):
    for name in ("random", "uuid", "ipaddress"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not this one')\n")
    adding = f"from sys import path\n\npath.insert(0, {str(tmp_path)!r})\n"
    first = "from fastmcp.tools import tool\n\n@tool\ndef first() -> str:\n    return path[0]\n"
    plain_worker.write("a.py", adding + first).write("b.py", source).start()
    assert plain_worker.issues() == {}
    assert plain_worker.value("first") == str(tmp_path)


def test_a_file_that_changes_the_path_gets_the_modules_pydantic_has(plain_worker, tmp_path):
    (tmp_path / "random.py").write_text("")
    adding = f"import sys\n\nsys.path.insert(0, {str(tmp_path)!r})\nimport random\n\nrandom.random()\n"
    plain_worker.write("a.py", adding + PLAIN).write("b.py", OTHER).start()
    assert plain_worker.issues() == {}
    assert plain_worker.tool_names() == ["plain", "other"]


@pytest.fixture
def broken(tmp_path):
    """The variables of a worker whose pydantic cannot be imported, though its core can."""
    package = tmp_path / "broken" / "pydantic"
    package.mkdir(parents=True)
    (package / "version.py").write_text("VERSION = '2.12.5'\n")
    (package / "__init__.py").write_text("raise ImportError('half of it is missing')\n")
    return {"PYTHONPATH": str(package.parent)}


@pytest.mark.parametrize(
    "source", [OTHER, RESULT, ASKING, SWALLOWING], ids=["parameter", "result", "context", "file"]
)
def test_broken_pydantic_that_is_needed_is_a_dependency_error(plain_worker, broken, source):
    plain_worker.write("a.py", PLAIN).write("b.py", source).spawn(env=broken)
    said = json.loads(plain_worker.stdout_line())
    assert (said["op"], said["code"], plain_worker.exit_status()) == ("failed", "dependency_error", 3)
    assert "pydantic 2, which cannot be imported: half of it is missing" in said["message"]


def test_broken_pydantic_of_another_kind_is_one_too(plain_worker, broken, tmp_path):
    (tmp_path / "broken" / "pydantic" / "__init__.py").write_text("raise SystemError('another core')\n")
    plain_worker.write("b.py", OTHER).spawn(env=broken)
    said = json.loads(plain_worker.stdout_line())
    assert (said["code"], plain_worker.exit_status()) == ("dependency_error", 3)
    assert said["message"].endswith("SystemError: another core")
