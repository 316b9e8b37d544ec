from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from environments import FAST, FASTMCP_2, FASTMCP_CURRENT, PLAIN, environment
from harness import Worker

ENVIRONMENTS = {"plain": PLAIN, "fast": FAST}
FASTMCP = {"fastmcp-2.14.5": FASTMCP_2, "fastmcp-current": FASTMCP_CURRENT}


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def venv(request: pytest.FixtureRequest) -> Path:
    """An environment with only pydantic, then one with orjson and uvloop."""
    return environment(*ENVIRONMENTS[request.param])


@pytest.fixture(scope="session")
def plain_venv() -> Path:
    return environment(*PLAIN)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Worker]]:
    """Makes workers that are stopped at the end of the module."""
    made: list[Worker] = []

    def make(venv: Path) -> Worker:
        made.append(Worker(tmp_path_factory.mktemp("data"), venv))
        return made[-1]

    yield make
    for worker in made:
        worker.stop()


@pytest.fixture
def worker(venv: Path, tmp_path: Path) -> Iterator[Worker]:
    """A worker of the test's own, in both environments."""
    worker = Worker(tmp_path, venv)
    yield worker
    worker.stop()


@pytest.fixture
def plain_worker(plain_venv: Path, tmp_path: Path) -> Iterator[Worker]:
    """A worker of the test's own, where the environment makes no difference."""
    worker = Worker(tmp_path, plain_venv)
    yield worker
    worker.stop()
