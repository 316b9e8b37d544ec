"""A forked child never becomes a second worker."""

from __future__ import annotations

import pytest

from harness import Worker

TOOLS = '''
    import asyncio, os
    from fastmcp.tools import tool

    def reap(pid):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @tool
    def fork_and_return() -> str:
        os.fork()
        return str(os.getpid())

    @tool
    async def fork_async() -> str:
        os.fork()
        return str(os.getpid())

    @tool
    async def fork_and_await() -> str:
        os.fork()
        await asyncio.sleep(0.01)
        return str(os.getpid())

    @tool
    def fork_and_raise():
        if os.fork() == 0:
            raise ValueError("in the child")
        return str(os.getpid())

    @tool
    async def task_forks() -> str:
        async def background():
            os.fork()
        await asyncio.create_task(background())
        return str(os.getpid())

    @tool
    def pool() -> list[int]:
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(abs, [-1, -2])

    def doubled(number):
        import helper
        return helper.double(number)

    @tool
    def doubles(method: str) -> list[int]:
        import concurrent.futures, multiprocessing
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
            return list(pool.map(doubled, [1, 2]))

    @tool
    def sockets_of_a_child() -> list[str]:
        """What a long-lived child has open."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
            found = [os.readlink(link) for link in links if os.path.islink(link)]
            os.write(write, "\\n".join(found).encode())
            os._exit(0)
        os.close(write)
        with open(read) as file:
            found = file.read().splitlines()
        reap(pid)
        return found

    @tool
    def children_left() -> int:
        """Waits for every child; how many there were."""
        count = 0
        while True:
            try:
                os.wait()
            except ChildProcessError:
                return count
            count += 1
'''


@pytest.fixture(scope="module")
def served(venv, workers) -> Worker:
    helper = "def double(number): return 2 * number\n"
    return workers(venv).write("t.py", TOOLS).write("helper.py", helper).start()


@pytest.mark.parametrize("tool", ["fork_and_return", "fork_async", "fork_and_await", "fork_and_raise", "task_forks"])
def test_child_never_answers_and_ends(served, tool):
    client = served.connect()
    assert client.call(tool)["result"] == str(served.process.pid)
    for _ in range(20):
        assert client.request("ping")["result"] == {"pong": True}
    assert client.call("children_left")["result"] == 1, "it ended, and once"
    client.send(id="last", op="ping")
    assert client.receive()["id"] == "last", "nothing else came"


def test_multiprocessing_works(served):
    assert served.value("pool") == [1, 2]
    assert served.value("fork_and_return") == str(served.process.pid)
    served.value("children_left")


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_of_every_kind_find_the_tools_module(served, method):
    assert served.value("doubles", method=method) == [2, 4]


def test_child_holds_none_of_the_workers_sockets(plain_worker):
    plain_worker.write("t.py", TOOLS).start()
    client = plain_worker.connect()
    found = client.call("sockets_of_a_child")["result"]
    assert found
    # The pair that is left wakes the loop of the worker itself and leads nowhere else.
    assert sum(name.startswith("socket:") for name in found) <= 2, found


def test_fork_at_import_leaves_one_worker(worker):
    worker.write(
        "t.py",
        """
        import os
        from fastmcp.tools import tool
        child = os.fork()

        @tool
        def pids() -> list[int]:
            return [os.getpid(), os.waitpid(child, 0)[0], child]
        """,
    ).start()
    parent, reaped, child = worker.value("pids")
    assert (parent, reaped) == (worker.process.pid, child)
    assert not worker.has_said_more()
    worker.process.terminate()
    assert worker.stdout_line() == b"", "nobody else holds standard output"


def test_child_that_fails_at_import_leaves_one_worker(worker):
    worker.write(
        "t.py",
        "import os\nfrom fastmcp.tools import tool\n@tool\ndef f() -> int: return 1\nif os.fork() == 0: raise ValueError\n",
    )
    worker.start()
    assert worker.ready["issues"] == []
    assert worker.value("f") == 1
