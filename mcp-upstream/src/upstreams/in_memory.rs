//! A kind of upstream without processes, behind the same surfaces and the same engine as all others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::testing::{caller, namespace};

use crate::mcp::head::{McpHead, MirroredHeaders};
use crate::mcp::tests::wire::Wire;
use crate::reply::Reply;
use crate::testing::{Harness, InMemory, Wanted, asked, delivered, head, parts};

struct House {
    harness: Harness,
    upstream: Arc<InMemory>,
}

fn house() -> House {
    let upstream = Arc::new(InMemory::default());
    let harness = Wanted {
        namespaces: vec![namespace("memory"), namespace("shared")],
        upstream: Some(Arc::clone(&upstream) as _),
        ..Wanted::default()
    }
    .build();
    House { harness, upstream }
}

fn of_memory() -> Caller {
    Caller {
        namespace: Some("memory".parse().expect("a name")),
        ..caller()
    }
}

impl House {
    async fn post(&self, head: McpHead, body: Value) -> Reply {
        let body = Bytes::from(body.to_string());
        self.harness.service.post(of_memory(), head, body).await
    }

    async fn open(&self, capabilities: Value) -> String {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": { "name": "c", "version": "1" } } });
        let reply = self.post(head(None, None), body).await;
        let headers = &reply.head().headers;
        let id = headers.iter().find(|(name, _)| name == "mcp-session-id");
        let id = id.expect("a session").1.to_str().expect("ASCII").to_owned();
        let (status, answer) = parts(&reply);
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer["result"]["serverInfo"]["name"], "tooldock/memory");
        delivered(reply);
        let confirmed = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        delivered(self.post(head(Some(&id), None), confirmed).await);
        id
    }

    /// A request in a session, answered as JSON.
    async fn asked(&self, session: &str, method: &str, params: Value) -> Value {
        let reply = self.begin(session, method, params).await;
        parts(&reply).1
    }

    async fn begin(&self, session: &str, method: &str, params: Value) -> Reply {
        let body = json!({ "jsonrpc": "2.0", "id": "q", "method": method, "params": params });
        self.post(head(Some(session), None), body).await
    }

    /// A request of 2026-07-28.
    async fn modern(&self, method: &str, mut params: Value) -> Reply {
        let named = params.get("name").or(params.get("uri")).cloned();
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": { "elicitation": {} },
        });
        let head = McpHead {
            version: Some("2026-07-28".into()),
            mirrored: Some(Box::new(MirroredHeaders {
                method: Some(method.into()),
                name: named.and_then(|it| it.as_str().map(str::to_owned)),
                ..MirroredHeaders::default()
            })),
            ..head(None, None)
        };
        let body = json!({ "jsonrpc": "2.0", "id": 9, "method": method, "params": params });
        self.post(head, body).await
    }
}

async fn next(wire: &mut Wire) -> Value {
    wire.message().await.expect("a message")
}

/// A single question, then its answer.
fn script() -> Value {
    json!({ "steps": [{ "ask": [{ "key": "k", "method": "elicitation/create" }] }] })
}

#[tokio::test]
async fn it_lists_calls_reads_gets_and_completes() {
    let house = house();
    let session = house.open(json!({})).await;
    let listed = house.asked(&session, "tools/list", json!({})).await;
    assert_eq!(listed["result"]["tools"][0]["name"], "echo");
    let echoed = house
        .asked(
            &session,
            "tools/call",
            json!({ "name": "echo", "arguments": { "n": 1 } }),
        )
        .await;
    assert_eq!(echoed["result"]["structuredContent"], json!({ "n": 1 }));
    let broken = house
        .asked(&session, "tools/call", json!({ "name": "broken" }))
        .await;
    assert_eq!(broken["result"]["isError"], true);
    let missing = house
        .asked(&session, "tools/call", json!({ "name": "nope" }))
        .await;
    let text = &missing["result"]["content"][0]["text"];
    assert_eq!(text, "tool_not_found: Unknown tool: nope");
    let read = json!({ "uri": "memory://text" });
    let read = house.asked(&session, "resources/read", read).await;
    assert_eq!(read["result"]["contents"][0]["text"], "kept");
    let got = house
        .asked(&session, "prompts/get", json!({ "name": "greet" }))
        .await;
    assert_eq!(got["result"], json!({ "messages": [] }));
    let completed = house
        .asked(&session, "completion/complete", json!({}))
        .await;
    assert_eq!(completed["result"]["completion"]["values"], json!(["a"]));
    let unknown = house.asked(&session, "x/any", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32601);
    let counted = |outcome| house.harness.metrics.calls_of("memory", outcome);
    assert_eq!(
        (
            counted("ok"),
            counted("tool_error"),
            counted("tool_not_found")
        ),
        (1, 1, 1)
    );
}

#[tokio::test]
async fn it_speaks_and_asks_before_its_answer() {
    let house = house();
    let session = house.open(json!({ "elicitation": {} })).await;
    let call = json!({ "name": "talk", "arguments": script() });
    let mut wire = Wire::of(house.begin(&session, "tools/call", call).await);
    assert_eq!(next(&mut wire).await["params"]["data"], "begun");
    let question = next(&mut wire).await;
    assert_eq!(question["method"], "elicitation/create");
    let answer =
        json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept" } });
    let taken = house.post(head(Some(&session), None), answer).await;
    assert_eq!(parts(&taken).0, StatusCode::ACCEPTED);
    let last = next(&mut wire).await;
    let told = &last["result"]["structuredContent"];
    assert_eq!(*told, json!({ "k": { "action": "accept" } }));
}

#[tokio::test]
async fn a_modern_client_answers_with_its_next_request() {
    let house = house();
    let call = json!({ "name": "talk", "arguments": script() });
    let asked = parts(&house.modern("tools/call", call.clone()).await).1;
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    let mut again = call;
    again["requestState"] = asked["result"]["requestState"].clone();
    again["inputResponses"] = json!({ "k": { "action": "decline" } });
    let done = parts(&house.modern("tools/call", again).await).1;
    let told = &done["result"]["structuredContent"];
    assert_eq!(*told, json!({ "k": { "action": "decline" } }));
}

#[tokio::test]
async fn it_hears_notifications_streams_and_cancellations() {
    let house = house();
    let session = house.open(json!({ "elicitation": {} })).await;
    let told = json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" });
    delivered(house.post(head(Some(&session), None), told).await);
    let notified = house
        .upstream
        .notified
        .lock()
        .expect("not poisoned")
        .clone();
    assert_eq!(notified, ["notifications/roots/list_changed"]);
    let stream = house
        .harness
        .service
        .get(of_memory(), head(Some(&session), None));
    let stream = stream.await;
    assert_eq!(house.upstream.streams.load(Ordering::SeqCst), 1);
    drop(stream);
    let call = json!({ "name": "talk", "arguments": script() });
    let mut wire = Wire::of(house.begin(&session, "tools/call", call).await);
    next(&mut wire).await;
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": { "requestId": "q", "reason": "enough" } });
    delivered(house.post(head(Some(&session), None), cancel.clone()).await);
    let heard = house
        .upstream
        .cancelled
        .lock()
        .expect("not poisoned")
        .clone();
    assert_eq!(heard, [cancel.to_string()]);
}

#[tokio::test]
async fn a_listener_counts_for_as_long_as_it_listens() {
    let house = house();
    let wanted =
        json!({ "notifications": { "toolsListChanged": true, "promptsListChanged": true } });
    let reply = house.modern("subscriptions/listen", wanted).await;
    assert_eq!(house.upstream.listeners.load(Ordering::SeqCst), 1);
    let mut wire = Wire::of(reply);
    let granted = next(&mut wire).await["params"]["notifications"].clone();
    assert_eq!(granted, json!({ "toolsListChanged": true }));
    drop(wire);
    assert_eq!(house.upstream.listeners.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn rest_serves_it_as_any_other() {
    let house = house();
    let of = async |path: &str, body: &[u8]| {
        let reply = house.harness.service.handle(of_memory(), asked(path, body));
        parts(&reply.await)
    };
    let listed = of("/tools", b"").await.1;
    assert_eq!(listed[1]["name"], "talk");
    let value = of("/tools/echo", br#"{"n":2}"#).await;
    assert_eq!(value, (StatusCode::OK, json!({ "n": 2 })));
    assert_eq!(of("/tools/nope", b"{}").await.0, StatusCode::NOT_FOUND);
    let schema = of("/tools/echo/schema", b"").await.1;
    assert_eq!(schema, json!({ "type": "object" }));
    let document = of("/openapi.json", b"").await.1;
    assert!(
        document["paths"]["/tools/echo"]["post"].is_object(),
        "{document}"
    );
    let namespaces = of("/namespaces", b"").await.1;
    let memory = namespaces.as_array().expect("a list").iter();
    let mut memory = memory.filter(|it| it["name"] == "memory");
    assert_eq!(memory.next().expect("it is listed")["tool_count"], 3);
}
