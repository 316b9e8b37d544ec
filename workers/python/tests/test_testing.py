"""Authors' tests of tools, as `tooldock test` runs them."""

from __future__ import annotations

import os
import subprocess

import pytest
from environments import RUNTIME, environment

TOOLS = """
from fastmcp import Context
from fastmcp.exceptions import ToolError
from fastmcp.tools import tool


@tool
def add(a: int, b: int) -> int: return a + b


@tool
def refuse() -> str: raise ToolError("not today")


@tool
async def book(city: str, ctx: Context) -> str:
    await ctx.report_progress(1, 2, "looking")
    await ctx.info("asking")
    answer = await ctx.elicit("Which day?", str)
    return f"{city} on {answer.data}"
"""
TESTS = """
import pytest


def test_values_and_failures(call):
    assert call("add", a=1, b=2) == 3
    with pytest.raises(Exception, match="tool_error: not today") as failed:
        call("refuse")
    assert failed.value.code == "tool_error"
    with pytest.raises(Exception, match="invalid_arguments"):
        call("add", a="x", b=2)
    assert set(call.tools) == {"add", "refuse", "book"}


def test_questions_and_reports(call):
    assert call("book", city="Rome", answers={"elicitation-1": "Monday"}) == "Rome on Monday"
    assert call.progress[0]["message"] == "looking"
    assert call.logs[0]["data"] == "asking"
    with pytest.raises(Exception, match="no answer for elicitation-1"):
        call("book", city="Rome")


def test_that_fails(call):
    assert call("add", a=1, b=1) == 3
"""


def _run(folder, *requirements: str) -> subprocess.CompletedProcess[str]:
    python = environment(*requirements) / "bin/python"
    command = [str(python), "-m", "app.test_main", "--namespace", "ns", "--tools", str(folder)]
    variables = {**os.environ, "PYTHONPATH": str(RUNTIME), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "test_tools.py").write_text(TESTS)
    return tmp_path


def test_an_authors_tests_call_tools_in_a_real_worker(folder):
    done = _run(folder, "pydantic>=2", "pytest>=8")
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1


def test_pytest_that_is_missing_is_told(folder):
    done = _run(folder, "pydantic>=2")
    assert done.returncode == 2
    assert "write pytest into requirements.txt" in done.stderr
