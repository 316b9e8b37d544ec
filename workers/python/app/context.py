"""What a function may ask of its caller: `ctx: Context` in its signature.

The methods are FastMCP's. Those that only tell something do their work when they are called and return something to
`await`, so that a sync function, which cannot await, may simply call them. Those that ask (`elicit`, `sample`,
`list_roots`) wait for the client's answer and are for async functions alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NoReturn

from . import results, stdio
from .questions import AskFailed, MissingCapability

if TYPE_CHECKING:
    from . import sampling
    from .calls import Call

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""MCP's log levels, the least severe first."""

_SEVERITY = {level: number for number, level in enumerate(LEVELS)}


class Context:
    """One call's way back to its caller."""

    __slots__ = ("_call", "_caller", "_inputs", "_request_id")

    def __init__(self, call: Call, request_id: str, caller: dict[str, Any] | None) -> None:
        self._call = call
        self._request_id = request_id
        self._caller = caller
        inputs = caller.get("inputs") if caller is not None else None
        self._inputs: dict[str, Any] = dict(inputs) if isinstance(inputs, dict) else {}

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"Context has no {name} here: it is the way of one call to its client, and knows no server, session or state",
            name=name,
            obj=self,
        )

    @property
    def request_id(self) -> str:
        """The gateway's id of the request, which is the X-Request-Id of its answer; else the id of this call."""
        return self._call.request or self._request_id

    @property
    def traceparent(self) -> str | None:
        """The span that this call belongs to, as the header of W3C Trace Context; None where the gateway exports no traces."""
        found = self._call.trace[0]
        return found if isinstance(found, str) else None

    @property
    def tracestate(self) -> str | None:
        """What tracing systems added to the trace, for the header beside `traceparent`."""
        found = self._call.trace[1]
        return found if isinstance(found, str) else None

    @property
    def client_capabilities(self) -> dict[str, Any]:
        """What the client declared it can do; empty for callers that are no MCP clients."""
        found = self._caller.get("capabilities") if self._caller is not None else None
        return found if isinstance(found, dict) else {}

    @property
    def client_info(self) -> dict[str, Any] | None:
        """Name and version of the client's software, if it told."""
        found = self._caller.get("clientInfo") if self._caller is not None else None
        return found if isinstance(found, dict) else None

    # Telling.

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> Coroutine[Any, Any, None]:
        """Tells the caller how far the call is. Reports may be dropped when the caller does not read them in time."""
        params: dict[str, Any] = {"progress": _number("progress", progress)}
        if total is not None:
            params["total"] = _number("total", total)
        if message is not None:
            params["message"] = str(message)
        if self._caller is None or self._caller.get("progress", True):
            self._call.tell("progress", params)
        return _Done()

    def log(
        self, message: Any, level: str = "info", logger_name: str | None = None, extra: Any = None
    ) -> Coroutine[Any, Any, None]:
        """A line in the worker's log, and a log message for the client: `message` may be any JSON value."""
        if level not in _SEVERITY:
            raise ValueError(f"a log level is one of {', '.join(LEVELS)}")
        name = self._call.target.name
        origin = name if logger_name is None else f"{name} {logger_name}"
        stdio.log(f"{level} [{origin}] {message}" + ("" if extra is None else f" {extra}"), level)
        if self._listens(level):
            params: dict[str, Any] = {"level": level}
            if logger_name is not None:
                params["logger"] = str(logger_name)
            params["data"] = _data(message if extra is None else {"msg": message, "extra": extra})
            self._call.tell("log", params)
        return _Done()

    def debug(self, message: Any, logger_name: str | None = None, extra: Any = None) -> Coroutine[Any, Any, None]:
        """`log` at level debug."""
        return self.log(message, "debug", logger_name, extra)

    def info(self, message: Any, logger_name: str | None = None, extra: Any = None) -> Coroutine[Any, Any, None]:
        """`log` at level info."""
        return self.log(message, "info", logger_name, extra)

    def notice(self, message: Any, logger_name: str | None = None, extra: Any = None) -> Coroutine[Any, Any, None]:
        """`log` at level notice."""
        return self.log(message, "notice", logger_name, extra)

    def warning(self, message: Any, logger_name: str | None = None, extra: Any = None) -> Coroutine[Any, Any, None]:
        """`log` at level warning."""
        return self.log(message, "warning", logger_name, extra)

    def error(self, message: Any, logger_name: str | None = None, extra: Any = None) -> Coroutine[Any, Any, None]:
        """`log` at level error."""
        return self.log(message, "error", logger_name, extra)

    def critical(self, message: Any, logger_name: str | None = None, extra: Any = None) -> Coroutine[Any, Any, None]:
        """`log` at level critical."""
        return self.log(message, "critical", logger_name, extra)

    def send_tool_list_changed(self) -> Coroutine[Any, Any, None]:
        """Tells every client of the namespace to ask for the tools again."""
        return self._notify("notifications/tools/list_changed")

    def send_prompt_list_changed(self) -> Coroutine[Any, Any, None]:
        """Tells every client of the namespace to ask for the prompts again."""
        return self._notify("notifications/prompts/list_changed")

    def send_resource_list_changed(self) -> Coroutine[Any, Any, None]:
        """Tells every client of the namespace to ask for the resources again."""
        return self._notify("notifications/resources/list_changed")

    def send_resource_updated(self, uri: str) -> Coroutine[Any, Any, None]:
        """Tells the clients that subscribed to this resource to read it again."""
        return self._notify("notifications/resources/updated", {"uri": str(uri)})

    # Asking.

    def elicit(
        self,
        message: str,
        response_type: Any = None,
        *,
        response_title: str | None = None,
        response_description: str | None = None,
        key: str | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Asks the user: `AcceptedElicitation` with `data` of the response type, or that they declined or cancelled.

        `response_type` is a text, number, flag, `Literal`, `Enum`, a list of choices, or a dataclass, TypedDict or
        pydantic model of such fields; or a JSON Schema of type object, as it is. `response_title` and
        `response_description` stand at the only field of a form, where the type is no object. `key` names the question where a
        client sees it; without one it is `elicitation-1`, and so on.
        """
        from . import elicitation

        form = elicitation.labelled(elicitation.form_of(response_type), response_title, response_description)
        params = {"message": str(message), "requestedSchema": form.schema}
        return self._ask("elicitation", "elicitation/create", params, key, lambda it: elicitation.outcome(form, it))

    def elicit_url(self, message: str, url: str, *, key: str | None = None) -> Coroutine[Any, Any, Any]:
        """Asks the user to open a page, such as a login or a payment: `AcceptedElicitation` without data if they agree to,
        which does not say that they are done there. Only clients that declare `elicitation.url` can be asked."""
        from . import elicitation

        params = {"mode": "url", "message": str(message), "url": elicitation.page(url)}
        if (self._caller or {}).get("era") != "modern":
            params["elicitationId"] = elicitation.new_id()  # later revisions know a question by its key alone
        return self._ask("elicitation", "elicitation/create", params, key, elicitation.agreement)

    def sample(
        self,
        messages: Any,
        system_prompt: str | None = None,
        *,
        temperature: float | None = None,
        max_tokens: int = 512,
        model_preferences: Any = None,
        key: str | None = None,
        **others: Any,
    ) -> Coroutine[Any, Any, sampling.Sample]:
        """Asks the client's model. `messages` is a text, a `Message`, or a list of them."""
        from . import sampling

        sampling.refuse(others)
        params = sampling.request(messages, system_prompt, temperature, max_tokens, model_preferences)
        return self._ask("sampling", "sampling/createMessage", params, key, sampling.read_sample)

    def list_roots(self, *, key: str | None = None) -> Coroutine[Any, Any, list[sampling.Root]]:
        """Asks the client which places it gives access to."""
        from . import sampling

        return self._ask("roots", "roots/list", {}, key, sampling.read_roots)

    def _ask(
        self, capability: str, method: str, params: dict[str, Any], key: Any, read: Callable[[Any], Any]
    ) -> Coroutine[Any, Any, Any]:
        if not self._call.on_loop():
            raise RuntimeError(f"asking the client ({method}) needs an async function: write `async def` and `await`")
        return self._asked(capability, method, params, key, read)

    async def _asked(
        self, capability: str, method: str, params: dict[str, Any], key: Any, read: Callable[[Any], Any]
    ) -> Any:
        from .elicitation import Unfit

        self._require(capability, params)
        questions = self._call.questions()
        key = questions.key(capability, key)
        if key in self._inputs:
            # Each answer sent along is good for one question: who asks again wants to hear something else.
            try:
                return read(self._inputs.pop(key))
            except Unfit:
                pass  # nobody had been asked yet: do it now
        answer = await questions.ask(key, method, params)
        try:
            return read(answer)
        except Unfit as error:
            raise AskFailed(f"{method}: {error}") from None

    def _require(self, capability: str, params: dict[str, Any]) -> None:
        found = self.client_capabilities.get(capability)
        page = params.get("url") if params.get("mode") == "url" else None
        required: dict[str, Any] = {} if page is None else {"url": {}}
        if isinstance(found, dict):
            # A client that names no mode has forms.
            has_forms = "form" in found or "url" not in found
            if capability != "elicitation" or (has_forms if page is None else found.get("url") is not None):
                return
            required = {"form": {}} if page is None else required
        message = f"the client cannot be asked: it did not declare {capability}"
        if page is not None:  # a client that opens no pages shows the text of the error
            message += f".url. Open this link in a browser, and call again: {params['message']} {page}"
        raise MissingCapability(message, {capability: required})

    def _notify(self, method: str, params: dict[str, Any] | None = None) -> Coroutine[Any, Any, None]:
        self._call.tell("notify", {"method": method} if params is None else {"method": method, "params": params})
        return _Done()

    def _listens(self, level: str) -> bool:
        """Whether the client may want to see a log message. In a session the level can change while the call runs, so
        the gateway decides; a request of the modern era says it once and for all."""
        caller = self._caller or {}
        least = caller.get("logLevel")
        if not isinstance(least, str):
            return False
        return caller.get("era") != "modern" or _SEVERITY[level] >= _SEVERITY.get(least, 0)


class _Done(Coroutine[Any, Any, None]):
    """Already done; awaiting it only lets the event loop turn once, so that a loop of reports does not starve others.

    A `Coroutine`, since FastMCP's methods are, and tools hand those to `asyncio.create_task`.
    """

    __slots__ = ("_turned",)

    def __init__(self) -> None:
        self._turned = False

    def __await__(self) -> Generator[None, None, None]:
        yield

    def send(self, value: Any) -> None:
        if self._turned:
            raise StopIteration
        self._turned = True

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> NoReturn:
        raise kind if value is None else value

    def close(self) -> None:
        self._turned = True


def _data(value: Any) -> Any:
    """Log messages never fail a call: what has no JSON form is sent as its text."""
    try:
        return results.plain(value)
    except Exception:
        return str(value)


def _number(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number")
    return value
