"""What values a resource template takes from a URI: no paths that lead elsewhere. FastMCP's `ResourceSecurity`.

A template like `file:///{path*}` hands what stands in the URI to a function that may open a file of that name. Values
with a NUL, absolute paths, and paths whose `..` lead above their beginning are therefore refused before the function
runs, as if there were no such resource, however they are encoded. `security=ResourceSecurity(exempt_params={"ref"})`
makes an exception, `security=None` switches the check off.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any


class ResourceSecurity:
    """Which values are refused. All checks are on unless switched off."""

    def __init__(
        self,
        *,
        reject_path_traversal: bool = True,
        reject_absolute_paths: bool = True,
        reject_null_bytes: bool = True,
        exempt_params: Set[str] = frozenset(),
    ) -> None:
        self.reject_path_traversal = reject_path_traversal
        self.reject_absolute_paths = reject_absolute_paths
        self.reject_null_bytes = reject_null_bytes
        self.exempt_params = frozenset(name.replace("-", "_") for name in exempt_params)

    def validate(self, params: Mapping[str, object]) -> str | None:
        """The name of the first parameter that is refused."""
        for name, value in params.items():
            if name in self.exempt_params:
                continue
            for text in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(text, str) and self._refuses(text):
                    return name
        return None

    def _refuses(self, text: str) -> bool:
        if self.reject_null_bytes and "\0" in text:
            return True
        if self.reject_path_traversal and _leads_above(text):
            return True
        return self.reject_absolute_paths and _is_absolute(text)


DEFAULT = ResourceSecurity()
"""What holds where a declaration says nothing."""


def policy_of(options: dict[str, Any]) -> Any:
    """Ours or the real package's policy, or None."""
    given = options.get("security", DEFAULT)
    return given if given is None or hasattr(given, "validate") else DEFAULT


def _leads_above(text: str) -> bool:
    depth = 0
    for part in text.replace("\\", "/").split("/"):
        if part == "..":
            depth -= 1
            if depth < 0:
                return True
        elif part not in ("", "."):
            depth += 1
    return False


def _is_absolute(text: str) -> bool:
    return text[:1] in ("/", "\\") or text[1:2] == ":" and text[0].isascii() and text[0].isalpha()
