"""Values that are not JSON but something to look at: MCP content blocks.

Bytes become an image, an audio clip or a binary resource, told apart by their first bytes. The helper and content types
of the fastmcp and mcp packages are recognised without importing either: by where their class comes from.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

Block = dict[str, Any]

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
)
_BOXED: dict[bytes, str] = {b"avif": "image/avif", b"heic": "image/heic", b"M4A ": "audio/mp4"}
_RIFF: dict[bytes, str] = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}

PACKAGES = frozenset({"fastmcp", "mcp", "mcp_types"})
_BLOCKS = {"text": "text", "image": "data", "audio": "data", "resource": "resource", "resource_link": "uri"}
"""MCP's content types, and the key that each must have."""
_RESERVED = ("io.modelcontextprotocol/", "tooldock/")
"""Beginnings of keys that the gateway writes into a result's `_meta` itself."""
_CONVERTERS = ("to_image_content", "to_audio_content", "to_resource_content")


class ErrorResult(Exception):
    """The tool returned a result object that says of itself that it is an error."""


class ToolResult:
    """What a tool returns to say itself what is shown and what is data. FastMCP's, as far as a tool needs it.

    `content` is a value or a list of them: texts, bytes, FastMCP's helper types, or content blocks as dicts. `meta` is the
    result's `_meta`.
    """

    __slots__ = ("content", "is_error", "meta", "structured_content")

    def __init__(
        self, content: Any = None, structured_content: Any = None, meta: Any = None, is_error: bool = False
    ) -> None:
        from . import results

        if content is None and structured_content is None:
            raise ValueError("a ToolResult has content, structured_content, or both")
        self.meta = _checked_meta(meta)
        if structured_content is not None and not isinstance(results.plain(structured_content), dict):
            found = f"{type(structured_content).__name__}: {repr(structured_content)[:200]}"
            raise ValueError(
                f"structured_content must be a dict or None. Got {found}. "
                "Tools should wrap non-dict values based on their output_schema."
            )
        content = structured_content if content is None else content
        items = content if isinstance(content, (list, tuple)) else [content]
        self.content = [block_of(item, index) for index, item in enumerate(items)]
        self.structured_content = structured_content
        self.is_error = is_error


def split(value: Any) -> tuple[Any, list[Block]] | None:
    """The value beside its content blocks, or None if there is nothing to show.

    A lone block stands beside `None`; in a list the blocks' places are `None`, the other items stay.
    """
    if (block := _block(value, 0)) is not None:
        return None, [block]
    if isinstance(value, ToolResult) or of_mcp(value) and type(value).__name__.endswith("ToolResult"):
        return _tool_result(value)
    if not isinstance(value, (list, tuple)):
        return None
    found = [_block(item, index) for index, item in enumerate(value)]
    if not any(found):
        return None
    rest = [None if block is not None else item for item, block in zip(value, found, strict=True)]
    return rest, [block if block is not None else _text_block(item) for item, block in zip(value, found, strict=True)]


def meta_of(value: Any) -> dict[str, Any] | None:
    """What the author of a result object says in its `_meta`."""
    if isinstance(value, ToolResult):
        return value.meta
    if of_mcp(value) and type(value).__name__.endswith("ToolResult"):
        return _checked_meta(getattr(value, "meta", None))
    return None


def _checked_meta(meta: Any) -> dict[str, Any] | None:
    if meta is None:
        return None
    if not isinstance(meta, dict):
        raise ValueError(f"meta must be a dict or None. Got {type(meta).__name__}")
    for key in meta:
        if isinstance(key, str) and key.startswith(_RESERVED):
            raise ValueError(f"the key {key!r} of meta belongs to the protocol; use a prefix of your own")
    return meta or None


def block_of(value: Any, index: int = 0) -> Block:
    """The one block that stands for a value: what it shows, itself if it is a block already, or its text."""
    if isinstance(value, dict) and is_block(value):
        return value
    block = _block(value, index)
    return block if block is not None else _text_block(value)


def is_block(value: dict[str, Any]) -> bool:
    """Whether a dict is a content block as MCP has it."""
    kind = value.get("type")
    return isinstance(kind, str) and kind in _BLOCKS and _BLOCKS[kind] in value


def of_mcp(value: Any) -> bool:
    """Whether the value's class is one of the fastmcp and mcp packages."""
    return type(value).__module__.partition(".")[0] in PACKAGES


def mime_type(data: bytes) -> str:
    """What the first bytes say."""
    for magic, mime in _MAGIC:
        if data.startswith(magic):
            return mime
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12], "application/octet-stream")
    if data[4:8] == b"ftyp":
        return _BOXED.get(data[8:12], "application/octet-stream")
    if data[:2] == b"BM" and data[6:10] == b"\0\0\0\0":
        return "image/bmp"
    return "application/octet-stream"


def _block(value: Any, index: int) -> Block | None:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _binary(bytes(value), index)
    if not of_mcp(value):
        return None
    for converter in _CONVERTERS:
        convert = getattr(value, converter, None)
        if convert is not None:
            return _dump(convert())
    if getattr(value, "type", None) in _BLOCKS and hasattr(value, "model_dump"):
        return _dump(value)
    return None


def _binary(data: bytes, index: int) -> Block:
    mime = mime_type(data)
    encoded = b64encode(data).decode("ascii")
    kind = mime.partition("/")[0]
    if kind in ("image", "audio"):
        return {"type": kind, "data": encoded, "mimeType": mime}
    uri = f"tooldock://result/{index}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": encoded}}


def _text_block(item: Any) -> Block:
    from . import jsontext, results

    text = item if isinstance(item, str) else jsontext.dumps_any(results.plain(item)).decode("utf-8")
    return {"type": "text", "text": text}


def _tool_result(value: Any) -> tuple[Any, list[Block]]:
    content = [_dump(block) for block in value.content or ()]
    if getattr(value, "is_error", False) or getattr(value, "isError", False):
        raise ErrorResult("\n".join(block["text"] for block in content if block.get("type") == "text") or "failed")
    structured = getattr(value, "structured_content", None)
    if structured is None:
        structured = getattr(value, "structuredContent", None)
    return structured, content


def _dump(block: Any) -> Block:
    if isinstance(block, dict):
        return block
    dumped: Block = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dumped
