"""Who may write to which standard stream.

The gateway reads lines of the runtime alone from our standard output: ready, or why not, and what the watch reports.
Everything else, be it `print` in a tool, C code or a subprocess, must not reach that pipe. So the pipe is moved to a private descriptor before any tool code runs, and
descriptor 1 becomes another name for standard error, which the gateway captures as the worker's log.
"""

from __future__ import annotations

import os
import sys

from . import forks, output


class Announcement:
    """The original standard output. One thread at a time writes to it: the loop's until the ready line, then the watch."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        if fd is not None:
            forks.withhold(fd)

    def say(self, line: bytes) -> None:
        """Writes the line. A reader that is gone is no reason to fail: the sockets still serve."""
        if self._fd is None:
            return
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            forks.release(self._fd)
            os.close(self._fd)
            self._fd = None


def claim(addressed_log: bool) -> Announcement:
    """Takes standard output away from everyone else and closes standard input. What is written to the standard streams
    from now on is for the log, with its address if somebody reads that."""
    _ensure_stderr()
    try:
        announcement = Announcement(os.dup(1))
    except OSError:  # started with standard output closed
        announcement = Announcement(None)
    if sys.stdout is not None:
        sys.stdout.flush()
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    if null != 0:
        os.dup2(null, 0)
        os.close(null)
    if sys.stdout is None:
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (lives as long as we do)
    else:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    output.set_up(addressed_log)
    return announcement


def log(message: str, level: str = "info") -> None:
    """One line for the worker's log, of one of MCP's levels."""
    try:
        with output.level(level):
            sys.stderr.write(message.rstrip("\n") + "\n")
            sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # nobody reads the log any more; that must not fail a call


def _ensure_stderr() -> None:
    try:
        os.fstat(2)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        if null != 2:
            os.dup2(null, 2)
            os.close(null)
