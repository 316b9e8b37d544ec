"""What `ctx.sample` and `ctx.list_roots` send, and how they read what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import messages as prompt_messages
from .elicitation import Unfit


@dataclass(frozen=True, slots=True)
class Sample:
    """What the client's model said."""

    content: Any
    """One of MCP's content blocks, or a list of them."""
    role: str
    model: str | None
    stop_reason: str | None

    @property
    def text(self) -> str | None:
        """The text of it, None if there is none."""
        blocks = self.content if isinstance(self.content, list) else [self.content]
        texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
        return "\n".join(texts) if texts else None


@dataclass(frozen=True, slots=True)
class Root:
    """A place the client gives access to."""

    uri: str
    name: str | None = None


_REFUSED = {
    "tools": "call functions in the body, and give the model their results as text",
    "tool_choice": "call functions in the body, and give the model their results as text",
    "result_type": "ask for JSON in the message, and read it from the text of the answer",
}


def refuse(keywords: dict[str, Any]) -> None:
    """`TypeError` if there are any: FastMCP's further keywords say what to do instead."""
    for keyword, value in keywords.items():
        if keyword not in _REFUSED:
            raise TypeError(f"ctx.sample does not know the keyword {keyword}")
        if value is not None:
            raise TypeError(f"ctx.sample: {keyword}= is not supported: {_REFUSED[keyword]}")


def request(
    messages: Any, system_prompt: str | None, temperature: float | None, max_tokens: int, model_preferences: Any
) -> dict[str, Any]:
    """The parameters of `sampling/createMessage`."""
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise ValueError("max_tokens must be a whole number above 0")
    given = messages if isinstance(messages, (list, tuple)) else [messages]
    if not given:
        raise ValueError("sample needs a message")
    params: dict[str, Any] = {
        "messages": [prompt_messages.message_of(message) for message in given],
        "maxTokens": max_tokens,
    }
    if system_prompt is not None:
        params["systemPrompt"] = str(system_prompt)
    if temperature is not None:
        params["temperature"] = float(temperature)
    if model_preferences is not None:
        params["modelPreferences"] = _preferences(model_preferences)
    return params


def read_sample(result: Any) -> Sample:
    """The model's message. `Unfit` if it is none."""
    if not isinstance(result, dict) or result.get("role") not in ("user", "assistant"):
        raise Unfit("the answer has no role user or assistant")
    content = result.get("content")
    blocks = content if isinstance(content, list) else [content]
    if not all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in blocks):
        raise Unfit("the answer has no content")
    model, reason = result.get("model"), result.get("stopReason")
    return Sample(
        content, result["role"], model if isinstance(model, str) else None, reason if isinstance(reason, str) else None
    )


def read_roots(result: Any) -> list[Root]:
    """The client's roots. `Unfit` if the answer has none."""
    roots = result.get("roots") if isinstance(result, dict) else None
    if not isinstance(roots, list) or not all(isinstance(it, dict) and isinstance(it.get("uri"), str) for it in roots):
        raise Unfit("the answer has no list of roots with their uri")
    return [Root(it["uri"], name if isinstance(name := it.get("name"), str) else None) for it in roots]


def _preferences(given: Any) -> dict[str, Any]:
    """MCP's object, or names of models, the most wanted first."""
    if hasattr(given, "model_dump"):
        given = given.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(given, dict):
        return given
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError("model_preferences is a model's name, a list of names, or MCP's object")
    return {"hints": [{"name": name} for name in names]}
