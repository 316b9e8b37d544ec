from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar, overload

_T = TypeVar("_T")

@overload
def Depends(factory: Callable[..., AbstractAsyncContextManager[_T]], **bindings: Any) -> _T: ...
@overload
def Depends(factory: Callable[..., AbstractContextManager[_T]], **bindings: Any) -> _T: ...
@overload
def Depends(factory: Callable[..., Awaitable[_T]], **bindings: Any) -> _T: ...
@overload
def Depends(factory: Callable[..., _T], **bindings: Any) -> _T:
    """The parameter's value is what the factory returns, called with the bindings; clients neither see nor give it."""

def CurrentContext() -> Any:
    """The default of a parameter that is annotated `Context`."""

def __getattr__(name: str) -> Any: ...
