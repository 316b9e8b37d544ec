//! The upstream of namespaces whose server speaks MCP itself: requests and responses pass with their bytes unchanged.
//!
//! ```text
//!   prepare ──▶ ServerCall ──▶ engine ──▶ start ──▶ connection ──▶ server
//!   (kept here, or up)    (policy, clock …)  │         │
//!            isolation: which connection ────┘         └─ inbound: messages that belong to no call
//! ```
//!
//! The gateway itself answers `initialize`, `server/discover`, `subscriptions/listen`, and, on a process that is not the
//! session's own, log levels and resource subscriptions. `tooldock_protocol::bridge` translates between clients and servers of
//! different eras.
//!
//! The gateway decides by a few keys of a message, and the server reads all keys again. So a message that the server could read
//! differently is refused: one with a repeated key, or with a key that differs from a known one only in case
//! ([`Members::unambiguous`]). Only the principal that began a task may name it (`tasks`).
//!
//! | file | holds |
//! |---|---|
//! | `isolation.rs`, `connector.rs`, `pools.rs` | the choice of the connection; the port to connections; the pools behind it |
//! | `call.rs`, `notifications.rs` | requests to the server and their responses; notifications |
//! | `connect.rs`, `links.rs` | links for callers that lack a credential; pages that a server's user must open |
//! | `inbound.rs` | messages of the server that belong to no call |
//! | `binding.rs`, `subscriptions.rs`, `tasks.rs` | state of a session at the server; subscriptions; owners of tasks |
//! | `catalogue.rs`, `own_lists.rs`, `listed.rs` | lists of the server; those of one principal; the check of names |
//!
//! `ExternalServers::place` refuses a caller without a personal value that the server needs, before anything is started.

use std::borrow::Cow;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use tokio::sync::watch::Receiver;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::json;
use tooldock_process::child::output::RecentLines;
use tooldock_process::worker::LogLevel;
use tooldock_protocol::bridge::server_info;
use tooldock_protocol::format;
use tooldock_protocol::jsonrpc::{self, Key, Members, Request, RequestError};
use tooldock_protocol::seal::SessionKey;
use tooldock_protocol::version::{
    Era, EraSupport, Method, ProtocolVersion, is_misspelt_call, method::TOOLS_CALL,
};
use tooldock_servers::pool::Presence;
use tooldock_sessions::broadcast::{Audience, Filter};
use tooldock_sessions::catalogue::{Access, ListKind, ToolList, cursor};
use tooldock_sessions::session::{PerSession, Session, SessionState};
use tooldock_sessions::stream::EventLog;
use tooldock_workers::registry::{Namespace, Registry, UpstreamKind};

use super::health::ServerHealth;
use super::{
    CallContext, Client, GrantedSubscription, IncomingRequest, MaybeReady, PreparedRequest,
    ServerCopy, ServerFacts, ServerOperations, SessionChanges, ToolLists, ToolsWait, Upstream,
};
use crate::connect_links::ConnectLinks;
use crate::engine::{CallFacts, CallMessages, CallTask, UpstreamCall};

mod binding;
mod call;
mod catalogue;
pub(crate) mod connect;
pub mod connector;
mod describe;
mod inbound;
mod isolation;
mod links;
mod listed;
mod notifications;
mod own_lists;
pub mod pools;
mod requester;
mod subscriptions;
mod task_names;
mod tasks;
mod watch;

use binding::UpstreamBinding;
use call::ServerCall;
use catalogue::ListOwner;
use connector::{ConnectionKey, Connector, Isolation, OpenAs, Opener, ServerConnection};
use inbound::{HandlerRef, InboundHandler, ProcessOwner};
use isolation::ConnectionTarget;
pub(crate) use requester::Requester;
use task_names::TaskNames;

/// State that the requests to all external servers share. The servers' processes are managed by the connector.
pub struct ExternalServers {
    processes: Arc<dyn Connector>,
    registry: Arc<Registry>,
    audience: Arc<Audience>,
    events: Arc<EventLog>,
    notices: notifications::NotificationQuota,
    /// Key that seals state of a server for a client of the other era, which returns the sealed state with a later request.
    key: SessionKey,
    changes: SessionChanges,
    /// Links to pages on which principals give their personal credentials; `None` if the gateway has no such pages.
    links: Option<Arc<dyn ConnectLinks>>,
    /// State of each session of the gateway at the servers.
    bindings: PerSession<UpstreamBinding>,
}

/// The upstream of namespaces whose server speaks MCP.
#[derive(Clone)]
pub struct ClientUpstream(pub Arc<ExternalServers>);

/// Held while a request uses a connection: the right to use it, and the handler for its messages.
pub(crate) struct ConnectionLease {
    pub(crate) process: Arc<dyn ServerConnection>,
    /// Handler for server messages; `None` for shared connections.
    handler: Option<Arc<InboundHandler>>,
    place: ConnectionTarget,
}

impl ExternalServers {
    /// Creates the state that all MCP servers share.
    pub fn new(
        processes: Arc<dyn Connector>,
        registry: Arc<Registry>,
        audience: Arc<Audience>,
        events: Arc<EventLog>,
        key: SessionKey,
        changes: SessionChanges,
        links: Option<Arc<dyn ConnectLinks>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            processes,
            registry,
            audience,
            events,
            notices: notifications::NotificationQuota::default(),
            key,
            changes,
            links,
            bindings: PerSession::default(),
        })
    }

    /// Decides which connection a request uses.
    async fn place(
        &self,
        namespace: &Namespace,
        client: &Client,
        requester: &Requester,
        method: &str,
    ) -> Result<ConnectionTarget, CallError> {
        let principal = requester.principal.as_ref();
        // The caller's credentials are checked before a process is started or gets a request.
        self.processes
            .check_credentials(namespace, principal.map(|it| &**it))?;
        let isolation = self.processes.isolation(namespace);
        let isolation = isolation.unwrap_or(Isolation::Auto);
        let era = client.own_era();
        let speaks = match self.processes.known_to_speak(namespace, era) {
            Some(speaks) => speaks,
            None => {
                // If the server has no shared connection, the gateway uses the first client's connection to find out which eras
                // the server supports.
                let own = matches!(isolation, Isolation::Session | Isolation::Principal);
                let headers = own.then(|| requester.opener()).flatten();
                let opener = match (principal, headers) {
                    (Some(name), _) if self.processes.is_personal(namespace) => {
                        Opener::Principal(Arc::clone(name))
                    }
                    (_, Some(headers)) => Opener::Client(headers),
                    (_, None) => Opener::Everybody,
                };
                self.processes.speaks(namespace, era, opener).await?
            }
        };
        Ok(isolation::place(
            isolation, speaks, client, requester, method,
        ))
    }

    /// The connection for a client's tool calls, if it is known without a request to the server.
    fn known_place(&self, cx: &CallContext<'_>) -> Option<ConnectionTarget> {
        let isolation = self.processes.isolation(&cx.namespace)?;
        let era = cx.client.own_era();
        let speaks = self.processes.known_to_speak(&cx.namespace, era)?;
        let requester = Requester::of(cx);
        Some(isolation::place(
            isolation, speaks, &cx.client, &requester, TOOLS_CALL,
        ))
    }

    /// State of the instance of the server to which this client's requests are sent.
    fn copy(&self, cx: &CallContext<'_>) -> ServerCopy {
        self.known_place(cx).map_or(ServerCopy::Idle, |place| {
            let (key, era) = (&place.key, place.open.era);
            self.processes.copy(&cx.namespace, key, era)
        })
    }

    /// Leases a process for a request.
    async fn lease(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        client: &Client,
        requester: &Requester,
        method: &str,
    ) -> Result<ConnectionLease, CallError> {
        let place = self.place(namespace, client, requester, method).await?;
        self.lease_at(namespace, client, place).await
    }

    /// Leases the connection for a known target.
    async fn lease_at(
        self: &Arc<Self>,
        namespace: &Namespace,
        client: &Client,
        place: ConnectionTarget,
    ) -> Result<ConnectionLease, CallError> {
        if place.is_common()
            && let Some(process) =
                self.processes
                    .lease_at_once(namespace, &place.key, place.open.era)
        {
            return Ok(ConnectionLease {
                process,
                handler: None,
                place,
            });
        }
        let handler = (!place.is_common()).then(|| self.handler(namespace, client, &place));
        let process = self.at(namespace, &place, handler.as_ref()).await?;
        if let (ConnectionKey::Session(tag), Client::Session(session)) = (&place.key, client)
            && session.state() == SessionState::Closed
        {
            // The session ended before its process started. The process must be ended here, or it would continue to run.
            self.processes.end_session(tag);
        }
        Ok(ConnectionLease {
            process,
            handler,
            place,
        })
    }

    /// Leases the connection for a target, with this handler for the server's messages.
    async fn at(
        &self,
        namespace: &Namespace,
        place: &ConnectionTarget,
        handler: Option<&Arc<InboundHandler>>,
    ) -> Result<Arc<dyn ServerConnection>, CallError> {
        let open = OpenAs {
            inbound: handler.map(|handler| Arc::new(HandlerRef(Arc::clone(handler))) as _),
            ..place.open.clone()
        };
        self.processes.lease(namespace, &place.key, open).await
    }

    /// The handler for messages of a connection that is not shared.
    fn handler(
        self: &Arc<Self>,
        namespace: &Namespace,
        client: &Client,
        place: &ConnectionTarget,
    ) -> Arc<InboundHandler> {
        match (&place.key, client) {
            (ConnectionKey::Session(_), Client::Session(session)) => {
                let upstream_binding = UpstreamBinding::of(self, &namespace.name, session);
                upstream_binding.own_handler(|| {
                    self.new_handler(namespace, ProcessOwner::Session(Arc::downgrade(session)))
                })
            }
            _ => self.new_handler(namespace, ProcessOwner::Call),
        }
    }

    fn new_handler(&self, namespace: &Namespace, scope: ProcessOwner) -> Arc<InboundHandler> {
        // Secrets to hide in messages outside of calls; messages within a call pass through `Peer`, which hides the secrets of
        // the call.
        let hidden = match &scope {
            ProcessOwner::Session(session) => session.upgrade().map(|session| {
                let principal = session.binding().principal.as_deref();
                self.registry.hidden_values_of_call(namespace, principal)
            }),
            ProcessOwner::Call => None,
        };
        InboundHandler::new(
            namespace.name.clone(),
            scope,
            hidden.unwrap_or_default(),
            Arc::clone(&self.audience),
            Arc::clone(&self.events),
            namespace.limits.ask_timeout,
            self.key.clone(),
        )
    }

    /// Requests log messages from this level on. A shared process logs at the lowest level of its clients; each client's
    /// messages are filtered.
    async fn want_level(&self, leased: &ConnectionLease, level: LogLevel) {
        if server_info::declares(leased.process.opening(), &["logging"]) {
            // A server that refuses the level logs as before, which is no failure.
            let _ = leased.process.set_log_level(level).await;
        }
    }
}

impl ConnectionLease {
    /// Returns true if several clients share the process.
    fn is_common(&self) -> bool {
        self.place.is_common()
    }
}

impl Upstream for ClientUpstream {
    fn serves(&self, namespace: &Namespace) -> bool {
        self.0.processes.isolation(namespace).is_some()
    }

    fn tool_lists(&self) -> &dyn ToolLists {
        self
    }

    fn server_facts(&self) -> &dyn ServerFacts {
        self
    }

    fn operations(&self) -> &dyn ServerOperations {
        self
    }

    fn prepare<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        request: IncomingRequest<'a>,
    ) -> MaybeReady<'a, Result<PreparedRequest, RequestError>> {
        let external = &self.0;
        match has_lasting_effect(cx, request) {
            Err(refused) => MaybeReady::Now(Err(refused)),
            Ok(false) => MaybeReady::Now(prepare_call(external, cx, request)),
            Ok(true) => MaybeReady::Later(Box::pin(async move {
                match subscriptions::answer_lasting(external, cx, request).await? {
                    Some(answer) => Ok(PreparedRequest::Response(answer)),
                    None => prepare_call(external, cx, request),
                }
            })),
        }
    }

    fn call_tool(
        &self,
        cx: &CallContext<'_>,
        tool: &str,
        arguments: Bytes,
    ) -> Result<Arc<dyn UpstreamCall>, CallError> {
        let name = serde_json::Value::from(tool).to_string();
        let given = String::from_utf8_lossy(&arguments);
        let params = format!(r#"{{"name":{name},"arguments":{given}}}"#);
        let request = Request::own(TOOLS_CALL, &params).map_err(|_| {
            let reason = "The arguments are no JSON, or nested too deep";
            CallError::new(CallErrorCode::InvalidArguments, reason)
        })?;
        let method = Method::Known(TOOLS_CALL);
        let named = (tool.into(), arguments);
        Ok(server_call(
            &self.0,
            cx,
            method,
            named,
            request,
            tasks::RequestTasks::default(),
        ))
    }

    fn discover<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        versions: &'a [&'a str],
    ) -> MaybeReady<'a, Result<Vec<u8>, CallError>> {
        MaybeReady::Later(Box::pin(async move {
            let result = describe::discover(&self.0, cx, versions).await?;
            Ok(format::raw_result(id, &result))
        }))
    }

    fn initialize<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        session: &'a Arc<Session>,
        version: ProtocolVersion,
    ) -> MaybeReady<'a, Result<Vec<u8>, CallError>> {
        MaybeReady::Later(Box::pin(async move {
            let result = describe::initialize(&self.0, cx, session, version).await?;
            Ok(format::raw_result(id, &result))
        }))
    }

    fn listen<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        wanted: Filter,
    ) -> MaybeReady<'a, Result<GrantedSubscription, RequestError>> {
        MaybeReady::Later(Box::pin(async move {
            let (granted, watch) = subscriptions::listen(&self.0, cx, wanted).await?;
            Ok(GrantedSubscription {
                granted,
                guard: Some(Box::new(watch)),
            })
        }))
    }

    fn notify(&self, cx: &CallContext<'_>, method: &str, message: &str) {
        notifications::notify(&self.0, cx, method, message);
    }

    fn stream_opened(&self, namespace: &Namespace, session: &Arc<Session>) {
        let external = &self.0;
        let upstream_binding = UpstreamBinding::of(external, &namespace.name, session);
        upstream_binding.stream_opened();
        if upstream_binding.has_own() {
            external.processes.session_returned(session.tag());
        }
    }
}

impl ToolLists for ClientUpstream {
    fn tools<'a>(
        &'a self,
        namespace: &'a Arc<Namespace>,
        principal: Option<&'a Arc<str>>,
        wait: ToolsWait,
    ) -> MaybeReady<'a, Result<Arc<ToolList>, CallError>> {
        let whose = ListOwner {
            namespace,
            principal,
        };
        let catalogue = match self.0.catalogue(namespace, principal) {
            Ok(catalogue) => catalogue,
            Err(error) => return MaybeReady::Now(Err(error)),
        };
        // Usually the list of tools is current, and the call need not wait for a reading.
        if let Some(current) = catalogue.current() {
            return MaybeReady::Now(Ok(current));
        }
        MaybeReady::Later(Box::pin(async move {
            match wait {
                ToolsWait::Long => self.0.tools(whose, &catalogue).await,
                ToolsWait::Short => self.0.tools_soon(whose, &catalogue).await,
            }
        }))
    }

    fn tools_known(&self, namespace: &Namespace) -> Option<Arc<ToolList>> {
        self.0.catalogue(namespace, None).ok()?.known()
    }
}

impl ServerFacts for ClientUpstream {
    fn gets_client_messages(&self) -> bool {
        true
    }

    fn known_eras(&self, namespace: &Namespace, client: Era) -> Option<EraSupport> {
        self.0.processes.known_to_speak(namespace, client)
    }

    fn is_repeatable(&self, namespace: &Namespace, method: &str, subject: &str) -> bool {
        let catalogue = self.0.catalogue(namespace, None);
        catalogue.is_ok_and(|it| it.is_repeatable(method, Some(subject)))
    }

    fn copy(&self, cx: &CallContext<'_>) -> ServerCopy {
        self.0.copy(cx)
    }

    fn has_task(&self, cx: &CallContext<'_>, task: &str) -> bool {
        let own = match TaskNames::of(&self.0.key, cx) {
            Some(names) => names.own(task),
            None => Some(task.to_owned()),
        };
        let Some(task) = &own else {
            return false;
        };
        let principal = cx.caller.principal.as_ref();
        let place = self.0.known_place(cx);
        place.is_some_and(|place| {
            let (key, era) = (&place.key, place.open.era);
            let processes = &self.0.processes;
            processes.has_task(&cx.namespace, (key, era), principal, task)
        })
    }

    fn has_lost_session(&self, namespace: &Namespace, session: &Session) -> bool {
        // An adopted session comes from another gateway process. The session at the server ended with that process.
        let keeps_state =
            matches!(&namespace.upstream, UpstreamKind::Remote(server) if server.spec.stateful);
        keeps_state && session.is_adopted() || self.0.processes.has_lost(namespace, session.tag())
    }
}

impl ServerOperations for ClientUpstream {
    fn health(&self, namespace: &Namespace) -> Option<ServerHealth> {
        self.0.processes.health(namespace)
    }

    fn restart(&self, namespace: &Namespace) -> Result<(), CallError> {
        self.0.processes.restart(namespace)
    }

    fn output(&self, namespace: &Namespace) -> Option<Arc<RecentLines>> {
        self.0.processes.output(namespace)
    }

    fn presence(&self, namespace: &Namespace) -> Option<Receiver<Presence>> {
        self.0.processes.presence(namespace)
    }

    fn settled<'a>(&'a self, namespace: &'a Namespace) -> MaybeReady<'a, ()> {
        MaybeReady::Later(self.0.processes.settled(namespace))
    }
}

/// Returns true for methods with a lasting effect, such as log levels and subscriptions. The gateway answers them itself on a
/// shared connection, and sends them to the server on the client's own connection. Other methods are always sent.
///
/// # Errors
///
/// A key that some servers would read as another one, or a method that does not exist in the era.
fn has_lasting_effect(
    cx: &CallContext<'_>,
    IncomingRequest {
        method, members, ..
    }: IncomingRequest<'_>,
) -> Result<bool, RequestError> {
    members.unambiguous()?;
    // Refuses a progress token that is too long, since it is stored as long as the call, and for a task even longer.
    members.progress_token()?;
    // Some servers recognize notifications by the method alone. They would read this request as a notification, which may concern
    // a request of any client.
    if method.starts_with("notifications/") || is_misspelt_call(method) {
        return Err(RequestError::MethodNotFound(method.to_owned()));
    }
    let of_sessions = subscriptions::outlasts_request(method);
    // Methods that version 2026-07-28 removed, and methods that exist only in the modern era. They are refused, since a server
    // that supports both eras might take them for the beginning of the other era.
    let of_other_era = match cx.client.is_modern() {
        true => of_sessions || matches!(method, "initialize" | "ping"),
        false => matches!(method, "server/discover" | "subscriptions/listen"),
    };
    match of_other_era {
        true => Err(RequestError::MethodNotFound(method.to_owned())),
        false => Ok(of_sessions),
    }
}

/// Creates the call that sends a request to the server.
fn prepare_call(
    external: &Arc<ExternalServers>,
    cx: &CallContext<'_>,
    IncomingRequest {
        method, members, ..
    }: IncomingRequest<'_>,
) -> Result<PreparedRequest, RequestError> {
    let named = RequestSubject::read(method, members)?;
    let mut tasks = tasks::RequestTasks::read(method, members)?;
    let request = members.to_request(cx.own(members.message().as_bytes()));
    let request = tasks.with_own_cursor(&external.key, method, request);
    let request = with_server_cursor(method, request);
    let request = match TaskNames::of(&external.key, cx) {
        Some(names) => tasks.with_own_names(&names, request),
        None => request,
    };
    let arguments = named.arguments.map(str::as_bytes);
    let arguments = arguments.map_or_else(Bytes::new, |raw| cx.own(raw));
    let named = (named.subject.into(), arguments);
    let call = server_call(external, cx, Method::of(method), named, request, tasks);
    Ok(PreparedRequest::Call(call))
}

/// Restores the server's own cursor in a request for a further page.
fn with_server_cursor(method: &str, request: Request) -> Request {
    if ListKind::of(method).is_none() {
        return request;
    }
    let cursor = request.raw(Key::Cursor).and_then(json::raw);
    match cursor.and_then(cursor::of_server) {
        Some(own) => {
            let edited = request.edited(&[(Key::Cursor, Some(own.get()))]);
            edited.unwrap_or(request)
        }
        None => request,
    }
}

/// The parts of a request that the policy, the limits and the audit log use.
#[derive(Default)]
pub struct RequestSubject<'a> {
    /// The name of the tool or prompt, or the URI.
    pub subject: Cow<'a, str>,
    /// The arguments as raw JSON.
    pub arguments: Option<&'a str>,
}

impl<'a> RequestSubject<'a> {
    /// Reads the subject and the arguments of a request.
    ///
    /// # Errors
    ///
    /// A name that is no string.
    pub fn read(method: &str, members: &Members<'a>) -> Result<Self, RequestError> {
        let (subject, arguments) = match method {
            TOOLS_CALL | "prompts/get" => (Key::Name, Some(Key::Arguments)),
            "resources/read" => (Key::Uri, None),
            "completion/complete" => {
                return Ok(Self {
                    arguments: members.raw(Key::Params),
                    ..Self::default()
                });
            }
            _ => return Ok(Self::default()),
        };
        let name = members.get(subject).map(|name| {
            jsonrpc::string(name).ok_or_else(|| {
                let reason = format!("params.{} must be a string", subject.name());
                RequestError::InvalidParams(reason.into())
            })
        });
        Ok(Self {
            subject: name.transpose()?.unwrap_or_default(),
            arguments: arguments.and_then(|key| members.raw(key)),
        })
    }
}

/// Creates the call that sends a request, with its subject and arguments, to the server.
fn server_call(
    external: &Arc<ExternalServers>,
    cx: &CallContext<'_>,
    method: Method,
    (subject, arguments): (Arc<str>, Bytes),
    request: Request,
    tasks: tasks::RequestTasks,
) -> Arc<dyn UpstreamCall> {
    let client = &cx.client;
    let may_ask = isolation::may_ask(&method);
    let asks = client.can_be_asked() && (may_ask || !client.is_modern());
    let tells = (may_ask || request.token().is_some()) && cx.streams;
    let facts = CallFacts {
        namespace: Arc::clone(&cx.namespace),
        method,
        subject,
        arguments,
        transport: cx.transport(),
        version: cx.wire_version(),
        session: cx.session().map(|it| Arc::clone(it.tag())),
        talks: match (asks, tells) {
            (true, _) => CallMessages::Asks,
            (false, true) => CallMessages::Tells,
            (false, false) => CallMessages::No,
        },
        // The call needs no progress token here, since the token is part of the request that is sent.
        progress_token: None,
        asks_singly: true,
        task: CallTask::No,
    };
    Arc::new(ServerCall {
        external: Arc::clone(external),
        client: client.clone(),
        requester: Requester::of(cx),
        profile: Arc::clone(&cx.caller.profile),
        access: Access::of(cx.caller),
        facts,
        request,
        coerced: OnceLock::new(),
        hooked: OnceLock::new(),
        tasks,
        task_names: TaskNames::of(&external.key, cx),
        sent: Mutex::default(),
        lost: AtomicBool::new(false),
    })
}
