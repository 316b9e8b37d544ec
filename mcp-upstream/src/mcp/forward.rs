//! Namespaces whose server speaks MCP itself: requests go up and answers come down with their bytes untouched.
//!
//! ```text
//!   methods::prepare ──▶ forward::prepare ──▶ engine::forward ──▶ ExternalCall ──▶ connection ──▶ server
//!                        (kept here, or up)   (policy, clock …)   │       │
//!                                            isolation: which one ┘       └─ inbound: what it says of its own accord
//! ```
//!
//! Answered here are `initialize`, `server/discover`, `ping`, `subscriptions/listen`, and, where a process is not the
//! session's own, log levels and resource subscriptions. What differs between a client and a server of unlike eras is
//! `crate::bridge`'s.
//!
//! What a message means is decided here, by a few of its keys; the server reads all of them again. So a message in which
//! it could find something else is refused: a key that is there twice, or that differs from a known one only in case
//! ([`Members::unambiguous`]). A task is known only to the principal that began it (`tasks`).

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::registry::Namespace;
use tooldock_workers::worker::LogLevel;

use super::methods::{Prepared, UpstreamCall, UpstreamRequest};
use super::{CallContext, ClientEra};
use crate::audit::Transport;
use crate::bridge::server_info;
use crate::broadcast::Audience;
use crate::engine::{ForwardRequest, TOOLS_CALL};
use crate::jsonrpc::{self, Key, Members, Request, RequestError, spans};
use crate::mcp::Core;
use crate::protocol::CacheScope;
use crate::seal::SessionKey;
use crate::session::State;
use crate::stream::EventLog;

pub(crate) mod arguments;
mod binding;
mod call;
mod catalogue;
pub(crate) mod connector;
mod describe;
mod inbound;
mod isolation;
mod lists;
mod notifications;
pub(crate) mod pools;
pub(crate) mod rest;
mod subscriptions;
mod tasks;
mod watch;

#[cfg(test)]
mod tests;

use binding::UpstreamBinding;
use call::ExternalCall;
use catalogue::Catalogues;
use connector::{Connection, ConnectionKey, Connector, Isolation, ServerHealth};
use inbound::{HandlerRef, InboundHandler, Scope};
use isolation::{Client, Place};

pub(crate) use describe::{discover, initialize};
pub(crate) use notifications::notify;
pub(crate) use subscriptions::{listen, listens};

/// Who the gateway says it is where a server is not told of a client.
pub(crate) const GATEWAY: &str = concat!(
    r#"{"name":"tooldock","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}"#
);

/// What is known of external servers beside their processes.
pub(crate) struct ExternalServers {
    processes: Arc<dyn Connector>,
    audience: Arc<Audience>,
    events: Arc<EventLog>,
    catalogues: Catalogues,
    notices: notifications::NotificationQuota,
    /// Seals what a server wants back from a client of another era.
    key: SessionKey,
}

/// A process and who hears it, for as long as a request needs them.
pub(crate) struct Leased {
    pub(crate) process: Arc<dyn Connection>,
    /// Of one that nobody shares.
    handler: Option<Arc<InboundHandler>>,
    place: Place,
}

impl ExternalServers {
    pub(crate) fn new(
        processes: Arc<dyn Connector>,
        audience: Arc<Audience>,
        events: Arc<EventLog>,
        key: SessionKey,
    ) -> Arc<Self> {
        Arc::new(Self {
            processes,
            audience,
            events,
            catalogues: Catalogues::default(),
            notices: notifications::NotificationQuota::default(),
            key,
        })
    }

    /// Whether the namespace is an external server.
    pub(crate) fn serves(&self, namespace: &Namespace) -> bool {
        self.processes.isolation(namespace).is_some()
    }

    /// How the server of a namespace is.
    pub(crate) fn health(&self, namespace: &Namespace) -> Option<ServerHealth> {
        self.processes.health(namespace)
    }

    /// Waits until a server that came into the registry serves, why it does not is known, or that takes long.
    pub(crate) async fn settled(&self, namespace: &Namespace) {
        self.processes.settled(namespace).await;
    }

    /// Which process a request goes to.
    async fn place(
        &self,
        namespace: &Namespace,
        client: &Client,
        principal: Option<&Arc<str>>,
        method: &str,
    ) -> Result<Place, CallError> {
        let isolation = self.processes.isolation(namespace);
        let isolation = isolation.unwrap_or(Isolation::Auto);
        let speaks = match self.processes.known_to_speak(namespace, client.own_era()) {
            Some(speaks) => speaks,
            None => self.processes.speaks(namespace, client.own_era()).await?,
        };
        Ok(isolation::place(
            isolation, speaks, client, principal, method,
        ))
    }

    /// A process for a request.
    async fn lease(
        self: &Arc<Self>,
        namespace: &Arc<Namespace>,
        client: &Client,
        principal: Option<&Arc<str>>,
        method: &str,
    ) -> Result<Leased, CallError> {
        let place = self.place(namespace, client, principal, method).await?;
        self.lease_at(namespace, client, place).await
    }

    /// The same, where it is known which.
    async fn lease_at(
        self: &Arc<Self>,
        namespace: &Namespace,
        client: &Client,
        place: Place,
    ) -> Result<Leased, CallError> {
        if place.is_common()
            && let Some(process) =
                self.processes
                    .lease_at_once(namespace, &place.key, place.open.era)
        {
            return Ok(Leased {
                process,
                handler: None,
                place,
            });
        }
        let handler = (!place.is_common()).then(|| self.handler(namespace, client, &place));
        let process = self.at(namespace, &place, handler.as_ref()).await?;
        if let (ConnectionKey::Session(tag), Client::Session(session)) = (&place.key, client)
            && session.state() == State::Closed
        {
            // Its end came before its process, which nobody would end then.
            self.processes.end_session(tag);
        }
        Ok(Leased {
            process,
            handler,
            place,
        })
    }

    /// The process of a place.
    async fn at(
        &self,
        namespace: &Namespace,
        place: &Place,
        handler: Option<&Arc<InboundHandler>>,
    ) -> Result<Arc<dyn Connection>, CallError> {
        let inbound = handler.map(|handler| Arc::new(HandlerRef(Arc::clone(handler))) as _);
        let lease = self
            .processes
            .lease(namespace, &place.key, &place.open, inbound);
        lease.await
    }

    /// Who hears the process of a place that is not shared.
    fn handler(
        self: &Arc<Self>,
        namespace: &Namespace,
        client: &Client,
        place: &Place,
    ) -> Arc<InboundHandler> {
        match (&place.key, client) {
            (ConnectionKey::Session(_), Client::Session(session)) => {
                let upstream_binding = UpstreamBinding::of(self, session);
                upstream_binding.own_handler(|| {
                    self.new_handler(namespace, Scope::Session(Arc::downgrade(session)))
                })
            }
            _ => self.new_handler(namespace, Scope::Call),
        }
    }

    fn new_handler(&self, namespace: &Namespace, scope: Scope) -> Arc<InboundHandler> {
        InboundHandler::new(
            namespace.name.clone(),
            scope,
            Arc::clone(&self.audience),
            Arc::clone(&self.events),
            namespace.limits.ask_timeout,
        )
    }

    /// Makes a process as talkative as the most curious of its clients wants it. Each of them filters what it hears.
    async fn want_level(&self, leased: &Leased, level: LogLevel) {
        if server_info::declares(leased.process.opening(), &["logging"]) {
            // A server that cannot do it logs as it does.
            let _ = leased.process.set_log_level(level).await;
        }
    }
}

impl Leased {
    /// Whether several clients share it.
    fn is_common(&self) -> bool {
        self.place.is_common()
    }
}

/// Understands one request for an external server.
///
/// # Errors
///
/// A key that some servers would take for another, what the era does not have, and what is kept here and was refused.
pub(super) async fn prepare(
    cx: &CallContext<'_>,
    id: &str,
    method: &str,
    members: &Members<'_>,
) -> Result<Prepared, RequestError> {
    members.unambiguous()?;
    // It is kept for as long as the call, and with a task for longer.
    members.progress_token()?;
    // A server that looks at the method alone would take it for the notification, about whoever's request it names.
    if method.starts_with("notifications/") {
        return Err(RequestError::MethodNotFound(method.to_owned()));
    }
    let client = cx.client();
    match (&client, method) {
        // What has gone with 2026-07-28, and what is not a request on its own: a server of both eras might take it for
        // the beginning of the other.
        (
            Client::Modern(_),
            "initialize"
            | "ping"
            | "logging/setLevel"
            | "resources/subscribe"
            | "resources/unsubscribe",
        )
        | (Client::Session(_) | Client::Sessionless, "server/discover" | "subscriptions/listen") => {
            return Err(RequestError::MethodNotFound(method.to_owned()));
        }
        (Client::Session(_) | Client::Sessionless, "logging/setLevel") => {
            if let Some(answer) = subscriptions::set_level(cx, &client, id, members).await? {
                return Ok(Prepared::Response(answer));
            }
        }
        (
            Client::Session(_) | Client::Sessionless,
            "resources/subscribe" | "resources/unsubscribe",
        ) => {
            if let Some(answer) =
                subscriptions::subscription(cx, &client, (id, method), members).await?
            {
                return Ok(Prepared::Response(answer));
            }
        }
        _ => {}
    }
    let named = Named::read(method, members)?;
    let mut tasks = tasks::Named::read(method, members)?;
    let request = members.to_request(cx.own(members.message().as_bytes()));
    let key = &cx.core.external.key;
    let request = tasks.with_own_cursor(key, method, request);
    let call = up(cx, client, method, named, (request, tasks));
    Ok(Prepared::Call(call))
}

/// What of a request the policy, the limits and the audit log go by.
#[derive(Default)]
struct Named<'a> {
    /// The tool, the prompt or the URI.
    subject: Cow<'a, str>,
    /// Raw JSON.
    arguments: Option<&'a str>,
}

impl<'a> Named<'a> {
    fn read(method: &str, members: &Members<'a>) -> Result<Self, RequestError> {
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

/// A request that goes up.
fn up(
    cx: &CallContext<'_>,
    client: Client,
    method: &str,
    named: Named<'_>,
    (request, tasks): (Request, tasks::Named),
) -> Box<UpstreamCall> {
    let (core, caller) = (cx.core, cx.caller);
    let (method, subject): (Arc<str>, Arc<str>) = (method.into(), named.subject.into());
    let may_ask = isolation::may_ask(&method);
    let asks = client.can_be_asked() && (may_ask || !client.is_modern());
    let talks = asks || may_ask || request.token().is_some();
    let run = ExternalCall {
        external: Arc::clone(&core.external),
        namespace: Arc::clone(&cx.namespace),
        principal: caller.principal.clone(),
        scope: CacheScope::of_lists(caller, &cx.namespace),
        method: Arc::clone(&method),
        subject: Arc::clone(&subject),
        request,
        tasks,
        sent: Mutex::default(),
        client,
    };
    let arguments = named.arguments.map(str::as_bytes);
    Box::new(UpstreamCall {
        request: UpstreamRequest::Forward(ForwardRequest {
            namespace: Arc::clone(&cx.namespace),
            method,
            subject,
            arguments: arguments.map_or_else(Bytes::new, |raw| cx.own(raw)),
            transport: Transport::Mcp,
            version: Some(cx.result_format().version()),
            session: cx.session().map(|it| Arc::clone(it.tag())),
            asks,
            run: Arc::new(run),
        }),
        progress_token: None,
        talks: talks && cx.streams || asks,
    })
}

impl CallContext<'_> {
    /// Who speaks, as far as a server may know.
    fn client(&self) -> Client {
        match &self.era {
            ClientEra::Legacy {
                session: Some(session),
                ..
            } => Client::Session(Arc::clone(session)),
            ClientEra::Legacy { session: None, .. } => Client::Sessionless,
            ClientEra::Modern(meta) => Client::Modern(meta.clone()),
        }
    }
}

/// The input schema of a tool, for what is checked against it before a call. `None`: it has none, or the server says so
/// itself when the call comes to it.
///
/// # Errors
///
/// The server does not list its tools in time, and what it has is not known from before.
pub(crate) async fn input_schema(
    core: &Core,
    namespace: &Arc<Namespace>,
    tool: &str,
) -> Result<Option<Box<RawValue>>, CallError> {
    let tools = match core.external.tools_soon(namespace).await {
        Ok(tools) => tools,
        Err(error) if error.code == CallErrorCode::ExecutionTimeout => return Err(error),
        Err(_) => return Ok(None),
    };
    let definition = tools.definition(tool);
    let schema = definition.and_then(|definition| spans::member(definition, "inputSchema"));
    Ok(schema.map(ToOwned::to_owned))
}
