"""What a running call asks its client: the open questions, and the answers.

Questions of one turn of the loop leave in one frame, so that a client can be shown all of them at once. A question is
open until it is answered or the call ends. Everything here happens on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from . import frames, jsontext, results
from .frames import MAX_KEY

if TYPE_CHECKING:
    from .calls import Call

MAX_OPEN = 32
"""Questions of one call that are open at the same time."""


class AskFailed(Exception):
    """The client did not answer, or not so that it can be used."""


class MissingCapability(Exception):
    """The client did not declare that it can be asked such a thing."""

    def __init__(self, message: str, required: dict[str, Any]) -> None:
        super().__init__(message)
        self.required = required


class Questions:
    """The questions of one call."""

    __slots__ = ("_call", "_counts", "_open", "_queued", "_size")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._counts: Counter[str] = Counter()
        self._open: dict[str, asyncio.Future[Any]] = {}
        self._queued: list[tuple[asyncio.Future[Any], bytes]] = []
        self._size = 0

    def key(self, kind: str, given: Any) -> str:
        """The key of the next question of this kind: the author's, or the kind and a number."""
        if given is None:
            while True:
                self._counts[kind] += 1
                key = f"{kind}-{self._counts[kind]}"
                if key not in self._open:
                    return key
        if not isinstance(given, str) or not 0 < len(given) <= MAX_KEY:
            raise ValueError(f"a question's key is a text of 1 to {MAX_KEY} characters")
        key = results.text(given)
        if key in self._open:
            raise ValueError(f"a question with the key {key!r} is open already")
        return key

    async def ask(self, key: str, method: str, params: dict[str, Any]) -> Any:
        """The client's result, as it came."""
        connection = self._call.connection
        if self._call.done:
            raise AskFailed("the call is over")
        if len(self._open) >= MAX_OPEN:
            raise AskFailed(f"more than {MAX_OPEN} open questions")
        question = jsontext.dumps_any(results.plain({"key": key, "method": method, "params": params}))
        # The first question of a frame counts the frame around it, too.
        size = len(question) + 1 + (0 if self._queued else len(frames.ask(self._call.id, [])))
        if self._size + size > connection.max_frame:
            raise AskFailed(f"the question takes {size} bytes; the limit of a frame is {connection.max_frame}")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[key] = future
        self._size += size
        self._queued.append((future, question))
        if len(self._queued) == 1:
            asyncio.get_running_loop().call_soon(self._send)
        try:
            return await future
        finally:
            self._open.pop(key, None)

    def answer(self, key: Any, answer: dict[str, Any]) -> bool:
        """Takes an answer; False if nothing (any more) waits for it."""
        future = self._open.get(key) if isinstance(key, str) else None
        if future is None or future.done():
            return False
        if "result" in answer:
            future.set_result(answer["result"])
        else:
            future.set_exception(_failure(answer.get("error")))
        return True

    def waiting(self) -> bool:
        """Whether a question is open."""
        return bool(self._open)

    def drop(self) -> None:
        """The call is over: whoever still waits in the background waits no longer."""
        for future in self._open.values():
            future.cancel()
        self._queued.clear()

    def _send(self) -> None:
        queued, self._queued, self._size = self._queued, [], 0
        questions = [question for future, question in queued if not future.done()]
        if questions and not self._call.done:
            self._call.connection.send(frames.ask(self._call.id, questions))


def _failure(error: Any) -> Exception:
    """What an answer's `error` becomes in the function that asked."""
    error = error if isinstance(error, dict) else {}
    message = error.get("message")
    message = message if isinstance(message, str) and message else "the client did not answer"
    details = error.get("details")
    if error.get("code") == "missing_capability" and isinstance(details, dict):
        required = details.get("requiredCapabilities")
        return MissingCapability(message, required if isinstance(required, dict) else {})
    return AskFailed(message)
