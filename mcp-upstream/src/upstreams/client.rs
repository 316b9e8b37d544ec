//! Clients of both eras against servers of both: one test for each entry of the list in `tooldock_protocol::bridge`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;
use tooldock_base::config::Limits;
use tooldock_base::policy::ToolPolicy;
use tooldock_servers::pool::ConnectionKey;
use tooldock_servers::testing::PlayedLaunchers;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::{Catalogue, PageKey};
use tooldock_sessions::testing::{caller, namespace};
use tooldock_workers::external::StdioSettings;
use tooldock_workers::server_settings::Isolation;

use crate::mcp::head::{McpHead, MirroredHeaders};
use crate::mcp::tests::wire::Wire;
use crate::protocol::{Era, EraSupport};
use crate::reply::Reply;
use crate::testing::{Harness, Wanted, delivered, external_upstream, head, parts};

mod fake;
mod legacy;
mod links;
mod listed;
mod modern;
mod rest;
mod tasks;
mod words;

use fake::{Fake, FakeServer, SeenRequest};

const V: &str = "io.modelcontextprotocol/protocolVersion";
const CAPS: &str = "io.modelcontextprotocol/clientCapabilities";
const LEVEL: &str = "io.modelcontextprotocol/logLevel";
const SERVER: &str = "io.modelcontextprotocol/serverInfo";

const ERAS: [EraSupport; 2] = [EraSupport::Legacy, EraSupport::Modern];

/// A gateway in front of a fake server.
struct House {
    harness: Harness,
    seen: Arc<FakeServer>,
}

fn house(speaks: EraSupport) -> House {
    house_of(Fake::new(speaks))
}

fn house_of(fake: Fake) -> House {
    let limits = Limits::default();
    house_with(fake, limits)
}

/// A gateway in front of a fake server whose tools `secret_*` are denied by `tools_deny`.
fn denying(speaks: EraSupport) -> House {
    let limits = Limits {
        tools_deny: vec!["secret_*".into()],
        ..Limits::default()
    };
    house_with(Fake::new(speaks), limits)
}

fn house_with(fake: Fake, limits: Limits) -> House {
    let seen = Arc::clone(&fake.seen);
    let mut external = namespace("shared");
    external.tools = Vec::new();
    external.policy = ToolPolicy::new(&limits).expect("patterns");
    external.limits = limits;
    external.upstream = external_upstream(StdioSettings {
        isolation: fake.isolation,
        ..StdioSettings::default()
    });
    let harness = Wanted {
        namespaces: vec![external, namespace("other")],
        externals: Some(PlayedLaunchers::of(&seen)),
        ..Wanted::default()
    }
    .build();
    House { harness, seen }
}

impl House {
    async fn post(&self, head: McpHead, body: &Value) -> Reply {
        self.post_as(caller(), head, body).await
    }

    async fn post_as(&self, caller: Caller, head: McpHead, body: &Value) -> Reply {
        let service = &self.harness.service;
        let reply = service.post(caller, head, body.to_string().into());
        let limit = Duration::from_secs(20);
        timeout(limit, reply).await.expect("an answer in time")
    }

    /// The requests of this method so far.
    fn requests(&self, method: &str) -> Vec<SeenRequest> {
        let requests = self.seen.requests.lock().expect("not poisoned");
        let found = requests.iter().filter(|it| it.method == method);
        found.cloned().collect()
    }

    /// The parameters of the last request of this method, as the server received them.
    fn request(&self, method: &str) -> String {
        let last = self.requests(method).pop();
        last.expect("such a request").params
    }

    /// Number of tool calls.
    fn calls(&self) -> usize {
        self.requests("tools/call").len()
    }

    /// Number of calls that were cancelled.
    fn cancelled(&self) -> usize {
        self.seen.cancellations().len()
    }

    /// The catalogue of the server's lists.
    fn catalogue(&self) -> Arc<Catalogue> {
        let pools = self.harness.pools.as_ref().expect("the server has a pool");
        let namespace = self
            .harness
            .registry
            .find(&"shared".parse().expect("a name"));
        let namespace = namespace.expect("served");
        let server = tooldock_servers::pool::served(&namespace).expect("a server");
        pools.catalogue(server).expect("served")
    }

    /// Runs the other tasks until each waits for a message or a timer.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    /// Opens a session and returns its id and the result of `initialize`.
    async fn open(&self, capabilities: Value) -> (String, Value) {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": { "name": "c", "version": "1" } } });
        let reply = self.post(head(None, None), &body).await;
        let headers = &reply.head().headers;
        let id = headers.iter().find(|(name, _)| name == "mcp-session-id");
        let id = id.expect("a session").1.to_str().expect("ASCII").to_owned();
        let (status, answer) = parts(&reply);
        assert_eq!(status, StatusCode::OK, "{answer}");
        delivered(reply);
        let confirmed = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        self.post(head(Some(&id), None), &confirmed).await;
        (id, answer["result"].clone())
    }

    /// Sends a request in a session.
    async fn in_session(&self, session: &str, method: &str, params: Value) -> Reply {
        let body = json!({ "jsonrpc": "2.0", "id": "q", "method": method, "params": params });
        self.post(head(Some(session), None), &body).await
    }

    async fn answer(&self, session: &str, id: &Value, outcome: Value) {
        let mut body = json!({ "jsonrpc": "2.0", "id": id });
        for (key, value) in outcome.as_object().expect("an object") {
            body[key] = value.clone();
        }
        let reply = self.post(head(Some(session), None), &body).await;
        assert_eq!(reply.head().status, StatusCode::ACCEPTED);
    }

    /// Sends a message exactly as written, in a session or on its own.
    async fn raw(&self, session: Option<&str>, text: &str) -> Reply {
        let service = &self.harness.service;
        let body = text.to_owned().into();
        let reply = service.post(caller(), head(session, None), body);
        let limit = Duration::from_secs(20);
        timeout(limit, reply).await.expect("an answer in time")
    }

    /// Sends a request of 2026-07-28.
    async fn modern(&self, method: &str, params: Value) -> Reply {
        let message = modern(method, params);
        self.post(modern_head(&message), &message).await
    }
}

/// A request of a client that can be asked things.
fn modern(method: &str, mut params: Value) -> Value {
    let mut meta = json!({ V: "2026-07-28", CAPS: { "elicitation": {} } });
    if let Some(own) = params.get("_meta").and_then(Value::as_object) {
        for (key, value) in own {
            meta[key] = value.clone();
        }
    }
    params["_meta"] = meta;
    json!({ "jsonrpc": "2.0", "id": "m", "method": method, "params": params })
}

fn modern_head(message: &Value) -> McpHead {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let params = &message["params"];
    let named = ["name", "uri", "taskId"].into_iter();
    let name = named.filter_map(|key| text(&params[key])).next();
    McpHead {
        version: text(&params["_meta"][V]),
        mirrored: Some(Box::new(MirroredHeaders {
            method: text(&message["method"]),
            name,
            ..MirroredHeaders::default()
        })),
        ..head(None, None)
    }
}

fn body(reply: &Reply) -> Value {
    parts(reply).1
}

/// The bytes of a response that is no stream.
fn text(reply: &Reply) -> String {
    let body = crate::error::body_of(reply);
    String::from_utf8(body.to_vec()).expect("UTF-8")
}
