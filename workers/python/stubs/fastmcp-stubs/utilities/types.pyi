from pathlib import Path
from typing import Any

class _Media:
    path: Path | None
    data: bytes | None
    annotations: Any
    def __init__(
        self,
        path: str | Path | None = None,
        data: bytes | None = None,
        format: str | None = None,
        annotations: Any = None,
    ) -> None: ...

class Image(_Media):
    """A picture, as a content block of a result."""

    def to_image_content(self, mime_type: str | None = None, annotations: Any = None) -> dict[str, Any]:
        """Returns the content block."""

    def to_data_uri(self, mime_type: str | None = None) -> str:
        """Returns the picture as a `data:` URI."""

class Audio(_Media):
    """A sound, as a content block of a result."""

    def to_audio_content(self, mime_type: str | None = None, annotations: Any = None) -> dict[str, Any]:
        """Returns the content block."""

class File(_Media):
    """A file, as a resource inside the result: its text if its type is `text/…`, else its bytes."""

    def __init__(
        self,
        path: str | Path | None = None,
        data: bytes | None = None,
        format: str | None = None,
        name: str | None = None,
        annotations: Any = None,
    ) -> None: ...
    def to_resource_content(self, mime_type: str | None = None, annotations: Any = None) -> dict[str, Any]:
        """Returns the content block."""

def __getattr__(name: str) -> Any: ...
