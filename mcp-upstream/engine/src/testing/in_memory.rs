//! An upstream of another kind, without processes: it shows that surfaces and the engine need only an [`Upstream`] of a new
//! kind. The registry's part in a new kind is left out.
//!
//! It serves the namespaces named `memory`. Its tool `echo` returns its arguments, `talk` follows the script in its arguments,
//! `broken` fails; it has the resource `memory://text`, the prompt `greet` and completion, announces changes of its tools, and
//! keeps the notifications it receives.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::worker::{LogLevel, ToolReply};
use tooldock_protocol::format;
use tooldock_protocol::jsonrpc::{self, Key, RequestError};
use tooldock_protocol::version::{Method, ProtocolVersion};
use tooldock_sessions::broadcast::Filter;
use tooldock_sessions::catalogue::ToolList;
use tooldock_sessions::session::{CancelNotice, Session};
use tooldock_sessions::stream::HeldByStream;
use tooldock_workers::registry::Namespace;

use super::script;
use crate::engine::{
    CallFacts, CallMessages, Peer, UpstreamCall, UpstreamReply, Work, unknown_tool,
};
use crate::upstream::{
    CallContext, GrantedSubscription, IncomingRequest, MaybeReady, PreparedRequest, ToolLists,
    ToolsWait, Upstream,
};

const TOOLS: &str = r#"{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"talk","inputSchema":{"type":"object"}},{"name":"broken","inputSchema":{"type":"object"}}]}"#;

/// The upstream of the namespaces named `memory`; see the module.
#[derive(Default)]
pub struct InMemory {
    /// Notifications of clients, in order.
    pub notified: Mutex<Vec<String>>,
    /// Number of live listeners for changes.
    pub listeners: Arc<AtomicUsize>,
    /// Number of streams that sessions opened.
    pub streams: AtomicUsize,
    /// Messages by which calls were cancelled.
    pub cancelled: Arc<Mutex<Vec<String>>>,
}

/// Guard that counts a listener until it is dropped.
struct Place(Arc<AtomicUsize>);

impl HeldByStream for Place {}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl InMemory {
    fn call(
        &self,
        cx: &CallContext<'_>,
        method: &str,
        subject: &str,
        arguments: Bytes,
    ) -> PreparedRequest {
        let talks = match subject {
            "talk" => CallMessages::Asks,
            _ => CallMessages::No,
        };
        PreparedRequest::Call(Arc::new(MemoryCall {
            facts: CallFacts {
                talks,
                ..cx.facts(Method::of(method), subject, arguments)
            },
            cancelled: Arc::clone(&self.cancelled),
        }))
    }

    fn understood(
        &self,
        cx: &CallContext<'_>,
        request: IncomingRequest<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let text = |key| {
            let text = request.members.get(key).and_then(jsonrpc::string);
            text.unwrap_or_default()
        };
        let arguments = || cx.own_object(request.members.get(Key::Arguments));
        match request.method {
            "tools/list" => {
                let tools: Value = serde_json::from_str(TOOLS).expect("JSON");
                let format = cx.result_format();
                let mut answer = format::ResultWriter::begin(request.id, &format, 64);
                let out = answer.key("tools");
                serde_json::to_writer(out, &tools["tools"]).expect("JSON");
                Ok(PreparedRequest::Response(answer.end()))
            }
            "tools/call" | "prompts/get" => {
                Ok(self.call(cx, request.method, &text(Key::Name), arguments()))
            }
            "resources/read" => Ok(self.call(cx, request.method, &text(Key::Uri), Bytes::new())),
            "completion/complete" => Ok(self.call(cx, request.method, "", Bytes::new())),
            other => Err(RequestError::MethodNotFound(other.to_owned())),
        }
    }
}

fn beginning(id: &str, cx: &CallContext<'_>, version: Option<ProtocolVersion>) -> Vec<u8> {
    let format = match version {
        Some(version) => format::ResultFormat::Legacy(version),
        None => cx.result_format(),
    };
    let mut answer = format::ResultWriter::begin(id, &format, 64);
    if let Some(version) = version {
        format::escape(answer.key("protocolVersion"), version.as_str().as_bytes());
    }
    let capabilities = answer.key("capabilities");
    capabilities.extend_from_slice(br#"{"tools":{"listChanged":true}}"#);
    format::server_info(answer.key("serverInfo"), &cx.namespace.name);
    answer.end()
}

impl Upstream for InMemory {
    fn serves(&self, namespace: &Namespace) -> bool {
        namespace.name.as_str() == "memory"
    }

    fn tool_lists(&self) -> &dyn ToolLists {
        self
    }

    fn prepare<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        request: IncomingRequest<'a>,
    ) -> MaybeReady<'a, Result<PreparedRequest, RequestError>> {
        MaybeReady::Later(Box::pin(async move { self.understood(cx, request) }))
    }

    fn call_tool(
        &self,
        cx: &CallContext<'_>,
        tool: &str,
        arguments: Bytes,
    ) -> Result<Arc<dyn UpstreamCall>, CallError> {
        match self.call(cx, "tools/call", tool, arguments) {
            PreparedRequest::Call(call) => Ok(call),
            PreparedRequest::Response(_) => Err(unknown_tool(tool)),
        }
    }

    fn discover<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        _: &'a [&'a str],
    ) -> MaybeReady<'a, Result<Vec<u8>, CallError>> {
        MaybeReady::Now(Ok(beginning(id, cx, None)))
    }

    fn initialize<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        _: &'a Arc<Session>,
        version: ProtocolVersion,
    ) -> MaybeReady<'a, Result<Vec<u8>, CallError>> {
        MaybeReady::Now(Ok(beginning(id, cx, Some(version))))
    }

    fn listen<'a>(
        &'a self,
        _: &'a CallContext<'a>,
        wanted: Filter,
    ) -> MaybeReady<'a, Result<GrantedSubscription, RequestError>> {
        self.listeners.fetch_add(1, Ordering::SeqCst);
        let guard: Box<dyn HeldByStream> = Box::new(Place(Arc::clone(&self.listeners)));
        MaybeReady::Now(Ok(GrantedSubscription {
            granted: Filter {
                tools: wanted.tools,
                ..Filter::default()
            },
            guard: Some(guard),
        }))
    }

    fn notify(&self, _: &CallContext<'_>, method: &str, _: &str) {
        let mut notified = self.notified.lock().expect("not poisoned");
        notified.push(method.to_owned());
    }

    fn stream_opened(&self, _: &Namespace, _: &Arc<Session>) {
        self.streams.fetch_add(1, Ordering::SeqCst);
    }
}

impl ToolLists for InMemory {
    fn tools<'a>(
        &'a self,
        _: &'a Arc<Namespace>,
        _: Option<&'a Arc<str>>,
        _: ToolsWait,
    ) -> MaybeReady<'a, Result<Arc<ToolList>, CallError>> {
        MaybeReady::Now(Ok(Arc::new(ToolList::of_page(TOOLS))))
    }

    fn tools_known(&self, _: &Namespace) -> Option<Arc<ToolList>> {
        Some(Arc::new(ToolList::of_page(TOOLS)))
    }
}

struct MemoryCall {
    facts: CallFacts,
    cancelled: Arc<Mutex<Vec<String>>>,
}

impl CancelNotice for MemoryCall {
    fn cancelled(&self, message: &str) {
        let mut cancelled = self.cancelled.lock().expect("not poisoned");
        cancelled.push(message.to_owned());
    }
}

impl UpstreamCall for MemoryCall {
    fn facts(&self) -> &CallFacts {
        &self.facts
    }

    fn admit(&self) -> Result<(), CallError> {
        let known = !self.facts.method.is_tool_call()
            || ToolList::of_page(TOOLS).tool(&self.facts.subject).is_some();
        known
            .then_some(())
            .ok_or_else(|| unknown_tool(&self.facts.subject))
    }

    fn start(self: Arc<Self>, peer: Peer) -> Work {
        Box::pin(async move {
            let facts = &self.facts;
            let value = |value: String| {
                Ok(UpstreamReply::Value(ToolReply {
                    value: value.into(),
                    content: None,
                    meta: None,
                }))
            };
            let result = |result: Value| Ok(UpstreamReply::Result(result.to_string().into()));
            match (&*facts.method, &*facts.subject) {
                ("tools/call", "echo") => value(String::from_utf8_lossy(&facts.arguments).into()),
                ("tools/call", "talk") => {
                    let heard = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"begun"}}"#;
                    peer.say(Some(LogLevel::Error), Bytes::from_static(heard.as_bytes()));
                    let sink = peer.into_sink();
                    let release = Semaphore::new(0);
                    let answers =
                        script::run(&facts.arguments, &Value::Null, sink.as_ref(), &release).await;
                    value(answers.to_string())
                }
                ("resources/read", uri) => {
                    result(json!({ "contents": [{ "uri": uri, "text": "kept" }] }))
                }
                ("prompts/get", _) => result(json!({ "messages": [] })),
                ("completion/complete", _) => result(json!({ "completion": { "values": ["a"] } })),
                _ => Err(CallError::new(CallErrorCode::ToolError, "it is broken")),
            }
        })
    }
}
