"""What functions raise to say something to their caller. The names are FastMCP's.

The real package's own, and those of the official SDK, are told by their names, since most namespaces do without them.
"""

from __future__ import annotations


class PlainError(Exception):
    """A text meant for the model, and all of what the caller is told."""


class ToolError(PlainError):
    """A tool could not do what was asked."""


class ResourceError(PlainError):
    """A resource could not be read."""


class PromptError(PlainError):
    """A prompt could not be made."""


class NotFoundError(PlainError):
    """A resource template has nothing at this URI."""


_NAMES = frozenset({"FastMCPError", "ToolError", "ResourceError", "PromptError", "NotFoundError"})
_MODULES = frozenset(
    {"fastmcp.exceptions", "mcp.server.fastmcp.exceptions", "mcp.server.mcpserver.exceptions"}
)


def is_plain(error: BaseException) -> bool:
    """Whether the error is one of these, or the real packages'."""
    return isinstance(error, PlainError) or _real_name(error) is not None


def plain_texts(error: BaseException) -> tuple[list[str], bool]:
    """The texts meant for the model in an error, and whether they are all there is to say.

    Task groups pack what their tasks raise into groups, which may hold other errors beside them.
    """
    if is_plain(error):
        return [str(error)], True
    if not isinstance(error, BaseExceptionGroup):
        return [], False
    found = [plain_texts(inner) for inner in error.exceptions]
    return [text for texts, _ in found for text in texts], all(whole for _, whole in found)


def is_not_found(error: BaseException) -> bool:
    """Whether the error says that there is nothing at a URI."""
    return isinstance(error, NotFoundError) or _real_name(error) == "NotFoundError"


def _real_name(error: BaseException) -> str | None:
    for kind in type(error).__mro__:
        if kind.__name__ in _NAMES and kind.__module__ in _MODULES:
            return kind.__name__
    return None
