"""One resource or resource template: what is announced of it, and what a read needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import declaration
from .completion import Completers, completers_of
from .pages import mime_type_of
from .schema import Invalid, arguments_of, hints_of
from .text_arguments import reading_text

if TYPE_CHECKING:
    from .uri_template import UriTemplate

MAX_TTL = 365 * 24 * 3600
"""Seconds for which a client may be told to keep what it read."""


@dataclass(slots=True)
class Resource:
    """A function whose result clients may read: at one URI, or at all that fit a template."""

    name: str
    uri: str
    template: UriTemplate | None
    """None for a plain resource."""
    mime_type: str | None
    function: Callable[..., Any]
    is_async: bool
    validate: Callable[[Any], dict[str, Any]]
    context_parameter: str | None
    completers: Completers
    ttl_ms: int | None
    """How long a client may keep what it read."""
    ui: Any
    """Settings of a page, sent as `_meta.ui` of its contents, where clients read them; None for resources without settings."""
    security: Any
    """Policy whose `validate` refuses unsafe values of a template's parameters; None if all values are accepted."""
    public: dict[str, Any]


def make_resource(function: Any, options: dict[str, Any], filename: str) -> Resource:
    """Reads texts and parameters off the function. `Invalid` if it cannot be a resource."""
    # Here, since most namespaces have none.
    from .uri_template import BadTemplate, UriTemplate, has_placeholders

    from .resource_security import policy_of

    declaration.check("resource", function, options)
    uri = options.get("uri")
    if not isinstance(uri, str):
        raise Invalid("the URI must be a string")
    try:
        template = UriTemplate(uri)
    except BadTemplate as error:
        raise Invalid(f"{uri}: {error}") from None
    name = options.get("name") or getattr(function, "__name__", "")
    if not isinstance(name, str) or not name:
        raise Invalid("name must be a string")
    hints = hints_of(function)
    arguments = arguments_of(function, hints)
    _check_parameters(template, arguments.schema)
    is_template = has_placeholders(uri)
    completers = completers_of(options.get("complete"), arguments.schema)
    mime_type = mime_type_of(uri, declaration.text("mime_type", options.get("mime_type")))
    definition = _definition(function, options, name, uri, is_template, mime_type)
    return Resource(
        name=name,
        uri=uri,
        template=template if is_template else None,
        mime_type=mime_type,
        function=arguments.applied(function, declaration.is_async(function)),
        is_async=declaration.is_async(function),
        validate=reading_text(arguments.validate),
        context_parameter=arguments.context_parameter,
        completers=completers,
        ttl_ms=_ttl_ms(options.get("cache_ttl")),
        ui=definition.get("_meta", {}).get("ui"),
        security=policy_of(options) if is_template else None,
        public={"definition": definition, "filename": filename, "context": arguments.context_parameter is not None},
    )


def _definition(
    function: Any, options: dict[str, Any], name: str, uri: str, is_template: bool, mime_type: str | None
) -> dict[str, Any]:
    """The object of MCP's lists."""
    title = declaration.text("title", options.get("title"))
    definition: dict[str, Any] = {
        "uriTemplate" if is_template else "uri": uri,
        "name": name,
        "title": title or declaration.title_of(name),
    }
    if description := declaration.described(function, options.get("description")):
        definition["description"] = description
    if mime_type:
        definition["mimeType"] = mime_type
    if (size := options.get("size")) is not None:
        if is_template or isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise Invalid("size is the number of bytes of a resource that is no template")
        definition["size"] = size
    if annotations := declaration.annotations_of(options.get("annotations")):
        definition["annotations"] = annotations
    return {**definition, **declaration.extras("resource", options)}


def _check_parameters(template: UriTemplate, schema: dict[str, Any]) -> None:
    properties, required = set(schema["properties"]), set(schema.get("required", ()))
    if unknown := [name for name in template.names if name not in properties]:
        raise Invalid(f"the function has no parameter {unknown[0]}, which the URI names")
    if unfilled := sorted(required - set(template.path_names)):
        raise Invalid(f"the parameter {unfilled[0]} needs a default, since a URI need not give it")
    if stray := sorted(properties - set(template.names)):
        raise Invalid(f"the parameter {stray[0]} is not in the URI")


def _ttl_ms(seconds: Any) -> int | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= MAX_TTL:
        raise Invalid(f"cache_ttl= is a number of seconds from 0 to {MAX_TTL}")
    return int(seconds * 1000)
