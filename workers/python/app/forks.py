"""What happens when tool code calls `os.fork()`.

The child is a copy of this process in the middle of the runtime. Where its tool code ends, it must end too: a second
event loop on the same sockets would answer calls twice and steal bytes. Two nets: every place where tool code returns
to the runtime asks `leave_if_child`, and in the child each descriptor of ours is replaced by /dev/null the moment it is
made, so that a child which does get back to the loop finds nothing there. That also keeps a long-lived child (say of
`multiprocessing`) from holding the gateway's connection open after the worker has died.
"""

from __future__ import annotations

import os
import signal

_PID = os.getpid()
_ours: set[int] = set()
_getpid = os.getpid


def leave_if_child() -> None:
    """Ends this process if it is a forked copy of the worker."""
    if _getpid() != _PID:
        os._exit(0)


def withhold(fd: int) -> None:
    """From now on a forked child gets /dev/null in place of this descriptor."""
    _ours.add(fd)


def release(fd: int) -> None:
    """The descriptor is about to be closed; its number may be reused by others."""
    _ours.discard(fd)


def _after_in_child() -> None:
    # The event loop hears of signals through a socket that the child shares. A SIGTERM for the child, which is how
    # `multiprocessing` ends its pools, would reach the parent's loop through it and shut the worker down.
    if signal.set_wakeup_fd(-1) != -1:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
    try:
        null = os.open(os.devnull, os.O_RDWR)
    except OSError:
        os._exit(1)  # no descriptor left to protect ours with
    for fd in _ours:
        # Replaced, not closed: Python objects of the copy will close these numbers once more.
        os.dup2(null, fd, inheritable=False)
    os.close(null)


os.register_at_fork(after_in_child=_after_in_child)
