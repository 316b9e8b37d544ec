"""From a folder of files to tables of tools, resources and prompts, and a list of what was wrong with the rest.

A file that cannot be used is skipped and reported; it never takes another one with it. Sorted file names, then the
order inside the file, decide who comes first, and the first owner of a name keeps it: the same folder gives the same
table every time.
"""

from __future__ import annotations

import ast
import os
import signal
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from . import forks, registry, server_objects, shim, skills, stdio, styles, whole_pydantic
from .decorator import Registration
from .file_errors import RefusedFile, code_of, explain, one_line
from .modules import ToolModules
from .prompts import Prompt, make_prompt
from .recognise import registrations_in
from .resources import Resource, make_resource
from .results import plain, text
from .schema import Invalid, author_function
from .skills import Skill
from .styles import SourceFile
from .tools import Tool, make_tool

MAX_SOURCE = 5 * 1024 * 1024
"""Larger files are not code somebody wrote."""

MAX_MESSAGE = 1024
"""Characters of an issue's message; exceptions may say much more."""

_Made = TypeVar("_Made", Tool, Resource, Prompt)


class ImportTimeout(BaseException):
    """Raised inside a tool file that takes too long. Not an `Exception`, so that `except Exception` does not eat it."""


@dataclass(slots=True)
class Issue:
    """Something in the folder that is not served, and why."""

    code: str
    subject: str
    message: str

    def public(self) -> dict[str, str]:
        return {"code": self.code, "subject": text(self.subject), "message": text(self.message)}


@dataclass(slots=True)
class Loaded:
    """What the folder offers, in order, by name or URI, and its issues."""

    tools: dict[str, Tool] = field(default_factory=dict)
    resources: dict[str, Resource] = field(default_factory=dict)
    templates: dict[str, Resource] = field(default_factory=dict)
    prompts: dict[str, Prompt] = field(default_factory=dict)
    skills: dict[str, Skill] = field(default_factory=dict)
    issues: list[Issue] = field(default_factory=list)
    files: list[SourceFile] = field(default_factory=list)
    """What each Python file was taken for."""

    @property
    def completions(self) -> bool:
        """Whether some argument can be completed."""
        return any(it.completers for table in (self.prompts, self.templates) for it in table.values())

    def counted(self) -> str:
        """How much of what there is."""
        counted = [f"{len(self.tools)} tools"]
        for number, what in ((len(self.resources) + len(self.templates), "resources"), (len(self.prompts), "prompts")):
            if number:
                counted.append(f"{number} {what}")
        return ", ".join(counted)

    def report(self, code: str, subject: str, message: str) -> None:
        message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
        self.issues.append(Issue(code, subject, message))
        stdio.log(f"{subject}: {code}: {message}", "warning")


def load(folder: str, import_timeout: float, style: str | None = None) -> Loaded:
    """Loads every tool file of the folder, whose style is `vault` or none in particular."""
    loaded = Loaded()
    modules = ToolModules(folder)
    files = list(_tool_files(folder, modules, style, loaded))
    shim.install()
    if any(shim.needs_real(tree) for _, tree in files):
        started = time.monotonic()
        if shim.use_real():
            stdio.log(f"imported fastmcp in {time.monotonic() - started:.1f} s, since a tool file asks for more of it")
    modules.install()
    if any(registry.is_wanted(tree) for _, tree in files):
        registry.install()
    for file, tree in files:
        before = len(loaded.tools)
        _load_file(folder, file, tree, modules, import_timeout, loaded)
        file.tools = len(loaded.tools) - before
    for filename, registration in skills.registrations(folder, loaded.report, loaded.skills):
        _add(registration, filename, loaded)
    return loaded


def _tool_files(
    folder: str, modules: ToolModules, style: str | None, loaded: Loaded
) -> Iterator[tuple[SourceFile, ast.Module]]:
    """The files to execute, sorted, with their syntax trees."""
    for filename in sorted(os.listdir(folder)):
        if not filename.endswith(".py") or filename.startswith(("_", ".")):
            continue
        path = os.path.join(folder, filename)
        try:
            source = _read(path, modules)
            if source is None:
                continue
            tree = ast.parse(source, filename)
        except Exception as error:  # syntax, encoding, NUL bytes, nesting, permissions, links
            reason = explain(error, folder)
            loaded.report("import_error", filename, reason)
            loaded.files.append(SourceFile(filename, styles.SKIPPED, reason=reason))
            continue
        file = styles.of(tree, filename, style)
        loaded.files.append(file)
        if file.taken_for != styles.SKIPPED:
            yield file, tree


def _read(path: str, modules: ToolModules) -> bytes | None:
    """The file's bytes; None for a directory. Opened once and checked through the descriptor."""
    if os.path.isdir(path):
        return None
    if not modules.inside(path):
        raise RefusedFile("the link leads out of the tools folder")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without writer must not hold us up
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedFile("not a regular file")
        if status.st_size > MAX_SOURCE:
            raise RefusedFile(f"the file is larger than {MAX_SOURCE} bytes")
        return file.read(MAX_SOURCE)


def _load_file(
    folder: str, file: SourceFile, tree: ast.Module, modules: ToolModules, limit: float, loaded: Loaded
) -> None:
    filename = file.file
    contracts: Iterable[registry.ToolDefinition] = ()

    registrations: list[Registration] = []

    def skipped(code: str, reason: str) -> None:
        """Of a file whose `register_tools` fails, the decorated functions are served all the same."""
        loaded.report(code, filename, reason)
        file.taken_for = styles.DECORATORS if registrations else styles.SKIPPED
        file.reason = loaded.issues[-1].message

    what = "the import"
    try:
        with _time_limit(limit):
            module, own = modules.load(filename)
            path = os.path.join(os.path.realpath(folder), filename)
            registrations = registrations_in(module, path, own)
            if (register_tools := getattr(module, registry.FUNCTION, None)) is not None:
                if not registrations or styles.is_mixed(file, tree, register_tools, registrations):
                    file.taken_for = styles.MIXED if registrations else styles.REGISTER_TOOLS
                    what = registry.FUNCTION
                    contracts = registry.collected(register_tools)
        forks.leave_if_child()
    except ImportTimeout:
        forks.leave_if_child()
        skipped("import_timeout", f"{what} took longer than {limit:g} s")
        if not registrations:
            return
    except BaseException as error:
        forks.leave_if_child()
        hint = server_objects.hint(error, tree)
        reason = explain(error, folder, names_package=not hint) + hint
        skipped(code_of(error), f"{what} raised {reason}" if what == registry.FUNCTION else reason)
        if not registrations:
            return
    if file.taken_for == styles.FUNCTION:
        try:
            _add(Registration(styles.function_of(module, filename)), filename, loaded)
        except Invalid as error:
            skipped("invalid_tool", f"{error}{_at(getattr(module, filename.removesuffix('.py'), None))}")
    for registration in registrations:
        _add(registration, filename, loaded)
    for definition in contracts:
        _add_contract(definition, filename, loaded)
    served = {getattr(author_function(it.function), "__name__", None) for it in registrations}
    served |= {getattr(author_function(it.handler), "__name__", None) for it in contracts}
    told: set[tuple[str, str]] = set()
    for missed in server_objects.registered_on(tree):
        # The scan reports a file that only makes a low-level server.
        is_known = missed.function.rpartition(".")[2] in served or (missed.is_handler and not served)
        if not is_known and (missed.kind, missed.function) not in told:
            told.add((missed.kind, missed.function))
            loaded.report(f"invalid_{missed.kind}", filename, missed.advice())


def _add(registration: Registration, filename: str, loaded: Loaded) -> None:
    kind, function, options = registration.kind, registration.function, registration.options
    if options.get("enabled", True) is False:
        return
    name = options.get("uri") or options.get("name") or getattr(author_function(function), "__name__", "?")
    try:
        owner = _declare(kind, function, options, filename, loaded)
    except Invalid as error:
        loaded.report(f"invalid_{kind}", filename, f"{name}: {error}{_at(function)}")
        return
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        loaded.report(f"invalid_{kind}", filename, f"{name}: {reason}{_at(function)}")
        return
    if owner is not None:
        versions = "" if options.get("version") is None else "; version= is a label, and versions of one name need names of their own"
        loaded.report(f"duplicate_{kind}", filename, f"{name} is already defined in {owner}{versions}{_at(function)}")


def _add_contract(definition: registry.ToolDefinition, filename: str, loaded: Loaded) -> None:
    name, handler = definition.name, definition.handler
    try:
        tool = registry.make_contract_tool(definition, filename)
        owner = _enter(loaded.tools, tool.name, tool)
    except Invalid as error:
        loaded.report("invalid_tool", filename, f"{name}: {error}{_at(handler)}")
        return
    except Exception as error:
        loaded.report("invalid_tool", filename, f"{name}: {type(error).__name__}: {one_line(error)}{_at(handler)}")
        return
    if owner is not None:
        loaded.report("duplicate_tool", filename, f"{name} is already defined in {owner}{_at(handler)}")


def _declare(kind: str, function: object, options: dict[str, Any], filename: str, loaded: Loaded) -> str | None:
    """Enters it into its table; or, if the name is taken there, the file that has it."""
    if kind == "resource":
        resource = make_resource(function, options, filename)
        table = loaded.resources if resource.template is None else loaded.templates
        return _enter(table, resource.uri, resource)
    if kind == "prompt":
        prompt = make_prompt(function, options, filename)
        return _enter(loaded.prompts, prompt.name, prompt)
    tool = make_tool(function, options, filename)
    return _enter(loaded.tools, tool.name, tool)


def _enter(table: dict[str, _Made], key: str, made: _Made) -> str | None:
    plain(made.public)  # what cannot be announced cannot be served
    if made.context_parameter is not None:
        whole_pydantic.bring_in()  # it may ask, and the loop should not wait for an import then
    first = table.setdefault(key, made)
    owner: str = first.public["filename"]
    return None if first is made else owner


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises `ImportTimeout` in the code inside; again every second, should that code swallow it."""
    armed = True

    def expired(signum: int, frame: object) -> None:
        if armed:
            raise ImportTimeout

    previous = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _at(function: object) -> str:
    code = getattr(function, "__code__", None)
    return f" (line {code.co_firstlineno})" if code is not None else ""
