"""What functions raise to say something to their caller. The names are FastMCP's.

The real package's own are told by their names, since most namespaces do without it.
"""

from __future__ import annotations


class PlainError(Exception):
    """The message says it all: neither the class nor the traceback is shown."""


class ToolError(PlainError):
    """A tool could not do what was asked."""


class ResourceError(PlainError):
    """A resource could not be read."""


class PromptError(PlainError):
    """A prompt could not be made."""


class NotFoundError(PlainError):
    """A resource template has nothing at this URI."""


_NAMES = frozenset({"ToolError", "ResourceError", "PromptError", "NotFoundError"})


def is_plain(error: BaseException) -> bool:
    """Whether the error is one of these, or the real package's."""
    return isinstance(error, PlainError) or _real_name(error) is not None


def is_not_found(error: BaseException) -> bool:
    """Whether the error says that there is nothing at a URI."""
    return isinstance(error, NotFoundError) or _real_name(error) == "NotFoundError"


def _real_name(error: BaseException) -> str | None:
    for kind in type(error).__mro__:
        if kind.__module__ == "fastmcp.exceptions" and kind.__name__ in _NAMES:
            return kind.__name__
    return None
