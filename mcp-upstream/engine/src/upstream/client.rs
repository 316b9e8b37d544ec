//! The upstream of namespaces whose server speaks MCP itself: requests and responses pass with their bytes unchanged.
//!
//! ```text
//!   prepare ──▶ ServerCall ──▶ engine ──▶ start ──▶ connection ──▶ server
//!   (kept here, or up)    (policy, clock …)  │         │
//!                lease: which connection ────┘         └─ inbound: messages that belong to no call
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
//! | `lease.rs` | the choice of the connection, and its lease for one request |
//! | `call.rs`, `notifications.rs` | requests to the server and their responses; notifications |
//! | `connect.rs`, `links.rs` | links for callers that lack a credential; pages that a server's user must open |
//! | `inbound.rs` | messages of the server that belong to no call |
//! | `binding.rs`, `subscriptions.rs`, `tasks.rs` | state of a session at the server; subscriptions; owners of tasks |
//! | `catalogue.rs`, `own_lists.rs`, `listed.rs` | lists of the server; those of one principal; the check of names |
//!
//! `ExternalServers::target` refuses a caller without a personal value that the server needs, before anything is started.

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
use tooldock_protocol::jsonrpc::{self, Key, Members, ProtocolViolation, Request, RequestError};
use tooldock_protocol::seal::SessionKey;
use tooldock_protocol::version::{
    Era, EraSupport, Method, ProtocolVersion, is_misspelt_call, method::TOOLS_CALL,
};
use tooldock_servers::pool::{Pools, Presence, served};
use tooldock_sessions::broadcast::{Audience, Filter};
use tooldock_sessions::catalogue::{Access, ListKind, ToolList, cursor};
use tooldock_sessions::session::{PerSession, Session};
use tooldock_sessions::stream::EventLog;
use tooldock_workers::registry::{Namespace, Registry, UpstreamKind};

use super::health::ServerHealth;
use super::{
    CallContext, GrantedSubscription, IncomingRequest, MaybeReady, PreparedRequest, ServerCopy,
    ServerFacts, ServerOperations, SessionChanges, ToolLists, ToolsWait, Upstream,
};
use crate::connect_links::ConnectLinks;
use crate::engine::{CallFacts, CallMessages, UpstreamCall};

mod binding;
mod call;
mod catalogue;
pub(crate) mod connect;
mod describe;
mod inbound;
mod lease;
mod links;
mod listed;
mod notifications;
mod own_lists;
mod requester;
mod subscriptions;
mod task_names;
mod tasks;
mod watch;

use binding::UpstreamBinding;
use call::ServerCall;
use catalogue::ListOwner;
use lease::{ConnectionLease, server_of};
pub(crate) use requester::Requester;
use task_names::TaskNames;

/// State that the requests to all external servers share. The servers' connections are kept by the pools.
pub struct ExternalServers {
    pools: Arc<Pools>,
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

impl ExternalServers {
    /// Creates the state that all MCP servers share.
    pub fn new(
        pools: Arc<Pools>,
        registry: Arc<Registry>,
        audience: Arc<Audience>,
        events: Arc<EventLog>,
        key: SessionKey,
        changes: SessionChanges,
        links: Option<Arc<dyn ConnectLinks>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            pools,
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

    /// Requests log messages from this level on. A shared process logs at the lowest level of its clients; each client's
    /// messages are filtered.
    async fn want_level(&self, leased: &ConnectionLease, level: LogLevel) {
        if server_info::declares(leased.process.opened(), &["logging"]) {
            // A server that refuses the level logs as before, which is no failure.
            let _ = leased.process.set_log_level(level).await;
        }
    }

    /// Counts a message that a server should not have sent.
    fn note_violation(&self, namespace: &Namespace, violation: ProtocolViolation) {
        if let Some(server) = served(namespace) {
            self.pools.violation(server, violation);
        }
    }
}

impl Upstream for ClientUpstream {
    fn serves(&self, namespace: &Namespace) -> bool {
        served(namespace).is_some()
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
            external.pools.session_returned(session.tag());
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
        self.0.pools.known_era(served(namespace)?, client)
    }

    fn is_repeatable(&self, namespace: &Namespace, method: &str, subject: &str) -> bool {
        let catalogue = self.0.catalogue(namespace, None);
        catalogue.is_ok_and(|it| it.is_repeatable(method, Some(subject)))
    }

    fn copy(&self, cx: &CallContext<'_>) -> ServerCopy {
        match (served(&cx.namespace), self.0.known_target(cx)) {
            (Some(server), Some(target)) => {
                let (key, era) = (&target.key, target.open.era);
                self.0.pools.copy(server, key, era)
            }
            _ => ServerCopy::Idle,
        }
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
        match (served(&cx.namespace), self.0.known_target(cx)) {
            (Some(server), Some(target)) => {
                let at = (&target.key, target.open.era);
                self.0.pools.has_task(server, at, principal, task)
            }
            _ => false,
        }
    }

    fn has_lost_session(&self, namespace: &Namespace, session: &Session) -> bool {
        let UpstreamKind::Remote(server) = &namespace.upstream else {
            return false;
        };
        // An adopted session comes from another gateway process. The session at the server ended with that process.
        server.spec.stateful
            && (session.is_adopted() || self.0.pools.has_lost(server, session.tag()))
    }
}

impl ServerOperations for ClientUpstream {
    fn health(&self, namespace: &Namespace) -> Option<ServerHealth> {
        ServerHealth::of(&self.0.pools, served(namespace)?)
    }

    fn restart(&self, namespace: &Namespace) -> Result<(), CallError> {
        self.0.pools.restart(server_of(namespace)?)
    }

    fn output(&self, namespace: &Namespace) -> Option<Arc<RecentLines>> {
        self.0.pools.output(served(namespace)?)
    }

    fn presence(&self, namespace: &Namespace) -> Option<Receiver<Presence>> {
        self.0.pools.presence(served(namespace)?)
    }

    fn settled<'a>(&'a self, namespace: &'a Namespace) -> MaybeReady<'a, ()> {
        match served(namespace) {
            Some(server) => MaybeReady::Later(Box::pin(self.0.pools.settled(server))),
            None => MaybeReady::Now(()),
        }
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
    let may_ask = lease::may_ask(&method);
    let asks = client.can_be_asked() && (may_ask || !client.is_modern());
    let tells = (may_ask || request.token().is_some()) && cx.streams;
    let facts = CallFacts {
        talks: match (asks, tells) {
            (true, _) => CallMessages::Asks,
            (false, true) => CallMessages::Tells,
            (false, false) => CallMessages::No,
        },
        asks_singly: true,
        // The call needs no progress token here, since the token is part of the request that is sent.
        ..cx.facts(method, subject, arguments)
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
