"""How a worker starts and ends.

The order is the point of this file. Standard output is taken away before any tool code runs; tools are loaded before
the socket exists; the ready line comes when the socket answers. What goes wrong before that is one line of JSON on
standard output, `{"op":"failed",…}`, and exit status 3; wrong usage and an impossible socket path are status 2.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from . import command_line, output, stdio

if TYPE_CHECKING:
    import asyncio

LAST_MOMENT = 1.0
"""Seconds the interpreter has to finish, threads and exit handlers of tools included."""


class BootFailure(Exception):
    """The worker cannot serve at all."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def main() -> int:
    """Runs the worker; the exit status."""
    options = command_line.parse(sys.argv[1:])
    _use_venv_interpreter(options.venv)
    announcement = stdio.claim(options.addressed_log)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until we serve, Ctrl-C just ends us, whatever a tool file catches
    started = time.monotonic()
    gc.disable()  # importing makes garbage of next to nothing, and looking for it takes a tenth of the start
    try:
        return _serve(options, announcement, started)
    except BootFailure as failure:
        return _failed(announcement, failure.code, str(failure))
    except Exception as error:
        return _failed(announcement, "internal_error", f"the worker could not start: {type(error).__name__}: {error}")


def _use_venv_interpreter(venv: str) -> None:
    """Started by hand with a plain interpreter: become the environment's own.

    The gateway starts the right one itself, and a worker that restarts while its successor's environment is being
    switched in must stay in the one it was started in.
    """
    if sys.prefix != sys.base_prefix:
        return
    python = os.path.join(venv, "bin", "python")
    if not os.path.isfile(os.path.join(venv, "pyvenv.cfg")) or not os.access(python, os.X_OK):
        return
    os.execv(python, [python, "-m", "app.worker_main", *sys.argv[1:]])


def _serve(options: command_line.Options, announcement: stdio.Announcement, started: float) -> int:
    _check_interpreter()
    _check_pydantic()
    if not os.path.isdir(options.tools):
        raise BootFailure("internal_error", f"the tools folder {options.tools} does not exist")
    os.chdir(options.tools)
    import_timeout = _wait_for_debugger() if options.debug else options.import_timeout

    from . import frames, listener, loader, whole_pydantic

    loaded = loader.load(options.tools, import_timeout, options.style)
    if whole_pydantic.failure is not None:
        raise _no_pydantic(whole_pydantic.failure)
    ready = frames.notice(
        "ready",
        namespace=options.namespace,
        generation=options.generation,
        pid=os.getpid(),
        tools=[tool.public for tool in loaded.tools.values()],
        resources=[resource.public for resource in loaded.resources.values()],
        resourceTemplates=[template.public for template in loaded.templates.values()],
        prompts=[prompt.public for prompt in loaded.prompts.values()],
        completions=loaded.completions,
        issues=[issue.public() for issue in loaded.issues],
        files=[file.public() for file in loaded.files],
    )
    if len(ready) > options.max_frame:
        raise BootFailure(
            "internal_error", f"the list of what is served takes {len(ready)} bytes, over the limit of a frame"
        )

    from .server import Server

    loop = _new_loop()
    server = Server(
        loop,
        loaded,
        greeting=ready if options.greets else None,
        max_frame=options.max_frame,
        sync_concurrency=options.sync_concurrency,
        tools=options.tools,
        say=announcement.say,
    )
    if options.debug:
        server.stand_still()
    try:
        sock = listener.listen(options.socket, options.generation)
    except listener.SocketProblem as problem:
        stdio.log(str(problem))
        return 2

    def listening() -> None:
        gc.freeze()  # what was loaded stays; the collector need not look at it again
        gc.enable()
        announcement.say(ready)
        took = (time.monotonic() - started) * 1000
        stdio.log(f"ready: {loaded.counted()}, {len(loaded.issues)} issues, after {took:.0f} ms")

    server.run(sock, listening)
    return 0


def _wait_for_debugger() -> float:
    """Waits for a debugger; the time limit of imports that may stand at a breakpoint."""
    from . import debugger

    try:
        debugger.wait()
    except debugger.DebuggerMissing as missing:
        raise BootFailure("dependency_error", str(missing)) from None
    return debugger.IMPORT_LIMIT


def _check_interpreter() -> None:
    if sys.version_info < (3, 11):
        found = ".".join(map(str, sys.version_info[:3]))
        raise BootFailure("dependency_error", f"workers need Python 3.11 or newer, this is {found}")


def _check_pydantic() -> None:
    """pydantic comes from the base environment, unless the namespace pins its own."""
    from . import pydantic_version

    try:
        version = pydantic_version.installed()
        if not pydantic_version.at_least(2):
            message = f"workers need pydantic 2 or newer; requirements.txt brings pydantic {version}"
            raise BootFailure("dependency_error", message)
        import pydantic_core  # noqa: F401 (whether it can be)
    except ImportError as error:
        raise _no_pydantic(error) from None


def _no_pydantic(error: Exception) -> BootFailure:
    cause = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
    return BootFailure("dependency_error", f"workers need pydantic 2, which cannot be imported: {cause}")


def _new_loop() -> asyncio.AbstractEventLoop:
    import asyncio

    uvloop = _uvloop()
    if uvloop is None:
        import selectors

        from . import forks

        selector = selectors.DefaultSelector()
        if hasattr(selector, "fileno"):
            # A forked child shares the epoll instance, and could make its parent deaf.
            forks.withhold(selector.fileno())
        loop: asyncio.AbstractEventLoop = asyncio.SelectorEventLoop(selector)
    else:
        loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def _uvloop() -> Any:
    """The package, if it is there and nothing rules it out."""
    if "nest_asyncio" in sys.modules:
        return None  # a tool file imported it, and it patches asyncio's own loop only
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop


def _failed(announcement: stdio.Announcement, code: str, message: str) -> int:
    import json

    message = " ".join(message.split())[:4096]
    stdio.log(message)
    announcement.say(json.dumps({"op": "failed", "code": code, "message": message}).encode() + b"\n")
    return 3


def leave(status: int) -> NoReturn:
    """Ends the process in a bounded time: threads that a tool started must not keep it alive."""

    def now(signum: int, frame: object) -> None:
        os._exit(status)

    output.settle()
    signal.signal(signal.SIGALRM, now)
    signal.setitimer(signal.ITIMER_REAL, LAST_MOMENT)
    sys.exit(status)
