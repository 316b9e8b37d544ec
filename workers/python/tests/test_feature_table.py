"""The table of docs/fastmcp.md: both sides run a tool file for each feature, and the page says what came of it.

`TOOLDOCK_WRITE_DOCS=1` writes the table anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

import environments
from differential import features, sides
from differential.features import FEATURES, Row
from differential.sides import Side
from environments import FAST, FASTMCP_CURRENT, NEWEST_FASTMCP, RUNTIME, environment
from harness import Worker

PAGE = RUNTIME.parents[1] / "docs" / "fastmcp.md"
HEAD = "| feature | in a tool file here | |\n|---|---|---|\n"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Row]]:
    python = NEWEST_FASTMCP / "bin/python"
    if not python.exists():
        environments.leave_out(f"the table of FastMCP's features: {python} is missing (make test-environments)")
    ours = Side({})
    for requirements, package in ((FAST, False), (FASTMCP_CURRENT, True)):
        chosen = [it for it in FEATURES if it.package == package]
        worker = Worker(tmp_path_factory.mktemp("ours"), environment(*requirements))
        try:
            side = sides.ours([it.case for it in chosen], worker, {it.file: it.text for it in chosen})
        finally:
            worker.stop()
        refused = {it["subject"]: it["message"] for it in worker.ready["issues"]}
        ours = replace(
            side,
            tools=ours.tools | side.tools,
            outcomes=ours.outcomes | side.outcomes,
            refused=ours.refused | refused,
        )
    both = [it for it in FEATURES if not it.server]
    folder, sources = tmp_path_factory.mktemp("theirs"), {it.file: it.text for it in both}
    theirs = sides.theirs([it.case for it in both], python, folder, sources, mode="legacy")
    yield list(features.rows(ours, theirs))


def test_the_page_has_the_table(rows):
    table = HEAD + "".join(f"{row.line()}\n" for row in rows)
    page = PAGE.read_text()
    written = re.sub(re.escape(HEAD) + r"(?:\|.*\n)*", lambda _: table, page, count=1)
    assert HEAD in page
    if os.environ.get("TOOLDOCK_WRITE_DOCS") == "1":
        PAGE.write_text(written)
    assert written == PAGE.read_text(), "make docs-write writes the table anew"


def test_a_difference_says_what_it_is(rows):
    for row in rows:
        assert row.feature.note or not row.is_different, row


def test_refusals_are_sentences_that_name_the_feature(rows):
    refused = {row.feature.name: row.verdict for row in rows if row.verdict.startswith("refused")}
    for name, word in {
        "scoped": "auth=",
        "serialized": "serializer=",
        "unknown": "the keyword nonsense",
        "headers": "CurrentHeaders()",
        "versions": "versions",
        "sampled_tools": "tools=",
        "stated": "set_state",
        "served": "no server object is needed here",
    }.items():
        assert word in refused[name], (name, refused)
