"""What a docstring says of its function, and what it says of each parameter.

Google's, NumPy's and Sphinx's styles are read as far as models need them: the parameters' descriptions go to the
parameters, the sections about results, errors and examples to nobody, as in FastMCP. A docstring without such a section
is all description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_PARAMETERS = "args|arguments|params|parameters|keyword args|keyword arguments|other parameters|other args"
_OTHERS = "returns|return|yields|yield|receives|raises|exceptions|warns|attributes|examples|example"
_GOOGLE = re.compile(rf"({_PARAMETERS}|{_OTHERS}):\s*$", re.IGNORECASE)
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*(?:\([^)]*\)[^)]*)*\))?\s*:\s*(.*)$")
_NUMPY = re.compile(rf"({_PARAMETERS}|{_OTHERS}|see also|notes|references)\s*$", re.IGNORECASE)
_UNDERLINE = re.compile(r"-{3,}\s*$")
_NUMPY_ITEM = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_IS_PARAMETERS = re.compile(_PARAMETERS, re.IGNORECASE)
_SPHINX = re.compile(
    r":(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|except|exception|var|ivar|cvar|vartype)"
    r"(?:\s+([^:]*))?:\s*(.*)$"
)
_SPHINX_PARAMETERS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})

Parsed = tuple[str, dict[str, str]]


def parse(doc: str) -> Parsed:
    """The description of the function, and those of its parameters by name. `doc` is as `inspect.getdoc` gives it."""
    if ":" not in doc and "---" not in doc:
        return doc, {}
    lines = doc.split("\n")
    for style in (_google, _numpy, _sphinx):
        if (found := style(lines)) is not None:
            return found
    return doc, {}


def _google(lines: list[str]) -> Parsed | None:
    heads = [number for number, line in enumerate(lines) if _GOOGLE.match(line) and _indented_next(lines, number)]
    if not heads:
        return None
    described: dict[str, str] = {}
    for number in heads:
        if _IS_PARAMETERS.match(lines[number]):
            for head, rest in _items(lines, number + 1, _indent(lines[number + 1])):
                if item := _GOOGLE_ITEM.match(head):
                    _note(described, item[1], [item[2], *rest])
    return _text(lines[: heads[0]]), described


def _numpy(lines: list[str]) -> Parsed | None:
    pairs = zip(lines, lines[1:], strict=False)
    heads = [number for number, (line, next_) in enumerate(pairs) if _NUMPY.match(line) and _UNDERLINE.match(next_)]
    if not heads:
        return None
    described: dict[str, str] = {}
    for number, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        if _IS_PARAMETERS.match(lines[number]):
            for head, rest in _items(lines[:end], number + 2, 0):
                if item := _NUMPY_ITEM.match(head):
                    for name in item[1].split(","):
                        _note(described, name.strip(" *"), rest)
    return _text(lines[: heads[0]]), described


def _sphinx(lines: list[str]) -> Parsed | None:
    heads = [number for number, line in enumerate(lines) if _SPHINX.match(line)]
    if not heads:
        return None
    described: dict[str, str] = {}
    for head, rest in _items(lines, heads[0], 0):
        field = _SPHINX.match(head)
        if field is not None and field[1] in _SPHINX_PARAMETERS and field[2]:
            _note(described, field[2].split()[-1].lstrip("*"), [field[3], *rest])
    return _text(lines[: heads[0]]), described


def _items(lines: list[str], start: int, indent: int) -> Iterator[tuple[str, list[str]]]:
    """The items of a section that are indented so far, each with the further indented lines below."""
    head: str | None = None
    rest: list[str] = []
    for line in lines[start:]:
        if not line.strip():
            rest.append("")
        elif _indent(line) < indent:
            break
        elif _indent(line) > indent:
            rest.append(line.strip())
        else:
            if head is not None:
                yield head, rest
            head, rest = line.strip(), []
    if head is not None:
        yield head, rest


def _note(described: dict[str, str], name: str, lines: list[str]) -> None:
    if text := "\n".join(lines).strip():
        described.setdefault(name, text)


def _text(lines: list[str]) -> str:
    return "\n".join(lines).strip()


def _indented_next(lines: list[str], number: int) -> bool:
    return number + 1 < len(lines) and _indent(lines[number + 1]) > 0


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 0
