from collections.abc import Coroutine
from typing import Any, TypeVar, overload

from .server.elicitation import AcceptedElicitation, CancelledElicitation, DeclinedElicitation

_T = TypeVar("_T")

class _Done(Coroutine[Any, Any, None]):
    """Done when it is returned: a plain function need not await it, an async one may."""

class Context:
    """One call's way back to its caller."""

    @property
    def request_id(self) -> str:
        """The gateway's id of the request, which is the X-Request-Id of its answer; else the id of this call."""

    @property
    def traceparent(self) -> str | None:
        """The span that this call belongs to, as the header of W3C Trace Context; None where the gateway exports no traces."""

    @property
    def tracestate(self) -> str | None:
        """What tracing systems added to the trace, for the header beside `traceparent`."""

    @property
    def client_capabilities(self) -> dict[str, Any]:
        """What the client declared it can do; empty for callers that are no MCP clients."""

    @property
    def client_info(self) -> dict[str, Any] | None:
        """Name and version of the client's software, if it told."""

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> _Done:
        """Tells the caller how far the call is. Reports may be dropped when the caller does not read them in time."""

    def log(
        self, message: Any, level: str = "info", logger_name: str | None = None, extra: Any = None
    ) -> _Done:
        """A line in the worker's log, and a log message for the client: `message` may be any JSON value."""

    def debug(self, message: Any, logger_name: str | None = None, extra: Any = None) -> _Done:
        """`log` at level debug."""

    def info(self, message: Any, logger_name: str | None = None, extra: Any = None) -> _Done:
        """`log` at level info."""

    def notice(self, message: Any, logger_name: str | None = None, extra: Any = None) -> _Done:
        """`log` at level notice."""

    def warning(self, message: Any, logger_name: str | None = None, extra: Any = None) -> _Done:
        """`log` at level warning."""

    def error(self, message: Any, logger_name: str | None = None, extra: Any = None) -> _Done:
        """`log` at level error."""

    def critical(self, message: Any, logger_name: str | None = None, extra: Any = None) -> _Done:
        """`log` at level critical."""

    def send_tool_list_changed(self) -> _Done:
        """Tells every client of the namespace to ask for the tools again."""

    def send_prompt_list_changed(self) -> _Done:
        """Tells every client of the namespace to ask for the prompts again."""

    def send_resource_list_changed(self) -> _Done:
        """Tells every client of the namespace to ask for the resources again."""

    def send_resource_updated(self, uri: str) -> _Done:
        """Tells the clients that subscribed to this resource to read it again."""

    @overload
    def elicit(
        self,
        message: str,
        response_type: None = None,
        *,
        response_title: str | None = None,
        response_description: str | None = None,
        key: str | None = None,
    ) -> Coroutine[Any, Any, AcceptedElicitation[dict[str, Any]] | DeclinedElicitation | CancelledElicitation]:
        """Asks the user to agree."""

    @overload
    def elicit(
        self,
        message: str,
        response_type: type[_T],
        *,
        response_title: str | None = None,
        response_description: str | None = None,
        key: str | None = None,
    ) -> Coroutine[Any, Any, AcceptedElicitation[_T] | DeclinedElicitation | CancelledElicitation]:
        """Asks the user for a text, number, flag, `Enum`, or a dataclass, TypedDict or pydantic model of such fields."""

    @overload
    def elicit(
        self,
        message: str,
        response_type: list[str],
        *,
        response_title: str | None = None,
        response_description: str | None = None,
        key: str | None = None,
    ) -> Coroutine[Any, Any, AcceptedElicitation[str] | DeclinedElicitation | CancelledElicitation]:
        """Asks the user to choose a text of the list."""

    @overload
    def elicit(
        self,
        message: str,
        response_type: Any,
        *,
        response_title: str | None = None,
        response_description: str | None = None,
        key: str | None = None,
    ) -> Coroutine[Any, Any, AcceptedElicitation[Any] | DeclinedElicitation | CancelledElicitation]:
        """Asks the user for a `Literal`, titled choices, or a form by a JSON Schema of type object."""

    def elicit_url(
        self, message: str, url: str, *, key: str | None = None
    ) -> Coroutine[Any, Any, AcceptedElicitation[None] | DeclinedElicitation | CancelledElicitation]:
        """Asks the user to open a page, such as a login or a payment: `AcceptedElicitation` without data if they agree to,
        which does not say that they are done there. Only clients that declare `elicitation.url` can be asked."""

    def sample(
        self,
        messages: Any,
        system_prompt: str | None = None,
        *,
        temperature: float | None = None,
        max_tokens: int = 512,
        model_preferences: Any = None,
        key: str | None = None,
    ) -> Coroutine[Any, Any, _Sample]:
        """Asks the client's model. `messages` is a text, a `Message`, or a list of them."""

    def list_roots(self, *, key: str | None = None) -> Coroutine[Any, Any, list[_Root]]:
        """Asks the client which places it gives access to."""

class _Sample:
    @property
    def content(self) -> Any:
        """One of MCP's content blocks, or a list of them."""

    @property
    def role(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def stop_reason(self) -> str | None: ...
    @property
    def text(self) -> str | None:
        """The text of it, None if there is none."""

class _Root:
    @property
    def uri(self) -> str: ...
    @property
    def name(self) -> str | None: ...
