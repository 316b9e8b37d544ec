from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from .._options import ResourceOptions
from .security import ResourceSecurity as ResourceSecurity

_F = TypeVar("_F", bound=Callable[..., Any])

def resource(uri: str, **options: Unpack[ResourceOptions]) -> Callable[[_F], _F]:
    """`@resource("scheme://where", name=…, …)`; the URI may have `{placeholders}`."""

def __getattr__(name: str) -> Any: ...
