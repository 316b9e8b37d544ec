"""Prompt messages: what a prompt returns, and what it makes them with.

A message is a role and a content block. Texts become text blocks, bytes and FastMCP's helper types the blocks they
become in tools; a dict with one of MCP's content types is a block as it stands, any other value JSON text.
"""

from __future__ import annotations

from typing import Any

from . import blocks, jsontext, results

_ROLES = frozenset({"user", "assistant"})


class Message:
    """One message of a prompt, by the user unless it says otherwise."""

    __slots__ = ("content", "role")

    def __init__(self, content: Any, role: str = "user") -> None:
        if role not in _ROLES:
            raise ValueError(f"a message's role is user or assistant, not {role!r}")
        self.content = blocks.block_of(content)
        self.role = role

    def __repr__(self) -> str:
        return f"Message({self.content!r}, role={self.role!r})"


def encode(value: Any, description: str) -> tuple[bytes, bytes | None]:
    """The JSON text of the result of getting a prompt."""
    result: dict[str, Any] = {}
    if blocks.of_mcp(value) and isinstance(found := getattr(value, "messages", None), (list, tuple)):
        description = getattr(value, "description", None) or description
        if isinstance(meta := getattr(value, "meta", None), dict) and meta:
            result["_meta"] = meta
        value = found
    if description:
        result["description"] = description
    items = value if isinstance(value, (list, tuple)) else [value]
    result["messages"] = [message_of(item) for item in items]
    return jsontext.dumps_any(results.plain(result)), None


def message_of(value: Any) -> dict[str, Any]:
    """One message as MCP has it, from any of the forms an author may use."""
    if isinstance(value, dict) and "role" in value:
        if value["role"] not in _ROLES or "content" not in value:
            raise results.Unserialisable("a message is {'role': 'user' or 'assistant', 'content': …}")
        return {**value, "content": blocks.block_of(value["content"])}
    if isinstance(value, Message):
        return {"role": value.role, "content": value.content}
    if blocks.of_mcp(value) and getattr(value, "role", None) in _ROLES and hasattr(value, "content"):
        return {"role": value.role, "content": blocks.block_of(value.content)}
    return {"role": "user", "content": blocks.block_of(value)}
