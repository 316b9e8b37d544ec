use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::testing::caller;

use crate::mcp::head::McpHead;
use crate::mcp::tests::wire::Wire;
use crate::testing::{Harness, harness, head, parts};

/// A client: its stream and the session id for its posts.
struct Client<'a> {
    harness: &'a Harness,
    wire: Wire,
    id: String,
}

impl<'a> Client<'a> {
    async fn open(harness: &'a Harness) -> Self {
        Self::open_as(harness, caller()).await
    }

    async fn open_as(harness: &'a Harness, caller: Caller) -> Self {
        let prefix = caller.profile.path_prefix.clone();
        let mut wire = Wire::of(harness.service.open_sse(caller).await);
        assert_eq!(wire.status, StatusCode::OK);
        assert_eq!(wire.headers["content-type"], "text/event-stream");
        let first = wire.frame().await.expect("the first event");
        assert_eq!(first.event.as_deref(), Some("endpoint"));
        assert_eq!(first.id, None);
        let data = first.data.expect("an address");
        let start = format!("{prefix}/messages?session_id=");
        let id = data.strip_prefix(&start).expect("the documented address");
        Self {
            harness,
            wire,
            id: id.to_owned(),
        }
    }

    async fn send(&self, body: &str) -> StatusCode {
        parts(&self.post(McpHead::default(), body).await).0
    }

    async fn post(&self, head: McpHead, body: &str) -> crate::reply::Reply {
        let id = Some(self.id.clone());
        let service = &self.harness.service;
        service
            .post_message(caller(), id, head, body.to_owned().into())
            .await
    }

    /// Sends a request and reads up to its response.
    async fn ask(&mut self, body: Value) -> Value {
        assert_eq!(self.send(&body.to_string()).await, StatusCode::ACCEPTED);
        loop {
            let message = self.wire.message().await.expect("a response");
            if message["id"] == body["id"] && message.get("method").is_none() {
                return message;
            }
        }
    }

    async fn initialize(&mut self, version: &str) -> Value {
        let answer = self
            .ask(
                json!({ "jsonrpc": "2.0", "id": "i", "method": "initialize", "params": {
                    "protocolVersion": version,
                    "capabilities": { "sampling": {}, "elicitation": {}, "roots": {} },
                }}),
            )
            .await;
        answer["result"]["protocolVersion"].clone()
    }
}

fn request(id: u32, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn talk(id: u32, steps: Value) -> Value {
    let params = json!({ "name": "talk", "arguments": { "steps": steps },
        "_meta": { "progressToken": id } });
    request(id, "tools/call", params)
}

#[tokio::test(start_paused = true)]
async fn a_client_may_ask_before_it_initializes() {
    let harness = harness();
    let mut client = Client::open(&harness).await;
    let answer = client.ask(request(1, "tools/list", json!({}))).await;
    assert!(answer["result"]["tools"].is_array());
    let answer = client.ask(request(2, "ping", json!({}))).await;
    assert_eq!(answer["result"], json!({}));
    let answer = client.ask(request(3, "nope/x", json!({}))).await;
    assert_eq!(answer["error"]["code"], -32601);
    let call = json!({ "name": "echo", "arguments": { "a": 1 } });
    let answer = client.ask(request(4, "tools/call", call)).await;
    assert_eq!(answer["result"]["content"][0]["text"], r#"{"a":1}"#);
    // 2024-11-05 has no structured content.
    assert_eq!(answer["result"].get("structuredContent"), None);
}

#[tokio::test(start_paused = true)]
async fn the_version_is_negotiated_once() {
    let harness = harness();
    for (asked, answered) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2099-01-01", "2025-11-25"),
    ] {
        let mut client = Client::open(&harness).await;
        assert_eq!(client.initialize(asked).await, answered);
        let again = request(9, "initialize", json!({ "protocolVersion": "2025-06-18" }));
        assert_eq!(client.ask(again).await["error"]["code"], -32600);
        let version = harness.service.session_version(&client.id, Some("tester"));
        assert_eq!(version.map(|version| version.as_str()), Some(answered));
        let confirmed = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(client.send(confirmed).await, StatusCode::ACCEPTED);
        let answer = client.ask(request(1, "tools/list", json!({}))).await;
        assert!(answer["result"]["tools"].is_array());
    }
    // Streamable HTTP does not offer 2024-11-05.
    let (_, answer) = harness
        .post(head(None, None), &initialize("2024-11-05"))
        .await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
}

fn initialize(version: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": version, "capabilities": {} } })
    .to_string()
}

#[tokio::test(start_paused = true)]
async fn progress_logs_and_questions_come_on_the_stream() {
    let harness = harness();
    let mut client = Client::open(&harness).await;
    client.initialize("2024-11-05").await;
    let steps = json!([{ "progress": 1 }, { "log": "error" },
        { "ask": [{ "key": "k", "method": "sampling/createMessage" }] }]);
    let sent = talk(5, steps).to_string();
    assert_eq!(client.send(&sent).await, StatusCode::ACCEPTED);
    let mut next = async || client.wire.message().await.expect("a message");
    let progress = next().await;
    assert_eq!(
        progress["params"],
        json!({ "progressToken": 5, "progress": 1, "total": 1 })
    );
    assert_eq!(next().await["method"], "notifications/message");
    let question = next().await;
    assert_eq!(question["method"], "sampling/createMessage");
    let answer =
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "role": "assistant" } });
    assert_eq!(client.send(&answer.to_string()).await, StatusCode::ACCEPTED);
    let response = client.wire.message().await.expect("the response");
    assert_eq!(response["id"], 5);
    let text = response["result"]["content"][0]["text"].to_string();
    assert!(text.contains("assistant"), "{text}");
    let never = json!({ "jsonrpc": "2.0", "id": 77, "result": {} });
    assert_eq!(
        client.send(&never.to_string()).await,
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_there_keep_the_order_of_their_requests_and_calls_overtake_nothing() {
    let harness = harness();
    let mut client = Client::open(&harness).await;
    let call = request(1, "tools/call", json!({ "name": "hang" }));
    assert_eq!(client.send(&call.to_string()).await, StatusCode::ACCEPTED);
    for id in 2..20 {
        let ping = request(id, "ping", json!({})).to_string();
        assert_eq!(client.send(&ping).await, StatusCode::ACCEPTED);
    }
    for id in 2..20 {
        assert_eq!(client.wire.message().await.expect("a pong")["id"], id);
    }
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    assert_eq!(client.send(cancel).await, StatusCode::ACCEPTED);
    let ended = client.wire.message().await.expect("the call's end");
    assert_eq!(
        (&ended["id"], &ended["result"]["isError"]),
        (&json!(1), &json!(true))
    );
}

#[tokio::test(start_paused = true)]
async fn single_faults_of_a_message_have_their_status() {
    let harness = harness();
    let mut client = Client::open(&harness).await;
    for version in ["2024-11-05", "2025-06-18"] {
        client = Client::open(&harness).await;
        client.initialize(version).await;
        let version_header = |version: &str| McpHead {
            version: Some(version.into()),
            ..McpHead::default()
        };
        let ping = request(1, "ping", json!({})).to_string();
        for (fault, head, body, status, code) in [
            ("open brace", McpHead::default(), "{", 400, "parse_error"),
            ("empty", McpHead::default(), "", 400, "parse_error"),
            (
                "no method",
                McpHead::default(),
                r#"{"jsonrpc":"2.0","id":1}"#,
                400,
                "invalid_request",
            ),
            ("batch", McpHead::default(), "[]", 400, "invalid_request"),
            (
                "params",
                McpHead::default(),
                r#"{"jsonrpc":"2.0","method":"x","params":[]}"#,
                400,
                "invalid_request",
            ),
            (
                "unknown version",
                version_header("1999-01-01"),
                &*ping,
                400,
                "unsupported_version",
            ),
            (
                "other version",
                version_header("2025-03-26"),
                &*ping,
                400,
                "version_mismatch",
            ),
        ] {
            let (got, body) = parts(&client.post(head, body).await);
            assert_eq!(got.as_u16(), status, "{fault} {version}: {body}");
            assert_eq!(
                body["error"]["data"]["code"], code,
                "{fault} {version}: {body}"
            );
        }
        let accepted = client.post(version_header(version), &ping).await;
        assert_eq!(accepted.head().status, StatusCode::ACCEPTED);
    }
    let ping = request(1, "ping", json!({})).to_string();
    let streamable = harness.open("2025-06-18", true).await;
    let mut elsewhere = caller();
    elsewhere.namespace = Some("other".parse().expect("a name"));
    let mut somebody = caller();
    somebody.principal = Some("somebody".into());
    for (fault, caller, id, status) in [
        ("missing", caller(), None, 400),
        ("unknown", caller(), Some("nope"), 404),
        ("of the other transport", caller(), Some(&*streamable), 404),
        ("another namespace's", elsewhere, Some(&*client.id), 404),
        ("another principal's", somebody, Some(&*client.id), 404),
    ] {
        let id = id.map(str::to_owned);
        let service = &harness.service;
        let reply = service
            .post_message(caller, id, McpHead::default(), ping.clone().into())
            .await;
        assert_eq!(parts(&reply).0.as_u16(), status, "{fault}");
    }
    // In turn, the session of an SSE stream is unknown on Streamable HTTP.
    let (status, _) = harness.post(head(Some(&client.id), None), &ping).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn the_session_ends_with_its_stream() {
    let harness = harness();
    let client = Client::open(&harness).await;
    let call = request(1, "tools/call", json!({ "name": "hang" }));
    assert_eq!(client.send(&call.to_string()).await, StatusCode::ACCEPTED);
    while harness.backend.counts().0 == 0 {
        tokio::task::yield_now().await;
    }
    let name = harness.service.session_namespace(&client.id);
    assert_eq!(name.map(|name| name.to_string()).as_deref(), Some("shared"));
    let Client { wire, id, .. } = client;
    drop(wire);
    let ping = request(1, "ping", json!({})).to_string();
    let service = &harness.service;
    let reply = service
        .post_message(caller(), Some(id.clone()), McpHead::default(), ping.into())
        .await;
    assert_eq!(parts(&reply).0, StatusCode::NOT_FOUND);
    while harness.backend.counts().1 == 0 || harness.metrics.sessions.get() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(harness.service.session_namespace(&id).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_does_not_read_loses_its_session_and_costs_no_more() {
    let harness = harness();
    let client = Client::open(&harness).await;
    let ping = request(1, "ping", json!({})).to_string();
    let mut taken = 0;
    while client.send(&ping).await == StatusCode::ACCEPTED {
        taken += 1;
        assert!(taken < 3000, "the stream has no bound");
    }
    let Client { mut wire, id, .. } = client;
    assert_eq!(wire.frame().await, None);
    drop(wire);
    assert!(taken > 100);
    while harness.service.session_namespace(&id).is_some() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn changes_and_comments_come_on_the_stream() {
    let harness = std::sync::Arc::new(harness());
    let timers = tokio::spawn({
        let harness = std::sync::Arc::clone(&harness);
        async move { harness.service.run_streams().await }
    });
    let mut client = Client::open(&harness).await;
    assert!(client.wire.frame().await.expect("a comment").comment);
    let call = talk(1, json!([{ "notice": "tools" }]));
    let changed = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
    assert_eq!(client.send(&call.to_string()).await, StatusCode::ACCEPTED);
    let mut seen = vec![
        client.wire.message().await.expect("one"),
        client.wire.message().await.expect("two"),
    ];
    seen.retain(|message| *message == changed);
    assert_eq!(seen.len(), 1);
    tokio::time::sleep(Duration::from_millis(1)).await;
    timers.abort();
}

#[tokio::test(start_paused = true)]
async fn clients_behind_a_prefix_are_told_paths_with_it() {
    let harness = harness();
    let mut profile = tooldock_sessions::profile::Profile::core();
    profile.path_prefix = "/tools".into();
    let mut behind = caller();
    behind.profile = std::sync::Arc::new(profile);
    Client::open_as(&harness, behind).await;
}

crate::testing::shadow::again_adopting!(
    a_client_may_ask_before_it_initializes,
    the_version_is_negotiated_once,
    progress_logs_and_questions_come_on_the_stream,
    answers_that_are_there_keep_the_order_of_their_requests_and_calls_overtake_nothing,
    single_faults_of_a_message_have_their_status,
    the_session_ends_with_its_stream,
    a_reader_that_does_not_read_loses_its_session_and_costs_no_more,
    changes_and_comments_come_on_the_stream,
    clients_behind_a_prefix_are_told_paths_with_it,
);
