"""`Depends(factory)`: parameters that the worker fills, which clients neither see nor give. FastMCP's spelling.

    def store():
        with open_store() as opened:     # with @contextmanager: closed when the call is over
            yield opened

    @tool
    def read(name: str, found: Store = Depends(contextmanager(store))) -> str: ...

A factory returns a value, something to await, or a context manager. Its own parameters may have `Depends()`, too, and one
annotated `Context` gets the context of the call. A factory runs once for each call, however many parameters name it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import Any

from .results import drained
from .schema import Invalid, dependency_in, hints_of, means_context

CONTEXT = "context of dependencies"
"""Argument that holds the context where only factories ask for it. No parameter has such a name."""


class _Dependency:
    """What `Depends()` returns, a mark for the worker."""

    # The schema recognises the mark by the name of this module.
    __module__ = "fastmcp.dependencies"

    def __init__(self, factory: Callable[..., Any], bindings: dict[str, Any]) -> None:
        self.factory = factory
        self.bindings = bindings


class _CurrentContext:
    """What `CurrentContext()` returns; the annotation `Context` beside it is what counts."""

    __module__ = "fastmcp.dependencies"


def Depends(factory: Callable[..., Any], **bindings: Any) -> Any:
    """The parameter's value is what the factory returns, called with the bindings."""
    if not callable(factory):
        raise TypeError(f"Depends() takes the function that makes the value, not {type(factory).__name__}")
    return _Dependency(factory, bindings)


def CurrentContext() -> Any:
    """The default of a parameter that is annotated `Context`."""
    return _CurrentContext()


@dataclass(slots=True)
class Filling:
    """How one parameter gets its value."""

    factory: Callable[..., Any]
    bindings: dict[str, Any]
    inner: dict[str, Filling] = field(default_factory=dict)
    """Parameters of the factory that other factories fill."""
    context_parameter: str | None = None
    is_async: bool = False

    def wants_context(self) -> bool:
        """Whether the factory, or another for it, asks for the context."""
        return self.context_parameter is not None or any(it.wants_context() for it in self.inner.values())

    def needs_loop(self) -> bool:
        """Whether the factory, or another for it, is to be awaited."""
        return self.is_async or any(it.needs_loop() for it in self.inner.values())


def filling_of(name: str, mark: Any) -> Filling:
    """Reads the factory of a parameter. `Invalid` if the worker cannot call it."""
    factory = getattr(mark, "factory", None) or getattr(mark, "dependency", None)
    if not callable(factory):
        raise Invalid(f"{name} is filled by Depends() without a function")
    bindings = dict(getattr(mark, "bindings", None) or {})
    filling = Filling(factory, bindings, is_async=_is_async(factory))
    hints = hints_of(factory) if not inspect.isclass(factory) else {}
    for inner, parameter in inspect.signature(factory).parameters.items():
        hint = hints.get(inner, Any)
        if inner in bindings or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if means_context(hint):
            filling.context_parameter = inner
        elif (nested := dependency_in(hint, parameter.default)) is not None:
            filling.inner[inner] = filling_of(f"{inner} of {_name(factory)}", nested)
        elif parameter.default is parameter.empty:
            raise Invalid(
                f"{name} is filled by {_name(factory)}, whose parameter {inner} nobody fills: give it a default or Depends()"
            )
    return filling


def injecting(
    function: Callable[..., Any], is_async: bool, fillings: dict[str, Filling], context_parameter: str | None
) -> Callable[..., Any]:
    """The function with its parameters filled; what factories opened is closed when it returns."""
    if not is_async:
        for name, filling in fillings.items():
            if filling.needs_loop():
                raise Invalid(f"{name} is filled by an async function, which a plain one cannot await: write `async def`")

        @functools.wraps(function)
        def run(**arguments: Any) -> Any:
            with ExitStack() as stack:
                context, values = _context(arguments, context_parameter), {}
                for name, filling in fillings.items():
                    arguments[name] = _fill(filling, context, stack, values)
                return drained(function(**arguments))

        return run

    @functools.wraps(function)
    async def run_async(**arguments: Any) -> Any:
        async with AsyncExitStack() as stack:
            context, values = _context(arguments, context_parameter), {}
            for name, filling in fillings.items():
                arguments[name] = await _fill_async(filling, context, stack, values)
            # The steps of a generator need the objects that the factories opened.
            return drained(await function(**arguments))

    return run_async


Values = dict[Any, Any]
"""What factories without bindings made for this call."""


def _context(arguments: dict[str, Any], parameter: str | None) -> Any:
    return arguments.pop(CONTEXT) if parameter == CONTEXT else arguments.get(parameter or "")


def _fill(filling: Filling, context: Any, stack: ExitStack, values: Values) -> Any:
    if not filling.bindings and filling.factory in values:
        return values[filling.factory]
    given = {name: _fill(inner, context, stack, values) for name, inner in filling.inner.items()}
    value = filling.factory(**_given(filling, context, given))
    if isinstance(value, AbstractContextManager):
        value = stack.enter_context(value)
    elif inspect.isawaitable(value) or isinstance(value, AbstractAsyncContextManager):
        raise TypeError(f"{_name(filling.factory)} gave something to await: the function it is for must be async")
    return _kept(filling, value, values)


async def _fill_async(filling: Filling, context: Any, stack: AsyncExitStack, values: Values) -> Any:
    if not filling.bindings and filling.factory in values:
        return values[filling.factory]
    given = {name: await _fill_async(inner, context, stack, values) for name, inner in filling.inner.items()}
    value = filling.factory(**_given(filling, context, given))
    if isinstance(value, AbstractAsyncContextManager):
        value = await stack.enter_async_context(value)
    elif isinstance(value, AbstractContextManager):
        value = stack.enter_context(value)
    elif inspect.isawaitable(value):
        value = await value
    return _kept(filling, value, values)


def _given(filling: Filling, context: Any, inner: dict[str, Any]) -> dict[str, Any]:
    given = {**filling.bindings, **inner}
    if filling.context_parameter is not None:
        given[filling.context_parameter] = context
    return given


def _kept(filling: Filling, value: Any, values: Values) -> Any:
    if not filling.bindings:
        values[filling.factory] = value
    return value


def _is_async(factory: Any) -> bool:
    inner = inspect.unwrap(factory)
    return inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)


def _name(factory: Any) -> str:
    return getattr(factory, "__name__", type(factory).__name__)
