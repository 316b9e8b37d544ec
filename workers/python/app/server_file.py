"""Runs the MCP server that an author's file makes, over standard input and output.

| the file, or the object that is named | what is run |
|---|---|
| an object is named and is a server | this server; the file's `if __name__ == "__main__":` is left out |
| an object is named and is a function | the function, and the server that it returns, if any |
| no object, and the file has an `if __name__ == "__main__":` | the file as a program, as `python FILE` does |
| no object, and the file has not run a server by itself | the server object at the top level of the file |

A server that asks for another transport gets standard input and output all the same (`server_transport`). With
`--check SECONDS` the file is imported within this time, and its `if __name__ == "__main__":` is left out: one line of JSON says
if its server is empty, or why the file has no server that can be run.

The last line on standard error says why the server cannot start, since the gateway quotes it.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.util
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from . import server_transport
from .file_errors import code_of, explain

CLASSES = ("FastMCP", "MCPServer", "Server")
PACKAGES = ("mcp", "fastmcp")
PREFERRED = ("mcp", "server", "app")
"""Names under which SDKs look for the server object first."""

COUNT_LIMIT = 5.0
"""Time limit, in seconds, for reading the lists of a server that is checked."""
MAX_MESSAGE = 1024
"""Maximum length of a message in characters, since exceptions may have long texts."""


class NoServer(Exception):
    """Error: the file has no server to run. The message says what is missing."""


class ImportTimeout(BaseException):
    """Error: the import takes too long. Not an `Exception`, so that `except Exception` in the file does not catch it."""


class ServerFile:
    """An author's file. If it is in a package, it is imported as a module of the package."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.shown = os.path.relpath(self.path)
        stem = os.path.splitext(os.path.basename(self.path))[0]
        parts = [] if stem == "__init__" else [stem]
        root = os.path.dirname(self.path)
        while root != os.getcwd() and os.path.isfile(os.path.join(root, "__init__.py")):
            parts.insert(0, os.path.basename(root))
            root = os.path.dirname(root)
        self.name = ".".join(parts)
        sys.path.insert(0, root)
        places = (os.path.abspath(it) for it in (".", "src"))
        sys.path.extend(it for it in places if it != root and os.path.isdir(it))

    def has_main(self) -> bool:
        """Returns true if the file has an `if __name__ == "__main__":` at its top level; false if it has none."""
        with open(self.path, "rb") as file:
            tree = ast.parse(file.read(), self.path)
        tests = (node.test for node in tree.body if isinstance(node, ast.If))
        return any(
            isinstance(node, ast.Name) and node.id == "__name__"
            for test in tests
            if isinstance(test, ast.Compare)
            for node in (test.left, *test.comparators)
        )

    def load(self) -> ModuleType:
        """Imports the file, as another file of its folder would, so that `if __name__ == "__main__":` is left out."""
        if "." in self.name or os.path.basename(self.path) == "__init__.py":
            return importlib.import_module(self.name)
        spec = importlib.util.spec_from_file_location(self.name, self.path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.name] = module
        spec.loader.exec_module(module)
        return module

    def run(self) -> ModuleType:
        """Runs the file as a program, as `python FILE` does."""
        package = self.name.rpartition(".")[0]
        if package:
            importlib.import_module(package)
        module = ModuleType("__main__")
        module.__file__ = self.path
        module.__package__ = package or None
        sys.modules["__main__"] = module
        sys.argv[:] = [self.path]
        with open(self.path, "rb") as file:
            exec(compile(file.read(), self.path, "exec"), vars(module))
        return module


def main(arguments: list[str]) -> int:
    """Runs or checks the server. Returns the exit status."""
    checks = arguments[:1] == ["--check"]
    limit = float(arguments[1]) if checks else 0.0
    path, _, wanted = arguments[-1].partition(":")
    answer = server_transport.claim()
    transport = server_transport.force_stdio()
    try:
        if checks:
            with _time_limit(limit):
                report = _checked(ServerFile(path), wanted)
            answer.say({"op": "checked", **report})
            return 0
        _serve(ServerFile(path), wanted, transport)
        return 0
    except SystemExit as error:
        if not checks:
            raise
        return _failed(answer, checks, path, error)
    except BaseException as error:
        return _failed(answer, checks, path, error)


def _serve(file: ServerFile, wanted: str, transport: server_transport.Transport) -> None:
    if wanted:
        return _run(_named(file.load(), wanted, file), transport)
    has_main = file.has_main()
    try:
        # A file without `__main__` may run its server at the top level.
        module = file.run() if has_main else file.load()
    except SystemExit as error:
        # A program that ends with `sys.exit(main())` is no failure if its status is 0 and it ran a server.
        if error.code or not transport.served:
            raise
        return None
    if not transport.served:
        _run(_only(module, file), transport)
    return None


def _run(found: Any, transport: server_transport.Transport) -> None:
    """Runs a server, or a function that runs or returns a server."""
    if is_server(found):
        asyncio.run(server_transport.over_stdio(found))
        return
    returned = found()
    if inspect.iscoroutine(returned):
        returned = asyncio.run(returned)
    if is_server(returned):
        asyncio.run(server_transport.over_stdio(returned))
    elif not transport.served:
        raise NoServer(f"{getattr(found, '__name__', 'the function')} neither runs nor returns an MCP server")


def is_server(value: Any) -> bool:
    """Returns true if a value is a server object of an SDK; false if it is anything else."""
    classes = type(value).__mro__
    return any(it.__name__ in CLASSES and it.__module__.partition(".")[0] in PACKAGES for it in classes)


def _named(module: ModuleType, wanted: str, file: ServerFile) -> Any:
    found: Any = module
    for part in wanted.split("."):
        found = getattr(found, part, None)
    if is_server(found) or callable(found):
        return found
    what = "has no" if found is None else "has no server or function named"
    raise NoServer(f"{file.shown} {what} {wanted}{_instead(module, file)}")


def _instead(module: ModuleType, file: ServerFile) -> str:
    names = [name for name, _ in _servers(module)]
    return f"; its servers are {', '.join(names)}" if names else ""


def _only(module: ModuleType, file: ServerFile) -> Any:
    found = next(_servers(module), None)
    if found is None:
        raise NoServer(
            f"{file.shown} makes no MCP server at its top level, and runs none; write `server: FILE:OBJECT` into tooldock.yaml, "
            "where OBJECT is the server or a function that returns it"
        )
    return found[1]


def _servers(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yields the servers at the top level of a module, each with its name. Names in `PREFERRED` come first."""
    found = {name: value for name, value in vars(module).items() if is_server(value)}
    for name in [*(it for it in PREFERRED if it in found), *(it for it in found if it not in PREFERRED)]:
        yield name, found[name]


def _checked(file: ServerFile, wanted: str) -> dict[str, Any]:
    has_main = file.has_main()
    module = file.load()
    if wanted:
        found = _named(module, wanted, file)
    elif has_main:
        found = next((server for _, server in _servers(module)), None)
    else:
        found = _only(module, file)
    return {"empty": is_server(found) and _is_empty(found)}


def _is_empty(server: Any) -> bool:
    """Returns true if the server certainly offers nothing; false if it offers something, or if its lists cannot be read."""
    handlers = getattr(server, "_request_handlers", None) or getattr(server, "request_handlers", None)
    if handlers is not None and not hasattr(server, "list_tools_mcp") and not hasattr(server, "run_stdio_async"):
        names = [it if isinstance(it, str) else it.__name__ for it in handlers]
        kinds = ("tools/list", "resources/list", "prompts/list", "ListToolsRequest", "ListResourcesRequest", "ListPromptsRequest")
        return not any(name in kinds for name in names)

    async def count() -> int:
        lists = ("list_tools", "list_resources", "list_resource_templates", "list_prompts")
        found = 0
        for name in lists:
            found += len(await getattr(server, name)())
        return found

    try:
        return asyncio.run(asyncio.wait_for(count(), COUNT_LIMIT)) == 0
    except Exception:
        return False


def _failed(answer: server_transport.Answer, checks: bool, path: str, error: BaseException) -> int:
    """Reports why the server cannot be run, in the log and in the answer of a check. Returns the exit status."""
    folder = os.getcwd()
    if isinstance(error, ImportTimeout):
        code, message = "import_timeout", f"{path}: {error}"
    elif isinstance(error, NoServer):
        code, message = "no_server", str(error)
    elif isinstance(error, FileNotFoundError) and error.filename == os.path.abspath(path):
        code, message = "no_server", f"{path} does not exist"
    else:
        code, message = code_of(error), f"{path}: {explain(error, folder)}"
        _print_traceback(error)
    message = " ".join(message.split())[:MAX_MESSAGE]
    print(message, file=sys.stderr, flush=True)
    if checks:
        answer.say({"op": "failed", "code": code, "message": message})
    return 3


def _print_traceback(error: BaseException) -> None:
    here = os.path.dirname(os.path.abspath(__file__)) + os.sep
    summary = traceback.TracebackException.from_exception(error)
    kept = [it for it in summary.stack if not it.filename.startswith((here, "<frozen "))]
    summary.stack = traceback.StackSummary.from_list(kept)
    print("".join(summary.format()), end="", file=sys.stderr, flush=True)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises `ImportTimeout` in the enclosed code after this time. The message names the line that was running."""

    def expired(signum: int, frame: Any) -> None:
        root = os.getcwd() + os.sep
        while frame is not None and not frame.f_code.co_filename.startswith(root):
            frame = frame.f_back
        where = f" ({os.path.relpath(frame.f_code.co_filename)} line {frame.f_lineno})" if frame is not None else ""
        raise ImportTimeout(f"the import took longer than {seconds:g} s{where}")

    signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
