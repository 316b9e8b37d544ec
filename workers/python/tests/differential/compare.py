"""Holds both sides against each other, and against the differences that have a name.

A named difference rewrites what FastMCP said into what ours is meant to say. Whatever is still different after all of
them is new. A name counts as used where the two sides are equal with it and not without it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .differences import NAMED, Named, Seen
from .sides import Side
from .signatures import Case


@dataclass
class Comparison:
    """What came of it."""

    unnamed: list[Seen] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)
    """How often each name was needed."""
    compared: int = 0

    def vanished(self, named: tuple[Named, ...] = NAMED) -> list[str]:
        """Names of differences that are nowhere any more."""
        return [it.name for it in named if not self.used[it.name]]


def compare(cases: list[Case], ours: Side, theirs: Side, named: tuple[Named, ...] = NAMED) -> Comparison:
    """Looks at everything both sides said."""
    comparison = Comparison()
    for seen in _everything(cases, ours, theirs):
        comparison.compared += 1
        if _same(seen.ours, seen.theirs):
            continue
        applied = tuple(it for it in named if it.of == seen.of)
        if not _equal(seen, applied):
            comparison.unnamed.append(seen)
            continue
        for it in _changing(seen, applied):
            if not _equal(seen, tuple(other for other in applied if other is not it)):
                comparison.used[it.name] += 1
    return comparison


def _everything(cases: list[Case], ours: Side, theirs: Side) -> Iterator[Seen]:
    yield Seen("context", Case("Context", "class Context: ..."), None, ours.context, theirs.context)
    for case in cases:
        mine, other = ours.tools.get(case.name), theirs.tools.get(case.name)
        yield Seen("served", case, None, mine is not None, other is not None)
        if mine is None or other is None:
            continue
        yield Seen("tool", case, None, mine, other)
        for number, arguments in enumerate(case.calls):
            yield Seen("call", case, arguments, ours.outcomes[case.name, number], theirs.outcomes[case.name, number])


def _equal(seen: Seen, named: tuple[Named, ...]) -> bool:
    return _same(seen.ours, _rewritten(seen, named).theirs)


def _rewritten(seen: Seen, named: tuple[Named, ...]) -> Seen:
    for it in named:
        if it.of == seen.of and (after := it.rewrite(seen)) is not seen.theirs:
            seen = replace(seen, theirs=after)
    return seen


def _changing(seen: Seen, named: tuple[Named, ...]) -> Iterator[Named]:
    """Those that have something to say about it; the others need not be left out to see what becomes of it."""
    for it in named:
        after = it.rewrite(seen)
        if after is seen.theirs:
            continue
        if not _same(after, seen.theirs):
            yield it
        seen = replace(seen, theirs=after)


def _same(ours: Any, theirs: Any) -> bool:
    """Equal as JSON: 1, 1.0 and true are three values, the order of keys says nothing."""
    return bool(ours == theirs) and json.dumps(ours, sort_keys=True) == json.dumps(theirs, sort_keys=True)


def described(seen: Seen, named: tuple[Named, ...] = NAMED) -> str:
    """A difference without a name, for somebody who has to decide about it."""
    rest = _rewritten(seen, named).theirs
    called = "" if seen.arguments is None else f"\n  called with   {json.dumps(seen.arguments, ensure_ascii=False)}"
    return (
        f"{seen.of} of {seen.case.name}:\n{seen.case.source}{called}"
        f"\n  ours          {_json(seen.ours)}\n  FastMCP       {_json(seen.theirs)}"
        + ("" if rest == seen.theirs else f"\n  with the names {_json(rest)}")
    )


def advice(unnamed: list[Seen], named: tuple[Named, ...] = NAMED, shown: int = 10) -> str:
    """What the failed test says."""
    by_case = {(seen.of, seen.case.name): seen for seen in reversed(unnamed)}
    first = list(reversed(by_case.values()))[:shown]
    several = "\n\n".join(described(seen, named) for seen in first)
    return (
        f"{len(unnamed)} differences from FastMCP have no name; of the first {len(first)} functions one each:\n\n{several}\n\n"
        "Either the runtime is wrong: mend it. Or the difference is meant: give it a row in\n"
        "workers/python/tests/differential/differences.py, with its reason and a rewrite as narrow as the difference, and\n"
        'the same name and reason in workers/python/README.md ("Differences from FastMCP").'
    )


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= 2000 else text[:2000] + "…"
