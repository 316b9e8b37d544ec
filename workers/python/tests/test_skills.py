"""Folders with a SKILL.md: their files as resources, and skills that cannot be served."""

from __future__ import annotations

import hashlib
import os

import pytest

TOOL = """
    from fastmcp.tools import tool
    @tool
    def add(a: int, b: int) -> int:
        return a + b
"""


def skill(name: str = "git-flow", description: str = "How branches are named here.") -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\n# Steps\n"


@pytest.fixture
def folder(plain_worker):
    plain_worker.write("t.py", TOOL)

    def write(path: str, content: str | bytes) -> None:
        file = plain_worker.tools / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def resources(worker) -> dict[str, dict]:
    return {entry["definition"]["uri"]: entry["definition"] for entry in worker.ready.get("resources", [])}


def read(worker, uri: str) -> dict:
    return worker.connect().request("resources.read", uri=uri)


def test_the_files_of_skills_are_resources_below_the_name_of_the_skill(plain_worker, folder):
    folder("skills/git-flow/SKILL.md", skill())
    folder("skills/git-flow/references/Größe 1.json", '{"a": 1}')
    folder("skills/git-flow/logo.png", b"\x89PNG\r\n\x1a\n")
    folder("team/pdf/SKILL.md", skill("pdf", "'Reads it''s pages'"))
    folder("skills/git-flow/.hidden", "x")
    folder(os.fsdecode(b"skills/git-flow/\xff.md"), "x")
    folder(os.fsdecode(b"skills/\xff/SKILL.md"), skill())
    folder("node_modules/other/SKILL.md", skill("other"))
    plain_worker.start()
    assert plain_worker.ready["issues"] == []
    found = resources(plain_worker)
    main = found["skill://git-flow/SKILL.md"]
    assert (main["name"], main["description"], main["mimeType"]) == (
        "git-flow",
        "How branches are named here.",
        "text/markdown",
    )
    assert found["skill://team/pdf/SKILL.md"]["description"] == "Reads it's pages"
    others = ["skill://git-flow/logo.png", "skill://git-flow/references/Gr%C3%B6%C3%9Fe%201.json"]
    assert sorted(found) == sorted([*others, "skill://git-flow/SKILL.md", "skill://team/pdf/SKILL.md"])
    [content] = read(plain_worker, others[1])["result"]["contents"]
    assert content == {"uri": others[1], "mimeType": "application/json", "text": '{"a": 1}'}
    [content] = read(plain_worker, others[0])["result"]["contents"]
    assert content["blob"] and content["mimeType"] == "image/png"
    assert plain_worker.value("add", a=1, b=2) == 3


def test_a_file_is_read_as_it_is_when_a_client_asks(plain_worker, folder):
    folder("git-flow/SKILL.md", skill())
    plain_worker.start()
    folder("git-flow/SKILL.md", skill() + "later\n")
    [content] = read(plain_worker, "skill://git-flow/SKILL.md")["result"]["contents"]
    assert content["text"].endswith("later\n")


def test_a_link_that_takes_the_place_of_a_file_is_not_followed(plain_worker, folder):
    folder("git-flow/SKILL.md", skill())
    folder("git-flow/a.txt", "x")
    plain_worker.start()
    os.remove(plain_worker.tools / "git-flow/a.txt")
    (plain_worker.tools / "git-flow/a.txt").symlink_to("/etc/passwd")
    answer = read(plain_worker, "skill://git-flow/a.txt")
    assert not answer["ok"] and "root:" not in str(answer)
    # A folder on the way likewise.
    folder("elsewhere/a.txt", "secret")
    (plain_worker.tools / "git-flow").rename(plain_worker.tools / "before")
    (plain_worker.tools / "git-flow").symlink_to(plain_worker.tools / "elsewhere")
    answer = read(plain_worker, "skill://git-flow/a.txt")
    assert not answer["ok"] and "secret" not in str(answer)


def test_skills_that_cannot_be_served_are_reported_and_the_others_are_served(plain_worker, folder):
    folder("good/SKILL.md", "---\nname: good\ndescription: >\n  two\n  lines\n---\n")
    for name, content, message in (
        ("plain", "# no front matter\n", "must begin with a front matter"),
        ("open", "---\nname: open\n", "the --- that ends its front matter is missing"),
        ("other", skill("another"), "make them the same"),
        ("Caps", skill("Caps"), "lower case letters"),
        ("mute", "---\nname: mute\ndescription:\n---\n", "needs a description"),
        ("latin", b"---\nname: latin\ndescription: \xff\n---\n", "can't decode"),
    ):
        folder(f"{name}/SKILL.md", content)
    (plain_worker.tools / "linked").mkdir()
    (plain_worker.tools / "linked/SKILL.md").symlink_to("/etc/passwd")
    issues = {issue["subject"]: issue for issue in plain_worker.start().ready["issues"]}
    assert {issue["code"] for issue in issues.values()} == {"invalid_skill"}
    assert "lower case letters" in issues["Caps/SKILL.md"]["message"]
    assert "must begin with a front matter" in issues["plain/SKILL.md"]["message"]
    assert "is missing" in issues["open/SKILL.md"]["message"]
    assert "its folder is named other" in issues["other/SKILL.md"]["message"]
    assert "needs a description" in issues["mute/SKILL.md"]["message"]
    assert "can't decode" in issues["latin/SKILL.md"]["message"]
    assert "a link" in issues["linked/SKILL.md"]["message"]
    assert resources(plain_worker)["skill://good/SKILL.md"]["description"] == "two lines"


def test_only_the_beginning_of_a_skill_is_read_for_its_front_matter(plain_worker, folder):
    text = skill("long") + "ö" * 2_000_000
    folder("long/SKILL.md", text)
    folder("wordy/SKILL.md", "---\nname: wordy\ndescription: x\n" + "more: x\n" * 10_000 + "---\n")
    [issue] = plain_worker.start().ready["issues"]
    assert issue["subject"] == "wordy/SKILL.md" and "missing in its first 64 KiB" in issue["message"]
    [content] = read(plain_worker, "skill://long/SKILL.md")["result"]["contents"]
    assert content["text"] == text


def listed(worker, **fields) -> dict:
    return worker.connect().request("skills.list", **fields)


def test_the_listing_has_the_front_matter_as_written_and_the_digests_of_the_files(plain_worker, folder):
    folder("skills/git-flow/SKILL.md", skill() + "body\n")
    folder("skills/git-flow/a.bin", b"\x00\xff")
    folder("pdf/SKILL.md", "\ufeff---\r\nname: pdf\r\nmetadata:\r\n  version: 1\r\ndescription: x\r\n---\r\n")
    plain_worker.start()
    pdf, flow = listed(plain_worker)["result"]["skills"]
    assert pdf["frontmatter"] == "name: pdf\nmetadata:\n  version: 1\ndescription: x"
    assert flow["uri"] == "skill://git-flow/SKILL.md"
    assert flow["frontmatter"] == "name: git-flow\ndescription: How branches are named here."
    main, other = flow["resources"]
    assert main["uri"] == flow["uri"] and main["size"] == len(skill() + "body\n")
    digest = hashlib.sha256(b"\x00\xff").hexdigest()
    assert other == {"uri": "skill://git-flow/a.bin", "digest": f"sha256:{digest}", "size": 2}
    # The digest is that of the file as it is now, and a file that is gone is not listed.
    folder("skills/git-flow/a.bin", b"more")
    [entry] = listed(plain_worker, uri=flow["uri"])["result"]["skills"]
    assert entry["resources"][1]["digest"] == f"sha256:{hashlib.sha256(b'more').hexdigest()}"
    os.remove(plain_worker.tools / "skills/git-flow/a.bin")
    [entry] = listed(plain_worker, uri=flow["uri"])["result"]["skills"]
    assert entry["resources"] == [main]


def test_a_large_skill_is_listed_without_digests_and_an_unknown_one_is_refused(plain_worker, folder):
    folder("git-flow/SKILL.md", skill())
    for number in range(4):
        folder(f"git-flow/{number}.bin", b"x" * (5 * 1024 * 1024))
    plain_worker.start()
    [entry] = listed(plain_worker)["result"]["skills"]
    assert entry["resources"] == "dynamic"
    for uri in ("skill://git-flow/0.bin", "skill://other/SKILL.md", 1, []):
        answer = listed(plain_worker, uri=uri)
        assert answer["error"]["code"] == "invalid_arguments", uri
