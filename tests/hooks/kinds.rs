//! Hooks and each kind of namespace: workers, stdio servers, remote servers, HTTP APIs, aggregates.

use std::fs;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{TOOLS, audited, call, session, text};
use crate::support::api::Api;
use crate::support::hook::{HookReply, HookStub};
use crate::support::session::Session;
use crate::support::{Gateway, eventually, programs};

/// The server of `fixtures/servers/echoing.py` over HTTP. Dropping it ends the process.
struct Echoing {
    process: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Echoing {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("port");
        let process = Command::new("python3")
            .arg(script())
            .arg("--http")
            .arg(&file)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let read = || async { fs::read_to_string(&file).ok() };
        let port = eventually("the server listens", read).await;
        Self {
            process,
            url: format!("http://127.0.0.1:{port}/mcp"),
            _folder: folder,
        }
    }
}

impl Drop for Echoing {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn script() -> String {
    let script = programs::root().join("tests/fixtures/servers/echoing.py");
    script.display().to_string()
}

/// A stub that writes `seen` in the place of `sent` in arguments, and `shown` in the place of `seen` in results.
async fn replacing() -> HookStub {
    HookStub::start(|request| {
        let (member, from, to) = match request["on"] == "call" {
            true => ("arguments", "sent", "seen"),
            false => ("result", "seen", "shown"),
        };
        let changed = request[member].to_string().replace(from, to);
        let changed: Value = serde_json::from_str(&changed).unwrap();
        HookReply::Json(json!({ member: changed }))
    })
    .await
}

const API: &str = r#"
openapi: 3.1.0
info: { title: Echo, version: "1" }
servers: [{ url: /v1 }]
paths:
  /echo:
    get:
      operationId: echo
      parameters: [{ name: text, in: query, schema: { type: string } }]
      responses: { "200": { description: ok, content: { application/json: { schema: { type: object, properties: { text: { type: string } } } } } } }
"#;

#[tokio::test]
async fn arguments_and_results_of_every_kind_of_namespace_pass_the_hooks() {
    let hook = replacing().await;
    let (remote, api) = (Echoing::start().await, Api::start().await);
    api.answer("/echo/v1/echo", 200, r#"{"text":"seen"}"#);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools.toml");
    fs::write(
        &file,
        "active_toolsets = [\"*\"]\n[[servers]]\nnamespace = \"mine\"\nfrom = \"own\"\n",
    )
    .unwrap();
    let spec = api.serve("echo", &API.replace("/v1", "/echo/v1"));
    let gateway = Gateway::with_tools([("own", "own.py", TOOLS)])
        .config(json!({
            "hooks": [{"on": ["call", "result"], "url": hook.url()}],
            "upstreams": {
                "stdio": {"piped": {"command": "python3", "args": [script()]}},
                "remote": {"far": {"backends": [remote.url]}},
                "openapi": {"api": {"spec": spec}},
            },
            "toolman": {"both": {"config": file}},
        }))
        .start()
        .await;
    for (namespace, tool) in [
        ("own", "echo"),
        ("piped", "echo"),
        ("far", "echo"),
        ("api", "echo"),
        ("both", "mine_echo"),
    ] {
        let before = (hook.requests("call").len(), hook.requests("result").len());
        let session = session(&gateway, namespace).await;
        let result = call(&session, tool, json!({"text": "sent"})).await;
        assert_eq!(
            result["structuredContent"]["text"], "shown",
            "{namespace}: {result}"
        );
        assert!(text(&result).contains("shown"), "{namespace}: {result}");
        let (status, value) = gateway.call(namespace, tool, json!({"text": "sent"})).await;
        assert_eq!(
            (status, &value["text"]),
            (200, &json!("shown")),
            "{namespace}: {value}"
        );
        let after = (hook.requests("call").len(), hook.requests("result").len());
        assert_eq!(after, (before.0 + 2, before.1 + 2), "{namespace}");
    }
    let sent = api.requests("GET /echo/v1/echo?text=seen ");
    assert_eq!(sent.len(), 2);
}

#[tokio::test]
async fn a_call_through_an_aggregate_is_seen_once_by_hooks_for_either_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools.toml");
    fs::write(
        &file,
        "active_toolsets = [\"*\"]\n[[servers]]\nnamespace = \"mine\"\nfrom = \"own\"\n",
    )
    .unwrap();
    for pattern in ["both", "own", "*"] {
        let hook = HookStub::passing().await;
        let gateway = Gateway::with_tools([("own", "own.py", TOOLS)])
            .config(json!({
                "hooks": [{"on": ["call", "result"], "namespaces": [pattern], "url": hook.url()}],
                "toolman": {"both": {"config": file}},
            }))
            .start()
            .await;
        let session = session(&gateway, "both").await;
        let result = call(&session, "mine_echo", json!({"text": "a"})).await;
        assert_eq!(result["structuredContent"]["text"], "a", "{result}");
        let seen = hook.requests("call");
        assert_eq!(seen.len(), 1, "{pattern}: {seen:?}");
        // The hook sees the call as the namespace that runs it.
        assert_eq!(
            (&seen[0]["namespace"], &seen[0]["tool"]),
            (&json!("own"), &json!("echo"))
        );
        assert_eq!(hook.requests("result").len(), 1, "{pattern}");
        assert_eq!(audited(&gateway, "own", 1).await[0]["hook"], "passed");
        let direct = call(&session_of(&gateway).await, "echo", json!({"text": "a"})).await;
        assert_eq!(direct["structuredContent"]["text"], "a");
        let expected = if pattern == "both" { 1 } else { 2 };
        assert_eq!(hook.requests("call").len(), expected, "{pattern}");
    }
}

async fn session_of(gateway: &Gateway) -> Session {
    session(gateway, "own").await
}

#[tokio::test]
async fn a_list_of_a_server_passes_the_hooks_page_by_page() {
    let hook = HookStub::start(|request| {
        let mut tools = request["tools"].as_array().unwrap().clone();
        tools.retain(|it| it["name"] != "other");
        HookReply::Json(json!({"tools": tools}))
    })
    .await;
    let remote = Echoing::start().await;
    let gateway = Gateway::empty()
        .config(json!({
            "hooks": [{"on": "list", "url": hook.url()}],
            "upstreams": {"remote": {"far": {"backends": [remote.url]}}},
        }))
        .start()
        .await;
    let session = session(&gateway, "far").await;
    let list = session.request(3, "tools/list", json!({})).await;
    let tools = list["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 1, "{list}");
    assert_eq!(tools[0]["name"], "echo");
}
