//! Measures the cost of a message in the service, so that a change that makes messages more expensive is noticed: tests assert
//! the number of allocations, and `make cost` compares the number of instructions with `cost.json`.

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use tokio::runtime::{Builder, Runtime};
use tooldock_base::error::CallError;
use tooldock_engine::engine::{UpstreamReply, Work};
use tooldock_engine::upstream::worker::{WorkerPort, WorkerPorts};
use tooldock_process::worker::{CallSink, ToolReply, WorkerCall};
use tooldock_sessions::testing::caller;
use tooldock_workers::registry::Namespace;

use crate::jsonrpc;
use crate::mcp::head::{McpHead, MirroredHeaders};
use crate::testing::{Harness, Wanted, head};

#[path = "../../tests/support/counted.rs"]
mod counted;

pub(crate) use counted::allocations;

/// Creates a runtime with one thread, like each of the proxy's runtimes by default.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Worker that responds immediately, so that only the code of the service is measured.
struct Ready;

impl WorkerPort for Ready {
    fn call(self: Arc<Self>, call: WorkerCall, _: Option<Arc<dyn CallSink>>) -> Work {
        Box::pin(async move {
            black_box(call);
            Ok(UpstreamReply::Value(ToolReply {
                value: Bytes::from_static(br#""Hello, Ada!""#),
                content: None,
                meta: None,
            }))
        })
    }
}

impl WorkerPorts for Ready {
    fn of(&self, _: &Namespace) -> Result<Arc<dyn WorkerPort>, CallError> {
        Ok(Arc::new(Self))
    }
}

/// A service whose tools respond immediately, with its runtime.
struct Scene {
    runtime: Runtime,
    house: Harness,
}

impl Scene {
    fn new() -> Self {
        let runtime = runtime();
        let house = {
            let _guard = runtime.enter();
            Wanted {
                ports: Some(Arc::new(Ready)),
                ..Wanted::default()
            }
            .build()
        };
        Self { runtime, house }
    }

    /// Returns the number of allocations for one response.
    fn allocations_of(&self, head: &McpHead, body: &'static str) -> u64 {
        let given = || (caller(), head.clone());
        allocations(given, |(caller, head)| {
            let body = Bytes::from_static(body.as_bytes());
            let reply = self.house.service.post(caller, head, body);
            let reply = self.runtime.block_on(reply);
            assert_eq!(reply.head().status, StatusCode::OK);
            black_box(reply);
        })
    }

    fn session(&self) -> McpHead {
        let session = self.house.open("2025-11-25", true);
        head(Some(&self.runtime.block_on(session)), Some("2025-11-25"))
    }
}

fn modern(method: &str, name: Option<&str>) -> McpHead {
    McpHead {
        version: Some("2026-07-28".into()),
        mirrored: Some(Box::new(MirroredHeaders {
            method: Some(method.into()),
            name: name.map(Into::into),
            ..MirroredHeaders::default()
        })),
        ..head(None, None)
    }
}

const PING: &str = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;
const CALL: &str = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"Hello, Ada!"}}}"#;
const LIST: &str = r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{}}"#;

/// Builds a modern request with these parameters, and with the metadata that every modern request has.
macro_rules! modern_body {
    ($method:literal, $params:literal) => {
        concat!(
            r#"{"jsonrpc":"2.0","id":7,"method":""#,
            $method,
            r#"","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
            r#""io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"#,
            r#""io.modelcontextprotocol/clientCapabilities":{}}"#,
            $params,
            "}}"
        )
    };
}

mod bodies;

#[test]
fn cost_of_a_ping_without_a_session() {
    let made = Scene::new().allocations_of(&head(None, None), PING);
    assert!(made <= 2, "{made} allocations");
}

#[test]
fn cost_of_a_ping_in_a_session() {
    let scene = Scene::new();
    let made = scene.allocations_of(&scene.session(), PING);
    assert!(made <= 2, "{made} allocations");
}

#[test]
fn cost_of_a_tool_call_in_a_session() {
    let scene = Scene::new();
    let made = scene.allocations_of(&scene.session(), CALL);
    assert!(made <= 13, "{made} allocations");
}

#[test]
fn cost_of_a_modern_tool_call() {
    const BODY: &str = modern_body!(
        "tools/call",
        r#","name":"echo","arguments":{"text":"Hello, Ada!"}"#
    );
    let made = Scene::new().allocations_of(&modern("tools/call", Some("echo")), BODY);
    assert!(made <= 12, "{made} allocations");
}

#[test]
fn cost_of_a_list_of_tools() {
    let scene = Scene::new();
    let made = scene.allocations_of(&scene.session(), LIST);
    assert!(made <= 2, "{made} allocations");
}

#[test]
fn cost_of_reading_an_envelope_of_16_kb() {
    let text = "a \\\" b ".repeat(2341);
    let body = CALL.replace("Hello, Ada!", &text);
    let made = allocations(
        || body.as_bytes(),
        |body| {
            black_box(jsonrpc::body(black_box(body)).is_ok());
        },
    );
    assert!(made <= 1, "{made} allocations");
}
