"""Skills: folders with a `SKILL.md`, whose files clients read as resources (SEP-2640).

A skill is a folder inside the namespace's folder, at most three levels down, or the namespace's folder itself. Each file of a
skill is a resource `skill://PATH/FILE`. PATH is the skill's folder without a leading `skills/`, and ends with the skill's name.
The front matter of `SKILL.md`, lines between two `---` at its beginning, contains the name and the description. It is read when
the namespace is loaded; files are read when a client requests them. No file of a skill is executed.

The listing of skills has the front matter as it is written, which the gateway parses, and the digests of the files, which are
computed when a client asks, and again only for files that have changed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
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
MAX_TOTAL = 16 * 1024 * 1024
"""Maximum size of a skill's files together, in bytes, for which the listing has their digests."""
MAX_FRONT_MATTER = 64 * 1024
"""Maximum size of a front matter, in bytes. No more of a `SKILL.md` is read when the namespace is loaded."""

_NAME = re.compile(r"(?!-)(?!.*--)[a-z0-9-]{1,64}(?<!-)")
_TEXT = re.compile(r"text/.*|application/(json|xml|yaml|toml|javascript|x-sh)")
_KNOWN = {".md": "text/markdown", ".py": "text/x-python", ".sh": "application/x-sh", ".toml": "application/toml"}
_KNOWN |= {".yaml": "application/yaml", ".yml": "application/yaml", ".json": "application/json"}


@dataclass(slots=True)
class Skill:
    """A skill that is served."""

    folder: str
    """The namespace's folder."""
    files: dict[str, str] = field(default_factory=dict)
    """The path of each file in the namespace's folder by its URI, `SKILL.md` first."""
    digests: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = field(default_factory=dict)
    """The digest and size of each file by its URI, with the stamp of the file that was read."""

    def entry(self) -> dict[str, Any]:
        """Describes the skill as it is now. `Invalid` or `OSError` if its `SKILL.md` cannot be read any more."""
        uri, main = next(iter(self.files.items()))
        lines = _front_matter_lines(_read(self.folder, main, MAX_FRONT_MATTER))
        return {"uri": uri, "frontmatter": "\n".join(lines), "resources": self._resources()}

    def _resources(self) -> list[dict[str, Any]] | str:
        stamps = {uri: stamp for uri, file in self.files.items() if (stamp := _stamp(self.folder, file)) is not None}
        if sum(stamp[0] for stamp in stamps.values()) > MAX_TOTAL:
            return "dynamic"
        found = []
        for uri, stamp in stamps.items():
            known = self.digests.get(uri)
            if known is None or known[0] != stamp:
                try:
                    known = stamp, _digest(_read(self.folder, self.files[uri]))
                except (Invalid, OSError):
                    continue
                self.digests[uri] = known
            found.append({"uri": uri, **known[1]})
        return found


def entries(skills: Iterable[Skill]) -> dict[str, Any]:
    """Describes the skills whose `SKILL.md` can be read."""
    found = []
    for skill in skills:
        try:
            found.append(skill.entry())
        except (Invalid, OSError, UnicodeDecodeError):
            continue
    return {"skills": found}


def _stamp(folder: str, file: str) -> tuple[int, ...] | None:
    """The size of a file that may be served, and the facts by which a change of it shows."""
    try:
        status = os.lstat(os.path.join(folder, file))
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _digest(content: bytes) -> dict[str, Any]:
    # The import is here because most namespaces have no skills and do not need the module.
    from hashlib import sha256

    return {"digest": f"sha256:{sha256(content).hexdigest()}", "size": len(content)}


def registrations(
    folder: str, report: Callable[[str, str, str], None], found: dict[str, Skill]
) -> Iterator[tuple[str, Registration]]:
    """Yields each file of the folder's skills: its path in the folder, and the registration of its resource. Calls `report` with
    a code, a path and a message for each skill that cannot be served. Adds the other skills to `found`, by the URIs of their
    `SKILL.md`."""
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
        served = Skill(folder)
        for file in files:
            inner = os.path.relpath(os.path.join(folder, file), os.path.join(folder, skill))
            options: dict[str, Any] = {
                "uri": f"skill://{quote(path)}/{quote(inner)}",
                "name": facts["name"] if inner == FILE else f"{facts['name']}/{inner}",
                "mime_type": _type(file),
            }
            if inner == FILE:
                options["description"] = facts["description"]
                found.setdefault(options["uri"], served)
            served.files[options["uri"]] = file
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


def _front_matter_lines(head: bytes) -> list[str]:
    """Returns the lines of a front matter. `head` is the beginning of the file, and may end inside of a
    character after the front matter."""
    raw = head.removeprefix(b"\xef\xbb\xbf").splitlines()
    if not raw or raw[0].rstrip() != b"---":
        raise Invalid("it must begin with a front matter: ---, name: and description:, ---")
    try:
        end = next(at for at, line in enumerate(raw[1:], 1) if line.rstrip() == b"---")
    except StopIteration:
        size = f"{MAX_FRONT_MATTER // 1024} KiB"
        raise Invalid(f"the --- that ends its front matter is missing in its first {size}") from None
    return [line.decode("utf-8") for line in raw[1:end]]


def _front_matter(head: bytes) -> dict[str, str]:
    """Returns the texts at the top level of a front matter, by key: plain and quoted texts, and blocks (`|`, `>`). Nested keys
    are not read."""
    lines = _front_matter_lines(head)
    end = len(lines)
    facts: dict[str, str] = {}
    at = 0
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
