from collections.abc import Callable
from typing import Any, TypeVar, Unpack, overload

from .._options import PromptOptions

_F = TypeVar("_F", bound=Callable[..., Any])

@overload
def prompt(name_or_fn: str | None = None, /, **options: Unpack[PromptOptions]) -> Callable[[_F], _F]:
    """`@prompt()`, `@prompt("name")` or `@prompt(name=…, title=…, …)`: the function is a prompt."""

@overload
def prompt(name_or_fn: _F, /, **options: Unpack[PromptOptions]) -> _F:
    """`@prompt`, or `prompt(function, name=…, …)`: the function is a prompt."""

class Message:
    """One message of a prompt, by the user unless it says otherwise."""

    content: dict[str, Any]
    role: str
    def __init__(self, content: Any, role: str = "user") -> None: ...

def __getattr__(name: str) -> Any: ...
