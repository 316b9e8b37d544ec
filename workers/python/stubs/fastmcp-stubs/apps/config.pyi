from collections.abc import Mapping, Sequence
from typing import Any, Literal

UI_EXTENSION_ID: str
UI_MIME_TYPE: str
"""Media type by which clients recognise a page."""

class ResourceCSP:
    """Origins from which a page may load files, and to which it may connect. By default there are none."""

    connect_domains: Sequence[str] | None
    resource_domains: Sequence[str] | None
    frame_domains: Sequence[str] | None
    base_uri_domains: Sequence[str] | None
    def __init__(
        self,
        *,
        connect_domains: Sequence[str] | None = ...,
        resource_domains: Sequence[str] | None = ...,
        frame_domains: Sequence[str] | None = ...,
        base_uri_domains: Sequence[str] | None = ...,
        **given: Any,
    ) -> None: ...
    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Returns the object that is sent to clients. Members with the value None are left out."""

class ResourcePermissions:
    """Features of the browser that a page requests, each as an empty dict: `ResourcePermissions(camera={})`."""

    camera: Mapping[str, Any] | None
    microphone: Mapping[str, Any] | None
    geolocation: Mapping[str, Any] | None
    clipboard_write: Mapping[str, Any] | None
    def __init__(
        self,
        *,
        camera: Mapping[str, Any] | None = ...,
        microphone: Mapping[str, Any] | None = ...,
        geolocation: Mapping[str, Any] | None = ...,
        clipboard_write: Mapping[str, Any] | None = ...,
        **given: Any,
    ) -> None: ...
    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Returns the object that is sent to clients. Members with the value None are left out."""

class AppConfig:
    """Value of `app=`. For a tool: its page and its callers (`resource_uri`, `visibility`). For a page: its settings (`csp`,
    `permissions`, `domain`, `prefers_border`)."""

    resource_uri: str | None
    visibility: Sequence[Literal["app", "model"]] | None
    csp: ResourceCSP | Mapping[str, Any] | None
    permissions: ResourcePermissions | Mapping[str, Any] | None
    domain: str | None
    prefers_border: bool | None
    def __init__(
        self,
        *,
        resource_uri: str | None = ...,
        visibility: Sequence[Literal["app", "model"]] | None = ...,
        csp: ResourceCSP | Mapping[str, Any] | None = ...,
        permissions: ResourcePermissions | Mapping[str, Any] | None = ...,
        domain: str | None = ...,
        prefers_border: bool | None = ...,
        **given: Any,
    ) -> None: ...
    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Returns the object that is sent to clients. Members with the value None are left out."""

def __getattr__(name: str) -> Any: ...
