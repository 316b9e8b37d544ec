//! Ways by which a client or a server could send something past hooks.

use std::fs;

use serde_json::{Value, json};

use super::{call, result, session, text};
use crate::support::hook::{HookReply, HookStub};
use crate::support::{Gateway, programs};

/// A tool whose failures contain personal data, and a tool with a list among its arguments.
const TOOLS: &str = r#"
from fastmcp.exceptions import ToolError
from fastmcp.tools import tool


@tool
def locked() -> str:
    """Fails by its own error."""
    raise ToolError("the account of ada@example.org is locked")


@tool
def broken() -> str:
    """Fails by an error of Python."""
    raise ValueError("no such person: ada@example.org")


@tool
def send(to: list[str]) -> str:
    """Answers with its arguments."""
    return ",".join(to)
"#;

/// A gateway with the server of `fixtures/servers/ignores_ids.py` as the namespace `odd`, and the file of its calls.
async fn odd_server(hook: &HookStub) -> (Gateway, std::path::PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let calls = folder.path().join("calls");
    let script = programs::root().join("tests/fixtures/servers/ignores_ids.py");
    let gateway = Gateway::empty()
        .config(json!({
            "hooks": [{"on": ["call", "result"], "url": hook.url()}],
            "upstreams": {"stdio": {"odd": {"command": "python3", "args": [script, calls], "sandbox": "off"}}},
        }))
        .start()
        .await;
    (gateway, calls, folder)
}

/// A stub that puts `[email]` in the place of an address.
async fn masking() -> HookStub {
    HookStub::start(|request| {
        let member = if request["on"] == "call" {
            "arguments"
        } else {
            "result"
        };
        let masked = request[member]
            .to_string()
            .replace("ada@example.org", "[email]");
        let masked: Value = serde_json::from_str(&masked).unwrap();
        match masked == request[member] {
            true => HookReply::Json(json!({})),
            false => HookReply::Json(json!({ member: masked })),
        }
    })
    .await
}

#[tokio::test]
async fn a_call_without_an_id_is_refused_and_reaches_no_server() {
    let hook = HookStub::passing().await;
    let (gateway, calls, _folder) = odd_server(&hook).await;
    let session = session(&gateway, "odd").await;
    let silent = json!({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "run", "arguments": {}}});
    let refused = session.post(&silent).await;
    assert_eq!(refused.status, 400);
    // The server handles its messages in order. So after the answer to a second call, which has an id, the first call would be in
    // the file if the server had received it.
    assert_eq!(text(&call(&session, "run", json!({})).await), "ran");
    assert_eq!(fs::read_to_string(calls).unwrap(), "run\n");
    assert_eq!(hook.requests("call").len(), 1);
}

#[tokio::test]
async fn a_result_that_looks_like_a_begun_task_is_seen_if_it_holds_more() {
    let hook = HookStub::start(|request| match request["on"] == "result" {
        true => result(json!({"refuse": "personal data"})),
        false => result(json!({})),
    })
    .await;
    let (gateway, _calls, _folder) = odd_server(&hook).await;
    let session = session(&gateway, "odd").await;
    let answer = session
        .request(2, "tools/call", json!({"name": "evasive", "arguments": {}}))
        .await;
    assert!(!answer.to_string().contains("ada@example.org"), "{answer}");
    assert_eq!(hook.requests("result").len(), 1);
}

#[tokio::test]
async fn failures_of_python_tools_are_results_that_hooks_see() {
    let hook = masking().await;
    let gateway = Gateway::with_tools([("own", "own.py", TOOLS)])
        .config(json!({"hooks": [{"on": "result", "url": hook.url()}]}))
        .start()
        .await;
    let session = session(&gateway, "own").await;
    for (tool, expected) in [
        ("locked", "the account of [email] is locked"),
        ("broken", "no such person: [email]"),
    ] {
        let failed = call(&session, tool, json!({})).await;
        assert_eq!(failed["isError"], true, "{failed}");
        assert!(text(&failed).contains(expected), "{failed}");
        assert!(!failed.to_string().contains("ada@"), "{failed}");
        let (status, failed) = gateway.call("own", tool, json!({})).await;
        assert!(
            status >= 400 && failed.to_string().contains(expected),
            "{failed}"
        );
        assert!(!failed.to_string().contains("ada@"), "{failed}");
    }
    let seen = &hook.requests("result")[0]["result"];
    assert_eq!(seen["isError"], true, "{seen}");
}

#[tokio::test]
async fn hooks_see_arguments_as_they_are_after_their_conversion() {
    let hook = masking().await;
    let gateway = Gateway::with_tools([("own", "own.py", TOOLS)])
        .config(json!({
            "hooks": [{"on": "call", "url": hook.url()}],
            "namespaces": {"defaults": {"coerce_arguments": true}},
        }))
        .start()
        .await;
    let session = session(&gateway, "own").await;
    // The address is escaped twice: only the converted list contains it.
    let hidden = json!({"to": "[\"ada\\u0040example.org\"]"});
    let answer = call(&session, "send", hidden).await;
    assert_eq!(text(&answer), "[email]", "{answer}");
    assert_eq!(
        hook.requests("call")[0]["arguments"]["to"],
        json!(["ada@example.org"])
    );
}
