"""One thing both sides said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .signatures import Arguments, Case


@dataclass(frozen=True)
class Seen:
    of: str
    """`context`: the names a Context has. `served`: whether the function is a tool. `tool`: how it is listed. `call`: what came of a call."""
    case: Case
    arguments: Arguments | None
    ours: Any
    theirs: Any
