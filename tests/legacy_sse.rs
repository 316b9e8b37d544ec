//! HTTP+SSE of 2024-11-05 (EXAMPLES EX-10): a stream whose first event says where to post, answers that come on it.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::sse::{Answering, End};
use crate::support::{Gateway, TOKEN, eventually, sha256, tools};

const LIST: &str = r#"{"jsonrpc":"2.0","id":"1","method":"tools/list","params":{}}"#;

async fn calc() -> Gateway {
    calc_with(json!({})).await
}

async fn calc_with(config: Value) -> Gateway {
    Gateway::with_tools([
        ("calc", "math_tools.py", tools::MATH),
        ("shared", "hello.py", tools::HELLO),
        ("talk", "talking.py", tools::TALKING),
    ])
    .config(config)
    .start()
    .await
}

/// An open stream and where it says to post.
pub struct Legacy {
    stream: Answering,
    pub endpoint: String,
    namespace: &'static str,
}

impl Legacy {
    pub async fn open(gateway: &Gateway, namespace: &'static str) -> Self {
        let mut stream = Answering::open(gateway.address, &get(namespace)).await;
        assert_eq!(stream.status, 200);
        assert!(stream.is_events());
        assert_eq!(stream.header("x-accel-buffering"), Some("no"));
        let first = stream.next().await.unwrap();
        assert_eq!(first.name.as_deref(), Some("endpoint"));
        Self {
            stream,
            endpoint: first.data,
            namespace,
        }
    }

    /// Posts a message and gives back the status.
    pub async fn post(&self, gateway: &Gateway, body: &str) -> u16 {
        post(gateway, &self.endpoint, Some(self.namespace), body).await
    }

    pub async fn message(&mut self) -> Value {
        let event = self.stream.event().await.unwrap();
        assert_eq!(event.name.as_deref(), Some("message"));
        event.json()
    }
}

fn get(namespace: &str) -> String {
    format!(
        "GET /sse HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: {namespace}\r\n\
         Accept: text/event-stream\r\n\r\n"
    )
}

async fn post(gateway: &Gateway, endpoint: &str, namespace: Option<&str>, body: &str) -> u16 {
    let mut request = gateway
        .request("POST", endpoint)
        .header("Content-Type", "application/json")
        .body(body.to_owned());
    if let Some(namespace) = namespace {
        request = request.header("X-Namespace", namespace);
    }
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn the_documented_exchange_lists_tools_without_a_handshake() {
    let gateway = calc().await;
    let mut legacy = Legacy::open(&gateway, "calc").await;
    let id = legacy
        .endpoint
        .strip_prefix("/messages?session_id=")
        .expect("the documented form");
    assert!(id.len() >= 22, "at least 128 bits: {id}");
    assert_eq!(legacy.post(&gateway, LIST).await, 202);
    let answer = legacy.message().await;
    assert_eq!(answer["id"], "1");
    let names: Vec<_> = answer["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["add", "multiply"]);
}

#[tokio::test]
async fn the_old_revision_is_echoed_and_later_ones_negotiated() {
    let gateway = calc().await;
    for (asked, answered) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-06-18", "2025-06-18"),
        ("2099-01-01", "2025-11-25"),
    ] {
        let mut legacy = Legacy::open(&gateway, "calc").await;
        let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
            {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}});
        assert_eq!(legacy.post(&gateway, &initialize.to_string()).await, 202);
        let answer = legacy.message().await;
        assert_eq!(answer["result"]["protocolVersion"], answered);
        assert_eq!(
            legacy
                .post(
                    &gateway,
                    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#
                )
                .await,
            202
        );
        let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params":
            {"name": "add", "arguments": {"a": 2, "b": 3}}});
        assert_eq!(legacy.post(&gateway, &call.to_string()).await, 202);
        let answer = legacy.message().await;
        assert_eq!(answer["result"]["content"][0]["text"], "5.0");
        assert_eq!(
            answer["result"].get("structuredContent").is_some(),
            answered >= "2025-06-18",
            "{answered}"
        );
    }
}

#[tokio::test]
async fn progress_questions_and_answers_share_the_one_stream() {
    let gateway = calc().await;
    let mut legacy = Legacy::open(&gateway, "talk").await;
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        {"protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}},
         "clientInfo": {"name": "old", "version": "1"}}});
    legacy.post(&gateway, &initialize.to_string()).await;
    legacy.message().await;
    legacy
        .post(
            &gateway,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        )
        .await;
    let gate = gateway.scratch().join("gate");
    std::fs::write(&gate, "go").unwrap();
    let talk = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params":
        {"name": "talk", "arguments": {"gate": gate.display().to_string()}, "_meta": {"progressToken": 7}}});
    assert_eq!(legacy.post(&gateway, &talk.to_string()).await, 202);
    for _ in 0..4 {
        let progress = legacy.message().await;
        assert_eq!(progress["params"]["progressToken"], 7, "{progress}");
    }
    assert_eq!(legacy.message().await["id"], 2);
    let ask = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params":
        {"name": "ask", "arguments": {}}});
    assert_eq!(legacy.post(&gateway, &ask.to_string()).await, 202);
    let question = legacy.message().await;
    assert_eq!(question["method"], "elicitation/create");
    let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result":
        {"action": "accept", "content": {"value": "Ada"}}});
    assert_eq!(legacy.post(&gateway, &reply.to_string()).await, 202);
    let answer = legacy.message().await;
    assert_eq!(answer["result"]["content"][0]["text"], "accept Ada");
}

#[tokio::test]
async fn a_client_with_a_url_alone_uses_an_alias_that_ends_with_sse() {
    let overrides = json!({"calc": {"aliases": ["/legacy/sse", "/old/mcp"]}, "shared": {"aliases": ["/hello/sse"]}});
    let gateway = calc_with(json!({"namespaces": {"overrides": overrides}})).await;
    for (path, tool) in [("/legacy/sse", "add"), ("/hello/sse", "hello")] {
        let asked = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nAccept: text/event-stream\r\n\r\n"
        );
        let mut stream = Answering::open(gateway.address, &asked).await;
        assert_eq!(stream.status, 200, "{path}");
        let first = stream.next().await.unwrap();
        assert_eq!(first.name.as_deref(), Some("endpoint"), "{path}");
        assert_eq!(post(&gateway, &first.data, None, LIST).await, 202, "{path}");
        let listed = stream.event().await.unwrap().json();
        let tools = listed["result"]["tools"].to_string();
        assert!(tools.contains(tool), "{path}: {tools}");
    }
    let refused = gateway.request("POST", "/legacy/sse").body(LIST).send();
    assert_eq!(refused.await.unwrap().status(), 405);
}

#[tokio::test]
async fn credentials_namespace_and_session_are_checked() {
    let other = "other-token-0123456789abcdef";
    let gateway = calc_with(json!({"admission": {"tokens": [
        {"name": "other", "sha256": sha256(other), "namespaces": ["*"]}]}}))
    .await;
    for (fault, request, status) in [
        ("no credentials", get("calc").replace(TOKEN, "wrong"), 401),
        (
            "no namespace",
            get("calc").replace("X-Namespace: calc\r\n", ""),
            400,
        ),
        ("an unknown namespace", get("nope"), 404),
    ] {
        let answer = Answering::open(gateway.address, &request).await;
        assert_eq!(answer.status, status, "{fault}");
    }
    let mut legacy = Legacy::open(&gateway, "calc").await;
    let endpoint = legacy.endpoint.clone();
    assert_eq!(
        post(&gateway, "/messages", Some("calc"), LIST).await,
        400,
        "no id"
    );
    assert_eq!(
        post(&gateway, "/messages?session_id=nope", Some("calc"), LIST).await,
        404,
        "an unknown id"
    );
    let mismatched = post(&gateway, &endpoint, Some("shared"), LIST).await;
    assert!(
        mismatched == 400 || mismatched == 404,
        "another namespace: {mismatched}"
    );
    let foreign = gateway
        .client
        .post(gateway.url(&endpoint))
        .bearer_auth(other)
        .header("X-Namespace", "calc")
        .header("Content-Type", "application/json")
        .body(LIST)
        .send()
        .await
        .unwrap();
    assert_eq!(foreign.status(), 404, "another principal");
    let bare = gateway
        .client
        .post(gateway.url(&endpoint))
        .header("Content-Type", "application/json")
        .body(LIST)
        .send()
        .await
        .unwrap();
    assert_eq!(bare.status(), 401, "no credentials");
    assert_eq!(
        post(&gateway, &endpoint, Some("calc"), "{").await,
        400,
        "no JSON"
    );
    // The namespace may be left out: the session knows it.
    assert_eq!(post(&gateway, &endpoint, None, LIST).await, 202);
    assert_eq!(legacy.message().await["id"], "1", "and nothing else came");
    for (method, path) in [("POST", "/sse"), ("GET", "/messages")] {
        let answer = gateway
            .request(method, path)
            .header("X-Namespace", "calc")
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 405, "{method} {path}");
    }
}

#[tokio::test]
async fn the_session_ends_with_its_stream() {
    let gateway = calc().await;
    let Legacy {
        stream, endpoint, ..
    } = Legacy::open(&gateway, "calc").await;
    assert_eq!(post(&gateway, &endpoint, Some("calc"), LIST).await, 202);
    drop(stream);
    eventually("its id is gone", || async {
        (post(&gateway, &endpoint, Some("calc"), LIST).await == 404).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_idle_stream_gets_keepalives_and_a_reload_is_announced() {
    let gateway = calc_with(json!({"sessions": {"keepalive": "200ms"}})).await;
    let mut legacy = Legacy::open(&gateway, "calc").await;
    assert!(legacy.stream.next().await.unwrap().comment);
    gateway.drop_tool("calc", "more.py", tools::HELLO);
    gateway.reload().await;
    assert_eq!(
        legacy.message().await["method"],
        "notifications/tools/list_changed"
    );
}

#[tokio::test]
async fn a_stop_ends_the_stream_whole() {
    let gateway = calc().await;
    let mut legacy = Legacy::open(&gateway, "calc").await;
    gateway.signal(Signal::TERM);
    assert_eq!(legacy.stream.end().await, End::Whole);
    assert_eq!(gateway.ended().await.code(), Some(0));
}

#[tokio::test]
async fn a_public_prefix_stands_in_the_endpoint() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .core(json!({"path_prefix": "/tools-gateway"}))
        .start()
        .await;
    let mut stream = Answering::open(gateway.address, &get("calc")).await;
    let endpoint = stream.next().await.unwrap().data;
    let local = endpoint
        .strip_prefix("/tools-gateway")
        .expect("the prefix clients see");
    assert!(local.starts_with("/messages?session_id="), "{endpoint}");
    // The front takes the prefix off again.
    assert_eq!(post(&gateway, local, Some("calc"), LIST).await, 202);
    assert_eq!(stream.event().await.unwrap().json()["id"], "1");
}

#[tokio::test]
async fn the_switch_takes_both_paths_away() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .env("ENABLE_LEGACY_MCP", "false")
        .start()
        .await;
    assert_eq!(
        Answering::open(gateway.address, &get("calc")).await.status,
        404
    );
    assert_eq!(
        post(&gateway, "/messages?session_id=x", Some("calc"), LIST).await,
        404
    );
}
