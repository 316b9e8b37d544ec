//! Upstreams run namespaces: one trait for every kind.
//!
//! ```text
//!   surface ──▶ Upstream::prepare ──▶ a complete response
//!                      │
//!                      └─────────────▶ UpstreamCall ──▶ Engine::run ──▶ UpstreamCall::start ──▶ UpstreamReply
//! ```
//!
//! The upstream reads a request, and the engine admits it. [`Upstream::prepare`] reads the request once; its result owns only the
//! data that the call needs, so that a waiting call does not keep the request's body in memory.
//!
//! | kind of namespace | module | runs on |
//! |---|---|---|
//! | functions | [`worker`] | Python workers; the management tools: this program ([`system`]) |
//! | a server that implements MCP | [`client`] | a stdio server's processes, or a remote server's backends ([`http`]) |
//! | an aggregate of several namespaces | [`aggregate`] | the upstreams of these namespaces, through the engine again |
//! | all namespaces together | [`global`] | the upstream of the namespace that has the tool |
//!
//! A new kind is a folder here, an implementation of [`Upstream`] and of its calls (`UpstreamCall` in `engine.rs`), and an
//! entry in the list that is given to [`Upstreams`] (`Service::with_servers` in `mcp-upstream/service.rs`). A reload creates
//! its namespaces, with a variant of `UpstreamKind` in `workers/registry.rs`. `testing/in_memory.rs` is the smallest complete
//! implementation. A new kind of connection to MCP servers implements `Launcher` of `tooldock_servers::launch`, and is leased
//! from its pool as the others are (`upstream/client/lease.rs`).
//!
//! [`Upstream`] itself has the methods that answer clients. Its other methods return three traits:
//!
//! | trait | used by |
//! |---|---|
//! | [`ToolLists`] | REST, OpenAPI, the web UI and the relay, with the caller's view; lists of MCP come from `prepare` |
//! | [`ServerFacts`] | surfaces and aggregates, while they handle a request |
//! | [`ServerOperations`] | the routes and pages of operators, and aggregates, which watch their members |

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::child::output::RecentLines;
use tooldock_protocol::jsonrpc::{Members, RequestError};
use tooldock_protocol::version::{Era, EraSupport, ProtocolVersion};
use tooldock_servers::pool::Presence;
pub(crate) use tooldock_servers::pool::ServerCopy;
use tooldock_sessions::broadcast::Filter;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::ToolList;
use tooldock_sessions::session::Session;
use tooldock_sessions::stream::HeldByStream;
use tooldock_workers::registry::Namespace;

use crate::engine::UpstreamCall;

pub mod aggregate;
pub mod client;
mod context;
pub mod global;
pub mod health;
mod sessions;
pub mod system;
pub mod task_clients;
pub mod worker;

pub use context::{CallContext, Client, RequestMeta};
pub use sessions::{SessionChanges, gauge, store_away, store_failure};

/// A value that is usually available at once, and otherwise a future of it.
pub enum MaybeReady<'a, T> {
    /// The value is available.
    Now(T),
    /// The value will be available when the future completes.
    Later(BoxFuture<'a, T>),
}

impl<T> MaybeReady<'_, T> {
    /// Returns the value, and waits for it if necessary.
    pub async fn get(self) -> T {
        match self {
            Self::Now(value) => value,
            Self::Later(pending) => pending.await,
        }
    }
}

/// An MCP request, as the surface parsed it.
#[derive(Clone, Copy)]
pub struct IncomingRequest<'a> {
    /// The request's id as raw JSON.
    pub id: &'a str,
    /// The method, such as `tools/call`.
    pub method: &'a str,
    /// The members of the message.
    pub members: &'a Members<'a>,
}

/// A request that its upstream has read: a complete response, or a call.
pub enum PreparedRequest {
    /// The request needs no call. Contains the complete JSON-RPC response.
    Response(Vec<u8>),
    /// The request needs a call, which produces the response.
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

/// A client's subscription by `subscriptions/listen`, with the changes that were granted. Dropping it ends the subscription.
pub struct GrantedSubscription {
    /// The changes of which the client is told.
    pub granted: Filter,
    /// Guard that ends the subscription at the upstream when dropped; `None` if the upstream needs none.
    pub guard: Option<Box<dyn HeldByStream>>,
}

/// Time that a caller waits for a list of tools that must be read first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolsWait {
    /// The caller waits until the tools are read, since it needs the list itself.
    Long,
    /// The caller waits only a short time, since a call needs the list. If it is late, the tools that were read before are used.
    Short,
}

/// The origin of a tool that one namespace publishes for another, such as an aggregate for its member.
pub struct ToolOrigin {
    /// The namespace that has the tool.
    pub namespace: Arc<Namespace>,
    /// The tool's name in the namespace of its origin.
    pub tool: Box<str>,
    /// True if clients can also call the tool's own namespace directly. They need access to it for the published tool, too.
    pub is_served: bool,
}

/// A kind of upstream, which reads and answers the requests of its namespaces. It finds its state for a namespace by the
/// [`Namespace`] in the request's snapshot.
pub trait Upstream: Send + Sync + 'static {
    /// Returns true if this kind of upstream runs the namespace.
    fn serves(&self, namespace: &Namespace) -> bool;

    /// Returns the tool lists of the namespaces, for surfaces other than MCP and for views.
    fn tool_lists(&self) -> &dyn ToolLists;

    /// Returns the facts about the namespaces' servers on which the handling of requests depends.
    fn server_facts(&self) -> &dyn ServerFacts {
        &NoServer
    }

    /// Returns the operators' access to the namespaces' servers.
    fn operations(&self) -> &dyn ServerOperations {
        &NoServer
    }

    /// Checks whether the namespace supports the method, before the parameters of the request are read.
    ///
    /// # Errors
    ///
    /// When the namespace does not support the method, or when this cannot be determined.
    fn offers(&self, _cx: &CallContext<'_>, _method: &str) -> Result<(), RequestError> {
        Ok(())
    }

    /// Reads a request, and returns a complete response or a call. A name that the namespace does not have is refused; the
    /// outcome of a call is not known yet.
    fn prepare<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        request: IncomingRequest<'a>,
    ) -> MaybeReady<'a, Result<PreparedRequest, RequestError>>;

    /// Prepares a tool call from a surface other than MCP. `arguments`: a JSON object.
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

    /// Writes the complete response to `server/discover`. `versions`: the protocol versions that the listener serves.
    fn discover<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        versions: &'a [&'a str],
    ) -> MaybeReady<'a, Result<Vec<u8>, CallError>>;

    /// Writes the complete response to `initialize`, for a session whose client has declared its capabilities. `id`: the
    /// request's id as raw JSON.
    fn initialize<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        session: &'a Arc<Session>,
        version: ProtocolVersion,
    ) -> MaybeReady<'a, Result<Vec<u8>, CallError>>;

    /// Grants those of the wanted changes of a `subscriptions/listen` request that the namespace can report.
    fn listen<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        wanted: Filter,
    ) -> MaybeReady<'a, Result<GrantedSubscription, RequestError>>;

    /// Handles a client's notification that the gateway does not handle itself. Never waits.
    fn notify(&self, _cx: &CallContext<'_>, _method: &str, _message: &str) {}

    /// Called when a session of the namespace opens its stream for messages outside of responses.
    fn stream_opened(&self, _namespace: &Namespace, _session: &Arc<Session>) {}
}

/// The tools of namespaces, for surfaces other than MCP and for views.
pub trait ToolLists: Send + Sync {
    /// Returns the tools of a namespace, including those that the caller's view hides. `principal`: the caller, for servers that
    /// the gateway calls with the caller's credentials.
    fn tools<'a>(
        &'a self,
        namespace: &'a Arc<Namespace>,
        principal: Option<&'a Arc<str>>,
        wait: ToolsWait,
    ) -> MaybeReady<'a, Result<Arc<ToolList>, CallError>>;

    /// Returns the tools if they are known without a request to a server; `None` otherwise.
    fn tools_known(&self, namespace: &Namespace) -> Option<Arc<ToolList>>;

    /// Returns the tools that lists show to this caller, before its view hides some of them by name. These are all tools, unless
    /// the upstream has a separate list for each caller.
    fn listed<'a>(
        &'a self,
        namespace: &'a Arc<Namespace>,
        caller: &'a Caller,
    ) -> MaybeReady<'a, Result<Arc<ToolList>, CallError>> {
        self.tools(namespace, caller.principal.as_ref(), ToolsWait::Long)
    }

    /// Returns the result of [`Self::listed`] if it is known without a request to a server; `None` otherwise.
    fn listed_now(&self, namespace: &Arc<Namespace>, _caller: &Caller) -> Option<Arc<ToolList>> {
        self.tools_known(namespace)
    }

    /// Returns the origin of a tool that this namespace publishes for another namespace; `None` for the namespace's own tools.
    fn origin(&self, _namespace: &Namespace, _tool: &str) -> Option<ToolOrigin> {
        None
    }
}

/// Facts about the MCP server of a namespace on which the handling of a request depends. The default methods describe a
/// namespace without a server.
pub trait ServerFacts: Send + Sync {
    /// Returns true if an MCP server gets the messages as clients wrote them; false if the gateway writes its own. Messages that
    /// a server gets must not be ambiguous, and a `requestState` in them may be the server's.
    fn gets_client_messages(&self) -> bool {
        false
    }

    /// Returns the eras that the server of a namespace is known to support; `None` if they can only be determined by a request.
    /// `_client`: the era of the client that wants to use the server.
    fn known_eras(&self, _namespace: &Namespace, _client: Era) -> Option<EraSupport> {
        None
    }

    /// Returns true if a request may run twice without harm; false if that is unknown. `subject`: the name of the tool, for a
    /// call.
    fn is_repeatable(&self, _namespace: &Namespace, _method: &str, _subject: &str) -> bool {
        false
    }

    /// Returns the state of the server's process or connection that gets this client's requests.
    fn copy(&self, _cx: &CallContext<'_>) -> ServerCopy {
        ServerCopy::Running
    }

    /// Returns true if the server is running a task with this id that a call of the caller's principal has started.
    fn has_task(&self, _cx: &CallContext<'_>, _task: &str) -> bool {
        false
    }

    /// Returns true if the server has lost the state of a session, so that the session must end.
    fn has_lost_session(&self, _namespace: &Namespace, _session: &Session) -> bool {
        false
    }
}

/// Operators' access to the server of a namespace: its health, and commands to it. The default methods describe a namespace
/// without a server.
pub trait ServerOperations: Send + Sync {
    /// Returns the state of the server of a namespace; `None` if there is no server, or if it was not needed yet.
    fn health(&self, _namespace: &Namespace) -> Option<health::ServerHealth> {
        None
    }

    /// Returns the members of an aggregate, in the order of its configuration file.
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

    /// Returns the last lines of output of a namespace's processes; `None` if it has no processes.
    fn output(&self, _namespace: &Namespace) -> Option<Arc<RecentLines>> {
        None
    }

    /// Returns a receiver of the presence of the connection to the namespace's server that all clients share; `None` if there is
    /// no server.
    fn presence(&self, _namespace: &Namespace) -> Option<watch::Receiver<Presence>> {
        None
    }

    /// Waits until a new upstream accepts requests, has failed, or is known to need more time.
    fn settled<'a>(&'a self, _namespace: &'a Namespace) -> MaybeReady<'a, ()> {
        MaybeReady::Now(())
    }

    /// Ends the requests that the upstream sends to servers for no client (such as subscriptions), so that the servers can end.
    /// Called when the gateway stops.
    fn stop(&self) {}
}

/// Default facts and operations, for namespaces without a server.
struct NoServer;

impl ServerFacts for NoServer {}

impl ServerOperations for NoServer {}

/// All kinds of upstreams. A namespace is run by the first kind that serves it; the last kind serves all other namespaces.
#[derive(Clone)]
pub struct Upstreams {
    kinds: Vec<Arc<dyn Upstream>>,
    last: Arc<dyn Upstream>,
}

impl Upstreams {
    /// Combines `kinds`, in this order, with the kind `last` for all other namespaces.
    pub fn new(kinds: Vec<Arc<dyn Upstream>>, last: Arc<dyn Upstream>) -> Self {
        Self { kinds, last }
    }

    /// Adds another kind of upstream. It takes precedence over the last kind, which serves all other namespaces.
    #[inline]
    pub fn with(mut self, kind: Arc<dyn Upstream>) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Ends the requests that upstreams of all kinds send to servers for no client.
    #[inline]
    pub fn stop(&self) {
        for kind in &self.kinds {
            kind.operations().stop();
        }
        self.last.operations().stop();
    }

    /// Returns the upstream that runs a namespace.
    #[inline]
    pub fn of(&self, namespace: &Namespace) -> &dyn Upstream {
        let mut kinds = self.kinds.iter();
        &**kinds
            .find(|kind| kind.serves(namespace))
            .unwrap_or(&self.last)
    }
}
