//! The operator's view: metrics, the audit log, request ids, logs without secrets.

use std::fs;
use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::support::backend::{Backend, answered, header, read};
use crate::support::gateway::MANAGER_TOKEN;
use crate::support::ports::free_address;
use crate::support::{Gateway, TOKEN, eventually, tools};

/// The audit lines written so far.
pub fn audit(gateway: &Gateway) -> Vec<Value> {
    let Ok(days) = fs::read_dir(gateway.data_dir().join("logs")) else {
        return Vec::new();
    };
    days.flatten()
        .filter(|day| {
            day.path()
                .extension()
                .is_some_and(|extension| extension == "jsonl")
        })
        .flat_map(|day| {
            fs::read_to_string(day.path())
                .unwrap_or_default()
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .collect::<Vec<Value>>()
        })
        .collect()
}

#[tokio::test]
async fn the_audit_log_has_whole_arguments_where_that_is_asked_for_and_no_secret_of_them() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .config(json!({"observability": {"audit": {"arguments": "full"}}}))
        .start()
        .await;
    let arguments = json!({"a": 1, "b": 2, "api_key": "hunter2"});
    gateway.call("calc", "add", arguments).await;
    let line = eventually("the audit line", || async {
        audit(&gateway)
            .into_iter()
            .find(|line| line["tool"] == "add")
    })
    .await;
    let expected = json!({"a": 1, "b": 2, "api_key": "***MASKED***"});
    assert_eq!(line["arguments"], expected, "{line}");
}

#[tokio::test]
async fn one_request_id_is_in_the_answer_and_in_the_audit_line() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .start()
        .await;
    let response = gateway
        .request("POST", "/tools/add")
        .header("X-Namespace", "calc")
        .header("X-Request-Id", "trace-42")
        .json(&json!({"a": 1, "b": 2}))
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["x-request-id"], "trace-42");
    let line = eventually("the audit line", || async {
        audit(&gateway)
            .into_iter()
            .find(|line| line["request_id"] == "trace-42")
    })
    .await;
    assert_eq!(line["namespace"], "calc");
    assert_eq!(line["tool"], "add");
    assert_eq!(line["status"], "ok");
    assert_eq!(line["http_status"], 200);
    assert_eq!(line["transport"], "rest");
    assert_eq!(line["client"], "127.0.0.1");
    assert!(
        line["latency_ms"].is_u64() && line["ts"].as_str().unwrap().ends_with('Z'),
        "{line}"
    );
    let minted = gateway
        .client
        .get(gateway.url("/health"))
        .send()
        .await
        .unwrap();
    assert!(!minted.headers()["x-request-id"].is_empty());
    let refused = gateway
        .client
        .get(gateway.url("/tools"))
        .send()
        .await
        .unwrap();
    assert!(refused.headers().contains_key("x-request-id"));
}

#[tokio::test]
async fn mcp_calls_are_audited_with_version_and_a_session_that_is_no_credential() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .start()
        .await;
    let post = |session: Option<String>, body: Value| {
        let mut request = gateway
            .request("POST", "/mcp/calc")
            .header("Accept", "application/json, text/event-stream")
            .json(&body);
        if let Some(session) = session {
            request = request.header("Mcp-Session-Id", session);
        }
        request.send()
    };
    let opened = post(None, json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}))
    .await
    .unwrap();
    let session = opened.headers()["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned();
    post(
        Some(session.clone()),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
    )
    .await
    .unwrap();
    post(
        Some(session.clone()),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
        "params": {"name": "add", "arguments": {"a": 1, "b": "secret-argument"}}}),
    )
    .await
    .unwrap();
    let line = eventually("the audit line", || async {
        audit(&gateway)
            .into_iter()
            .find(|line| line["tool"] == "add")
    })
    .await;
    assert_eq!(line["transport"], "mcp");
    assert_eq!(line["protocol_version"], "2025-06-18");
    assert_eq!(line["status"], "invalid_arguments");
    let text = line.to_string();
    assert!(
        line["session"].is_string() && !text.contains(&session),
        "{text}"
    );
    assert!(!text.contains("secret-argument"), "{text}");
}

#[tokio::test]
async fn metrics_count_requests_refusals_sessions_and_workers() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .start()
        .await;
    gateway.call("calc", "add", json!({"a": 1, "b": 2})).await;
    gateway
        .client
        .get(gateway.url("/tools"))
        .send()
        .await
        .unwrap();
    gateway
        .mcp("calc", json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
            {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}))
        .await;
    let text = gateway.metrics_text().await;
    for part in [
        r#"tooldock_requests_total{route="/tools/{name}",status="200"} 1"#,
        r#"tooldock_refusals_total{reason="unauthorized"} 1"#,
        "tooldock_sessions 1",
        r#"tooldock_worker_state{namespace="calc",state="ready"} 1"#,
        "tooldock_request_seconds_bucket",
        "tooldock_connections",
    ] {
        assert!(text.contains(part), "{part} not in\n{text}");
    }
    let on_core = gateway.request("GET", "/metrics").send().await.unwrap();
    assert_eq!(on_core.status(), 404, "metrics have their own listener");
}

#[tokio::test]
async fn tokens_appear_nowhere() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .config(json!({"observability": {"log": {"level": "trace"}}}))
        .start()
        .await;
    gateway.call("faulty", "boom", json!({})).await;
    gateway.reload().await;
    let wrong = "wrong-token-canary-9d1c";
    gateway
        .client
        .get(gateway.url("/tools"))
        .bearer_auth(wrong)
        .send()
        .await
        .unwrap();
    let metrics = gateway.metrics_text().await;
    eventually("the audit line", || async {
        audit(&gateway).first().cloned()
    })
    .await;
    let audit: String = audit(&gateway).iter().map(Value::to_string).collect();
    let log = gateway.log();
    assert!(log.contains("answered"), "the trace level is on");
    for secret in [TOKEN, MANAGER_TOKEN, wrong] {
        for (place, text) in [("log", &log), ("metrics", &metrics), ("audit", &audit)] {
            assert!(!text.contains(secret), "a token is in the {place}");
        }
    }
    let command_line = fs::read(format!("/proc/{}/cmdline", gateway.pid())).unwrap();
    assert!(!String::from_utf8_lossy(&command_line).contains(TOKEN));
}

#[tokio::test]
async fn old_audit_files_are_deleted_and_a_full_disk_fails_no_request() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .env("LOG_RETENTION_DAYS", "7")
        .start_with(|data| {
            fs::create_dir_all(data.join("logs")).unwrap();
            fs::write(data.join("logs/2020-01-01.jsonl"), "{}\n").unwrap();
            fs::write(data.join("logs/notes.txt"), "mine").unwrap();
        })
        .await;
    eventually("the old file is gone", || async {
        (!gateway.data_dir().join("logs/2020-01-01.jsonl").exists()).then_some(())
    })
    .await;
    assert!(gateway.data_dir().join("logs/notes.txt").exists());
    fs::remove_dir_all(gateway.data_dir().join("logs")).unwrap();
    fs::write(gateway.data_dir().join("logs"), "in the way").unwrap();
    assert_eq!(
        gateway.call("calc", "add", json!({"a": 1, "b": 2})).await.0,
        200
    );
}

#[tokio::test]
async fn json_logs_are_json() {
    let gateway = Gateway::empty()
        .config(json!({"observability": {"log": {"format": "json"}}}))
        .start()
        .await;
    let log = gateway.log();
    let lines: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
    assert!(!lines.is_empty());
    for line in lines {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
        assert!(value["level"].is_string(), "{line}");
    }
}

/// A server over stdio that answers a call with the metadata that came with it, or fails it.
const SAYS: &str = r#"
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params", {})
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        answer["result"] = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
            "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        answer["result"] = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("say", "fail", "boom")]}
    elif method == "tools/call" and params["name"] == "fail":
        answer["result"] = {"isError": True, "content": [{"type": "text", "text": "the disk is full"}]}
    elif method == "tools/call" and params["name"] == "boom":
        answer["error"] = {"code": -32050, "message": "the fuse blew"}
    elif method == "tools/call":
        answer["result"] = {"content": [{"type": "text", "text": json.dumps(params.get("_meta"))}]}
    else:
        answer["error"] = {"code": -32601, "message": "none"}
    print(json.dumps(answer), flush=True)
"#;

/// Tools that tell the id of their request, and one that fails.
const ASKS: &str = r#"
from fastmcp import Context
from fastmcp.tools import tool


@tool
def whose(ctx: Context) -> str:
    """Tells its request."""
    return ctx.request_id


@tool
def broken() -> str:
    """Fails."""
    raise ValueError("no such table")
"#;

/// The audit line of a request.
async fn audited(gateway: &Gateway, id: &str) -> Value {
    eventually("the audit line", || async {
        let mut lines = audit(gateway).into_iter();
        lines.find(|line| line["request_id"] == id)
    })
    .await
}

/// The line of the log about a failed request.
fn failure_logged(gateway: &Gateway, id: &str) -> String {
    let log = gateway.log();
    let mut lines = log.lines();
    let line = lines.find(|line| line.contains("call failed") && line.contains(id));
    line.map(str::to_owned)
        .unwrap_or_else(|| panic!("no line of {id}: {log}"))
}

/// A REST call under a request id: status and body.
async fn called(gateway: &Gateway, namespace: &str, tool: &str, id: &str) -> (u16, Value) {
    let response = gateway
        .request("POST", &format!("/tools/{tool}"))
        .header("X-Namespace", namespace)
        .header("X-Request-Id", id)
        .json(&json!({}))
        .send()
        .await
        .unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap())
}

#[tokio::test]
async fn the_id_of_a_request_reaches_servers_and_functions() {
    let folder = tempfile::TempDir::new().unwrap();
    let script = folder.path().join("says.py");
    fs::write(&script, SAYS).unwrap();
    let far = Backend::start("far").await;
    let remote = |mode: &str, forward_id: bool| json!({"backends": [far.url()], "mode": mode, "headers": {"forward_id": forward_id}});
    let gateway = Gateway::with_tools([("asks", "asks.py", ASKS)])
        .config(json!({"upstreams": {
        "stdio": {"says": {"command": "python3", "args": [script]}},
        "remote": {
            "client": {"backends": [far.url()], "mode": "client"},
            "passed": {"backends": [far.url()], "mode": "pass_through"},
            "silent": remote("client", false),
            "mute": remote("pass_through", false),
        }}}))
        .start()
        .await;
    let (status, meta) = called(&gateway, "says", "say", "r-stdio").await;
    assert_eq!(status, 200, "{meta}");
    let meta: Value = serde_json::from_str(meta.as_str().unwrap()).unwrap();
    assert_eq!(meta["tooldock/request_id"], "r-stdio");
    assert_eq!(
        called(&gateway, "asks", "whose", "r-worker").await,
        (200, json!("r-worker"))
    );
    for (namespace, goes) in [
        ("client", true),
        ("passed", true),
        ("silent", false),
        ("mute", false),
    ] {
        let id = format!("r-{namespace}");
        let session =
            crate::support::session::Session::start(&gateway, namespace, "2025-11-25").await;
        let before = far.requests("tools/call").len();
        let body =
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}});
        let answer = gateway
            .request("POST", &format!("/mcp/{namespace}"))
            .header("Accept", "application/json, text/event-stream")
            .header("Mcp-Session-Id", &session.id)
            .header("X-Request-Id", &id)
            .json(&body)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.headers()["x-request-id"], *id);
        answer.text().await.unwrap();
        let calls = far.requests("tools/call");
        let (head, _) = &calls[before];
        let sent = header(head, "x-request-id");
        assert_eq!(sent, goes.then_some(id), "{namespace}: {head}");
    }
}

#[tokio::test]
async fn a_failed_call_says_why_in_the_audit_log_and_the_log() {
    let folder = tempfile::TempDir::new().unwrap();
    let script = folder.path().join("says.py");
    fs::write(&script, SAYS).unwrap();
    let nobody = free_address();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refuser = listener.local_addr().unwrap();
    let refusing = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                while read(&mut stream).await.is_some() {
                    let refusal = answered(400, "", "");
                    if stream.write_all(refusal.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let at = |backend: SocketAddr, mode: &str| json!({"backends": [format!("http://{backend}/mcp")], "mode": mode});
    let gateway = Gateway::with_tools([("asks", "asks.py", ASKS)])
        .config(json!({"upstreams": {
        "stdio": {"says": {"command": "python3", "args": [script]}},
        "remote": {
            "client": at(nobody, "client"), "passed": at(nobody, "pass_through"),
            "refused": at(refuser, "client"), "answered": at(refuser, "pass_through"),
        }}}))
        .env("LOG_LEVEL", "debug")
        .start()
        .await;
    // Failures in the words of servers and tools, with the status that was sent.
    let (status, _) = called(&gateway, "says", "fail", "r-fail").await;
    let line = audited(&gateway, "r-fail").await;
    assert_eq!((status, &line["http_status"]), (500, &json!(500)), "{line}");
    assert_eq!(line["status"], "tool_error");
    assert_eq!(line["cause"]["detail"], "the disk is full", "{line}");
    let (status, _) = called(&gateway, "asks", "broken", "r-broken").await;
    let line = audited(&gateway, "r-broken").await;
    assert_eq!((status, &line["http_status"]), (500, &json!(500)), "{line}");
    let detail = line["cause"]["detail"].as_str().unwrap();
    assert!(detail.contains("no such table"), "{line}");
    let logged = failure_logged(&gateway, "r-broken");
    assert!(logged.contains("no such table"), "{logged}");
    let logged = failure_logged(&gateway, "r-fail");
    assert!(logged.contains("the disk is full"), "{logged}");
    // An error of a server has its code on every surface.
    called(&gateway, "says", "boom", "r-boom-rest").await;
    let body =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "boom"}});
    let session = crate::support::session::Session::start(&gateway, "says", "2025-11-25").await;
    let answer = gateway
        .request("POST", "/mcp/says")
        .header("Accept", "application/json, text/event-stream")
        .header("Mcp-Session-Id", &session.id)
        .header("X-Request-Id", "r-boom-mcp")
        .json(&body)
        .send()
        .await
        .unwrap();
    answer.text().await.unwrap();
    for id in ["r-boom-rest", "r-boom-mcp"] {
        let line = audited(&gateway, id).await;
        let cause = json!({"code": "-32050", "detail": "the fuse blew"});
        assert_eq!(line["cause"], cause, "{line}");
        assert_eq!(line["status"], "upstream_error", "{line}");
        let logged = failure_logged(&gateway, id);
        assert!(
            logged.contains("-32050") && logged.contains("the fuse blew"),
            "{logged}"
        );
    }
    // A server that is not there, and one that refuses each request: with the backend, which clients are not told.
    for (namespace, backend, status, cause) in [
        ("client", nobody, "worker_unavailable", "connect"),
        ("passed", nobody, "worker_unavailable", "connect"),
        (
            "refused",
            refuser,
            "worker_unavailable",
            "worker_unavailable",
        ),
        ("answered", refuser, "upstream_error", "upstream_error"),
    ] {
        let id = format!("r-{namespace}");
        let body =
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}});
        let answer = gateway
            .request("POST", &format!("/mcp/{namespace}"))
            .header("X-Request-Id", &id)
            .json(&body)
            .send()
            .await
            .unwrap();
        let sent = answer.status().as_u16();
        let told = answer.text().await.unwrap();
        let backend = backend.to_string();
        assert!(!told.contains(&backend), "{told}");
        let line = audited(&gateway, &id).await;
        assert_eq!(line["http_status"], sent, "{line}");
        assert_eq!(line["cause"]["code"], cause, "{line}");
        let detail = line["cause"]["detail"].as_str().unwrap();
        assert!(detail.contains(&backend), "{line}");
        assert!(
            backend != refuser.to_string() || detail.contains("400"),
            "{line}"
        );
        let logged = failure_logged(&gateway, &id);
        assert!(logged.contains(&backend), "{logged}");
        assert!(logged.contains(status), "{logged}");
    }
    refusing.abort();
}
