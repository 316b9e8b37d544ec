"""Virtual environments for the workers under test, made once each under target/python-envs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

RUNTIME = Path(__file__).resolve().parents[1]
ENVIRONMENTS = RUNTIME.parents[1] / "target" / "python-envs"

PLAIN = ("pydantic>=2",)
FAST = ("pydantic>=2", "orjson", "uvloop")
FASTMCP_2 = ("fastmcp==2.14.5",)
FASTMCP_CURRENT = ("fastmcp>=4",)


NEWEST_FASTMCP = ENVIRONMENTS / "clients-fastmcp"
"""Made by `make test-environments`, from tests/clients/requirements-fastmcp.txt."""


def leave_out(what: str) -> NoReturn:
    """Skips the test that asks, and has `make test` say so at its end. With CI=true nothing may be left out."""
    if os.environ.get("CI") in ("true", "1"):
        pytest.fail(what)
    if skipped := os.environ.get("TEST_SKIPPED"):
        with open(skipped, "a") as lines:
            lines.write(f"{what}\n")
    pytest.skip(what)


def environment(*requirements: str) -> Path:
    """The folder of an environment that holds the requirements, and finds the runtime as the gateway's do: by .pth."""
    key = "\n".join([sys.version, str(RUNTIME), *requirements])
    folder = ENVIRONMENTS / f"worker-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    complete = folder / ".complete"
    if complete.exists():
        return folder
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _make(folder, requirements)
            complete.write_text("\n".join(requirements))
    return folder


def _make(folder: Path, requirements: tuple[str, ...]) -> None:
    _run(sys.executable, "-m", "venv", "--clear", str(folder))
    if requirements:
        _run(str(folder / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "tooldock.pth").write_text(f"{RUNTIME}\n")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
