"""The command line of a worker, read by hand: importing argparse would take a twelfth of a worker's start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

MAX_FRAME = 10 * 1024 * 1024

_USAGE = """\
usage: python -m app.worker_main --namespace NAME --socket FILE --venv DIR [option...]

Serves one folder of tools.

  --namespace NAME         name of the namespace
  --socket FILE            Unix socket to serve on
  --venv DIR               virtual environment of the namespace
  --tools DIR              folder of tool files; default: <data>/tools/<namespace>
  --generation N           tells two workers of a namespace apart; default: 0
  --sync-concurrency N     threads for sync tools; default: 1
  --max-frame BYTES        bytes in a line, both ways; default: 10 MiB
  --import-timeout SECONDS for importing one tool file; default: 10
  --style STYLE            `vault`: a function named like its file is a tool; default: decorators alone
  --no-greeting            do not send the ready line to every client
  --debug                  wait for a debugger before the tool files are loaded; calls and imports have no time limit
  --addressed-log          begin each line of output with its level and request
"""


class Options:
    """What a worker is started with."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.namespace: str = given["namespace"]
        self.socket: str = given["socket"]
        self.venv: str = given["venv"]
        # `<data>/venvs/<ns>`. Not resolved: the environment itself is a link into a folder of builds.
        data = os.path.dirname(os.path.dirname(self.venv))
        self.tools: str = given.get("tools") or os.path.join(data, "tools", self.namespace)
        self.generation: int = given.get("generation", 0)
        self.sync_concurrency: int = given.get("sync_concurrency", 1)
        self.max_frame: int = given.get("max_frame", MAX_FRAME)
        self.import_timeout: float = given.get("import_timeout", 10.0)
        self.style: str | None = given.get("style")
        self.addressed_log: bool = given.get("addressed_log", False)
        self.debug: bool = given.get("debug", False)
        self.greets: bool = not given.get("no_greeting", False)


def parse(arguments: list[str]) -> Options:
    """Reads the command line; exits with status 2 on wrong usage."""
    given: dict[str, Any] = {}
    rest = iter(arguments)
    for argument in rest:
        if argument in ("-h", "--help"):
            print(_USAGE, end="")
            sys.exit(0)
        name, has_value, value = argument.partition("=")
        if name in ("--no-greeting", "--addressed-log", "--debug") and not has_value:
            given[name.removeprefix("--").replace("-", "_")] = True
            continue
        if (read := _READERS.get(name)) is None:
            _wrong(f"unknown argument {argument}")
        text = value if has_value else next(rest, None)
        if text is None or not has_value and text.startswith("--"):
            _wrong(f"{name} needs a value")
        try:
            given[name.removeprefix("--").replace("-", "_")] = read(text)
        except ValueError as error:
            _wrong(f"{name}: {error}")
    if missing := [name for name in ("--namespace", "--socket", "--venv") if name.removeprefix("--") not in given]:
        _wrong(f"{', '.join(missing)} must be given")
    return Options(given)


def _wrong(what: str) -> NoReturn:
    sys.stderr.write(f"{_USAGE}\nerror: {what}\n")
    sys.exit(2)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise ValueError(f"must be at least {least}")
        return value

    return number


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError("must be a number of seconds above 0")
    return value


def _style(text: str) -> str:
    if text != "vault":
        raise ValueError("the only style is vault")
    return text


_READERS: dict[str, Callable[[str], Any]] = {
    "--namespace": str,
    "--socket": os.path.abspath,
    "--venv": os.path.abspath,
    "--tools": os.path.abspath,
    "--generation": _at_least(0),
    "--sync-concurrency": _at_least(1),
    "--max-frame": _at_least(1024),
    "--import-timeout": _seconds,
    "--style": _style,
}
