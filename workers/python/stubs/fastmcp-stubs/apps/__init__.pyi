from typing import Any

from .config import (
    UI_EXTENSION_ID as UI_EXTENSION_ID,
    UI_MIME_TYPE as UI_MIME_TYPE,
    AppConfig as AppConfig,
    ResourceCSP as ResourceCSP,
    ResourcePermissions as ResourcePermissions,
)

def __getattr__(name: str) -> Any: ...
