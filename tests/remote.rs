//! Remote servers behind the gateway, seen from outside. The servers are gateways, too: they serve MCP over HTTP in every
//! era and over HTTP+SSE, want a token, and can be ended.

use serde_json::{Value, json};

use crate::support::gateway::Builder;
use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, tools};

/// A server that is to be reached.
async fn far() -> Gateway {
    Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .start()
        .await
}

/// A gateway whose namespace `near` is the namespace `calc` of these servers.
fn before(servers: &[&Gateway], keys: Value) -> Builder {
    let urls: Vec<_> = servers.iter().map(|it| it.url("/mcp/calc")).collect();
    let mut remote = json!({
        "backends": urls, "credentials": "Bearer ${FAR_TOKEN}", "mode": "client",
    });
    for (key, value) in keys.as_object().expect("keys") {
        remote[key] = value.clone();
    }
    Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .config(json!({"upstreams": {"remote": {"near": remote}}}))
        .env("FAR_TOKEN", TOKEN)
}

fn sum(answer: &Value) -> &Value {
    &answer["result"]["structuredContent"]["result"]
}

#[tokio::test]
async fn tools_of_a_remote_server_are_called_over_mcp_and_rest() {
    let far = far().await;
    let gateway = before(&[&far], json!({})).start().await;
    for version in ["2025-06-18", "2025-11-25"] {
        let session = Session::start(&gateway, "near", version).await;
        let list = session.request(1, "tools/list", json!({})).await;
        assert_eq!(list["result"]["tools"][0]["name"], "add", "{list}");
        let params = json!({"name": "add", "arguments": {"a": 1, "b": 2}});
        let answer = session.request(2, "tools/call", params).await;
        assert_eq!(sum(&answer), 3.0, "{answer}");
        assert_eq!(session.delete().await, 204);
    }
    let (status, answer) = gateway.call("near", "add", json!({"a": 2, "b": 3})).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn a_server_of_http_with_sse_is_reached() {
    let far = far().await;
    let keys = json!({
        "backends": [far.url("/sse")], "transport": "sse", "headers": {"set": {"X-Namespace": "calc"}},
    });
    let gateway = before(&[&far], keys).start().await;
    let session = Session::start(&gateway, "near", "2025-06-18").await;
    let params = json!({"name": "add", "arguments": {"a": 1, "b": 2}});
    let answer = session.request(2, "tools/call", params).await;
    assert_eq!(answer["result"]["content"][0]["text"], "3.0", "{answer}");
}

#[tokio::test]
async fn sessions_go_on_when_a_backend_is_gone() {
    let (one, other) = (far().await, far().await);
    let gateway = before(&[&one, &other], json!({"isolation": "session"}))
        .start()
        .await;
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(Session::start(&gateway, "near", "2025-11-25").await);
    }
    let params = json!({"name": "add", "arguments": {"a": 1, "b": 2}});
    for session in &sessions {
        let answer = session.request(1, "tools/call", params.clone()).await;
        assert_eq!(sum(&answer), 3.0, "{answer}");
    }
    drop(one);
    for session in &sessions {
        for id in 2..4 {
            let answer = session.request(id, "tools/call", params.clone()).await;
            assert_eq!(sum(&answer), 3.0, "{answer}");
        }
    }
}

#[tokio::test]
async fn a_refused_credential_is_an_error_that_names_the_namespace_and_not_the_credential() {
    let far = far().await;
    let gateway = before(&[&far], json!({}))
        .env("FAR_TOKEN", "wrong-0123456789")
        .start()
        .await;
    let (status, answer) = gateway.call("near", "add", json!({"a": 2, "b": 3})).await;
    assert_eq!(status, 503, "{answer}");
    let text = answer.to_string();
    assert!(
        text.contains("near") && !text.contains("wrong-0123456789"),
        "{text}"
    );
}
