"""Skills: folders with a `SKILL.md`, whose files clients read as resources (SEP-2640, without `skills/list`).

A skill is a folder inside the namespace's folder, at most three levels down, or the namespace's folder itself. Each file of a
skill is a resource `skill://PATH/FILE`. PATH is the skill's folder without a leading `skills/`, and ends with the skill's name.
The front matter of `SKILL.md`, lines between two `---` at its beginning, contains the name and the description. It is read when
the namespace is loaded; files are read when a client requests them. No file of a skill is executed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Any

from .decorator import Registration
from .schema import Invalid

FILE = "SKILL.md"
MAX_LEVELS = 3
"""Maximum depth, in levels below the namespace's folder, at which skills are found."""
MAX_SKILLS = 100
"""Maximum number of skills in a namespace."""
MAX_FILES = 200
"""Maximum number of files in a skill."""
MAX_BYTES = 5 * 1024 * 1024
"""Maximum size of a file, in bytes. Larger files do not become resources; a skill with a larger `SKILL.md` is not served."""
MAX_FRONT_MATTER = 64 * 1024
"""Maximum size of a front matter, in bytes. No more of a `SKILL.md` is read when the namespace is loaded."""

_NAME = re.compile(r"(?!-)(?!.*--)[a-z0-9-]{1,64}(?<!-)")
_TEXT = re.compile(r"text/.*|application/(json|xml|yaml|toml|javascript|x-sh)")
_KNOWN = {".md": "text/markdown", ".py": "text/x-python", ".sh": "application/x-sh", ".toml": "application/toml"}
_KNOWN |= {".yaml": "application/yaml", ".yml": "application/yaml", ".json": "application/json"}


def registrations(folder: str, report: Callable[[str, str, str], None]) -> Iterator[tuple[str, Registration]]:
    """Yields each file of the folder's skills: its path in the folder, and the registration of its resource. Calls `report` with
    a code, a path and a message for each skill that cannot be served."""
    for number, skill in enumerate(_skills(folder)):
        main = os.path.join(skill, FILE)
        if number >= MAX_SKILLS:
            report("invalid_skill", main, f"a namespace has at most {MAX_SKILLS} skills")
            return
        try:
            facts = _front_matter(_read(folder, main, MAX_FRONT_MATTER))
            _check(facts, skill)
            files = _files(folder, skill)
        except (Invalid, OSError, UnicodeDecodeError) as error:
            report("invalid_skill", main, str(error))
            continue
        # The import is here because most namespaces have no skills and do not need the module.
        from urllib.parse import quote

        path = skill.removeprefix(f"skills{os.sep}") if skill else facts["name"]
        for file in files:
            inner = os.path.relpath(os.path.join(folder, file), os.path.join(folder, skill))
            options: dict[str, Any] = {
                "uri": f"skill://{quote(path)}/{quote(inner)}",
                "name": facts["name"] if inner == FILE else f"{facts['name']}/{inner}",
                "mime_type": _type(file),
            }
            if inner == FILE:
                options["description"] = facts["description"]
            yield file, Registration(_reader(folder, file), options, "resource")


def _skills(folder: str) -> Iterator[str]:
    """Yields the paths of the folders with a `SKILL.md`, in order. Folders inside a skill belong to this skill and are not
    searched, unless the skill is the namespace's folder itself."""
    waiting = [""]
    while waiting:
        at = waiting.pop()
        if os.path.lexists(os.path.join(folder, at, FILE)):
            yield at
            if at:
                continue
        if at.count(os.sep) + bool(at) < MAX_LEVELS:
            inner = sorted(_folders(os.path.join(folder, at)), reverse=True)
            waiting.extend(os.path.join(at, name) for name in inner)


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [it.name for it in entries if it.is_dir(follow_symlinks=False) and _counts(it.name)]
    except OSError:
        return []


def _counts(name: str) -> bool:
    # A name that is not UTF-8, or has control characters, cannot stand in a URI.
    return name.isprintable() and not name.startswith((".", "_")) and name not in ("node_modules", "venv")


def _files(folder: str, skill: str) -> list[str]:
    """Returns the paths of a skill's regular files, `SKILL.md` first. If the skill is the namespace's folder itself, returns only
    `SKILL.md`."""
    found: list[str] = []
    for at, folders, names in os.walk(os.path.join(folder, skill)) if skill else ():
        folders[:] = sorted(filter(_counts, folders))
        for name in sorted(filter(_counts, names)):
            path = os.path.join(at, name)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_BYTES:
                found.append(os.path.relpath(path, folder))
        if len(found) > MAX_FILES:
            raise Invalid(f"a skill has at most {MAX_FILES} files")
    main = os.path.join(skill, FILE)
    return [main, *(it for it in found if it != main)]


def _read(folder: str, file: str, at_most: int = MAX_BYTES) -> bytes:
    """Returns the content of a regular file below a folder, or its first bytes. `Invalid` for other files, and if the path has a
    symbolic link."""
    try:
        descriptor = _opened(folder, file)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Invalid("a link stands in the file's path") from None
        raise
    with open(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise Invalid(f"not a regular file of at most {MAX_BYTES} bytes")
        return opened.read(at_most)


def _opened(folder: str, file: str) -> int:
    """Opens a file below a folder, and returns its descriptor. Each part of the path is opened in the one before, so that no link
    that takes the place of a folder meanwhile is followed."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, name = file.split(os.sep)
        for part in folders:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


def _reader(folder: str, file: str) -> Callable[[], str | bytes]:
    is_text = _TEXT.fullmatch(_type(file)) is not None

    def read() -> str | bytes:
        content = _read(folder, file)
        return content.decode("utf-8", "replace") if is_text else content

    return read


def _type(file: str) -> str:
    import mimetypes

    extension = os.path.splitext(file)[1].lower()
    guessed = _KNOWN.get(extension) or mimetypes.guess_type(file)[0]
    return guessed or ("application/octet-stream" if extension else "text/plain")


def _check(facts: dict[str, str], skill: str) -> None:
    name, description = facts.get("name", ""), facts.get("description", "")
    if not _NAME.fullmatch(name):
        raise Invalid("its front matter needs a name: 1 to 64 lower case letters, digits and single hyphens")
    if skill and os.path.basename(skill) != name:
        folder = os.path.basename(skill)
        raise Invalid(f"its front matter has `name: {name}`, and its folder is named {folder}: make them the same")
    if not 1 <= len(description) <= 1024:
        raise Invalid("its front matter needs a description of 1 to 1024 characters")


def _front_matter(head: bytes) -> dict[str, str]:
    """Returns the texts at the top level of a front matter, by key: plain and quoted texts, and blocks (`|`, `>`). Nested keys
    are not read. `head` is the beginning of the file, and may end inside of a character after the front matter."""
    raw = head.removeprefix(b"\xef\xbb\xbf").splitlines()
    if not raw or raw[0].rstrip() != b"---":
        raise Invalid("it must begin with a front matter: ---, name: and description:, ---")
    try:
        end = next(at for at, line in enumerate(raw[1:], 1) if line.rstrip() == b"---")
    except StopIteration:
        size = f"{MAX_FRONT_MATTER // 1024} KiB"
        raise Invalid(f"the --- that ends its front matter is missing in its first {size}") from None
    lines = [line.decode("utf-8") for line in raw[:end]]
    facts: dict[str, str] = {}
    at = 1
    while at < end:
        key = re.match(r"([A-Za-z][\w-]*):(?:[ \t]+(.*))?$", lines[at])
        at += 1
        if key is None:
            continue
        further = []
        while at < end and (not lines[at].strip() or lines[at].startswith((" ", "\t"))):
            further.append(lines[at].strip())
            at += 1
        facts[key[1]] = _scalar((key[2] or "").strip(), further)
    return facts


def _scalar(first: str, further: list[str]) -> str:
    if first[:1] in ("|", ">"):
        return ("\n" if first[0] == "|" else " ").join(further).strip()
    whole = " ".join([first, *filter(None, further)]).strip()
    if len(whole) >= 2 and whole[0] == whole[-1] == "'":
        return whole[1:-1].replace("''", "'")
    if len(whole) >= 2 and whole[0] == whole[-1] == '"':
        return whole[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return re.split(r"\s#", whole)[0].rstrip()
