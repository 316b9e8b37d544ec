from typing import Any

class _PlainError(Exception):
    """A text meant for the model, and all of what the caller is told."""

class ToolError(_PlainError):
    """A tool could not do what was asked."""

class ResourceError(_PlainError):
    """A resource could not be read."""

class PromptError(_PlainError):
    """A prompt could not be made."""

class NotFoundError(_PlainError):
    """A resource template has nothing at this URI."""

def __getattr__(name: str) -> Any: ...
