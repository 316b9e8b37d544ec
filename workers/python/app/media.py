"""Pictures, sounds and files as results: `Image`, `Audio` and `File` of `fastmcp.utilities.types`.

An object is made from a path or from bytes. A file is read when the result is sent. Variables in a path (`$NAME`) are not
replaced, since an error message with the path would show their values. Without `format`, the media type is derived from the name
of the file. For bytes, it is that of PNG (`Image`), of WAV (`Audio`), or `application/octet-stream` (`File`).
"""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote

Block = dict[str, Any]

_IMAGES = {"jpg": "image/jpeg", "svg": "image/svg+xml", "tif": "image/tiff"}
_SOUNDS = {"mp3": "audio/mpeg", "m4a": "audio/mp4"}
_TEXTS = {"plain": "text/plain", "txt": "text/plain", "text": "text/plain", "csv": "text/csv", "html": "text/html"}
_TEXTS |= {"htm": "text/html", "md": "text/markdown", "markdown": "text/markdown"}
_UNKNOWN = "application/octet-stream"


class _Media:
    """Base class of the three types: the content of a file, or bytes."""

    # The encoder of results recognises these classes by the name of this module.
    __module__ = "fastmcp.utilities.types"

    def __init__(
        self,
        path: str | Path | None = None,
        data: bytes | None = None,
        format: str | None = None,
        annotations: Any = None,
    ) -> None:
        if path is None and data is None:
            raise ValueError("Either path or data must be provided")
        if path is not None and data is not None:
            raise ValueError("Only one of path or data can be provided")
        self.path = Path(path).expanduser() if path is not None else None
        self.data = data
        self.annotations = annotations
        self._format = format.lower() if format else None

    def _bytes(self) -> bytes:
        return self.path.read_bytes() if self.path is not None else self.data or b""

    def _type(self, of_formats: dict[str, str], kind: str, of_bytes: str) -> str:
        """Returns the media type: by `format` if it is given, else by the name of the file, else `of_bytes`. A format that is not
        in `of_formats` becomes a subtype of `kind`, such as `image/webp`."""
        if self._format is not None:
            return of_formats.get(self._format, f"{kind}/{self._format}")
        return of_bytes if self.path is None else _type_of_name(self.path)

    def _with_annotations(self, block: Block, given: Any) -> Block:
        annotations = given or self.annotations
        if hasattr(annotations, "model_dump"):
            annotations = annotations.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**block, "annotations": annotations} if annotations else block

    def _encoded(self) -> str:
        return b64encode(self._bytes()).decode("ascii")


class Image(_Media):
    """A picture, as a content block of a result."""

    __module__ = _Media.__module__

    def to_image_content(self, mime_type: str | None = None, annotations: Any = None) -> Block:
        """Returns the content block."""
        mime_type = mime_type or self._type(_IMAGES, "image", "image/png")
        return self._with_annotations({"type": "image", "data": self._encoded(), "mimeType": mime_type}, annotations)

    def to_data_uri(self, mime_type: str | None = None) -> str:
        """Returns the picture as a `data:` URI."""
        return f"data:{mime_type or self._type(_IMAGES, 'image', 'image/png')};base64,{self._encoded()}"


class Audio(_Media):
    """A sound, as a content block of a result."""

    __module__ = _Media.__module__

    def to_audio_content(self, mime_type: str | None = None, annotations: Any = None) -> Block:
        """Returns the content block."""
        mime_type = mime_type or self._type(_SOUNDS, "audio", "audio/wav")
        return self._with_annotations({"type": "audio", "data": self._encoded(), "mimeType": mime_type}, annotations)


class File(_Media):
    """A file, as a resource inside the result: its text if its type is `text/…`, else its bytes."""

    __module__ = _Media.__module__

    def __init__(
        self,
        path: str | Path | None = None,
        data: bytes | None = None,
        format: str | None = None,
        name: str | None = None,
        annotations: Any = None,
    ) -> None:
        super().__init__(path, data, format, annotations)
        self._name = name

    def to_resource_content(self, mime_type: str | None = None, annotations: Any = None) -> Block:
        """Returns the content block."""
        mime_type = mime_type or self._type(_TEXTS, "application", _UNKNOWN)
        resource: Block = {"uri": self._uri(mime_type), "mimeType": mime_type}
        if mime_type.startswith("text/"):
            data = self._bytes()
            try:
                resource["text"] = data.decode("utf-8")
            except UnicodeDecodeError:
                resource["text"] = data.decode("latin-1")
        else:
            resource["blob"] = self._encoded()
        return self._with_annotations({"type": "resource", "resource": resource}, annotations)

    def _uri(self, mime_type: str) -> str:
        if self.path is not None:
            return self.path.resolve().as_uri()
        extension = f".{self._format or mime_type.partition('/')[2]}"
        name = self._name or "resource"
        return f"file:///{quote(name if Path(name).suffix else name + extension)}"


def _type_of_name(path: Path) -> str:
    import mimetypes

    extension = path.suffix.lower().lstrip(".")
    # `mimetypes` also reads tables of the machine, so its results for these extensions differ between machines.
    known = {"webp": "image/webp", "wav": "audio/wav", "flac": "audio/flac", "ogg": "audio/ogg", **_SOUNDS}
    known |= {"md": "text/markdown", "markdown": "text/markdown"}
    return known.get(extension) or mimetypes.guess_type(path.name)[0] or _UNKNOWN
