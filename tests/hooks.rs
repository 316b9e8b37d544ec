//! Hooks: HTTP services and tools that see calls, results and lists of a running gateway, and change or refuse them.
//!
//! The services are stubs on a socket that answer by a script, tools run in real workers.

mod evasions;
mod examples;
mod failing;
mod kinds;
mod reloaded;

use serde_json::{Value, json};

use crate::support::gateway::Builder;
use crate::support::hook::{HookReply, HookStub};
use crate::support::session::Session;
use crate::support::{Gateway, eventually};

/// Tools that answer with their arguments, or with personal data.
const TOOLS: &str = r#"
import asyncio
from fastmcp.tools import tool


@tool
def echo(text: str, count: int = 1) -> dict:
    """Answers with its arguments."""
    return {"text": text, "count": count}


@tool
def letter() -> str:
    """Answers with a text."""
    return "to ada@example.org"


@tool
async def slow(seconds: float) -> str:
    """Sleeps."""
    await asyncio.sleep(seconds)
    return "done"
"#;

/// A gateway with [`TOOLS`] in the namespaces `own` and `other`, and these hooks.
fn hooked(hooks: Value) -> Builder {
    Gateway::with_tools([("own", "own.py", TOOLS), ("other", "other.py", TOOLS)])
        .config(json!({"hooks": hooks}))
}

fn result(value: Value) -> HookReply {
    HookReply::Json(value)
}

/// Calls a tool over MCP. Returns its result.
async fn call(session: &Session, tool: &str, arguments: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    let answer = session.request(2, "tools/call", params).await;
    assert!(answer.get("result").is_some(), "{answer}");
    answer["result"].clone()
}

async fn session(gateway: &Gateway, namespace: &str) -> Session {
    Session::start(gateway, namespace, "2025-11-25").await
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_default()
}

/// Lines of the audit log about calls of tools of a namespace, once there are `count` of them.
async fn audited(gateway: &Gateway, namespace: &str, count: usize) -> Vec<Value> {
    let logs = gateway.data_dir().join("logs");
    eventually("the calls are in the audit log", || async {
        let mut lines = Vec::new();
        for entry in std::fs::read_dir(&logs).ok()? {
            let text = std::fs::read_to_string(entry.ok()?.path()).ok()?;
            lines.extend(text.lines().filter_map(|line| {
                let line: Value = serde_json::from_str(line).ok()?;
                (line["namespace"] == namespace && line.get("tool").is_some()).then_some(line)
            }));
        }
        (lines.len() >= count).then_some(lines)
    })
    .await
}

#[tokio::test]
async fn a_hook_sees_the_documented_members_and_what_it_passes_stays_as_it_is() {
    let hook = HookStub::passing().await;
    let on = json!(["call", "result", "list"]);
    let gateway =
        hooked(json!([{"on": on, "url": hook.url(), "credentials": "Bearer ${HOOK_TOKEN}"}]))
            .env("HOOK_TOKEN", "hook-secret-1")
            .start()
            .await;
    let session = session(&gateway, "own").await;
    let result = call(&session, "echo", json!({"text": "a\u{e9}", "count": 2})).await;
    assert_eq!(
        result["structuredContent"],
        json!({"text": "a\u{e9}", "count": 2})
    );
    let list = session.request(3, "tools/list", json!({})).await;
    assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 3);
    let seen = &hook.requests("call")[0];
    let id = seen["request_id"].as_str().expect("an id").to_owned();
    assert_eq!(
        *seen,
        json!({"on": "call", "namespace": "own", "tool": "echo", "principal": "bearer",
            "request_id": id, "arguments": {"text": "a\u{e9}", "count": 2}})
    );
    let seen = &hook.requests("result")[0];
    assert_eq!(seen["request_id"], *id);
    assert_eq!(seen["result"]["structuredContent"]["text"], "a\u{e9}");
    assert_eq!(seen["result"]["isError"], false);
    let seen = &hook.requests("list")[0];
    assert_eq!(seen["tools"], list["result"]["tools"]);
    assert_eq!(seen.get("tool"), None);
    let head = &hook.heads()[0];
    let header = |name| crate::support::backend::header(head, name);
    assert_eq!(
        header("authorization").as_deref(),
        Some("Bearer hook-secret-1")
    );
    assert_eq!(header("x-request-id"), Some(id));
    assert!(!gateway.log().contains("hook-secret-1"));
    assert_eq!(audited(&gateway, "own", 1).await[0]["hook"], "passed");
    let metrics = gateway.metrics_text().await;
    let label = format!("hook=\"{}\"", hook.address);
    for on in ["call", "result", "list"] {
        let line =
            format!("tooldock_hook_requests_total{{{label},on=\"{on}\",outcome=\"passed\"}} 1");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
        assert!(metrics.contains(&format!(
            "tooldock_hook_seconds_count{{{label},on=\"{on}\"}} 1"
        )));
    }
}

#[tokio::test]
async fn changed_arguments_are_what_the_tool_and_the_audit_log_get() {
    let hook = HookStub::start(|request| {
        let mut arguments = request["arguments"].clone();
        arguments["text"] = json!("changed");
        result(json!({"arguments": arguments}))
    })
    .await;
    let gateway = hooked(json!([{"on": "call", "url": hook.url()}]))
        .config(json!({"observability": {"audit": {"arguments": "full"}}}))
        .start()
        .await;
    let session = session(&gateway, "own").await;
    let result = call(&session, "echo", json!({"text": "secret", "count": 3})).await;
    let changed = json!({"text": "changed", "count": 3});
    assert_eq!(result["structuredContent"], changed);
    let rest = gateway.call("own", "echo", json!({"text": "secret"})).await;
    assert_eq!(rest, (200, json!({"text": "changed", "count": 1})));
    let lines = audited(&gateway, "own", 2).await;
    assert_eq!(lines[0]["arguments"], changed);
    assert_eq!(lines[0]["hook"], "changed");
    assert!(
        lines
            .iter()
            .all(|line| !line.to_string().contains("secret"))
    );
    // Arguments that a hook has changed are checked against the tool's schema, too.
    hook.answer(|_| HookReply::Json(json!({"arguments": {"text": "a", "count": "many"}})));
    let (status, answer) = gateway.call("own", "echo", json!({"text": "a"})).await;
    assert_eq!(status, 422, "{answer}");
}

#[tokio::test]
async fn hooks_run_in_the_order_of_the_file_and_each_sees_the_change_of_the_one_before() {
    let adding = |letter: &'static str| {
        HookStub::start(move |request| {
            let text = request["arguments"]["text"].as_str().unwrap();
            result(json!({"arguments": {"text": format!("{text}{letter}")}}))
        })
    };
    let (one, two) = (adding("1").await, adding("2").await);
    let entry = |hook: &HookStub| json!({"on": "call", "url": hook.url(), "namespaces": ["ow*"]});
    let gateway = hooked(json!([entry(&two), entry(&one)])).start().await;
    let (_, answer) = gateway.call("own", "echo", json!({"text": "a"})).await;
    assert_eq!(answer["text"], "a21");
    let (_, answer) = gateway.call("other", "echo", json!({"text": "a"})).await;
    assert_eq!(answer["text"], "a");
    assert_eq!(one.requests("call")[0]["arguments"]["text"], "a2");
}

#[tokio::test]
async fn a_changed_result_reaches_clients_of_every_version_and_rest() {
    let hook = HookStub::start(|request| {
        let text = request["result"].to_string();
        let result = text.replace("ada@example.org", "[email]");
        HookReply::Json(json!({"result": serde_json::from_str::<Value>(&result).unwrap()}))
    })
    .await;
    let gateway = hooked(json!([{"on": "result", "url": hook.url()}]))
        .start()
        .await;
    for version in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let session = Session::start(&gateway, "own", version).await;
        let result = call(&session, "letter", json!({})).await;
        assert_eq!(text(&result), "to [email]", "{version}");
        let structure = (version > "2025-03-26").then(|| json!({"result": "to [email]"}));
        assert_eq!(
            result.get("structuredContent"),
            structure.as_ref(),
            "{version}"
        );
    }
    let rest = gateway.call("own", "letter", json!({})).await;
    assert_eq!(rest, (200, json!("to [email]")));
}

#[tokio::test]
async fn a_refusal_reaches_the_model_with_its_reason_and_the_tool_does_not_run() {
    let long = "x".repeat(600);
    let hook = HookStub::start(move |request| {
        let reason = match request["arguments"]["text"].as_str() {
            Some("long") => long.clone(),
            _ => "no\u{1b}[31m, ask \u{0}Ada".to_owned(),
        };
        HookReply::Json(json!({"refuse": reason}))
    })
    .await;
    let gateway = hooked(json!([{"on": "call", "url": hook.url()}]))
        .start()
        .await;
    let session = session(&gateway, "own").await;
    let result = call(&session, "echo", json!({"text": "a"})).await;
    assert_eq!(result["isError"], true);
    assert_eq!(text(&result), "hook_refused: no [31m, ask  Ada");
    assert_eq!(result["_meta"]["tooldock/error"]["code"], "hook_refused");
    let result = call(&session, "echo", json!({"text": "long"})).await;
    assert_eq!(text(&result), format!("hook_refused: {}", "x".repeat(500)));
    let (status, answer) = gateway.call("own", "echo", json!({"text": "a"})).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (403, &json!("hook_refused"))
    );
    let line = &audited(&gateway, "own", 3).await[0];
    assert_eq!(
        (&line["hook"], &line["status"]),
        (&json!("refused"), &json!("hook_refused"))
    );
    assert_eq!(line["cause"]["detail"], hook.address.to_string());
}

#[tokio::test]
async fn lists_are_shown_as_hooks_change_them_and_the_call_itself_stays_open() {
    let hook = HookStub::start(|request| {
        let tools = request["tools"].as_array().unwrap().iter();
        let tools = tools.filter(|it| it["name"] != "slow").map(|it| {
            let mut tool = it.clone();
            tool["description"] = json!("Edited.");
            tool
        });
        HookReply::Json(json!({"tools": tools.collect::<Vec<_>>()}))
    })
    .await;
    let gateway = hooked(json!([{"on": "list", "url": hook.url()}]))
        .start()
        .await;
    let session = session(&gateway, "own").await;
    let list = session.request(3, "tools/list", json!({})).await;
    let tools = list["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 2);
    assert!(
        tools
            .iter()
            .all(|it| it["description"] == "Edited." && it["name"] != "slow")
    );
    let rest = gateway
        .request("GET", "/tools")
        .header("X-Namespace", "own");
    let rest = rest.send().await.unwrap().text().await.unwrap();
    assert!(
        rest.contains("Edited.") && !rest.contains("Sleeps."),
        "{rest}"
    );
    let document = gateway
        .request("GET", "/openapi.json")
        .header("X-Namespace", "own");
    let document = document.send().await.unwrap().text().await.unwrap();
    assert!(
        document.contains("Edited.") && !document.contains("Sleeps."),
        "{document}"
    );
    let result = call(&session, "slow", json!({"seconds": 0})).await;
    assert_eq!(text(&result), "done");
    hook.answer(|_| HookReply::Json(json!({"refuse": "no lists today"})));
    let list = session.request(4, "tools/list", json!({})).await;
    assert_eq!(list["error"]["data"]["code"], "hook_refused", "{list}");
    let message = list["error"]["message"].as_str().unwrap();
    assert!(message.contains("no lists today"), "{list}");
}
