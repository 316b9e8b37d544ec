"""The worker's socket.

Two generations of a worker live side by side while a namespace is reloaded. Each binds a path of its own and renames it
over the public one, so that there is never a moment without a listening socket. A worker never removes the public path:
by the time it ends, that may be its successor's.
"""

from __future__ import annotations

import os
import socket
import stat

MAX_PATH = 107
"""Bytes in `sockaddr_un.sun_path`, without the final zero."""


class SocketProblem(Exception):
    """There will be no socket; the message is one line."""


def listen(path: str, generation: int) -> socket.socket:
    """Binds `<stem>.<generation>.sock` beside `path`, listens, and renames it over `path`."""
    folder, name = os.path.split(path)
    own = os.path.join(folder, f"{name.removesuffix('.sock')}.{generation}.sock")
    if (length := len(os.fsencode(own))) > MAX_PATH:
        raise SocketProblem(f"socket path too long: {own} has {length} bytes, the system's limit is {MAX_PATH}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(own)
        umask = os.umask(0o177)  # private from the first moment on, not only after the chmod
        try:
            sock.bind(own)
        finally:
            os.umask(umask)
        os.chmod(own, 0o600)
        sock.listen(128)
        sock.setblocking(False)
        os.rename(own, path)
    except OSError as error:
        sock.close()
        raise SocketProblem(f"cannot listen on {own}: {error.strerror or error}") from None
    return sock


def _remove_stale(path: str) -> None:
    """Our own bind path, left by a predecessor that died between bind and rename. Nothing else is ever removed."""
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass
