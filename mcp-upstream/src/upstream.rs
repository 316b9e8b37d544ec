//! Upstreams run namespaces: one trait for every kind.
//!
//! ```text
//!   surface ──▶ Upstream::prepare ──▶ an answer that is there
//!                      │
//!                      └─────────────▶ UpstreamCall ──▶ Engine::run ──▶ UpstreamCall::start ──▶ UpstreamReply
//! ```
//!
//! A request is read by its upstream, and admitted by the engine. [`Upstream::prepare`] reads the spans of the request once;
//! its result owns only the data that the call needs, so that a waiting call keeps no body in memory.
//!
//! | kind | module | runs on |
//! |---|---|---|
//! | functions | [`worker`] | Python workers; for the management tools this program ([`system`]) |
//! | a server that speaks MCP | [`client`] | a stdio server's processes, or a remote server's backends ([`http`]) |
//! | several namespaces | [`aggregate`] | their own upstreams, by the engine once more |
//! | all namespaces at once | [`global`] | the upstream of the namespace that has the tool |
//!
//! A new kind is a folder here, an implementation of [`Upstream`] and of its calls (`UpstreamCall` in `engine.rs`), and an entry
//! in the list that is given to [`Upstreams`] (`Service::with_servers` in `service.rs`). A reload makes its namespaces, with a
//! variant of `UpstreamKind` in `workers/registry.rs`. `testing/in_memory.rs` is the smallest complete implementation. Another
//! way to servers that speak MCP implements the traits of `upstream/client/connector.rs`, as `upstream/client/pools.rs` does.
//!
//! `tools` returns all tools of a namespace, `listed` (without a request to the server: `listed_now`) the tools that lists show
//! to one caller, and `behind` the member that has a published tool of an aggregate. Lists of MCP come from `prepare`; REST,
//! OpenAPI, the web UI and the relay use `listed` and the caller's view.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::child::output::RecentLines;
use tooldock_sessions::broadcast::Filter;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::ToolList;
use tooldock_sessions::session::Session;
use tooldock_workers::registry::Namespace;

use crate::engine::UpstreamCall;
use crate::jsonrpc::{Members, RequestError};
use crate::protocol::{Era, EraSupport, ProtocolVersion};
use crate::stdio::pool::Presence;
pub(crate) use crate::stdio::pool::ServerCopy;

pub(crate) mod aggregate;
pub(crate) mod client;
mod context;
pub(crate) mod global;
pub(crate) mod health;
pub(crate) mod http;
mod sessions;
pub mod system;
pub(crate) mod worker;

#[cfg(test)]
mod tests;

pub(crate) use context::{CallContext, Client, RequestMeta};
pub(crate) use sessions::{SessionChanges, gauge, store_away, store_failure};

/// A boxed future with the output `T`.
pub(crate) type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A value that is usually available immediately, without a future.
pub(crate) enum Soon<'a, T> {
    /// The available value.
    Now(T),
    /// The future of the value.
    Later(Pending<'a, T>),
}

impl<T> Soon<'_, T> {
    /// The value; waits for the value of [`Soon::Later`].
    pub(crate) async fn get(self) -> T {
        match self {
            Self::Now(value) => value,
            Self::Later(pending) => pending.await,
        }
    }
}

/// A request of MCP, as its surface read it.
#[derive(Clone, Copy)]
pub(crate) struct IncomingRequest<'a> {
    /// The request's id as raw JSON.
    pub(crate) id: &'a str,
    pub(crate) method: &'a str,
    pub(crate) members: &'a Members<'a>,
}

/// A request that was read by its upstream.
pub(crate) enum PreparedRequest {
    /// The complete JSON-RPC response, for a request that needs no call.
    Response(Vec<u8>),
    /// A call that produces the response.
    Call(Arc<dyn UpstreamCall>),
}

impl fmt::Debug for PreparedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Response(answer) => write!(f, "{}", String::from_utf8_lossy(answer)),
            Self::Call(call) => call.facts().fmt(f),
        }
    }
}

/// The granted filter of a client's `subscriptions/listen`. Dropping it ends the client's subscription.
pub(crate) struct Listening {
    pub(crate) granted: Filter,
    /// Guard that keeps the subscription at the upstream.
    pub(crate) guard: Option<Box<dyn Any + Send>>,
}

/// How long a caller waits for tools that must be read first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolsWait {
    /// Wait until the tools are read: the caller needs the list itself.
    Long,
    /// Wait shortly, because a call needs the list: the last known tools are used if the list is late.
    Short,
}

/// The namespace whose tool another namespace publishes.
pub(crate) struct Behind {
    pub(crate) namespace: Arc<Namespace>,
    /// The tool's name in that namespace.
    pub(crate) tool: Box<str>,
    /// True if clients can also call that namespace directly, so that they need access to it.
    pub(crate) is_served: bool,
}

/// A kind of upstream: the requests that it reads and answers. It finds its state about a namespace by the [`Namespace`] of the
/// request's snapshot.
pub(crate) trait Upstream:
    UpstreamSessions + UpstreamTools + UpstreamServer + Send + Sync + 'static
{
    /// Returns true if this kind runs the namespace.
    fn serves(&self, namespace: &Namespace) -> bool;

    /// Returns true if the upstream's server reads messages as clients wrote them, so that no message may be ambiguous and a
    /// `requestState` may be the server's.
    fn speaks_mcp(&self) -> bool;

    /// Checks if the namespace has the method, before anything of the request is read.
    ///
    /// # Errors
    ///
    /// When the namespace does not have the method, or when that cannot be found out.
    fn offers(&self, _cx: &CallContext<'_>, _method: &str) -> Result<(), RequestError> {
        Ok(())
    }

    /// Returns true if a request may run twice without harm. `subject` is the tool of a call.
    fn is_harmless(&self, _namespace: &Namespace, _method: &str, _subject: &str) -> bool {
        false
    }

    /// Reads a request, and returns a response or a call. Names that the namespace does not have are refused; the outcome of a
    /// call is not known yet.
    fn prepare<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        request: IncomingRequest<'a>,
    ) -> Soon<'a, Result<PreparedRequest, RequestError>>;

    /// Prepares a tool call from a surface other than MCP: `arguments` are a JSON object.
    ///
    /// # Errors
    ///
    /// The reason why the call cannot be made.
    fn call_tool(
        &self,
        cx: &CallContext<'_>,
        tool: &str,
        arguments: Bytes,
    ) -> Result<Arc<dyn UpstreamCall>, CallError>;

    /// Writes the complete response to `server/discover`. `versions` are those that the listener serves.
    fn discover<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        versions: &'a [&'a str],
    ) -> Soon<'a, Result<Vec<u8>, CallError>>;

    /// The eras that the server of a namespace is known to speak; `None` if a request would have to find them out. `_client` is
    /// the era of the client that wants to use the server.
    fn speaks(&self, _namespace: &Namespace, _client: Era) -> Option<EraSupport> {
        None
    }

    /// State of the copy of the server that gets this client's requests.
    fn copy(&self, _cx: &CallContext<'_>) -> ServerCopy {
        ServerCopy::Running
    }

    /// Returns true if the server runs a task with this id that a call of the caller's principal began.
    fn has_task(&self, _cx: &CallContext<'_>, _task: &str) -> bool {
        false
    }
}

/// The part of an upstream that clients' sessions and subscriptions use.
pub(crate) trait UpstreamSessions {
    /// Returns true if a session's state at its upstream is lost, so that the session must end.
    fn has_lost(&self, _namespace: &Namespace, _session: &Session) -> bool {
        false
    }

    /// Writes the complete response to `initialize`, for a session whose client has declared its capabilities. `id` is raw
    /// JSON.
    fn initialize<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        session: &'a Arc<Session>,
        version: ProtocolVersion,
    ) -> Soon<'a, Result<Vec<u8>, CallError>>;

    /// Grants the parts of `subscriptions/listen` that the namespace supports.
    fn listen<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        wanted: Filter,
    ) -> Soon<'a, Result<Listening, RequestError>>;

    /// Handles a client's notification that the gateway does not handle itself. Never waits.
    fn notify(&self, _cx: &CallContext<'_>, _method: &str, _message: &str) {}

    /// Called when a session of the namespace opens its stream for messages outside of responses.
    fn stream_opened(&self, _namespace: &Namespace, _session: &Arc<Session>) {}
}

/// The part of an upstream that says which tools a namespace has, for surfaces other than MCP and for views.
pub(crate) trait UpstreamTools {
    /// The tools of a namespace, including those that a view hides. `principal`: the caller, for servers that the gateway calls
    /// with the caller's credentials.
    fn tools<'a>(
        &'a self,
        namespace: &'a Arc<Namespace>,
        principal: Option<&'a Arc<str>>,
        wait: ToolsWait,
    ) -> Soon<'a, Result<Arc<ToolList>, CallError>>;

    /// The tools, if they are known without a request to a server.
    fn tools_known(&self, namespace: &Namespace) -> Option<Arc<ToolList>>;

    /// The tools that lists show this caller before its view hides some by their names: all tools, unless the upstream has a list
    /// per caller.
    fn listed<'a>(
        &'a self,
        namespace: &'a Arc<Namespace>,
        caller: &'a Caller,
    ) -> Soon<'a, Result<Arc<ToolList>, CallError>> {
        self.tools(namespace, caller.principal.as_ref(), ToolsWait::Long)
    }

    /// The result of [`Self::listed`], if it is known without a request to a server.
    fn listed_now(&self, namespace: &Arc<Namespace>, _caller: &Caller) -> Option<Arc<ToolList>> {
        self.tools_known(namespace)
    }

    /// The namespace behind a tool that this namespace publishes for it; `None` for the namespace's own tools.
    fn behind(&self, _namespace: &Namespace, _tool: &str) -> Option<Behind> {
        None
    }
}

/// The part of an upstream that operators use: the state of a namespace's server, and commands to it.
pub(crate) trait UpstreamServer {
    /// State of the server of a namespace; `None` if there is no server, or it was not needed yet.
    fn health(&self, _namespace: &Namespace) -> Option<health::ServerHealth> {
        None
    }

    /// The members of an aggregate, in the order of its file.
    fn members(&self, _namespace: &Namespace) -> Vec<health::MemberHealth> {
        Vec::new()
    }

    /// Ends the processes of the server of a namespace, with the calls that run there, and starts new ones.
    ///
    /// # Errors
    ///
    /// When the namespace has no server, or is not served any more.
    fn restart(&self, namespace: &Namespace) -> Result<(), CallError> {
        Err(CallError::new(
            CallErrorCode::WorkerUnavailable,
            format!("namespace {} has no server of its own", namespace.name),
        ))
    }

    /// The last lines of output of a namespace's processes; `None` if it has no processes of its own.
    fn output(&self, _namespace: &Namespace) -> Option<Arc<RecentLines>> {
        None
    }

    /// Presence of the connection to the namespace's server that all clients share, now and whenever it changes; `None` if there
    /// is no server.
    fn presence(&self, _namespace: &Namespace) -> Option<watch::Receiver<Presence>> {
        None
    }

    /// Waits until a new upstream serves, has failed, or turns out to take long.
    fn settled<'a>(&'a self, _namespace: &'a Namespace) -> Soon<'a, ()> {
        Soon::Now(())
    }

    /// Ends the requests that the upstream makes to servers without a client (such as subscriptions), so that the servers can
    /// end. Called at the shutdown of the gateway.
    fn stop(&self) {}
}

/// All kinds of upstreams. The first kind that serves a namespace runs it; the last kind serves any namespace.
#[derive(Clone)]
pub(crate) struct Upstreams {
    kinds: Vec<Arc<dyn Upstream>>,
    last: Arc<dyn Upstream>,
}

impl Upstreams {
    /// Combines `kinds`, in their order, with the kind for all other namespaces.
    pub(crate) fn new(kinds: Vec<Arc<dyn Upstream>>, last: Arc<dyn Upstream>) -> Self {
        Self { kinds, last }
    }

    /// Adds another kind before the last one.
    pub(crate) fn with(mut self, kind: Arc<dyn Upstream>) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Ends the requests that upstreams of all kinds make to servers without a client.
    pub(crate) fn stop(&self) {
        for kind in &self.kinds {
            kind.stop();
        }
        self.last.stop();
    }

    /// The upstream that runs a namespace.
    pub(crate) fn of(&self, namespace: &Namespace) -> &dyn Upstream {
        let mut kinds = self.kinds.iter();
        &**kinds
            .find(|kind| kind.serves(namespace))
            .unwrap_or(&self.last)
    }
}
