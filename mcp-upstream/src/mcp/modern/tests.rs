//! Tests of 2026-07-28: a client of the service over the fake backend.

use std::sync::Arc;
use std::time::Duration;

use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::StreamExt;
use http::StatusCode;
use serde_json::{Value, json};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::testing::{caller, full};

use super::super::head::{AcceptFlags, McpHead, MirroredHeaders};
use crate::reply::Reply;
use crate::testing::{Harness, Wanted};

mod listen;
mod questions;
mod requests;
mod speaking;

const V: &str = "io.modelcontextprotocol/protocolVersion";
const CAPS: &str = "io.modelcontextprotocol/clientCapabilities";
const LEVEL: &str = "io.modelcontextprotocol/logLevel";
const SERVER: &str = "io.modelcontextprotocol/serverInfo";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// A service with a namespace that offers everything.
fn service() -> Harness {
    let namespaces = vec![full("shared"), full("other")];
    Wanted {
        namespaces,
        ..Wanted::default()
    }
    .build()
}

/// The metadata of a client that can be asked everything.
fn meta() -> Value {
    json!({ V: "2026-07-28", CAPS: { "elicitation": {}, "sampling": {}, "roots": {} } })
}

/// A request with the usual metadata; metadata in its own params takes precedence.
fn request(id: Value, method: &str, mut params: Value) -> Value {
    let mut meta = meta();
    if let Some(own) = params.get("_meta").and_then(Value::as_object) {
        for (key, value) in own {
            meta[key] = value.clone();
        }
    }
    params["_meta"] = meta;
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// A call of the tool that follows a script.
fn talk(id: i64, steps: Value) -> Value {
    request(
        id.into(),
        "tools/call",
        json!({ "name": "talk", "arguments": { "steps": steps } }),
    )
}

fn accept_both() -> AcceptFlags {
    AcceptFlags {
        sse_acceptable: true,
        json_named: true,
        sse_named: true,
        json_acceptable: true,
    }
}

/// The headers that belong to a request.
fn head_of(message: &Value) -> McpHead {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let params = &message["params"];
    let named = match message["method"].as_str() {
        Some("tools/call" | "prompts/get") => text(&params["name"]),
        Some("resources/read") => text(&params["uri"]),
        _ => None,
    };
    McpHead {
        version: text(&params["_meta"][V]),
        accept: accept_both(),
        mirrored: Some(Box::new(MirroredHeaders {
            method: text(&message["method"]),
            name: named,
            ..MirroredHeaders::default()
        })),
        ..McpHead::default()
    }
}

impl Harness {
    async fn send_as(&self, caller: Caller, head: McpHead, message: &Value) -> Reply {
        let body = Bytes::from(message.to_string());
        self.service.post(caller, head, body).await
    }

    async fn send(&self, message: &Value) -> Reply {
        self.send_as(caller(), head_of(message), message).await
    }

    /// Status and body of an answer that is not a stream.
    async fn ask(&self, message: &Value) -> (StatusCode, Value) {
        crate::testing::parts(&self.send(message).await)
    }

    /// The result of an answer that is not a stream.
    async fn result(&self, message: &Value) -> Value {
        let (status, body) = self.ask(message).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        assert_eq!(body["id"], message["id"]);
        assert!(body.get("result").is_some(), "{body}");
        body["result"].clone()
    }

    /// Code and message of a refusal.
    async fn refusal(&self, message: &Value) -> (u16, i64, String) {
        refusal(&self.send(message).await, &message["id"])
    }

    /// All messages of a stream, to its end.
    async fn events(&self, message: &Value) -> Vec<Value> {
        events(self.send(message).await).await
    }
}

fn refusal(reply: &Reply, id: &Value) -> (u16, i64, String) {
    let (status, body) = crate::testing::parts(reply);
    assert_eq!(&body["id"], id, "{body}");
    let error = &body["error"];
    let text = error["message"].as_str().unwrap_or_default().to_owned();
    (
        status.as_u16(),
        error["code"].as_i64().unwrap_or_default(),
        text,
    )
}

/// A stream that is read event by event.
struct Reading {
    body: axum::body::BodyDataStream,
    text: String,
}

impl Reading {
    fn of(reply: Reply) -> Self {
        assert_eq!(reply.head().status, StatusCode::OK, "{reply:?}");
        let header = |name: &str| {
            let mut headers = reply.head().headers.iter();
            let found = headers.find(|(own, _)| own.as_str() == name);
            found.map(|(_, value)| value.to_str().expect("text").to_owned())
        };
        assert_eq!(header("content-type").as_deref(), Some("text/event-stream"));
        assert_eq!(header("x-accel-buffering").as_deref(), Some("no"));
        assert_eq!(header("mcp-session-id"), None);
        Self {
            body: reply.into_response().into_body().into_data_stream(),
            text: String::new(),
        }
    }

    /// The next message; `None` at the end. Comments and `retry` are skipped.
    async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                assert!(
                    !event.lines().any(|line| line.starts_with("id:")),
                    "{event}"
                );
                let message = data.map(|data| serde_json::from_str(data).expect("JSON"));
                self.text = rest.to_owned();
                if message.is_some() {
                    return message;
                }
            }
            let chunk = self.body.next().await?.expect("no error");
            self.text += std::str::from_utf8(&chunk).expect("UTF-8");
        }
    }
}

async fn events(reply: Reply) -> Vec<Value> {
    let mut reading = Reading::of(reply);
    let mut events = Vec::new();
    while let Some(event) = reading.next().await {
        events.push(event);
    }
    events
}

/// Lets other tasks run until a condition holds.
async fn until(what: &str, so: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if so() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("never: {what}");
}
