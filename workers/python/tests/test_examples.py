"""The shipped examples load and run: DRP-19, EX-41, EX-43, EX-47."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from environments import RUNTIME, environment
from harness import Worker

EXAMPLES = RUNTIME.parents[1] / "conf" / "examples"


def serve(worker: Worker, example: str, **env: str) -> Worker:
    shutil.copytree(EXAMPLES / example, worker.tools, dirs_exist_ok=True)
    worker.start(env=env)
    assert worker.ready["issues"] == []
    return worker


def test_basic_tool(worker):
    serve(worker, "basic-tool")
    assert worker.tool_names() == ["say_hello"]
    assert worker.value("say_hello", name="Ada") == "Hello, Ada!"
    assert worker.value("say_hello") == "Hello, World!"


def test_multi_tool(worker):
    serve(worker, "multi-tool")
    assert worker.tool_names() == ["add", "multiply", "count_words", "slugify", "reverse"]
    assert worker.value("add", a=2, b=3) == 5
    assert worker.value("multiply", a=2, b=3.5) == 7
    assert worker.value("count_words", text="one two\nthree") == {"characters": 13, "words": 3, "lines": 2}
    assert worker.value("slugify", text="Crème Brûlée, twice!") == "creme-brulee-twice"
    assert worker.error("slugify", text="x", max_length=0)["code"] == "invalid_arguments"
    assert worker.value("reverse", text="abc") == "cba"


def test_full_server(worker):
    serve(worker, "full-server")
    assert worker.tool_names() == ["write_note", "delete_note"]
    assert [entry["definition"]["uri"] for entry in worker.ready["resources"]] == ["notes://index"]
    assert [entry["definition"]["name"] for entry in worker.ready["prompts"]] == ["summarise"]
    assert worker.value("write_note", name="x", text="hello") == "x has 5 characters"
    client = worker.connect()
    read = client.request("resources.read", uri="notes://x")
    assert read["result"]["contents"][0]["text"] == "hello"
    named = {"ref": {"type": "ref/resource", "uri": "notes://{name}"}, "argument": {"name": "name", "value": "t"}}
    assert client.request("completion.complete", params=named)["result"]["completion"]["values"] == ["today"]
    call = client.ask("delete_note", name="x")
    asked = client.receive()
    assert asked["op"] == "ask"
    client.reply(call, asked["questions"][0]["key"], result={"action": "accept", "content": {"delete": True}})
    assert client.answer(call)["result"] == "x is gone"


class WeatherService(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        good = parts.path == "/data/2.5/weather" and query.get("appid") == "the-key"
        body = json.dumps(
            {
                "name": query.get("q"),
                "main": {"temp": 3.5 if query.get("units") == "metric" else 38.3, "humidity": 80},
                "weather": [{"description": "light rain"}],
            }
        ).encode()
        self.send_response(200 if good else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def weather_url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), WeatherService)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def weather_worker(tmp_path: Path) -> Iterator[Worker]:
    requirements = (EXAMPLES / "async-tool" / "requirements.txt").read_text().split()
    worker = Worker(tmp_path, environment("pydantic>=2", *requirements))
    yield worker
    worker.stop()


def test_async_tool(weather_worker, weather_url):
    serve(weather_worker, "async-tool", WEATHER_BASE_URL=weather_url, WEATHER_API_KEY="the-key")
    assert weather_worker.tool_names() == ["get_weather"]
    expected = {"city": "Berlin", "temperature": 3.5, "description": "light rain", "humidity": 80}
    assert weather_worker.value("get_weather", city="Berlin") == expected
    assert weather_worker.value("get_weather", city="Berlin", units="imperial")["temperature"] == 38.3


def test_async_tool_keeps_its_key_out_of_errors(weather_worker, weather_url):
    serve(weather_worker, "async-tool", WEATHER_BASE_URL=weather_url, WEATHER_API_KEY="wrong-key")
    frame = weather_worker.call("get_weather", city="Berlin")
    assert "401" in frame["error"]["message"]
    assert "wrong-key" not in json.dumps(frame)


def test_async_tool_without_its_key_says_which(weather_worker):
    serve(weather_worker, "async-tool")
    assert weather_worker.error("get_weather", city="Berlin")["message"] == "KeyError: 'WEATHER_API_KEY'"


def test_page_tool(worker):
    serve(worker, "page-tool")
    assert worker.tool_names() == ["show_sales", "sales_of"]
    assert worker.value("show_sales", year=2025) == {"year": 2025, "quarters": [12, 19, 14, 22]}
    [read] = worker.connect().request("resources.read", uri="ui://sales/page.html")["result"]["contents"]
    assert read["mimeType"] == "text/html;profile=mcp-app" and read["text"].startswith("<!doctype html>")
    assert read["_meta"] == {"ui": {"prefersBorder": True}}
