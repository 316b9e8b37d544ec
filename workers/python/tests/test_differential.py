"""Our runtime beside the newest FastMCP: schemas, arguments, results, errors and what a Context says.

The same generated tool files run on both sides, a few hundred to a thousand functions, the same every time. Ours is a
real worker behind its socket, in an environment with what the gateway's base environment holds; theirs is FastMCP's own
server behind its own client. What differs has a name and a reason (`differential/differences.py`), or fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import environments
from differential import sides
from differential.compare import Comparison, advice, compare
from differential.differences import NAMED, Named, Seen
from differential.sides import Side
from differential.signatures import Case, files, generated
from environments import FAST, NEWEST_FASTMCP, RUNTIME, environment
from harness import Worker

README = RUNTIME / "README.md"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Comparison]:
    python = NEWEST_FASTMCP / "bin/python"
    if not python.exists():
        environments.leave_out(f"the comparison with FastMCP: {python} is missing (make test-environments)")
    cases = generated()
    worker = Worker(tmp_path_factory.mktemp("ours"), environment(*FAST))
    try:
        ours = sides.ours(cases, worker)
    finally:
        worker.stop()
    theirs = sides.theirs(cases, python, tmp_path_factory.mktemp("theirs"))
    print(f"ours: {ours.versions}, theirs: {theirs.versions}")
    yield compare(cases, ours, theirs)


def test_every_difference_from_fastmcp_has_a_name(comparison):
    assert comparison.compared > 5000
    if comparison.unnamed:
        pytest.fail(advice(comparison.unnamed), pytrace=False)


def test_every_named_difference_is_still_there(comparison):
    vanished = comparison.vanished()
    assert not vanished, f"no longer different from FastMCP, so take them out of the table and the README: {vanished}"


def test_the_signatures_are_hundreds_and_the_same_every_time():
    cases = generated()
    assert files(cases) == files(generated())
    assert len(cases) > 500 and len({case.name for case in cases}) == len(cases)


def test_the_readme_has_the_same_names_and_reasons():
    section = README.read_text().partition("## Differences from FastMCP\n")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", section, re.MULTILINE))
    assert listed == {it.name: it.reason for it in NAMED}
    assert len(listed) == len(NAMED), "a name stands twice in the table"


CASE = Case("add", "@tool\ndef add(a: int) -> int: ...", [{"a": 1}])
LISTED = {"inputSchema": {"type": "object"}}


def side(said: object) -> Side:
    made = Side({}, tools={"add": LISTED})
    made.outcomes["add", 0] = {"content": said}
    return made


def half(seen: Seen) -> object:
    return {"content": 1} if seen.theirs == {"content": 2} else seen.theirs


NAME = Named("call", "half", "Ours is half of theirs.", half)


def test_a_new_difference_is_told_with_both_sides_and_how_to_name_it():
    (seen,) = compare([CASE], side(1), side(3), (NAME,)).unnamed
    told = advice([seen], (NAME,))
    for part in (CASE.source, '{"a": 1}', '{"content": 1}', '{"content": 3}', "differences.py", "README.md"):
        assert part in told


def test_a_name_that_is_needed_nowhere_has_vanished():
    assert compare([CASE], side(1), side(2), (NAME,)).vanished((NAME,)) == []
    unused = compare([CASE], side(1), side(1), (NAME,))
    assert (unused.unnamed, unused.vanished((NAME,))) == ([], ["half"])


def test_two_names_for_one_difference_are_one_too_many():
    other = Named("call", "also", "The same once more.", half)
    twice = compare([CASE], side(1), side(2), (NAME, other))
    assert (twice.unnamed, twice.vanished((NAME, other))) == ([], ["half", "also"])


def test_numbers_and_flags_are_not_equal():
    assert len(compare([CASE], side(1), side(True), (NAME,)).unnamed) == 1


def test_a_missing_environment_is_said_at_the_end_and_fails_in_ci(monkeypatch, tmp_path: Path):
    skipped = tmp_path / "skipped"
    monkeypatch.setenv("TEST_SKIPPED", str(skipped))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="nothing there"):
        environments.leave_out("nothing there")
    assert skipped.read_text() == "nothing there\n"
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="nothing there"):
        environments.leave_out("nothing there")
