"""Features of FastMCP that authors use, each as a tool file that both sides run: the rows of docs/fastmcp.md.

The verdict of a row is found, not written: whether both sides list and answer the same, or with which sentence ours refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .compare import Comparison, compare
from .sides import Side
from .signatures import Case

IMPORTS = """\
from dataclasses import dataclass
from fastmcp import Context
from fastmcp.dependencies import Depends
from fastmcp.tools import ToolResult, tool
from fastmcp.utilities.types import Audio, File, Image
"""


@dataclass(frozen=True)
class Feature:
    """One row: a tool file with a function of the feature's name."""

    name: str
    """Name of the function, and of its file."""
    shown: str
    """How authors write it."""
    source: str
    arguments: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    """What is different, or what to do instead. A row that is the same has none."""
    package: bool = False
    """Whether ours runs with the package fastmcp, which the file imports more of."""
    server: bool = False
    """Whether it is a feature of a server object: ours alone runs it, to see how a worker refuses."""

    @property
    def file(self) -> str:
        return f"{self.name}.py"

    @property
    def text(self) -> str:
        return self.source if self.server or self.package else f"{IMPORTS}\n{self.source}"

    @property
    def case(self) -> Case:
        return Case(self.name, self.source, [self.arguments])


def _tool(keywords: str, name: str, parameters: str = "a: int = 1", body: str = "return a", returns: str = " -> int") -> str:
    kind = "async def" if "await" in body else "def"
    return f'@tool({keywords})\n{kind} {name}({parameters}){returns}:\n    """Does it."""\n    {body}\n'


FEATURES: tuple[Feature, ...] = (
    Feature("plain", "`@tool`", _tool("", "plain")),
    Feature("named", "`name=`, `title=`, `description=`, `annotations=`", _tool(
        'name="named", title="T", description="D", annotations={"readOnlyHint": True}', "named")),
    Feature("tagged", "`tags=`", _tool('tags={"b", "a"}', "tagged")),
    Feature("pictured", "`icons=`", "from fastmcp.tools import tool\nfrom mcp.types import Icon\n" + _tool(
        'icons=[Icon(src="https://x/i.png")]', "pictured"), package=True),
    Feature("noted", "`meta=`", _tool('meta={"team": "x"}', "noted")),
    Feature("shaped", "`output_schema=`", _tool(
        'output_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}', "shaped",
        body='return {"n": a}', returns=" -> dict")),
    Feature("unshaped", "`output_schema=None`", _tool("output_schema=None", "unshaped")),
    Feature("limited", "`timeout=`", _tool("timeout=30", "limited")),
    Feature("tasked", "`task=`", _tool("task=False", "tasked")),
    Feature("versioned", "`version=`", _tool('version="2"', "versioned"),
        note="`_meta.fastmcp` has no `versions`: there is one."),
    Feature("versions", "several versions of a tool", _tool('name="versions", version="1"', "first") + _tool(
        'name="versions", version="2"', "versions"), note="The first function of a name is served."),
    Feature("excluded", "`exclude_args=`", _tool('exclude_args=["b"]', "excluded", "a: int = 1, b: int = 2", "return a + b"),
        note="FastMCP 4 took it back; `Depends()` is in its place."),
    Feature("depends", "`Depends()`", "def made() -> int:\n    return 2\n\n" + _tool(
        "", "depends", "a: int = 1, b: int = Depends(made)", "return a + b")),
    Feature("headers", "`CurrentHeaders()`, `CurrentRequest()`, `CurrentAccessToken()`",
        "from fastmcp.dependencies import CurrentHeaders\nfrom fastmcp.tools import tool\n" + _tool(
        "", "headers", "found: dict = CurrentHeaders()", "return 1"), package=True,
        note="A worker never sees the headers of a request, nor the client's token."),
    Feature("scoped", "`auth=require_scopes()`",
        "from fastmcp.server.auth import require_scopes\nfrom fastmcp.tools import tool\n" + _tool(
        'auth=require_scopes("x")', "scoped"), package=True,
        note="Scopes of keys and tokens open tools by name ([keys](keys.md))."),
    Feature("serialized", "`serializer=`", _tool("serializer=str", "serialized")),
    Feature("unknown", "an unknown keyword", _tool("nonsense=1", "unknown")),
    Feature("coerced", "numbers as text", _tool("", "coerced", "a: int"), {"a": "5"}),
    Feature("coerced_lists", "lists and objects as JSON in text", _tool(
        "", "coerced_lists", "items: list[int]", "return len(items)"), {"items": "[1, 2]"},
        note="Both refuse. `coerce_arguments` of the [namespace](configuration.md#namespaces) reads them."),
    Feature("elicited", "`ctx.elicit()` of a text", _tool(
        "", "elicited", "ctx: Context", 'return (await ctx.elicit("?", str)).data', " -> str")),
    Feature("elicited_forms", "`ctx.elicit()` of a dataclass",
        "@dataclass\nclass Day:\n    name: str\n    hour: int\n\n" + _tool(
        "", "elicited_forms", "ctx: Context", 'return (await ctx.elicit("?", Day)).data.hour')),
    Feature("elicited_choices", "`ctx.elicit()` of a list of choices", _tool(
        "", "elicited_choices", "ctx: Context", 'return (await ctx.elicit("?", ["x", "y"])).data', " -> str")),
    Feature("elicited_pages", "`ctx.elicit_url()`", _tool(
        "", "elicited_pages", "ctx: Context", 'return (await ctx.elicit_url("?", "https://x")).action', " -> str")),
    Feature("sampled", "`ctx.sample()`", _tool(
        "", "sampled", "ctx: Context", 'return (await ctx.sample("?")).text', " -> str")),
    Feature("sampled_tools", "`ctx.sample(tools=)`", _tool(
        "", "sampled_tools", "ctx: Context", 'return (await ctx.sample("?", tools=[len])).text', " -> str")),
    Feature("stated", "`ctx.set_state()`, `ctx.session`, `ctx.fastmcp`", _tool(
        "", "stated", "ctx: Context", 'await ctx.set_state("a", 1)\n    return 1'),
        note="Keep what calls share in a file or a database."),
    Feature("images", "`Image`, `Audio`, `File`", _tool(
        "", "images", "", 'return [Image(data=b"i"), Audio(data=b"a"), File(data=b"f", name="f", format="txt")]', " -> list"),
        note="The blocks are the same. `structuredContent` has the list, with `null` in their places."),
    Feature("results", "`ToolResult`", _tool(
        "", "results", "", 'return ToolResult(content="c", structured_content={"n": 1}, meta={"m": 1})', " -> ToolResult")),
    Feature("served", "`FastMCP(…)` with middleware, transforms, `mount()`, providers, `auth=`",
        "from fastmcp import FastMCP\nmcp = FastMCP(middleware=[])\n@mcp.tool\ndef served(): ...\n", server=True,
        note="A folder whose file makes a server is [run as it is](writing-tools.md#a-server-as-it-is), by FastMCP itself."),
)  # fmt: skip

BASE = "plain"
"""The row whose named differences every tool has; other rows do not repeat them."""


@dataclass(frozen=True)
class Row:
    """A feature and its verdict."""

    feature: Feature
    verdict: str
    names: tuple[str, ...] = ()
    """Named differences that show in it."""

    @property
    def is_different(self) -> bool:
        """Whether a note has to say how."""
        return self.verdict == "differs"

    def line(self) -> str:
        names = f" ({', '.join(f'`{it}`' for it in self.names)})" if self.names else ""
        return f"| {self.feature.shown} | {self.verdict}{names} | {self.feature.note} |"


def rows(ours: Side, theirs: Side) -> Iterator[Row]:
    """The table."""
    base = set(_compared(next(it for it in FEATURES if it.name == BASE), ours, theirs).used)
    for feature in FEATURES:
        yield _row(feature, ours, theirs, base if feature.name != BASE else set())


def _row(feature: Feature, ours: Side, theirs: Side, base: set[str]) -> Row:
    if (message := _refusal(feature, ours)) is not None:
        return Row(feature, f"refused: “{_sentence(message)}”")
    outcome = ours.outcomes[feature.name, 0]
    said = outcome["content"][0].get("text", "")
    if outcome["isError"] and not said.startswith("invalid_arguments"):
        return Row(feature, f"refused in the call: “{_sentence(said)}”")
    if feature.name not in theirs.tools or "has no attribute" in str(theirs.outcomes[feature.name, 0]["content"]):
        return Row(feature, "here alone")
    compared = _compared(feature, ours, theirs)
    if compared.unnamed:
        return Row(feature, "differs")
    return Row(feature, "the same", tuple(sorted(set(compared.used) - base)))


def _refusal(feature: Feature, ours: Side) -> str | None:
    message = ours.refused.get(feature.file)
    return None if message is None else message.removeprefix(f"{feature.name}: ")


def _compared(feature: Feature, ours: Side, theirs: Side) -> Comparison:
    context = Side({}, context=ours.context)
    mine = Side({}, context.context, ours.tools, {}, ours.outcomes)
    return compare([feature.case], mine, Side({}, context.context, theirs.tools, {}, theirs.outcomes))


def _sentence(message: str) -> str:
    """The message without the place in the file and the code before it, fit for a cell of a table. What was raised goes before
    what to do; the second alone is shown."""
    message = re.sub(r"^.*; (?=no server object)", "", message)
    message = re.sub(r" \([a-z_]+\.py line \d+\)$| \(line \d+\)$", "", message)
    return re.sub(r"^(?:internal_error: )?(?:TypeError|AttributeError): ", "", message).replace("|", "\\|")
