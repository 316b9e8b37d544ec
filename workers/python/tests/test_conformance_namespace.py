"""The namespace that offers the conformance suite's contract: everything is there and answers as the contract says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from environments import RUNTIME
from harness import ASKABLE, Worker

NAMESPACE = RUNTIME.parents[1] / "tests" / "fixtures" / "conformance" / "everything"

TOOLS = """
    test_simple_text test_image_content test_audio_content test_embedded_resource test_multiple_content_types
    test_tool_with_logging test_tool_with_progress test_error_handling test_reconnection test_sampling test_elicitation
    test_elicitation_sep1034_defaults test_elicitation_sep1330_enums json_schema_2020_12_tool test_missing_capability
    test_streaming_elicitation test_logging_tool test_trigger_tool_change test_trigger_prompt_change
    test_input_required_result_elicitation test_input_required_result_sampling test_input_required_result_list_roots
    test_input_required_result_request_state test_input_required_result_multiple_inputs
    test_input_required_result_multi_round test_input_required_result_tampered_state
    test_input_required_result_capabilities test_custom_header
""".split()
USER = {"action": "accept", "content": {"name": "Alice", "color": "blue", "ok": True, "value": "x", "context": "c"}}
USER["content"] |= {"username": "u", "email": "e"}
ANSWERS = {
    "elicitation/create": USER,
    "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": "Paris"}, "model": "m"},
    "roots/list": {"roots": [{"uri": "file:///a"}]},
}


@pytest.fixture(scope="module")
def served(plain_venv, workers) -> Worker:
    worker = workers(plain_venv)
    for file in NAMESPACE.glob("*.py"):
        shutil.copy(file, worker.tools)
    return worker.start()


def converse(worker: Worker, **request) -> tuple[list[dict], dict]:
    """Sends a request, answers every question; the frames told meanwhile, and the answer."""
    client = worker.connect()
    client.send(id="c", caller=ASKABLE, **request)
    frames = []
    while True:
        frame = client.receive()
        if "op" not in frame:
            client.close()
            return frames, frame
        frames.append(frame)
        for question in frame.get("questions", ()):
            client.reply("c", question["key"], result=ANSWERS[question["method"]])


def call(worker: Worker, tool: str, **arguments) -> tuple[list[dict], dict]:
    return converse(worker, op="tools.call", tool=tool, arguments=arguments)


def test_contract_is_complete(served: Worker):
    assert served.ready["issues"] == []
    assert set(TOOLS) <= set(served.tool_names())
    uris = [it["definition"]["uri"] for it in served.ready["resources"]]
    assert uris == ["test://static-text", "test://static-binary", "test://watched-resource"]
    assert served.ready["resourceTemplates"][0]["definition"]["uriTemplate"] == "test://template/{id}/data"
    assert len(served.ready["prompts"]) == 5
    schema = served.tool("json_schema_2020_12_tool")["inputSchema"]
    assert {"$schema", "$defs", "allOf", "if", "then", "else", "additionalProperties"} <= set(schema)
    assert schema["$defs"]["address"]["$anchor"] == "addressDef"
    assert served.tool("test_custom_header")["inputSchema"]["properties"]["region"]["x-mcp-header"] == "Region"


@pytest.mark.parametrize(
    ("tool", "arguments", "keys", "result"),
    [
        ("test_sampling", {"prompt": "p"}, ["sampling-1"], "LLM response: Paris"),
        ("test_input_required_result_elicitation", {}, ["user_name"], "Hello, Alice!"),
        ("test_input_required_result_sampling", {}, ["capital_question"], "Sampling result: Paris"),
        ("test_input_required_result_list_roots", {}, ["client_roots"], "Found roots: file:///a"),
        ("test_input_required_result_request_state", {}, ["confirm"], "state-ok: requestState validated"),
        ("test_input_required_result_tampered_state", {}, ["confirm"], "integrity-ok: state verified"),
        (
            "test_input_required_result_multiple_inputs",
            {},
            ["user_name", "greeting", "client_roots"],
            "Name: Alice; Greeting: Paris; Roots: 1",
        ),
        (
            "test_input_required_result_multi_round",
            {},
            ["step1", "step2"],
            "Multi-round complete for Alice who likes blue",
        ),
        ("test_input_required_result_capabilities", {}, ["elicit_input", "sample_input"], "capabilities-ok"),
    ],
)
def test_tools_that_ask(served: Worker, tool, arguments, keys, result):
    frames, answer = call(served, tool, **arguments)
    assert [question["key"] for frame in frames for question in frame["questions"]] == keys
    assert answer["result"] == result


def test_forms(served: Worker):
    frames, answer = call(served, "test_elicitation", message="m")
    assert frames[0]["questions"][0]["params"]["message"] == "m"
    assert answer["result"].startswith("User response: action=accept, content=")
    for tool in ("test_elicitation_sep1034_defaults", "test_elicitation_sep1330_enums"):
        frames, answer = call(served, tool)
        assert len(frames[0]["questions"][0]["params"]["requestedSchema"]["properties"]) == 5
        assert "action=accept" in answer["result"]


def test_tools_that_tell(served: Worker):
    frames, _ = call(served, "test_tool_with_logging")
    told = [frame["params"]["data"] for frame in frames]
    assert told == ["Tool execution started", "Tool processing data", "Tool execution completed"]
    frames, _ = call(served, "test_tool_with_progress")
    assert [frame["params"]["progress"] for frame in frames] == [0, 50, 100]
    frames, _ = call(served, "test_trigger_prompt_change")
    assert frames[0]["method"] == "notifications/prompts/list_changed"


def test_content(served: Worker):
    kinds = {
        "test_image_content": ["image"],
        "test_audio_content": ["audio"],
        "test_embedded_resource": ["resource"],
        "test_multiple_content_types": ["text", "image", "resource"],
    }
    for tool, expected in kinds.items():
        assert [block["type"] for block in call(served, tool)[1]["content"]] == expected
    message = "This tool intentionally returns an error for testing"
    assert call(served, "test_error_handling")[1]["error"]["message"] == message
    assert call(served, "json_schema_2020_12_tool", phone="1", contactMethod="phone")[1]["ok"]
    refused = call(served, "json_schema_2020_12_tool", phone="1")[1]["error"]
    assert refused["code"] == "invalid_arguments", "without a contactMethod the schema wants an email"


def test_prompts_and_resources(served: Worker):
    prompt = "test_input_required_result_prompt"
    frames, answer = converse(served, op="prompts.get", prompt=prompt, arguments={})
    assert frames[0]["questions"][0]["key"] == "user_context"
    assert answer["result"]["messages"][0]["content"]["text"] == "Prompt with context: c"
    _, answer = converse(served, op="resources.read", uri="test://template/123/data")
    text = '{"id":"123","templateTest":true,"data":"Data for ID: 123"}'
    assert answer["result"]["contents"][0]["text"] == text


def test_cancelled_calls_are_remembered(served: Worker):
    client = served.connect()
    slow = client.ask("slow", ms=60_000, every=10, label="mine")
    assert client.receive()["op"] == "progress"
    client.send(op="cancel", target=slow)
    assert client.answer(slow)["error"]["code"] == "cancelled"
    assert call(served, "cancelled_ids")[1]["result"] == ["mine"]


def test_namespace_needs_nothing_installed():
    assert sorted(path.name for path in Path(NAMESPACE).iterdir() if path.name != "__pycache__") == [
        "asking.py",
        "prompts.py",
        "resources.py",
        "tools.py",
    ]
