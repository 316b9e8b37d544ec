"""From what a resource returns to MCP's contents.

Text is text, bytes are a blob, and everything else is JSON text. Somebody who wants several contents, or another URI or
type for one, returns a list of dicts with `text` or `blob` and nothing but `uri`, `mimeType` and `_meta` beside it. The
result types of the fastmcp and mcp packages are recognised without importing either.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from . import blocks, jsontext, results

_KEYS = frozenset({"uri", "text", "blob", "mimeType", "_meta"})


def encode(
    value: Any, uri: str, mime_type: str | None, ttl_ms: int | None = None, ui: Any = None
) -> tuple[bytes, bytes | None]:
    """Returns the JSON text of the result of a read. Its first member is `ttlMs`, the time in milliseconds for which a client may
    keep the result. `ui`: the settings of a page, which become `_meta.ui` of each content that has no `_meta.ui` yet; None for
    other resources."""
    found = contents(value, uri, mime_type)
    if ui is not None:
        found = [{**content, "_meta": {"ui": ui, **content.get("_meta", {})}} for content in found]
    result = jsontext.dumps_any(results.plain({"contents": found}))
    return (result if ttl_ms is None else b'{"ttlMs":%d,%b' % (ttl_ms, result[1:])), None


def contents(value: Any, uri: str, mime_type: str | None) -> list[dict[str, Any]]:
    """What a client is sent for what the resource returned."""
    if blocks.of_mcp(value) and isinstance(found := getattr(value, "contents", None), (list, tuple)):
        value = list(found)
    if isinstance(value, (list, tuple)) and value and all(map(_is_content, value)):
        return [_content(item, uri, mime_type) for item in value]
    return [_content(value, uri, mime_type)] if _of_package(value) else [_whole(value, uri, mime_type)]


def _whole(value: Any, uri: str, mime_type: str | None) -> dict[str, Any]:
    if isinstance(value, str):
        return {"uri": uri, "mimeType": mime_type or "text/plain", "text": value}
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        encoded = b64encode(data).decode("ascii")
        return {"uri": uri, "mimeType": mime_type or blocks.mime_type(data), "blob": encoded}
    text = jsontext.dumps_any(results.plain(value)).decode("utf-8")
    return {"uri": uri, "mimeType": mime_type or "application/json", "text": text}


def _is_content(value: Any) -> bool:
    if _of_package(value):
        return True
    if not isinstance(value, dict) or not value.keys() <= _KEYS or ("text" in value) == ("blob" in value):
        return False
    if not all(isinstance(value.get(key, ""), str) for key in ("uri", "text", "mimeType")):
        return False
    return isinstance(value.get("blob", ""), (str, bytes)) and isinstance(value.get("_meta", {}), dict)


def _content(value: Any, uri: str, mime_type: str | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        value = _of_object(value)
    body = value.get("text", value.get("blob"))
    content = {**_whole(body, value.get("uri", uri), value.get("mimeType") or mime_type), **value}
    if isinstance(value.get("blob"), bytes):
        content["blob"] = b64encode(value["blob"]).decode("ascii")
    elif "blob" in value:
        content.pop("text", None)
        content["mimeType"] = value.get("mimeType") or mime_type or "application/octet-stream"
    return content


def _of_package(value: Any) -> bool:
    """An object of the real packages that stands for one content."""
    if not blocks.of_mcp(value):
        return False
    return hasattr(value, "text") or hasattr(value, "blob") or hasattr(value, "content")


def _of_object(value: Any) -> dict[str, Any]:
    if hasattr(value, "content"):  # FastMCP's ResourceContent and ReadResourceContents: str or bytes, and a type
        body, found = value.content, {"mimeType": value.mime_type, "_meta": getattr(value, "meta", None)}
        found["text" if isinstance(body, str) else "blob"] = body
    else:
        found = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: item for key, item in found.items() if item is not None}
