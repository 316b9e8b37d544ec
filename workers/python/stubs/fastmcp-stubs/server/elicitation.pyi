from typing import Any, Generic, Literal, TypeVar

_T = TypeVar("_T")

class AcceptedElicitation(Generic[_T]):
    """The user answered; `data` is of the response type."""

    data: _T
    action: Literal["accept"]
    def __init__(self, data: _T, action: Literal["accept"] = "accept") -> None: ...

class DeclinedElicitation:
    """The user said no."""

    action: Literal["decline"]
    def __init__(self, action: Literal["decline"] = "decline") -> None: ...

class CancelledElicitation:
    """The user closed the form."""

    action: Literal["cancel"]
    def __init__(self, action: Literal["cancel"] = "cancel") -> None: ...

def __getattr__(name: str) -> Any: ...
