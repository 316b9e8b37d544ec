"""Pages of MCP Apps (SEP-1865): the argument `app=` of `@tool` and `@resource`, as in FastMCP, and the types of its values.

A page is a resource with a `ui://` URI. With `app=`, a tool names the page that clients show with the tool's results, and a page
gets settings. Clients read both in `_meta.ui`. The types accept the keywords of FastMCP's types of the same name, and any other
keyword, in Python's spelling (`resource_uri`) or in the protocol's (`resourceUri`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .schema import Invalid

SCHEME = "ui://"
UI_MIME_TYPE = "text/html;profile=mcp-app"
"""Media type by which clients recognise a page."""
UI_EXTENSION_ID = "io.modelcontextprotocol/ui"

_PREFAB = "ui://prefab/"
_OF_TOOLS = {
    "resourceUri": "resource_uri names the page of a tool; a resource is the page itself",
    "visibility": "visibility is for tools",
}


class _Settings:
    """Keyword arguments that become members of a JSON object, under their names in the protocol."""

    _names: Mapping[str, str] = {}
    """Names in the protocol, by keyword, of the keywords that the protocol spells differently."""
    _known: tuple[str, ...] = ()
    """Further keywords that are known: the protocol spells them as Python does."""

    def __init__(self, **given: Any) -> None:
        for keyword, value in given.items():
            self._check(keyword, value)
        self._members = {self._names.get(keyword, keyword): value for keyword, value in given.items()}

    def _check(self, keyword: str, value: Any) -> None:
        """Raises TypeError or ValueError if the value is not valid for the keyword."""

    def __getattr__(self, name: str) -> Any:
        wire = self._names.get(name, name)
        if name.startswith("_") or not (wire in self._members or name in (*self._names, *self._known)):
            raise AttributeError(name)
        return self._members.get(wire)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._members.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._members == other._members

    __hash__ = None  # type: ignore[assignment]

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Returns the object that is sent to clients. Members with the value None are left out."""
        return {name: _dumped(value) for name, value in self._members.items() if value is not None}


class ResourceCSP(_Settings):
    """Origins from which a page may load files, and to which it may connect. By default there are none."""

    _names = {
        "connect_domains": "connectDomains",
        "resource_domains": "resourceDomains",
        "frame_domains": "frameDomains",
        "base_uri_domains": "baseUriDomains",
    }

    def _check(self, keyword: str, value: Any) -> None:
        is_list = isinstance(value, (list, tuple)) and all(isinstance(origin, str) for origin in value)
        if keyword.endswith(("_domains", "Domains")) and value is not None and not is_list:
            raise TypeError(f"ResourceCSP: {keyword} is a list of origins, such as ['https://api.example.com']")


class ResourcePermissions(_Settings):
    """Features of the browser that a page requests, each as an empty dict: `ResourcePermissions(camera={})`."""

    _names = {"clipboard_write": "clipboardWrite"}
    _known = ("camera", "microphone", "geolocation")


class AppConfig(_Settings):
    """Value of `app=`. For a tool: its page and its callers (`resource_uri`, `visibility`). For a page: its settings (`csp`,
    `permissions`, `domain`, `prefers_border`)."""

    _names = {"resource_uri": "resourceUri", "prefers_border": "prefersBorder"}
    _known = ("visibility", "csp", "permissions", "domain")

    def _check(self, keyword: str, value: Any) -> None:
        if keyword == "visibility" and value is not None:
            if not isinstance(value, (list, tuple)) or not set(value) <= {"app", "model"}:
                raise ValueError("AppConfig: visibility is a list of 'app' and 'model'")
        if keyword in ("resource_uri", "resourceUri") and not isinstance(value, (str, type(None))):
            raise TypeError("AppConfig: resource_uri is the URI of a page, such as 'ui://sales/chart.html'")


def ui_of(kind: str, app: Any) -> dict[str, Any]:
    """Returns `_meta.ui` of a tool or resource for the value of `app=`. Raises `Invalid` unless the value is an AppConfig or a
    dict that is valid for `kind`, "tool" or "resource"."""
    ui = _dumped(AppConfig(**app)) if isinstance(app, dict) else _dumped(app)
    if ui is True or (isinstance(ui, dict) and str(ui.get("resourceUri", "")).startswith(_PREFAB)):
        raise Invalid(
            "app= of a page that Prefab draws is not supported: serve the page with "
            "@resource('ui://NAME/page.html') and write app=AppConfig(resource_uri='ui://NAME/page.html')"
        )
    if not isinstance(ui, dict):
        raise Invalid(f"app= is an AppConfig or a dict, such as AppConfig(resource_uri='{SCHEME}NAME/page.html')")
    for name, instead in _OF_TOOLS.items():
        if kind == "resource" and name in ui:
            raise Invalid(f"app= of a resource: {instead}")
    uri = ui.get("resourceUri")
    if uri is not None and not (isinstance(uri, str) and uri.startswith(SCHEME)):
        raise Invalid(f"app= of a tool: resource_uri begins with {SCHEME}")
    return ui


def mime_type_of(uri: str, given: str | None) -> str | None:
    """Returns the media type of a resource: `given`, or the media type of pages if `given` is None and the URI is `ui://…`."""
    return UI_MIME_TYPE if given is None and uri.startswith(SCHEME) else given


def _dumped(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, dict):
        return {name: _dumped(item) for name, item in value.items()}
    return [_dumped(item) for item in value] if isinstance(value, (list, tuple, set, frozenset)) else value
