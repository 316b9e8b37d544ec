//! Pass-through mode: forwards messages to and from remote servers unchanged.
//!
//! ```text
//!   message ──▶ mode ──┬── client: the gateway's own client (`upstream::client`)
//!                      └── answer ──▶ engine: policy, limits, gate, clock, record
//!                                       └─▶ up: a backend, the session's or any ──▶ response: bytes, and observer
//! ```
//!
//! [`answer`] gets the messages of both eras, and [`mode`] alone decides which of them are passed through. GET and DELETE follow
//! the mode in which their session was opened ([`has_session`]).
//!
//! The checks are those of any message: access to the namespace, ownership of the session, versions, ambiguous keys, limits
//! counted in tool calls, the queue, the time limit, the size of results. No message is changed: lists are not filtered, eras
//! are not translated, ids are not rewritten, and questions are not stored.
//!
//! A response is an ordinary [`Reply`]: complete, in chunks ([`Reply::Body`]), or a long stream that the edge handles like the
//! gateway's own streams ([`Reply::Events`]). Pingora's proxy phases are not used, for three reasons: the edge has read the
//! message before its destination is known, reopening a session needs two further requests first, and an upstream peer would
//! occupy Pingora's buffers for as long as a stream lasts.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use tokio::time::{Instant, timeout_at};
use tooldock_base::config::PinMode;
use tooldock_base::error::CallError;
use tooldock_engine::engine::{CallFacts, PassedCall, timed_out, unknown_tool};
use tooldock_engine::upstream::client::RequestSubject;
use tooldock_engine::upstream::{CallContext, ToolsWait};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::session::{
    Binding, PerSession, Session, SessionPatch, SessionTransport, UnclaimedSession,
};
use tooldock_sessions::stream::frame;
use tooldock_workers::registry::{Namespace, UpstreamKind};
use tooldock_workers::remote::RemoteServer;

use super::head::{AcceptFlags, SESSION_HEADER};
use super::{Core, acceptable, call, create_session, initialize};
use crate::jsonrpc::{Key, Members, Message, RequestError};
use crate::protocol::method::TOOLS_CALL;
use crate::protocol::{Era, Method as Name, ProtocolVersion, is_misspelt_call};
use crate::reply::{Head, Reply};

mod affinity;
mod answer;
mod events;
mod failure;
mod headers;
mod long;
mod mode;
mod pending;
mod resume;
mod single;
mod tap;
mod tasks;
#[cfg(test)]
mod tests;
mod up;

pub(super) use long::open as stream;
pub(super) use mode::has_session;
pub(super) use single::{answer_in, answer_of};

use affinity::UpstreamSession;
use failure::PassThroughFailure;
use pending::{InFlightGuard, PendingMessage};
use up::{Outgoing, PassThroughContext};

/// The remote server's session for each session of the gateway in pass-through mode.
pub(crate) type UpstreamSessions = PerSession<UpstreamSession>;

/// Counts and logs a request to a remote server by its mode (`client` or `pass_through`).
fn count(core: &Core, caller: &Caller, namespace: &Namespace, mode: &'static str) {
    core.metrics.remote_request(&namespace.name, mode);
    tracing::debug!(request_id = &*caller.request_id, namespace = %namespace.name, mode, "remote request");
}

/// Counts a request that is made in client mode, if its server is a remote server.
pub(crate) fn count_client_mode(core: &Core, caller: &Caller, namespace: &Namespace) {
    if is_remote(namespace) {
        count(core, caller, namespace, "client");
    }
}

fn remote(namespace: &Namespace) -> Option<&Arc<RemoteServer>> {
    match &namespace.upstream {
        UpstreamKind::Remote(server) => Some(server),
        _ => None,
    }
}

/// Returns true if a namespace's messages may be passed through, because its upstream is a remote server.
pub(super) fn is_remote(namespace: &Namespace) -> bool {
    matches!(namespace.upstream, UpstreamKind::Remote(_))
}

/// Answers the message of a body for a remote server ([`is_remote`]) in pass-through mode, in either era. Returns `None` if client
/// mode must answer it. `message`: `None` for a batch.
pub(super) async fn answer(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    accept: AcceptFlags,
    message: Option<&Message<'_>>,
) -> Result<Option<Reply>, RequestError> {
    let opening = match message {
        Some(Message::Request {
            method, members, ..
        }) if *method == "initialize" && cx.client.is_legacy() => {
            Some(initialize::read(members.params())?)
        }
        _ => None,
    };
    let passes = mode::passes(core, cx, accept, message);
    if passes && message.is_none() {
        // Each call of a batch would have to be admitted and recorded from a single response.
        return Err(RequestError::Shape(
            "this namespace takes no batches: send one message per POST".into(),
        ));
    }
    let up = match passes {
        true => PassThroughContext::new(core, cx.caller, &cx.namespace),
        false => None,
    };
    let Some((up, message)) = up.zip(message) else {
        if cx.session().is_some_and(|session| has_session(session)) {
            // The session cannot leave pass-through mode, but a reload has ended this mode for its namespace.
            return Err(RequestError::SessionNotFound);
        }
        count(core, cx.caller, &cx.namespace, "client");
        return Ok(None);
    };
    let reply = match message {
        Message::Request {
            id,
            method,
            members,
        } => {
            members.unambiguous()?;
            // The futures of rare branches are boxed, since they would otherwise enlarge the future of every message.
            match opening {
                Some(_) if cx.session().is_some() => return Err(initialize::again()),
                Some(asked) => {
                    // The version header of an `initialize` has no meaning, so it is not sent to the server.
                    let up = up.without_version();
                    Box::pin(open_session(&up, cx, accept, asked, id)).await?
                }
                None if cx.client.is_modern() && *method == "subscriptions/listen" => {
                    Box::pin(long::listen(&up, cx, id)).await?
                }
                None => request(&up, cx, (id, method, members)).await?,
            }
        }
        Message::Notification { method, members } => {
            members.unambiguous_unanswered()?;
            // A request method without an id is refused: a server that ignores the missing id would run a call that the
            // gateway does not count.
            if !method.starts_with("notifications/") && *method != "initialized" {
                return Err(RequestError::Shape(format!("{method} needs an id").into()));
            }
            let confirms = matches!(&**method, "notifications/initialized" | "initialized");
            if let (Some(session), true) = (cx.session(), confirms) {
                core.changes.commit(session, SessionPatch::Confirm).await?;
            }
            // If the request was not sent to the server yet, its cancellation must not be sent either.
            if method == "notifications/cancelled"
                && let (Some(session), Some(id)) = (cx.session(), members.raw(Key::RequestId))
                && session.in_flight().cancel(id, members.message())
            {
                return Ok(Some(Reply::empty(StatusCode::ACCEPTED)));
            }
            unanswered(&up, cx).await
        }
        Message::Response { members, .. } => {
            members.unambiguous_unanswered()?;
            unanswered(&up, cx).await
        }
    };
    Ok(Some(reply))
}

/// Admits a request and passes it through.
async fn request(
    up: &PassThroughContext<'_>,
    cx: &CallContext<'_>,
    (id, method, members): (&str, &str, &Members<'_>),
) -> Result<Reply, RequestError> {
    let era = match cx.client.is_modern() {
        true => Era::Modern,
        false => Era::Legacy,
    };
    if era == Era::Legacy {
        tasks::refuse(method, members)?;
    }
    if is_misspelt_call(method) {
        return Err(RequestError::MethodNotFound(method.to_owned()));
    }
    let facts = facts(cx, method, members)?;
    let subject = Arc::clone(&facts.subject);
    let harmless = || {
        let facts = cx.upstream.server_facts();
        facts.is_repeatable(&cx.namespace, method, &subject)
    };
    // The call is registered before it waits for its permit, since its client may cancel it during the wait.
    let mut stay = cx
        .session()
        .map(|session| InFlightGuard::enter(session, Some(id)));
    let ended = async {
        match &mut stay {
            Some(stay) => stay.ended().await,
            None => std::future::pending().await,
        }
    };
    // ended: the session has ended, or the call was cancelled. passed: the call has its permit, or was refused.
    // The future is pinned in place, because it is large and would otherwise be moved into the future that awaits it.
    let passed = pin!(async {
        if !is_recorded(method) {
            return Ok(None);
        }
        let listed = is_listed(cx, method, &subject);
        let passed = up.core.engine.pass(cx.caller, facts, listed).await;
        passed.map(Some)
    });
    let call = tokio::select! { biased;
        failure = ended => return Ok(failure.reply(&cx.namespace.name, era, Some(id))),
        passed = passed => match passed {
            Ok(call) => call,
            Err((facts, error)) => {
                let format = cx.result_format();
                let answer = call::response(&facts, id, cx.caller, &format, Err(error))?;
                return Ok(Reply::json(StatusCode::OK, answer));
            }
        },
    };
    let traced = call.as_ref().and_then(|it| up.traced(it.trace()));
    let up = traced.as_ref().unwrap_or(up);
    Ok(deliver(up, cx, era, Some(id), (call, stay), &harmless).await)
}

/// Checks that a call may be sent under the name that its client wrote. If the caller may not use all tools, only names that the
/// server lists are allowed, since the server could accept another spelling of a forbidden tool's name.
async fn is_listed(cx: &CallContext<'_>, method: &str, tool: &str) -> Result<(), CallError> {
    if method != TOOLS_CALL || cx.view().allows_every_tool() {
        return Ok(());
    }
    let principal = cx.caller.principal.as_ref();
    let list = cx
        .upstream
        .tool_lists()
        .tools(&cx.namespace, principal, ToolsWait::Long);
    match list.get().await {
        Ok(list) if list.tool(tool).is_some() => Ok(()),
        // The list may be unavailable because the server returns it only for the headers of its clients. A name in plain lower
        // case is then accepted, since it cannot be another spelling of a forbidden name.
        Err(_) if is_plain(tool) && cx.namespace.limits.pins != PinMode::Enforce => Ok(()),
        Ok(_) | Err(_) => Err(unknown_tool(tool)),
    }
}

/// Returns true if the name consists of lower-case letters, digits and `_-./:`. Names with other characters could be different
/// spellings of a tool's name: a server may, for example, ignore case.
fn is_plain(name: &str) -> bool {
    let plain =
        |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'/' | b':');
    !name.is_empty() && name.bytes().all(plain)
}

/// Passes a message through that has no JSON-RPC response.
async fn unanswered(up: &PassThroughContext<'_>, cx: &CallContext<'_>) -> Reply {
    let stay = cx
        .session()
        .map(|session| InFlightGuard::enter(session, None));
    // The message may be sent twice: a repeated notification changes nothing at the server, and a repeated response belongs
    // to no open request.
    deliver(up, cx, Era::Legacy, None, (None, stay), &|| true).await
}

/// Sends the message to the server and builds the reply from the server's response.
async fn deliver(
    up: &PassThroughContext<'_>,
    cx: &CallContext<'_>,
    era: Era,
    id: Option<&str>,
    (call, stay): (Option<Box<PassedCall>>, Option<InFlightGuard>),
    harmless: &(dyn Fn() -> bool + Send + Sync),
) -> Reply {
    let session = cx.session();
    let mut pending = PendingMessage::new(up, era, id, call, session.zip(stay));
    let what = Outgoing {
        id,
        send_record: pending.send_record(),
        harmless,
        ..Outgoing::new(Method::POST, cx.body.clone())
    };
    let deadline = pending.deadline();
    let sent = pin!(async {
        match session {
            Some(session) => up.in_session(session, &what).await,
            None => up
                .to_any(&what, Vec::new(), up.hash)
                .await
                .map(|(_, response)| response),
        }
    });
    // ended: the session has ended, or the call was cancelled. sent: the head of the response has arrived, or the request
    // failed.
    let sent = tokio::select! { biased;
        failure = pending.ended() => Err(failure),
        sent = timeout_at(deadline, sent) => {
            sent.unwrap_or_else(|_| Err(PassThroughFailure::Refused(pending.timed_out())))
        }
    };
    match sent {
        Ok(response) => pin!(answer::of(response, pending)).await,
        Err(failure) => pending.fail(&failure),
    }
}

/// Opens a session at the server, and a session of the gateway that refers to it. The client gets the server's response with the
/// id of the gateway's session.
async fn open_session(
    up: &PassThroughContext<'_>,
    cx: &CallContext<'_>,
    accept: AcceptFlags,
    asked: initialize::InitializeRequest<'_>,
    id: &str,
) -> Result<Reply, RequestError> {
    let name = &cx.namespace.name;
    let limit = cx.namespace.limits.timeout;
    let deadline = Instant::now() + limit;
    let opening = up.open(cx.body.clone(), Vec::new(), deadline);
    let opened = timeout_at(deadline, opening).await;
    let opened = opened.unwrap_or_else(|_| Err(PassThroughFailure::Refused(timed_out(limit))));
    let opened = match opened {
        Ok(opened) => opened,
        Err(failure) => return Ok(failure.reply(name, Era::Legacy, Some(id))),
    };
    let mut head = Head::new(opened.status);
    head.headers = headers::for_client(&opened.headers);
    let body_of = |message: Bytes| match headers::kind(&opened.headers) {
        _ if message == opened.message => opened.body.clone(),
        headers::BodyKind::Json => message,
        _ => frame::message(None, &message),
    };
    let Some((place, version)) = opened.settled else {
        let (message, _) = tap::read_plain(opened.message.clone(), Some(id));
        let body = body_of(message);
        return Ok(Reply::Full { head, body });
    };
    let message = tasks::not_offered(&opened.message);
    let message = message.unwrap_or_else(|| opened.message.clone());
    let (message, _) = tap::read_plain(message, Some(id));
    let body = body_of(message);
    if !served(cx.caller, version) {
        let failure = PassThroughFailure::Version(format!(
            "names the protocol version {version}, which is not served on this listener"
        ));
        return Ok(failure.reply(name, Era::Legacy, Some(id)));
    }
    acceptable(cx.caller, accept, version)?;
    let binding = Binding {
        namespace: name.clone(),
        principal: cx.caller.principal.clone(),
        version,
        transport: SessionTransport::Streamable,
    };
    let session = create_session(up.core, binding, Some(asked.client)).await?;
    let unclaimed = UnclaimedSession::new(Arc::clone(up.core) as _, &session);
    up.settle(&session, place).await?;
    let value =
        HeaderValue::from_str(session.id().as_str()).expect("a session id is visible ASCII");
    Ok(Reply::Opening {
        head: head.with(HeaderName::from_static(SESSION_HEADER), value),
        body,
        session: unclaimed,
    })
}

fn served(caller: &Caller, version: ProtocolVersion) -> bool {
    caller.profile.supports(version)
}

/// Ends the server's session when a client ends the gateway's session. The gateway's session ends whatever the server responds.
pub(super) fn end(
    core: &Arc<Core>,
    caller: &Caller,
    namespace: &Arc<Namespace>,
    session: &Arc<Session>,
) {
    if let Some(up) = PassThroughContext::new(core, caller, namespace) {
        up.end_at_server(session);
    }
}

/// Returns true if requests of this method count for limits, wait in the queue and are recorded.
fn is_recorded(method: &str) -> bool {
    !matches!(method, "ping" | "initialize" | "server/discover")
}

/// Returns the facts by which the engine admits and records a call.
fn facts(
    cx: &CallContext<'_>,
    method: &str,
    members: &Members<'_>,
) -> Result<CallFacts, RequestError> {
    let named = RequestSubject::read(method, members)?;
    let arguments = named.arguments.map(str::as_bytes);
    let arguments = arguments.map_or_else(Bytes::new, |raw| cx.own(raw));
    Ok(cx.facts(Name::of(method), named.subject, arguments))
}
