"""The generated tool files: a few hundred functions, and what each is called with. The same ones every time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from .values import CONSTRAINTS, MARKS, NAMES, PROBES, SAID, TYPES, Type

SEED = 20_260_728
MIXED = 160
"""How many signatures are put together at random."""

IMPORTS = '''\
import asyncio, collections, dataclasses, datetime, decimal, enum, functools, ipaddress, pathlib, types, typing, uuid
from fastmcp import Context
from fastmcp.exceptions import NotFoundError, PromptError, ResourceError, ToolError
from fastmcp.tools import ToolResult, tool
from shapes import *
'''
LATE = "from __future__ import annotations\n"

Arguments = dict[str, Any]


@dataclass
class Case:
    """One function, and its calls."""

    name: str
    source: str
    calls: list[Arguments] = field(default_factory=list)
    late: bool = False
    """Whether its file says `from __future__ import annotations`."""
    raises: str = ""
    """The class of what it raises."""

    @property
    def family(self) -> str:
        """What it is about: the name without the numbers."""
        return self.name.rstrip("0123456789_")


def files(cases: list[Case]) -> dict[str, str]:
    """The tool files that hold the cases."""
    early = "\n\n".join(case.source for case in cases if not case.late)
    late = "\n\n".join(case.source for case in cases if case.late)
    return {"early.py": f"{IMPORTS}\n\n{early}\n", "late.py": f"{LATE}{IMPORTS}\n\n{late}\n"}


def generated() -> list[Case]:
    """All of them."""
    from .outcomes import outcomes

    draw = random.Random(SEED)
    return [*_every_type(), *_every_default(), *_constrained(), *_named(), *_kinds(), *_mixed(draw), *outcomes()]


def tool(name: str, parameters: str, *, body: str = "", returns: str = " -> str", kind: str = "def", doc: str = "") -> str:
    """The source of one decorated function."""
    lines = ["@tool", f"{kind} {name}({parameters}){returns}:"]
    if doc:
        lines.append(f'    """{doc}"""')
    return "\n".join([*lines, f"    {body or 'return seen(**locals())'}"])


def _every_type() -> list[Case]:
    """Every type as a required parameter, called with every value."""
    cases = []
    for number, type_ in enumerate(TYPES):
        calls = [{"a": value} for value in (*type_.fitting, *type_.others, *PROBES)]
        cases.append(Case(f"type_{number}", tool(f"type_{number}", f"a: {type_.text}"), [*calls, {}]))
    return cases


def _every_default() -> list[Case]:
    """Every type with every default: what is shown of it, and what the function gets without an argument."""
    cases = []
    for number, type_ in enumerate(TYPES):
        for which, default in enumerate(dict.fromkeys((*type_.defaults, "None", "'no such value'"))):
            name = f"default_{number}_{which}"
            calls = [{}, *({"a": value} for value in (*type_.fitting[:1], None))]
            cases.append(Case(name, tool(name, f"a: {type_.text} = {default}"), calls, late=which % 2 == 1))
    return cases


def _constrained() -> list[Case]:
    """`Field` in its places, and what else an author puts into `Annotated`."""
    cases: list[Case] = []

    def add(parameter: str, values: tuple[Any, ...]) -> None:
        name = f"field_{len(cases)}"
        calls = [{"a": value} for value in values] + [{}, {"other": 4}, {"one": 4}]
        cases.append(Case(name, tool(name, parameter), calls))

    for type_ in TYPES:
        for constraint in CONSTRAINTS[type_.kind]:
            add(f"a: Annotated[{type_.text}, Field({constraint})]", (*type_.fitting, 1, 3, 12, "tt", "long text", [], [1, 2]))
    for said in SAID:
        add(f"a: Annotated[int, Field({said})]", (1, "1"))
        add(f"a: Point = Field({said})", ({"x": "1"},))
        add(f"a: int = Field(3, {said})", (1, "1"))
        add(f"a: Annotated[str | None, Field({said})] = None", (1, "1", None))
    for mark in MARKS:
        add(f"a: Annotated[int, {mark}]", (1, 2, " 3 "))
        add(f"a: Annotated[int, {mark}] = 4", (1, 2))
    for default in ("Field()", "Field(...)", "Field(default=5)", "Field(5, ge=3)", "Field(default_factory=lambda: 6)"):
        add(f"a: int = {default}", (1, 4))
    add("a: list[int] = Field(default_factory=list, max_length=1)", ([1], [1, 2]))
    add("a: list[Annotated[int, Field(ge=1)]]", ([1], [0]))
    add("a: dict[str, Annotated[str, Field(min_length=1)]]", ({"a": "b"}, {"a": ""}))
    add("a: Annotated[Annotated[int, Field(ge=1)], Field(le=3)]", (0, 1, 4))
    add("a: Annotated[int, Field(ge=1)] | None = None", (0, 1, None))
    cases.append(Case("validated_default", tool("validated_default", "a: int = Field('x', validate_default=True)"), [{"a": 1}, {}]))
    return cases


def _named() -> list[Case]:
    """Parameters whose names could mean something else."""
    cases = []
    for number, name in enumerate(NAMES):
        given = [{name: 1}, {name: "x"}, {}]
        cases.append(Case(f"name_{number}", tool(f"name_{number}", f"{name}: int = 5"), given, late=number % 2 == 1))
        cases.append(Case(f"name_{number}_bare", tool(f"name_{number}_bare", name), given))
    return cases


def _kinds() -> list[Case]:
    """Kinds of parameters and of functions."""
    sources: dict[str, str] = {
        "keyword_only": tool("keyword_only", "a: int, *, b: str, c: float = 1.5"),
        "positional_only": tool("positional_only", "a: int, /, b: int"),
        "starred": tool("starred", "a: int, *args: int"),
        "double_starred": tool("double_starred", "a: int, **kwargs: int"),
        "nothing": tool("nothing", ""),
        "bare": tool("bare", "a, b=1, *, c='x'"),
        "async_function": tool("async_function", "a: int", kind="async def"),
        "generator": tool("generator", "a: int", body="yield a", returns=""),
        "listed_generator": tool("listed_generator", "a: int", body="yield a", returns=" -> list[int]"),
        "async_generator": tool("async_generator", "a: int", body="yield a", kind="async def", returns=""),
        "returns_a_coroutine": tool("returns_a_coroutine", "a: int", body="return asyncio.sleep(0, seen(a=a))", returns=""),
        "named_lambda": "named_lambda = tool('named_lambda')(lambda a, b=2: seen(a=a, b=b))",
        "unnamed_lambda": "unnamed_lambda = tool(lambda a: a)",
        "partial": "def whole(a: int, b: str, c: int = 3) -> str: return seen(a=a, b=b, c=c)\n"
        "partial = tool('partial')(functools.partial(whole, b='given'))",
        "positional_partial": "positional_partial = tool('positional_partial')(functools.partial(whole, 1))",
        "called_object": "class Adder:\n    'Adds.'\n    def __call__(self, a: int, b: int = 2) -> int:\n        return a + b\n"
        "called_object = tool('called_object')(Adder())",
        "bound_method": "class Shop:\n    def search(self, a: int) -> str:\n        'Searches.'\n        return seen(a=a)\n"
        "bound_method = tool('bound_method')(Shop().search)",
        "wrapped": "def twice(function):\n    @functools.wraps(function)\n    def inner(*args, **kwargs):\n"
        "        return function(*args, **kwargs) * 2\n    return inner\n\n"
        "@tool\n@twice\ndef wrapped(a: int, b: str = 'x') -> str:\n    'Wrapped.'\n    return seen(a=a, b=b)",
        "wrapped_async": "def passing(function):\n    @functools.wraps(function)\n    async def inner(*args, **kwargs):\n"
        "        return await function(*args, **kwargs)\n    return inner\n\n"
        "@tool\n@passing\nasync def wrapped_async(a: int, b: str = 'x') -> str:\n    return seen(a=a, b=b)",
        "changed_default": tool("changed_default", "a: int, items: list = []", body="items.append(a); return seen(items=items)"),
    }
    calls = [{"a": 1, "b": "2", "c": 3}, {"a": 1, "b": "2"}, {"a": 1}, {"a": "1"}, {}, {"a": 1, "more": 2}, {"args": [1]}]
    return [Case(name, source, calls) for name, source in sources.items()]


def _mixed(draw: random.Random) -> list[Case]:
    """Types, defaults, `Field`, kinds, docstrings, sync and async, as they come together in somebody's file."""
    return [_mix(draw, f"mixed_{number}") for number in range(MIXED)]


def _mix(draw: random.Random, name: str) -> Case:
    plain: list[tuple[str, str]] = []
    keyword_only: list[tuple[str, str]] = []
    fitting: Arguments = {}
    required: set[str] = set()
    for parameter in draw.sample(["a", "b", "item_id", "q", "limit"], draw.randint(0, 4)):
        type_ = draw.choice([type_ for type_ in TYPES if type_.fitting])
        hint, default = _decorated(draw, type_)
        (keyword_only if draw.random() < 0.25 else plain).append((f"{parameter}: {hint}", default))
        fitting[parameter] = draw.choice(type_.fitting)
        if not default:
            required.add(parameter)
    plain.sort(key=lambda it: bool(it[1]))
    written = [f"{hint}{default}" for hint, default in plain]
    if keyword_only:
        written += ["*", *(f"{hint}{default}" for hint, default in keyword_only)]
    kind = draw.choice(["def", "async def"])
    source = tool(name, ", ".join(written), kind=kind, doc=_documented(draw, list(fitting)))
    calls = [fitting, {key: value for key, value in fitting.items() if key in required}, {**fitting, "unknown": 1}]
    for key in fitting:
        calls.append({other: value for other, value in fitting.items() if other != key})
        calls.append({**fitting, key: draw.choice(PROBES)})
    return Case(name, source, calls, late=draw.random() < 0.5)


def _decorated(draw: random.Random, type_: Type) -> tuple[str, str]:
    """The annotation, and what stands behind it."""
    said = [*CONSTRAINTS[type_.kind], *SAID[:3]]
    hint, default = type_.text, draw.choice(["", "", *(f" = {it}" for it in type_.defaults)])
    match draw.randrange(5):
        case 0:
            hint = f"Annotated[{hint}, 'What it is.']"
        case 1 if type_.text != "Tree":  # its title would show up wherever the type is used
            hint = f"Annotated[{hint}, Field({draw.choice(said)})]"
        case 2 if default:
            default = f" = Field({default.removeprefix(' = ')}, {draw.choice(said)})"
    return hint, default


def _documented(draw: random.Random, names: list[str]) -> str:
    """A docstring in one of the styles, or none."""
    styles = {
        "none": "",
        "plain": "Does it.",
        "long": "Does it.\n\n    In two paragraphs: this is\n    the second.\n    ",
        "google": "Does it.\n\n    Args:\n" + "".join(f"        {name}: The {name}.\n" for name in names),
        "google typed": "Does it.\n\n    Args:\n"
        + "".join(f"        {name} (int, optional): The {name},\n            on two lines.\n" for name in names)
        + "\n    Returns:\n        str: What was seen.\n    ",
        "numpy": "Does it.\n\n    Parameters\n    ----------\n"
        + "".join(f"    {name} : int\n        The {name}.\n" for name in names)
        + "\n    Returns\n    -------\n    str\n        What was seen.\n    ",
        "sphinx": "Does it.\n\n" + "".join(f"    :param {name}: The {name}.\n" for name in names) + "    :returns: What was seen.\n    ",
        "raises": "Does it.\n\n    Raises:\n        ValueError: Never.\n    ",
        "half": "Does it.\n\n    Args:\n        " + (f"{names[0]}: The first.\n" if names else "nobody: Nothing.\n") + "    ",
    }  # fmt: skip
    return styles[draw.choice(list(styles))]
