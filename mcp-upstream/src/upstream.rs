//! What runs a namespace: one trait for every kind.
//!
//! ```text
//!   surface ──▶ Upstream::prepare ──▶ an answer that is there
//!                      │
//!                      └─────────────▶ UpstreamCall ──▶ Engine::run ──▶ UpstreamCall::start ──▶ UpstreamReply
//! ```
//!
//! A request is understood by its upstream and judged by the engine. [`Upstream::prepare`] reads the spans of the request
//! once; what it gives owns only what the call needs, so that a call that waits keeps no body alive.
//!
//! | kind | module | what runs it |
//! |---|---|---|
//! | functions | [`worker`] | Python workers; for the management tools this program ([`system`]) |
//! | a server that speaks MCP | [`client`] | a stdio server's processes, or a remote server's backends ([`http`]) |
//! | several namespaces | [`aggregate`] | their own upstreams, by the engine once more |
//! | all namespaces at once | [`global`] | the upstream of the namespace that has the tool |
//!
//! A new kind is a folder here, an implementation of [`Upstream`], and a place in the list that [`Upstreams`] is made of.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::process::output::RecentLines;
use tooldock_workers::registry::Namespace;

use crate::broadcast::Filter;
use crate::caller::Caller;
use crate::catalogue::ToolList;
use crate::engine::UpstreamCall;
use crate::jsonrpc::{Members, RequestError};
use crate::protocol::{Era, EraSupport, ProtocolVersion};
use crate::session::Session;
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

/// A future of this value that owns its place in memory.
pub(crate) type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A value that is mostly there at once. Then it costs no future.
pub(crate) enum Soon<'a, T> {
    /// The value is there.
    Now(T),
    /// The value has to be waited for.
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

/// One request of MCP, as its surface read it.
#[derive(Clone, Copy)]
pub(crate) struct IncomingRequest<'a> {
    /// Raw JSON.
    pub(crate) id: &'a str,
    pub(crate) method: &'a str,
    pub(crate) members: &'a Members<'a>,
}

/// A request that was understood.
pub(crate) enum Prepared {
    /// The whole JSON-RPC response.
    Response(Vec<u8>),
    /// The upstream has the answer.
    Call(Arc<dyn UpstreamCall>),
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Response(answer) => write!(f, "{}", String::from_utf8_lossy(answer)),
            Self::Call(call) => call.facts().fmt(f),
        }
    }
}

/// What of a client's wish to hear of changes is granted. Dropping it ends the wish.
pub(crate) struct Listening {
    pub(crate) granted: Filter,
    /// What keeps the wish alive at the upstream.
    pub(crate) guard: Option<Box<dyn Any + Send>>,
}

/// How long somebody waits for tools that have to be read first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolsWait {
    /// Until they are read: they are what was asked for.
    Long,
    /// A call waits behind it: where they are not there soon, those known before serve.
    Short,
}

/// The namespace that has a tool which another one publishes.
pub(crate) struct Behind {
    pub(crate) namespace: Arc<Namespace>,
    /// The tool's own name there.
    pub(crate) tool: Box<str>,
    /// Whether clients reach that namespace otherwise too, so that they must be allowed to.
    pub(crate) is_served: bool,
}

/// A kind of upstream. What it knows of one namespace it finds by the [`Namespace`] of the request's snapshot.
pub(crate) trait Upstream: Send + Sync + 'static {
    /// Whether namespaces like this one are of this kind.
    fn serves(&self, namespace: &Namespace) -> bool;

    /// Whether what runs the namespace speaks MCP itself: it reads messages as clients wrote them, so that none may be
    /// ambiguous, and a `requestState` may be its own.
    fn speaks_mcp(&self) -> bool;

    /// Whether the namespace is known to have the method, before anything of the request is read.
    ///
    /// # Errors
    ///
    /// It is known not to have the method, or why that is not known.
    fn offers(&self, _cx: &CallContext<'_>, _method: &str) -> Result<(), RequestError> {
        Ok(())
    }

    /// Whether the state that a session had at its upstream is lost, so that the session is over.
    fn has_lost(&self, _namespace: &Namespace, _session: &Session) -> bool {
        false
    }

    /// Whether running a request twice is as good as once. `subject` is the tool of a call.
    fn is_harmless(&self, _namespace: &Namespace, _method: &str, _subject: &str) -> bool {
        false
    }

    /// Understands one request. What the namespace does not offer is refused here; what a call comes to is not known yet.
    fn prepare<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        request: IncomingRequest<'a>,
    ) -> Soon<'a, Result<Prepared, RequestError>>;

    /// A tool call that did not come as MCP: `arguments` are a JSON object.
    ///
    /// # Errors
    ///
    /// Why the call cannot be made.
    fn call_tool(
        &self,
        cx: &CallContext<'_>,
        tool: &str,
        arguments: Bytes,
    ) -> Result<Arc<dyn UpstreamCall>, CallError>;

    /// The whole response to `initialize`, for a session whose client has said what it can be asked. `id` is raw JSON.
    fn initialize<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        session: &'a Arc<Session>,
        version: ProtocolVersion,
    ) -> Soon<'a, Result<Vec<u8>, CallError>>;

    /// The whole response to `server/discover`. `versions` are those that the listener serves.
    fn discover<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        versions: &'a [&'a str],
    ) -> Soon<'a, Result<Vec<u8>, CallError>>;

    /// Grants what of `subscriptions/listen` the namespace has.
    fn listen<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        wanted: Filter,
    ) -> Soon<'a, Result<Listening, RequestError>>;

    /// A client's notification that the gateway does not act on itself. Never waits.
    fn notify(&self, _cx: &CallContext<'_>, _method: &str, _message: &str) {}

    /// A session of the namespace has a stream now for what is said outside of answers.
    fn stream_opened(&self, _namespace: &Namespace, _session: &Arc<Session>) {}

    /// The tools of a namespace, those that a view hides among them. `principal` is whose list it is, where the server of the
    /// namespace is reached with credentials of whoever asks.
    fn tools<'a>(
        &'a self,
        namespace: &'a Arc<Namespace>,
        principal: Option<&'a Arc<str>>,
        wait: ToolsWait,
    ) -> Soon<'a, Result<Arc<ToolList>, CallError>>;

    /// The tools, as far as they are known without asking anybody.
    fn tools_known(&self, namespace: &Namespace) -> Option<Arc<ToolList>>;

    /// The tools that lists show this caller before its view hides some by their names: all there are, unless the upstream
    /// shows each caller its own.
    fn listed<'a>(
        &'a self,
        namespace: &'a Arc<Namespace>,
        caller: &'a Caller,
    ) -> Soon<'a, Result<Arc<ToolList>, CallError>> {
        self.tools(namespace, caller.principal.as_ref(), ToolsWait::Long)
    }

    /// The same, as far as they are known without asking anybody.
    fn listed_now(&self, namespace: &Arc<Namespace>, _caller: &Caller) -> Option<Arc<ToolList>> {
        self.tools_known(namespace)
    }

    /// Where a tool comes from that the namespace publishes for another one. `None` where the tool is its own.
    fn behind(&self, _namespace: &Namespace, _tool: &str) -> Option<Behind> {
        None
    }

    /// The eras that the server of a namespace speaks, as far as is known without asking; the client is of that era.
    fn speaks(&self, _namespace: &Namespace, _client: Era) -> Option<EraSupport> {
        None
    }

    /// How the server of a namespace is; `None` where there is none, or nobody asked for it yet.
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
    /// The namespace has no server, or is not served any more.
    fn restart(&self, namespace: &Namespace) -> Result<(), CallError> {
        Err(CallError::new(
            CallErrorCode::WorkerUnavailable,
            format!("namespace {} has no server of its own", namespace.name),
        ))
    }

    /// The last lines that the processes of a namespace printed; `None` where it has no processes of its own.
    fn output(&self, _namespace: &Namespace) -> Option<Arc<RecentLines>> {
        None
    }

    /// Whether what everybody shares of the server of a namespace is there, now and whenever that changes; `None` where there
    /// is no server.
    fn presence(&self, _namespace: &Namespace) -> Option<watch::Receiver<Presence>> {
        None
    }

    /// How the copy of the server is that this client's requests go to.
    fn copy(&self, _cx: &CallContext<'_>) -> ServerCopy {
        ServerCopy::Running
    }

    /// Whether the server runs a task of that id that a call of this caller's principal began.
    fn has_task(&self, _cx: &CallContext<'_>, _task: &str) -> bool {
        false
    }

    /// Waits until an upstream that came into the registry serves, why it does not is known, or that takes long.
    fn settled<'a>(&'a self, _namespace: &'a Namespace) -> Soon<'a, ()> {
        Soon::Now(())
    }

    /// Ends what it asks of servers unasked, so that these can end. For the end of the gateway.
    fn stop(&self) {}
}

/// All kinds. The first that serves a namespace runs it; the last one serves any.
#[derive(Clone)]
pub(crate) struct Upstreams {
    kinds: Vec<Arc<dyn Upstream>>,
    last: Arc<dyn Upstream>,
}

impl Upstreams {
    /// These kinds, in their order, and the one for all other namespaces.
    pub(crate) fn new(kinds: Vec<Arc<dyn Upstream>>, last: Arc<dyn Upstream>) -> Self {
        Self { kinds, last }
    }

    /// The same with another kind before the last.
    pub(crate) fn with(mut self, kind: Arc<dyn Upstream>) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Ends what they ask of servers unasked.
    pub(crate) fn stop(&self) {
        for kind in &self.kinds {
            kind.stop();
        }
        self.last.stop();
    }

    /// What runs a namespace.
    pub(crate) fn of(&self, namespace: &Namespace) -> &dyn Upstream {
        let mut kinds = self.kinds.iter();
        &**kinds
            .find(|kind| kind.serves(namespace))
            .unwrap_or(&self.last)
    }
}
