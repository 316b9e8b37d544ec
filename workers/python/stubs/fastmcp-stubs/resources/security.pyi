from collections.abc import Mapping, Set
from typing import Any

class ResourceSecurity:
    """Which values of a template are refused. All checks are on unless switched off."""

    reject_path_traversal: bool
    reject_absolute_paths: bool
    reject_null_bytes: bool
    exempt_params: frozenset[str]
    def __init__(
        self,
        *,
        reject_path_traversal: bool = True,
        reject_absolute_paths: bool = True,
        reject_null_bytes: bool = True,
        exempt_params: Set[str] = frozenset(),
    ) -> None: ...
    def validate(self, params: Mapping[str, object]) -> str | None:
        """The name of the first parameter that is refused."""

def __getattr__(name: str) -> Any: ...
