"""Functions for what comes back: results by return annotation and value, exceptions, and what a Context says."""

from __future__ import annotations

from .signatures import Case, tool

VALUES: tuple[str, ...] = (
    "None", "True", "0", "1", "-1.5", "2.0", "1e22", "10**30", "float('nan')", "float('inf')", "''", "'text'", "'é🦀'", "'\\ud800'", "'[1]'",
    "[]", "[1, 'a', None]", "['a']", "[[1], [2]]", "[float('nan')]", "{}", "{'a': 1}", "{'result': 1}", "{'error': 'none'}", "{'a': None}",
    "{1: 'a', None: 'b', True: 'c', 1.5: 'd'}", "{'a': {'b': [1.5]}}", "{Color.red: 1}", "{(1, 2): 3}", "{datetime.date(2020, 1, 2): 1}",
    "(1, 2)", "()", "{3, 1, 2}", "set()", "frozenset('a')", "collections.deque([1])", "range(3)", "{'a': 1}.keys()", "collections.OrderedDict(b=1, a=2)",
    "b'raw'", "b'\\x89PNG\\r\\n\\x1a\\n'", "b'\\xff\\xfe'", "bytearray(b'raw')", "{'a': b'raw'}", "{'a': b'\\xff'}", "[b'raw']",
    "datetime.datetime(2020, 1, 2, 3, 4, 5)", "datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc)", "datetime.date(2020, 1, 2)",
    "datetime.time(3, 4)", "datetime.timedelta(days=1, hours=2)", "decimal.Decimal('1.10')", "uuid.UUID(int=1)", "pathlib.Path('/tmp/x')",
    "ipaddress.IPv4Address('127.0.0.1')", "complex(1, 2)", "Color.red", "Level.high", "Right.read | Right.write", "[Color.red, Level.low]",
    "Point(x=1)", "[Point(x=1)]", "{'p': Point(x=1)}", "UserInDatabase(name='n')", "Aliased(**{'from': 1})", "ByAlias(**{'from': 1})", "Open(b=2)",
    "Tree(value=1, children=[Tree(value=2)])", "Measured()", "Timed(at=datetime.datetime(2020, 1, 2))", "Cat(kind='cat')", "Pair(1)", "Secretive()",
    "Spot(1, 2)", "Opaque()", "object()", "[object()]", "len", "Point", "iter([1])", "(n for n in range(2))", "map(str, [1])", "ValueError('v')",
    "types.SimpleNamespace(a=1)", "re_", "SecretStr('hush')", "ToolResult(content='shown')", "ToolResult(structured_content={'a': 1})",
    "ToolResult(content=['a', {'b': 1}], structured_content={'a': 1})", "ToolResult(content=[])", "ToolResult('no', is_error=True)",
    "ToolResult(structured_content=[1])", "ToolResult(content='shown', meta={'a': 1})", "ToolResult('no', None, None, True)",
)  # fmt: skip

FITTING: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("None", ("None", "1", "{'a': 1}", "'text'")),
    ("Any", ("1", "{'a': 1}", "None", "Point(x=1)", "[1]")),
    ("object", ("1", "{'a': 1}")),
    ("str", ("'text'", "1", "None", "{'a': 1}", "b'raw'")),
    ("int", ("1", "10**30", "'text'", "1.5", "None", "True")),
    ("float", ("1.5", "1", "float('nan')", "float('inf')", "'text'")),
    ("bool", ("True", "1", "'yes'")),
    ("bytes", ("b'raw'", "b'\\xff'", "'text'")),
    ("list", ("[1]", "(1, 2)", "'text'", "[Point(x=1)]", "None")),
    ("list[Any]", ("[1]", "[]")),
    ("dict", ("{'a': 1}", "{1: 2}", "[1]", "Point(x=1)", "None")),
    ("tuple", ("(1, 2)", "[1]")),
    ("set", ("{1, 2}",)),
    ("list[int]", ("[1]", "['a']", "(1, 2)", "None", "{1}")),
    ("list[float]", ("[1.5, float('nan')]", "[1]")),
    ("list[str]", ("['a']", "[]", "[1]")),
    ("list[dict[str, Any]]", ("[{'a': 1}]", "[{}]")),
    ("dict[str, int]", ("{'a': 1}", "{'a': 'b'}", "{}")),
    ("dict[str, Any]", ("{'a': 1}", "{'error': 'none'}", "{'result': {'a': 1}}", "{'a': object()}")),
    ("dict[int, str]", ("{1: 'a'}", "{'x': 'a'}")),
    ("tuple[int, str]", ("(1, 'a')", "[1, 'a']", "(1,)")),
    ("tuple[int, ...]", ("(1, 2)", "()")),
    ("set[int]", ("{3, 1}", "[1]")),
    ("frozenset[str]", ("frozenset('a')",)),
    ("Sequence[int]", ("[1]", "(1,)", "range(2)")),
    ("Mapping[str, int]", ("{'a': 1}",)),
    ("Iterable[int]", ("[1]", "iter([1, 2])")),
    ("int | None", ("1", "None", "'text'")),
    ("float | None", ("1.5", "None", "float('nan')")),
    ("str | int", ("'text'", "1")),
    ("str | dict", ("'text'", "{'a': 1}")),
    ("dict | None", ("{'a': 1}", "None")),
    ("dict[str, int] | None", ("{'a': 1}", "None")),
    ("Literal['a', 'b']", ("'a'", "'c'")),
    ("Color", ("Color.red", "'red'", "'none'")),
    ("Level", ("Level.low", "1")),
    ("Right", ("Right.read", "Right.read | Right.write")),
    ("datetime.datetime", ("datetime.datetime(2020, 1, 2)", "datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc)", "'2020-01-02'")),
    ("datetime.date", ("datetime.date(2020, 1, 2)",)),
    ("datetime.time", ("datetime.time(3, 4)",)),
    ("datetime.timedelta", ("datetime.timedelta(days=1, hours=2)",)),
    ("list[datetime.datetime]", ("[datetime.datetime(2020, 1, 2)]",)),
    ("decimal.Decimal", ("decimal.Decimal('1.10')",)),
    ("uuid.UUID", ("uuid.UUID(int=1)",)),
    ("pathlib.Path", ("pathlib.Path('/tmp/x')",)),
    ("AnyUrl", ("AnyUrl('http://example.com')",)),
    ("SecretStr", ("SecretStr('hush')",)),
    ("complex", ("1j",)),
    ("Point", ("Point(x=1)", "{'x': 1}", "{'x': '1', 'z': 2}", "{'y': 1}", "Speaks()", "None", "UserInDatabase(name='n')", "[1]")),
    ("User", ("UserInDatabase(name='n')", "{'name': 'n', 'password': 'p'}", "User(name='n')")),
    ("list[User]", ("[UserInDatabase(name='n')]", "[{'name': 'n', 'password': 'p'}]")),
    ("dict[str, User]", ("{'a': UserInDatabase(name='n')}",)),
    ("User | None", ("UserInDatabase(name='n')", "None")),
    ("Point | str", ("Point(x=1)", "'text'")),
    ("Point | User", ("Point(x=1)", "UserInDatabase(name='n')", "{'name': 'n'}")),
    ("Aliased", ("Aliased(**{'from': 1})", "{'from': 1}")),
    ("ByAlias", ("ByAlias(**{'from': 1})",)),
    ("Open", ("Open(b=2)", "{'a': 1, 'b': 2}")),
    ("Tree", ("Tree(value=1, children=[Tree(value=2)])", "{'value': 1}")),
    ("Measured", ("Measured()", "{'width': 2}")),
    ("Timed", ("Timed(at=datetime.datetime(2020, 1, 2))",)),
    ("Named", ("Named(name='n', where=Point(x=1))", "{'name': 'n'}", "{'name': 'n', 'more': 1}")),
    ("Either", ("Cat(kind='cat')", "{'kind': 'dog'}")),
    ("Pair", ("Pair(1)", "{'left': 1}", "{'left': 1, 'more': 2}")),
    ("Secretive", ("Secretive()", "Secretive(2, b'text')")),
    ("list[Pair]", ("[Pair(1)]",)),
    ("Options", ("{'depth': 1}", "{'depth': 1, 'more': 2}", "{'label': 'l'}")),
    ("Spot", ("Spot(1, 2)",)),
    ("UserId", ("1",)),
    ("Names", ("['a']",)),
    ("Opaque", ("Opaque()", "1")),
    ("list[Opaque]", ("[1]",)),
    ("Annotated[int, Field(description='What it is.')]", ("1",)),
    ("Annotated[int, 'What it is.']", ("1",)),
    ("Annotated[decimal.Decimal, PlainSerializer(float)]", ("decimal.Decimal('1.5')",)),
    ("Annotated[User, Field(title='Shown')]", ("UserInDatabase(name='n')",)),
    ("Annotated[str, Field(pattern='^t')]", ("'text'",)),
    ("Annotated[float, Field(multiple_of=0.5)]", ("1.5",)),
    ("'Point'", ("Point(x=1)",)),
    ("'Missing'", ("1", "{'a': 1}")),
    ("ToolResult", ("ToolResult(content='shown')", "ToolResult(structured_content={'a': 1})", "1")),
    ("typing.Generator[int, None, None]", ("[1]",)),
    ("typing.NoReturn", ("1",)),
    ("typing.TypeVar('T')", ("1",)),
)  # fmt: skip

RAISES: tuple[tuple[str, str], ...] = (
    ("ValueError", "ValueError('wrong')"),
    ("ValueError", "ValueError()"),
    ("ValueError", "ValueError('one', 2)"),
    ("ValueError", "ValueError('first\\nsecond')"),
    ("KeyError", "KeyError('k')"),
    ("AssertionError", "AssertionError"),
    ("RuntimeError", "RuntimeError('é🦀')"),
    ("TimeoutError", "TimeoutError('slow')"),
    ("TypeError", "TypeError('wrong')"),
    ("ZeroDivisionError", "ZeroDivisionError('by zero')"),
    ("FileNotFoundError", "OSError(2, 'No such file', 'x')"),
    ("ModuleNotFoundError", "ModuleNotFoundError(\"No module named 'nothing'\", name='nothing')"),
    ("StopIteration", "StopIteration()"),
    ("NotImplementedError", "NotImplementedError"),
    ("ExceptionGroup", "ExceptionGroup('several', [ValueError('one'), KeyError('two')])"),
    ("ToolError", "ToolError('Say this.')"),
    ("ToolError", "ToolError('')"),
    ("ToolError", "ToolError('one', 2)"),
    ("ToolError", "ExceptionGroup('several', [ToolError('inner')])"),
    ("ResourceError", "ResourceError('Say this.')"),
    ("PromptError", "PromptError('Say this.')"),
    ("NotFoundError", "NotFoundError('Say this.')"),
)

TOLD: tuple[str, ...] = (
    "report_progress(1)", "report_progress(1, 2)", "report_progress(0.5, 1.0, 'half')", "report_progress(progress=3, total=None)",
    "debug('d')", "info('i')", "warning('w')", "error('e')", "info('é🦀')", "info('i', logger_name='mine')", "info('i', extra={'a': 1})",
    "log('l')", "log('l', level='notice')", "log('l', level='critical', logger_name='mine', extra={'a': 1})", "log('l', 'error')",
)  # fmt: skip

CONTEXTS: tuple[str, ...] = (
    "ctx: Context", "c: Context, a: int = 1", "a: int, context: Context", "ctx: Context | None = None", "ctx: Optional[Context] = None",
    "ctx: Annotated[Context, 'The context.']", "a: int, *, ctx: Context", "ctx: Context = None", "ctx: 'Context'", "one: Context, two: Context",
    "ctx=None", "ctx: str",
)  # fmt: skip


def outcomes() -> list[Case]:
    """All of them."""
    return [*_results(), *_errors(), *_contexts()]


def _results() -> list[Case]:
    cases = []
    for number, value in enumerate(value for value in VALUES if value != "re_"):
        name = f"value_{number}"
        raises = "ValueError" if value == "ToolResult(structured_content=[1])" else ""
        cases.append(Case(name, tool(name, "", body=f"return {value}", returns=""), [{}], raises=raises))
    for number, (hint, values) in enumerate(FITTING):
        for which, value in enumerate(values):
            name, kind = f"result_{number}_{which}", ("def", "async def")[which % 2]
            source = tool(name, "", body=f"return {value}", returns=f" -> {hint}", kind=kind)
            cases.append(Case(name, source, [{}], late=which % 2 == 1))
    return cases


def _errors() -> list[Case]:
    cases = []
    for number, (kind, raised) in enumerate(RAISES):
        for which, definition in enumerate(("def", "async def")):
            name = f"raises_{number}_{which}"
            cases.append(Case(name, tool(name, "", body=f"raise {raised}", kind=definition), [{}], raises=kind))
    return [*cases, Case("raises_in_model", tool("raises_in_model", "", body="Point(x='no')"), [{}], raises="ValidationError")]


def _contexts() -> list[Case]:
    cases = []
    for number, said in enumerate(TOLD):
        name = f"tells_{number}"
        source = tool(name, "ctx: Context", body=f"await ctx.{said}; return 'told'", kind="async def")
        cases.append(Case(name, source, [{}]))
    for number, parameters in enumerate(CONTEXTS):
        for which, kind in enumerate(("def", "async def")):
            name = f"context_{number}_{which}"
            source = tool(name, parameters, body="return ', '.join(type(it).__name__ for it in locals().values())", kind=kind)
            cases.append(Case(name, source, [{"a": 2}, {}, {"ctx": "x"}, {"ctx": "x", "a": 2}], late=which == 1 and number != 8))
    return cases
