"""The validators of the official TypeScript SDKs, in a Node process that answers one question after another."""

from __future__ import annotations

import json
import platform
import select
import subprocess
from pathlib import Path
from typing import Any

from environments import leave_out
from harness import DEADLINE

NODE = Path(__file__).resolve().parents[3] / "target" / "node"


class Validators:
    """What the clients of both generations would say of a result."""

    def __init__(self) -> None:
        # Reached through a link beside the packages; without these flags Node would follow the link away from them.
        flags = ["--preserve-symlinks", "--preserve-symlinks-main"]
        self._process = subprocess.Popen(
            [_node(), *flags, str(NODE / "clients" / "typescript_validators.mjs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def wrong(self, schema: dict[str, Any], value: Any) -> dict[str, str]:
        """What each generation of the SDK has against the value; empty when the value fits."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"schema": schema, "value": value}, allow_nan=False).encode() + b"\n")
        self._process.stdin.flush()
        readable, _, _ = select.select([self._process.stdout], [], [], DEADLINE)
        assert readable, "the validators do not answer"
        answer = self._process.stdout.readline()
        assert answer, f"the validators ended with {self._process.wait(DEADLINE)}"
        return json.loads(answer)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE)


def start() -> Validators:
    """Leaves the test out where Node's packages have not been installed."""
    if not (NODE / "installed").exists():
        leave_out(f"results in the eyes of the TypeScript SDKs: {NODE} is missing (make test-environments)")
    return Validators()


def _node() -> str:
    """The Node that is installed as a package, else the machine's."""
    packaged = NODE / "node_modules" / f"node-linux-{_MACHINES.get(platform.machine(), 'x64')}" / "bin" / "node"
    return str(packaged) if packaged.exists() else "node"


_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}
