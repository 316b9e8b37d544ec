//! The choice of the connection for a request, by the server's `isolation`, and its lease. Only this file decides which
//! connection a request uses; the pool chooses the process or backend behind it.
//!
//! ```text
//!   ExternalServers::target ──▶ ConnectionTarget ──▶ ExternalServers::lease ──▶ ConnectionLease ──▶ dropped
//!     (credentials, eras,        (key, opening         (at once, or after         (requests, answered)
//!      isolation)                 parameters)           a wait in the pool)
//! ```
//!
//! | `isolation` | legacy session | modern request, legacy server | modern request otherwise | REST, no session |
//! |---|---|---|---|---|
//! | `auto` | its own if the client can be asked, else shared ① | its own if it may ask, else shared ② | shared | shared |
//! | `shared` | shared | shared | shared | shared |
//! | `session` | its own | its own | its own | its own |
//! | `principal` | the principal's | the principal's | the principal's | the principal's |
//!
//! *Its own* is a process of the session, or without a session a process for the single request. ① Also shared if the server does
//! not open by `initialize`. ② The server may ask during the request if the request's method permits questions and the client can
//! be asked.
//!
//! A process that several clients share is opened with the gateway's identity and without capabilities: its server must not ask,
//! since its question could not be linked to the call that caused it. If it asks nevertheless, the question is refused. A
//! principal's process counts as shared, too: the principal may have several clients, and a question could not be assigned to one
//! of them. A modern server sends no questions; its input requests are part of the result, and each request contains the client's
//! capabilities, so sharing the process is harmless.
//!
//! Two methods always use the shared process, regardless of `isolation`, because their responses do not depend on a process's
//! state: `server/discover` of a client without a session (the server's description of itself), and `subscriptions/listen` of
//! such a client (notifications of changes). A process that is started for one of them alone could not report changes of other
//! processes, whereas the shared process is subscribed on behalf of all of them, also after a restart.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::jsonrpc::spans;
use tooldock_protocol::version::method::TOOLS_CALL;
use tooldock_protocol::version::{ClientIdentity, Era, EraSupport, ProtocolVersion};
use tooldock_servers::launch::ServerRef;
use tooldock_servers::pool::{ConnectionKey, OpenAs, Opener, ProcessLease, served};
use tooldock_sessions::session::SessionState;
use tooldock_workers::registry::Namespace;
use tooldock_workers::remote::BackendId;
use tooldock_workers::server_settings::Isolation;

use super::binding::UpstreamBinding;
use super::inbound::{HandlerRef, InboundHandler, ProcessOwner};
use super::{ExternalServers, Requester};
use crate::upstream::{CallContext, Client};

/// The connection for a request, and how to open it.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionTarget {
    pub(crate) key: ConnectionKey,
    pub(crate) open: OpenAs,
}

impl ConnectionTarget {
    /// Returns true if several clients share the process.
    pub(crate) fn is_common(&self) -> bool {
        self.key.is_common()
    }
}

/// Held while a request uses a connection: the right to use it, and the handler for its messages.
pub(crate) struct ConnectionLease {
    pub(crate) process: ProcessLease,
    /// Handler for server messages; `None` for shared connections.
    pub(super) handler: Option<Arc<InboundHandler>>,
    pub(super) key: ConnectionKey,
    /// The era of the request. The process may be opened in the other one.
    pub(super) era: Era,
}

impl ConnectionLease {
    /// Returns true if several clients share the process.
    pub(super) fn is_common(&self) -> bool {
        self.key.is_common()
    }
}

/// The server of a namespace.
///
/// # Errors
///
/// When the namespace is of another kind.
pub(super) fn server_of(namespace: &Namespace) -> Result<ServerRef<'_>, CallError> {
    served(namespace).ok_or_else(|| {
        CallError::new(
            CallErrorCode::WorkerUnavailable,
            "The namespace has no server",
        )
    })
}

impl ExternalServers {
    /// Decides which connection a request uses.
    ///
    /// # Errors
    ///
    /// `missing_credential` if the server needs credentials of the caller, but the caller has none; the reason why the server
    /// cannot be asked which eras it supports.
    pub(super) async fn target(
        &self,
        namespace: &Namespace,
        client: &Client,
        requester: &Requester,
        method: &str,
    ) -> Result<ConnectionTarget, CallError> {
        let principal = requester.principal.as_ref();
        // The caller's credentials are checked before a process is started or gets a request.
        self.check_credentials(namespace, principal.map(|it| &**it))?;
        let server = server_of(namespace)?;
        let (isolation, era) = (server.isolation(), client.own_era());
        let speaks = match self.pools.known_era(server, era) {
            Some(speaks) => speaks,
            None => {
                // If the server has no shared connection, the gateway uses the first client's connection to find out which eras
                // the server supports.
                let own = matches!(isolation, Isolation::Session | Isolation::Principal);
                let headers = own.then(|| requester.opener()).flatten();
                let opener = match (principal, headers) {
                    (Some(name), _) if server.personal().is_needed() => {
                        Opener::Principal(Arc::clone(name))
                    }
                    (_, Some(headers)) => Opener::Client(headers),
                    (_, None) => Opener::Everybody,
                };
                // Boxed to keep the futures of other requests small, since the eras of a server are usually known.
                Box::pin(self.pools.server_era(server, era, opener)).await?
            }
        };
        Ok(choose(isolation, speaks, client, requester, method))
    }

    /// The connection for a client's tool calls, if it is known without a request to the server.
    pub(super) fn known_target(&self, cx: &CallContext<'_>) -> Option<ConnectionTarget> {
        let server = served(&cx.namespace)?;
        let speaks = self.pools.known_era(server, cx.client.own_era())?;
        let requester = Requester::of(cx);
        Some(choose(
            server.isolation(),
            speaks,
            &cx.client,
            &requester,
            TOOLS_CALL,
        ))
    }

    /// The connection from which a server's tools are read: the shared one, even if calls use others; the principal's, for a
    /// server that the gateway calls with the caller's credentials.
    ///
    /// # Errors
    ///
    /// Like [`Self::target`].
    pub(super) async fn target_of_lists(
        &self,
        namespace: &Namespace,
        principal: Option<&Arc<str>>,
    ) -> Result<ConnectionTarget, CallError> {
        let (client, method) = (Client::Plain, "tools/list");
        let server = server_of(namespace)?;
        if server.personal().is_needed() {
            let requester = Requester {
                principal: principal.cloned(),
                ..Requester::default()
            };
            return self.target(namespace, &client, &requester, method).await;
        }
        let speaks = self
            .pools
            .server_era(server, client.own_era(), Opener::Everybody);
        let (isolation, requester) = (Isolation::Shared, Requester::default());
        Ok(choose(
            isolation,
            speaks.await?,
            &client,
            &requester,
            method,
        ))
    }

    /// Directs a request about a task to the backend that runs the task, if all clients share connections to several backends.
    pub(super) fn follow_task(
        &self,
        namespace: &Namespace,
        target: &mut ConnectionTarget,
        principal: Option<&Arc<str>>,
        task: &str,
    ) {
        if target.key == ConnectionKey::Shared
            && let Some(server) = served(namespace)
            && let Some(backend) =
                self.pools
                    .place_of_task(server, target.open.era, principal, task)
        {
            target.key = backend;
        }
    }

    /// Leases the connection for a request: at once if it is open, as for nearly every request, else after a wait.
    ///
    /// # Errors
    ///
    /// The reason why there is no connection.
    pub(super) async fn lease(
        self: &Arc<Self>,
        namespace: &Namespace,
        client: &Client,
        target: ConnectionTarget,
    ) -> Result<ConnectionLease, CallError> {
        let server = server_of(namespace)?;
        let ConnectionTarget { key, mut open } = target;
        let era = open.era;
        let handler = (!key.is_common()).then(|| self.handler(namespace, client, &key));
        open.inbound = handler
            .as_ref()
            .map(|handler| Arc::new(HandlerRef(Arc::clone(handler))) as _);
        let process = self.pools.lease(server, key.clone(), open).await?;
        if let (ConnectionKey::Session(tag), Client::Session(session)) = (&key, client)
            && session.state() == SessionState::Closed
        {
            // The session ended before its process started. The process must be ended here, or it would continue to run.
            self.pools.session_closed(tag);
        }
        Ok(ConnectionLease {
            process,
            handler,
            key,
            era,
        })
    }

    /// Returns true if a further backend may take a request that the backends in `tried` have not answered.
    pub(super) fn has_another(&self, namespace: &Namespace, tried: &[BackendId]) -> bool {
        served(namespace).is_some_and(|server| self.pools.has_another(server, tried))
    }

    /// Checks that a principal has the credentials that the server needs.
    ///
    /// # Errors
    ///
    /// `missing_credential`: the server needs credentials of the caller, but the caller has none.
    pub(super) fn check_credentials(
        &self,
        namespace: &Namespace,
        principal: Option<&str>,
    ) -> Result<(), CallError> {
        let server = server_of(namespace)?;
        let own = server.personal();
        own.check(server.name(), self.pools.personal(), principal)
    }

    /// The handler for messages of a connection that is not shared.
    fn handler(
        self: &Arc<Self>,
        namespace: &Namespace,
        client: &Client,
        key: &ConnectionKey,
    ) -> Arc<InboundHandler> {
        match (key, client) {
            (ConnectionKey::Session(_), Client::Session(session)) => {
                let upstream_binding = UpstreamBinding::of(self, &namespace.name, session);
                upstream_binding.own_handler(|| {
                    self.new_handler(namespace, ProcessOwner::Session(Arc::downgrade(session)))
                })
            }
            _ => self.new_handler(namespace, ProcessOwner::Call),
        }
    }

    /// Creates a handler for messages of a process with this owner.
    pub(super) fn new_handler(
        &self,
        namespace: &Namespace,
        scope: ProcessOwner,
    ) -> Arc<InboundHandler> {
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
}

impl Client {
    /// The era of the client's messages. REST calls count as modern, although the gateway writes their messages in the server's
    /// era.
    pub(crate) fn own_era(&self) -> Era {
        match self {
            Self::Session(_) | Self::Legacy(_) => Era::Legacy,
            Self::Modern(_) | Self::Plain => Era::Modern,
        }
    }

    /// The era of MCP that the gateway uses with the server on behalf of this client.
    fn era(&self, speaks: EraSupport) -> Era {
        match speaks {
            EraSupport::Legacy => Era::Legacy,
            EraSupport::Modern | EraSupport::ModernAtLeast => Era::Modern,
            EraSupport::Dual => self.own_era(),
        }
    }

    /// Returns true if the client's requests belong to no session.
    fn has_no_session(&self) -> bool {
        !matches!(self, Self::Session(_))
    }

    /// The client's capabilities as a JSON object.
    pub fn capabilities(&self) -> Arc<RawValue> {
        match self {
            Self::Session(session) => Arc::clone(&session.client().capabilities),
            Self::Modern(meta) => owned(&meta.capabilities).unwrap_or_else(nothing),
            Self::Legacy(_) | Self::Plain => nothing(),
        }
    }

    /// The client's description of itself as a JSON object; `None` if it sent none.
    pub(crate) fn info(&self) -> Option<Arc<RawValue>> {
        match self {
            Self::Session(session) => session.client().info.clone(),
            Self::Modern(meta) => meta.client_info.as_ref().and_then(|info| owned(info)),
            Self::Legacy(_) | Self::Plain => None,
        }
    }

    /// Returns true if the client declares sampling, elicitation or roots.
    pub(crate) fn can_be_asked(&self) -> bool {
        match self {
            Self::Session(_) | Self::Modern(_) => declares_any(self.capabilities().get()),
            Self::Legacy(_) | Self::Plain => false,
        }
    }
}

/// Chooses the connection for a request.
fn choose(
    isolation: Isolation,
    speaks: EraSupport,
    client: &Client,
    requester: &Requester,
    method: &str,
) -> ConnectionTarget {
    let era = client.era(speaks);
    let principal = requester.principal.as_ref();
    let of_principal = || {
        principal.map_or(ConnectionKey::Shared, |it| {
            ConnectionKey::Principal(it.clone())
        })
    };
    let own = || match client {
        // A closed session has only running calls. They get processes that end with the calls.
        Client::Session(session) if session.state() == SessionState::Closed => {
            ConnectionKey::Exclusive
        }
        Client::Session(session) => ConnectionKey::Session(Arc::clone(session.tag())),
        Client::Legacy(_) | Client::Modern(_) | Client::Plain => ConnectionKey::Exclusive,
    };
    let key = match isolation {
        Isolation::Shared => ConnectionKey::Shared,
        Isolation::Principal => of_principal(),
        Isolation::Session if client.has_no_session() && !is_of_a_process(method) => {
            ConnectionKey::Shared
        }
        Isolation::Session => own(),
        Isolation::Auto if era == Era::Modern || !client.can_be_asked() => ConnectionKey::Shared,
        // A modern client's request needs its own process only for methods during which the server may ask the client.
        Isolation::Auto if client.is_modern() && !may_ask(method) => ConnectionKey::Shared,
        Isolation::Auto => own(),
    };
    let private = matches!(key, ConnectionKey::Session(_) | ConnectionKey::Exclusive);
    let gateway = ClientIdentity::gateway();
    let identity = match client {
        Client::Legacy(_) | Client::Plain => None,
        Client::Session(session) => Some(session.version()),
        Client::Modern(_) => Some(ProtocolVersion::V2025_11_25),
    };
    let identity = identity.filter(|_| private).map(|version| {
        Arc::new(ClientIdentity {
            version,
            capabilities: client.capabilities(),
            info: client.info().unwrap_or_else(|| Arc::clone(&gateway.info)),
        })
    });
    let open = OpenAs {
        identity: identity.unwrap_or_else(|| Arc::clone(gateway)),
        principal: principal.cloned(),
        headers: match key {
            ConnectionKey::Shared | ConnectionKey::Replica(_) => None,
            _ => requester.opener(),
        },
        hash: requester.hash,
        ..OpenAs::gateway(era)
    };
    ConnectionTarget { key, open }
}

/// Returns true if the state of a process may affect the response to this method.
fn is_of_a_process(method: &str) -> bool {
    !matches!(method, "server/discover" | "subscriptions/listen")
}

/// Returns true for methods during which a server may ask the client (multi round-trip requests).
pub(crate) fn may_ask(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

fn declares_any(capabilities: &str) -> bool {
    #[derive(Deserialize)]
    struct CapabilityFields<'a> {
        #[serde(borrow, default)]
        elicitation: Option<&'a RawValue>,
        #[serde(borrow, default)]
        sampling: Option<&'a RawValue>,
        #[serde(borrow, default)]
        roots: Option<&'a RawValue>,
    }
    // Shortcut for clients without capabilities, which are frequent.
    if capabilities == "{}" {
        return false;
    }
    if let Some(members) = spans::members(capabilities) {
        let asks = |key: &str| matches!(key, "elicitation" | "sampling" | "roots");
        return members
            .iter()
            .any(|(key, value)| asks(key) && *value != "null");
    }
    // If the key of one of these capabilities (sampling, elicitation, roots) is repeated, serde returns an error, and the client
    // counts as one that cannot be asked.
    serde_json::from_str::<CapabilityFields<'_>>(capabilities).is_ok_and(|declared| {
        declared.elicitation.is_some() || declared.sampling.is_some() || declared.roots.is_some()
    })
}

fn owned(span: &[u8]) -> Option<Arc<RawValue>> {
    let raw: Box<RawValue> = serde_json::from_slice(span).ok()?;
    Some(raw.into())
}

fn nothing() -> Arc<RawValue> {
    Arc::clone(&ClientIdentity::gateway().capabilities)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::time::Instant;
    use tooldock_sessions::session::{
        Binding, ClientFacts, Session, SessionId, SessionPatch, SessionTransport,
    };

    use super::*;
    use crate::upstream::RequestMeta;

    fn session(capabilities: &str) -> Client {
        let binding = Binding {
            namespace: "shared".parse().expect("a name"),
            principal: None,
            version: ProtocolVersion::V2025_11_25,
            transport: SessionTransport::Streamable,
        };
        let session = Session::new(SessionId::random(), binding, Instant::now());
        let capabilities = RawValue::from_string(capabilities.to_owned()).expect("JSON");
        let facts = ClientFacts {
            capabilities: capabilities.into(),
            info: None,
        };
        session.change(SessionPatch::Initialize {
            version: ProtocolVersion::V2025_11_25,
            client: facts,
        });
        Client::Session(Arc::new(session))
    }

    fn modern(capabilities: &'static str) -> Client {
        Client::Modern(RequestMeta {
            capabilities: Bytes::from_static(capabilities.as_bytes()),
            client_info: None,
            log_level: None,
            progress_token: None,
            inputs: None,
        })
    }

    fn kind(
        isolation: Isolation,
        speaks: EraSupport,
        client: &Client,
        method: &str,
    ) -> &'static str {
        let requester = Requester {
            principal: Some(Arc::from("ada")),
            ..Requester::default()
        };
        let target = choose(isolation, speaks, client, &requester, method);
        let told = target.open.identity.capabilities.get() != "{}";
        match (target.key, told) {
            (ConnectionKey::Shared | ConnectionKey::Replica(_), false) => "shared",
            (ConnectionKey::Session(_), _) => "session",
            (ConnectionKey::Principal(_), false) => "principal",
            (ConnectionKey::Exclusive, _) => "exclusive",
            (_, true) => "told too much",
        }
    }

    #[test]
    fn auto_gives_a_process_of_their_own_to_those_the_server_may_ask() {
        let (asked, silent) = (r#"{"elicitation":{}}"#, r#"{"experimental":{}}"#);
        for (speaks, client, method, expected) in [
            (EraSupport::Legacy, session(asked), "tools/list", "session"),
            (EraSupport::Dual, session(asked), "tools/call", "session"),
            (EraSupport::Modern, session(asked), "tools/call", "shared"),
            (EraSupport::Legacy, session(silent), "tools/call", "shared"),
            (EraSupport::Legacy, modern(asked), "tools/call", "exclusive"),
            (
                EraSupport::Legacy,
                modern(asked),
                "prompts/get",
                "exclusive",
            ),
            (EraSupport::Legacy, modern(asked), "tools/list", "shared"),
            (EraSupport::Legacy, modern(silent), "tools/call", "shared"),
            (EraSupport::Dual, modern(asked), "tools/call", "shared"),
            (EraSupport::Legacy, Client::Plain, "tools/call", "shared"),
            (
                EraSupport::Legacy,
                Client::Legacy(ProtocolVersion::V2025_03_26),
                "tools/call",
                "shared",
            ),
        ] {
            let got = kind(Isolation::Auto, speaks, &client, method);
            assert_eq!(got, expected, "{speaks:?} {client:?} {method}");
        }
    }

    #[test]
    fn a_client_declares_what_it_names_and_does_not_take_back() {
        for (capabilities, expected) in [
            (r#"{"roots":{"listChanged":true}}"#, true),
            (r#"{"x":{"roots":{}}, "sampli\u006eg" : {}}"#, true),
            (r#"{"x":1,"x":2,"elicitation":{}}"#, true),
            (r#"{"roots":{},"roots":null}"#, false),
            (r#"{"roots":null}"#, false),
            (r#"{"x":{"roots":{}},"Roots":{}}"#, false),
            ("{}", false),
        ] {
            assert_eq!(declares_any(capabilities), expected, "{capabilities}");
        }
    }

    #[test]
    fn the_others_do_as_they_say() {
        let asked = r#"{"roots":{}}"#;
        for client in [
            session(asked),
            modern(asked),
            Client::Plain,
            Client::Legacy(ProtocolVersion::V2025_03_26),
        ] {
            let of = |isolation| kind(isolation, EraSupport::Legacy, &client, "tools/call");
            assert_eq!(of(Isolation::Shared), "shared");
            assert_eq!(of(Isolation::Principal), "principal");
            let own = if matches!(client, Client::Session(_)) {
                "session"
            } else {
                "exclusive"
            };
            assert_eq!(of(Isolation::Session), own);
        }
    }

    #[test]
    fn what_no_process_has_to_itself_is_the_shared_ones() {
        for method in ["server/discover", "subscriptions/listen"] {
            for speaks in [EraSupport::Legacy, EraSupport::Modern, EraSupport::Dual] {
                let client = modern(r#"{"elicitation":{}}"#);
                assert_eq!(kind(Isolation::Session, speaks, &client, method), "shared");
                let of_principal = kind(Isolation::Principal, speaks, &client, method);
                assert_eq!(of_principal, "principal");
            }
        }
    }

    #[test]
    fn what_still_runs_in_a_session_that_is_over_keeps_no_process_for_it() {
        let client = session(r#"{"roots":{}}"#);
        let of = |client| kind(Isolation::Auto, EraSupport::Legacy, client, "tools/call");
        assert_eq!(of(&client), "session");
        if let Client::Session(session) = &client {
            session.close();
        }
        assert_eq!(of(&client), "exclusive");
    }

    #[test]
    fn a_server_of_both_eras_is_opened_in_the_clients() {
        let era = |client: &Client| {
            choose(
                Isolation::Auto,
                EraSupport::Dual,
                client,
                &Requester::default(),
                "x",
            )
            .open
            .era
        };
        assert_eq!(era(&session("{}")), Era::Legacy);
        assert_eq!(
            era(&Client::Legacy(ProtocolVersion::V2025_03_26)),
            Era::Legacy
        );
        assert_eq!(era(&modern("{}")), Era::Modern);
        assert_eq!(era(&Client::Plain), Era::Modern);
    }
}
