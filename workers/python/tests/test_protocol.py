"""The frames on the socket: EX-50…53, ids, order, limits, connections."""

from __future__ import annotations

import json
import os
import stat

import pytest

from harness import Worker

TOOLS = '''
    import asyncio, time
    from fastmcp.tools import tool

    @tool
    def say_hello(name: str = "World") -> str:
        """Greet someone by name."""
        return f"Hello, {name}!"

    @tool
    async def echo(value: object = None) -> object:
        return value

    @tool
    async def gate(opened: list = []):
        """Waits for `open_gate`."""
        global event
        event = asyncio.Event()
        await event.wait()
        return "opened"

    @tool
    async def open_gate():
        event.set()

    @tool
    def block(path: str):
        """Blocks its thread until the file is there."""
        import os
        while not os.path.exists(path):
            time.sleep(0.005)
        return "unblocked"

    @tool
    async def many(size: int):
        return "x" * size

    @tool
    def noisy(text: str):
        import os, subprocess, sys
        print(text)
        sys.__stdout__.write(text + chr(10))
        os.write(1, text.encode())
        subprocess.run(["echo", text], check=True)
        return sys.stdin.read()
'''


@pytest.fixture(scope="module")
def served(venv, workers) -> Worker:
    return workers(venv).write("tools.py", TOOLS).start("--generation", "7", "--max-frame", "200000")


@pytest.fixture
def client(served):
    client = served.connect()
    yield client
    client.close()


def test_ready_line_is_announced_once_and_greets_every_client(served):
    lists = ["tools", "resources", "resourceTemplates", "prompts", "completions", "issues", "files"]
    assert list(served.ready) == ["op", "namespace", "generation", "pid", *lists]
    assert served.ready["namespace"] == "ns"
    assert served.ready["generation"] == 7
    assert served.ready["pid"] == served.process.pid
    assert served.connect().greeting == served.ready
    assert served.connect().greeting == served.ready
    assert not served.has_said_more(), "the ready line is all that a healthy worker says"


def test_no_greeting_leaves_the_ready_line_out(worker):
    worker.write("t.py", TOOLS).start("--no-greeting")
    client = worker.connect(greeting=False)
    assert client.request("ping")["ok"]


def test_socket_is_private_and_renamed_from_the_generations_own(served):
    assert stat.S_IMODE(os.stat(served.socket).st_mode) == 0o600
    assert sorted(os.listdir(served.socket.parent)) == ["ns.sock"]


def test_call_answers_with_the_keys_in_order(client):
    client.send(id="req-123", op="tools.call", tool="say_hello", arguments={"name": "Ada"})
    line = client.receive_raw().decode()
    assert line.startswith('{"id":"req-123","ok":true,"result":"Hello, Ada!","latency_ms":')
    assert type(json.loads(line)["latency_ms"]) is int


def test_arguments_may_be_left_out(client):
    client.send(id=1, op="tools.call", tool="say_hello")
    assert client.receive()["result"] == "Hello, World!"


@pytest.mark.parametrize(
    "spelled", ['"ünï \\"quoted\\" \\u0041"', "0", "-7", "12345678901234567890123", "1.5", '""', '"1"'], ids=str
)
def test_id_comes_back_as_it_was(client, spelled):
    client.send_raw(f'{{"id":{spelled},"op":"ping"}}\n'.encode())
    line = client.receive_raw()
    assert json.loads(line)["id"] == json.loads(spelled)
    assert line.startswith(b'{"id":')


def test_ping_list_and_schema(client, served):
    assert client.request("ping")["result"] == {"pong": True}
    assert client.request("tools.list")["result"] == served.ready["tools"]
    found = client.request("tools.get_schema", tool="say_hello")["result"]
    assert found["name"] == "say_hello"
    assert found["inputSchema"]["properties"]["name"] == {"type": "string", "default": "World"}
    assert client.request("tools.get_schema", tool="nope")["error"]["code"] == "tool_not_found"


@pytest.mark.parametrize("arguments", [b'{"name":"\\ud800"}', b'{"n":' + b"9" * 5000 + b"}", b"{]"])
def test_a_request_that_cannot_be_read_is_answered_by_its_id(client, arguments):
    client.send_raw(b'{"id":77,"op":"tools.call","tool":"say_hello","arguments":' + arguments + b"}\n")
    answer = client.receive()
    assert (answer["id"], answer["ok"], answer["error"]["code"]) == (77, False, "invalid_arguments")


def test_line_that_is_no_json_is_answered_and_the_connection_lives(client):
    client.send_raw(b"not json\n")
    assert client.receive() == {
        "id": "",
        "ok": False,
        "error": {"code": "internal_error", "message": "invalid JSON", "details": {}},
    }
    assert client.request("ping")["ok"]


@pytest.mark.parametrize(
    "line",
    [
        b'"\xff"',
        b"\xff\xfe",
        b"[]",
        b"null",
        b"1",
        b"[" * 100_000,
        b'{"op":"ping"}',
        b'{"id":null,"op":"ping"}',
        b'{"id":true,"op":"ping"}',
        b'{"id":[1],"op":"ping"}',
        b"\0",
    ],
    ids=lambda line: repr(line[:24]),
)
def test_garbage_is_answered_without_id(client, line):
    client.send_raw(line + b"\n")
    frame = client.receive()
    assert (frame["id"], frame["ok"], frame["error"]["code"]) == ("", False, "internal_error")
    assert client.request("ping")["ok"]


@pytest.mark.parametrize("op", ['"nope"', "null", "7", "[]", "{}"])
def test_unknown_op_is_an_error_with_the_id(client, op):
    client.send_raw(f'{{"id":9,"op":{op}}}\n'.encode())
    frame = client.receive()
    assert frame["id"] == 9
    assert "unknown op" in frame["error"]["message"]


@pytest.mark.parametrize("tool", ['"nope"', "null", "[]", "{}", "1", '"__class__"'])
def test_unknown_tool(client, tool):
    client.send_raw(f'{{"id":9,"op":"tools.call","tool":{tool},"arguments":{{}}}}\n'.encode())
    assert client.receive()["error"]["code"] == "tool_not_found"


def test_empty_lines_and_carriage_returns_are_tolerated(client):
    client.send_raw(b'\n\r\n  \n{"id":1,"op":"ping"}\r\n')
    assert client.receive()["id"] == 1


def test_frames_may_come_in_any_pieces(client):
    data = b'{"id":1,"op":"ping"}\n{"id":2,"op":"ping"}\n'
    for byte in data:
        client.send_raw(bytes([byte]))
    assert [client.receive()["id"] for _ in range(2)] == [1, 2]


def test_many_frames_in_one_piece_are_all_answered(client):
    lines = [b'{"id":%d,"op":"tools.call","tool":"echo","arguments":{"value":%d}}\n' % (i, i) for i in range(500)]
    client.send_raw(b"".join(lines))
    answers = [client.receive() for _ in lines]
    assert sorted(frame["id"] for frame in answers) == list(range(500))
    assert all(frame["result"] == frame["id"] for frame in answers)


def test_answers_overtake_each_other(client):
    slow = client.start("gate")
    assert client.request("ping")["ok"]
    client.call("open_gate")
    assert slow == 1


def test_sync_tool_does_not_hold_up_the_loop(client, tmp_path):
    blocked = client.start("block", path=str(tmp_path / "go"))
    assert client.request("ping")["ok"]
    assert client.call("echo", value=1)["result"] == 1
    (tmp_path / "go").touch()
    assert client.answer(blocked)["result"] == "unblocked"


def test_sync_calls_run_one_at_a_time_in_order(client, tmp_path):
    first = client.start("block", path=str(tmp_path / "go"))
    ids = [client.start("say_hello", name=str(number)) for number in range(5)]
    assert client.request("ping")["ok"]
    (tmp_path / "go").touch()
    assert [client.receive()["id"] for _ in range(6)] == [first, *ids]


def test_sync_concurrency_runs_that_many_at_once(worker, tmp_path):
    worker.write("t.py", TOOLS).start("--sync-concurrency", "2")
    client = worker.connect()
    blocked = client.start("block", path=str(tmp_path / "go"))
    assert client.call("say_hello")["ok"]
    (tmp_path / "go").touch()
    assert client.answer(blocked)["ok"]


def test_second_running_call_with_the_same_id_is_refused(client):
    client.start("gate", call_id="same")
    client.send(id="same", op="tools.call", tool="echo", arguments={})
    assert "has this id" in client.answer("same")["error"]["message"]
    client.call("open_gate")


def test_too_long_request_is_answered_with_its_id_and_skipped(client):
    client.send_raw(b'{"id":"big","op":"tools.call","tool":"echo","arguments":{"value":"')
    for _ in range(100):
        client.send_raw(b"x" * 10_000)
    client.send_raw(b'"}}\n{"id":2,"op":"ping"}\n')
    frame = client.receive()
    assert (frame["id"], frame["error"]["code"]) == ("big", "invalid_arguments")
    assert "200000 bytes" in frame["error"]["message"]
    assert client.receive()["id"] == 2


def test_too_long_garbage_is_answered_once_while_it_still_flows(client):
    client.send_raw(b"x" * 300_000)
    assert client.receive()["id"] == ""
    client.send_raw(b"x" * 300_000 + b"\n")
    assert client.request("ping")["ok"]


def test_result_up_to_the_limit_passes_and_over_it_is_an_error(client):
    limit = 200_000
    envelope = len('{"id":1,"ok":true,"result":"","latency_ms":0}')
    assert len(client.call("many", size=limit - envelope - 10)["result"]) == limit - envelope - 10
    error = client.call("many", size=limit)["error"]
    assert error["code"] == "result_too_large"
    assert error["details"]["limit"] == limit
    assert str(error["details"]["size"]) in error["message"]
    assert error["details"]["size"] > limit


def test_numbers_pass_unchanged(client):
    for spelled in ["123456789012345678901234567890", "-9223372036854775809", "18446744073709551615", "0.1", "1e300"]:
        client.send_raw(f'{{"id":1,"op":"tools.call","tool":"echo","arguments":{{"value":{spelled}}}}}\n'.encode())
        line = client.receive_raw().decode()
        assert json.loads(line)["result"] == json.loads(spelled)
        if spelled.lstrip("-").isdigit():
            assert f'"result":{spelled},' in line


def test_text_is_utf8_and_not_escaped(client):
    client.send_raw('{"id":1,"op":"tools.call","tool":"echo","arguments":{"value":"Grüße 🌍"}}\n'.encode())
    assert '"result":"Grüße 🌍"'.encode() in client.receive_raw()


def test_tool_output_never_reaches_the_protocol(served, client):
    assert client.call("noisy", text="a line of noise")["result"] == "", "standard input is empty"
    assert client.request("ping")["ok"]
    assert not served.has_said_more()
    assert served.log().count("a line of noise") >= 4


def test_several_clients_at_once(served):
    clients = [served.connect() for _ in range(20)]
    for number, client in enumerate(clients):
        client.start("echo", call_id="same", value=number)
    assert [client.answer("same")["result"] for client in clients] == list(range(20))


def test_client_that_only_stopped_writing_gets_its_answers(served, tmp_path):
    client = served.connect()
    blocked = client.start("block", path=str(tmp_path / "go"))
    client.socket.shutdown(1)
    (tmp_path / "go").touch()
    assert client.answer(blocked)["result"] == "unblocked"
    assert client.at_end()


def test_client_that_does_not_read_stops_being_read(worker):
    worker.write("t.py", TOOLS).start()
    client = worker.connect()
    client.socket.settimeout(0.5)
    line = json.dumps({"id": 1, "op": "tools.call", "tool": "many", "arguments": {"size": 100_000}}).encode() + b"\n"
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 200_000:  # 200,000 calls would be 20 GB of answers
            client.socket.sendall(line * 100)
            sent += 100
    with open(f"/proc/{worker.process.pid}/status") as status:
        resident = next(int(row.split()[1]) for row in status if row.startswith("VmHWM"))
    assert resident < 1024 * 1024
    assert worker.connect().request("ping")["ok"]
