"""Tests of what operators install: units, manifests, alert rules, dashboards, the site of the documentation."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"


def program(name: str) -> str:
    """The path of a program: one that came with the packages of these tests, or of the system."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        reason = f"{name} is not installed"
        if skipped := os.environ.get("TEST_SKIPPED"):
            with open(skipped, "a") as lines:
                lines.write(f"packaging: {reason}\n")
        pytest.skip(reason)
    return found


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """Runs a program to its end and returns its output; its failure is the test's."""
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=env
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}"
    return done.stdout
