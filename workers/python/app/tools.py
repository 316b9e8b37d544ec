"""One tool: what is announced of it, and what a call needs."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from . import declaration
from .decorator import UNSET
from .definitions import inlined
from .output_schema import encoder_of, output_schema_of
from .raw_schema import arguments_by_schema
from .results import MAX_YIELDED, TOO_MANY, Encode, Unserialisable, drained
from .schema import Invalid, arguments_of, hints_of


@dataclass(slots=True)
class Tool:
    """A function that clients may call."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    validate: Callable[[Any], dict[str, Any]]
    context_parameter: str | None
    encode: Encode
    timeout: float | None
    """Seconds after which a call is given up."""
    public: dict[str, Any]


def make_tool(function: Any, options: dict[str, Any], filename: str) -> Tool:
    """Reads name, texts and schemas off the function. `Invalid` if it cannot be a tool."""
    declaration.check("tool", function, options)
    name = declaration.name_of("tool", function, options.get("name"))
    author, hints = function, hints_of(function)
    given = options.get("input_schema")
    if given is None:
        arguments = arguments_of(function, hints, options.get("exclude_args") or ())
    else:
        arguments = arguments_by_schema(function, hints, given)
    if inspect.isasyncgenfunction(function):
        function = _gathering(function)
    asynchronous = declaration.is_async(function)
    timeout = _timeout(options.get("timeout"))
    if not asynchronous and options.get("run_in_thread", True) is False:
        if timeout is not None:
            raise Invalid("timeout= cannot stop a function with run_in_thread=False; drop one of them")
        function, asynchronous = _on_the_loop(function), True
    function = arguments.applied(function, asynchronous)
    described = declaration.described(author, options.get("description"), arguments.schema if given is None else None)
    annotations = declaration.annotations_of(options.get("annotations"))
    title = declaration.text("title", options.get("title")) or annotations.get("title")
    public: dict[str, Any] = {
        "name": name,
        "title": title or declaration.title_of(name),
        "description": described,
        "inputSchema": inlined(arguments.schema) if given is None else arguments.schema,
    }
    output = output_schema_of(hints, options.get("output_schema", UNSET))
    if output is not None:
        public["outputSchema"] = output
    if annotations:
        public["annotations"] = annotations
    public.update(declaration.extras("tool", options))
    public["filename"] = filename
    if arguments.context_parameter is not None:
        public["context"] = True
    if (task := declaration.task_of(options)) is not None:
        public["task"] = task
    if options.get("ask_first"):
        if task is None or arguments.context_parameter is None:
            raise Invalid("ask_first=True is for a function with task= and a Context, which asks before its task begins")
        public["askFirst"] = True
    return Tool(
        name=name,
        function=function,
        is_async=asynchronous,
        validate=arguments.validate,
        context_parameter=arguments.context_parameter,
        encode=encoder_of(hints, output, options.get("output_schema", UNSET)),
        timeout=timeout,
        public=public,
    )


def _timeout(given: Any) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < math.inf:
        raise Invalid("timeout= is a number of seconds above 0")
    return float(given)


def _gathering(function: Callable[..., Any]) -> Callable[..., Any]:
    """For async generators: a function that returns the list of what is yielded."""

    @functools.wraps(function)
    async def run(**arguments: Any) -> list[Any]:
        items: list[Any] = []
        async with aclosing(function(**arguments)) as generator:
            async for item in generator:
                if len(items) == MAX_YIELDED:
                    raise Unserialisable(TOO_MANY)
                items.append(item)
        return items

    return run


def _on_the_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """For libraries that want one thread for all calls, the loop's: `run_in_thread=False`."""

    @functools.wraps(function)
    async def run(**arguments: Any) -> Any:
        value = function(**arguments)
        # A generator's steps, too, belong to that one thread.
        return drained(await value if inspect.isawaitable(value) else value)

    return run
