"""`Image`, `Audio` and `File` of `fastmcp.utilities.types`: without the package, and compared with those of the package."""

from __future__ import annotations

import json
import subprocess
import textwrap
from base64 import b64encode

import pytest

from environments import FASTMCP_CURRENT, RUNTIME, environment

PNG = b"\x89PNG\r\n\x1a\n"

SOURCE = '''
    from pathlib import Path
    from fastmcp.tools import tool
    from fastmcp.utilities.types import Audio, File, Image

    @tool
    def picture() -> Image:
        return Image(data=b"\\x89PNG\\r\\n\\x1a\\n")

    @tool
    def both():
        return ["caption", Image(path=Path(__file__).with_name("a.jpg"), annotations={"priority": 1})]

    @tool
    def sound() -> Audio:
        return Audio(data=b"ID3", format="mp3")

    @tool
    def report() -> File:
        return File(data="größe,1".encode(), format="csv", name="sales 2026")

    @tool
    def missing() -> Image:
        return Image(path="/nowhere/a.png")
'''


def test_pictures_sounds_and_files_need_no_package(plain_worker):
    worker = plain_worker.write("t.py", SOURCE)
    (worker.tools / "a.jpg").write_bytes(b"jpeg")
    worker.start()
    assert worker.ready["issues"] == []
    picture = {"type": "image", "data": b64encode(PNG).decode(), "mimeType": "image/png"}
    assert worker.call("picture")["content"] == [picture]
    caption, shown = worker.call("both")["content"]
    assert caption == {"type": "text", "text": "caption"}
    assert shown == {"type": "image", "data": "anBlZw==", "mimeType": "image/jpeg", "annotations": {"priority": 1}}
    assert worker.call("sound")["content"] == [{"type": "audio", "data": "SUQz", "mimeType": "audio/mpeg"}]
    resource = {"uri": "file:///sales%202026.csv", "mimeType": "text/csv", "text": "größe,1"}
    assert worker.call("report")["content"] == [{"type": "resource", "resource": resource}]
    assert worker.error("missing")["code"] == "internal_error"
    assert all("outputSchema" not in tool for tool in worker.ready["tools"])


COMPARED = """
    import json, sys
    sys.path.insert(0, sys.argv[1])
    from pathlib import Path
    from app import media
    from fastmcp.utilities import types as real

    folder = Path(sys.argv[2])
    made = [
        (kind, convert, given)
        for kind, convert, names in (
            ("Image", "to_image_content", ("a.png", "a.jpg", "a.svg", "a.webp", "a.x-none")),
            ("Audio", "to_audio_content", ("a.wav", "a.mp3", "a.m4a", "a.flac", "a.ogg")),
            ("File", "to_resource_content", ("a.txt", "a.pdf", "a.json", "a.html", "a.x-none")),
        )
        for given in [
            *({"path": folder / name} for name in names),
            {"data": b"x"}, {"data": b""}, {"data": b"\\xff", "format": "TXT"}, {"data": b"x", "format": "jpg"},
            {"data": b"x", "format": "webp", "annotations": {"priority": 0.5}},
            *([{"data": b"x", "name": "n"}, {"data": b"x", "name": "n.md", "format": "md"}] if kind == "File" else []),
        ]
    ]
    for kind, convert, given in made:
        if "path" in given:
            given["path"].write_bytes(b"content")
        theirs = getattr(getattr(real, kind)(**given), convert)().model_dump(mode="json", by_alias=True, exclude_none=True)
        ours = getattr(getattr(media, kind)(**given), convert)()
        if ours != theirs:
            print(json.dumps([kind, str(given), ours, theirs]))
"""


@pytest.mark.fastmcp
def test_content_blocks_equal_those_of_the_newest_fastmcp(tmp_path):
    venv = environment(*FASTMCP_CURRENT)
    script = textwrap.dedent(COMPARED)
    command = [venv / "bin/python", "-c", script, RUNTIME, tmp_path]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line) for line in ran.stdout.splitlines()] == []
