//! One request on an MCP path, and what it is spoken in: which era, which version, which session.
//!
//! ```text
//!   post ─┬─ modern                      2026-07-28: everything is in the request
//!         └─ initialize, notification, response, batch
//!               └─ methods               what a request means: an answer, or a call of the upstream (`crate::upstream`)
//!                    └─ exchange         how its answer travels: JSON, or a stream of events
//!   get ─── stream                       what the server says outside of answers; resumption
//! ```

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tooldock_workers::registry::Namespace;

use crate::caller::Caller;
use crate::jsonrpc::{Invalid, RequestError};
use crate::protocol::ProtocolVersion;
use crate::reply::Reply;
use crate::session::table::{Created, Located};
use crate::session::{
    Binding, ClientFacts, EndSession, Session, SessionPatch, SessionState, SessionTransport,
};
use crate::stream::{ResumeError, Stream, StreamGuard, StreamKind, Subscription};
pub(crate) use crate::upstream::store_failure;
use crate::upstream::{CallContext, Client, gauge};

pub(crate) mod answer;
pub(crate) mod batch;
mod core;
mod driver;
pub(crate) mod exchange;
mod get;
pub(crate) mod head;
pub(crate) mod initialize;
pub(crate) mod methods;
pub(crate) mod modern;
pub(crate) mod notification;
mod outgoing;
mod post;
pub(crate) mod response;

pub(crate) use core::Core;
pub(crate) use exchange::events_head;
use head::McpHead;

/// Answers a POST.
pub(crate) async fn post(core: &Arc<Core>, caller: &Caller, head: &McpHead, body: &Bytes) -> Reply {
    match post::answer(core, caller, head, body).await {
        Ok(reply) => reply,
        Err(invalid) => refused(caller, invalid),
    }
}

/// Opens or resumes a stream.
pub(crate) async fn get(core: &Arc<Core>, caller: &Caller, head: &McpHead) -> Reply {
    match get::answer(core, caller, head).await {
        Ok(reply) => reply,
        Err(failure) => refused(caller, failure.into()),
    }
}

/// Ends a session (MCP-03).
pub(crate) async fn delete(core: &Arc<Core>, caller: &Caller, head: &McpHead) -> Reply {
    match end_session(core, caller, head).await {
        Ok(()) => Reply::empty(StatusCode::NO_CONTENT),
        Err(failure) => refused(caller, failure.into()),
    }
}

/// A refused message as the answer to its request.
pub(crate) fn refused(caller: &Caller, invalid: Invalid<'_>) -> Reply {
    let Invalid { failure, id } = invalid;
    tracing::debug!(
        request_id = &*caller.request_id,
        code = failure.code(),
        "MCP message refused"
    );
    failure.reply(id)
}

async fn end_session(
    core: &Arc<Core>,
    caller: &Caller,
    head: &McpHead,
) -> Result<(), RequestError> {
    takes_method(caller, head)?;
    let namespace = namespace(core, caller)?;
    let header = header_version(caller, head)?;
    let session = session(core, caller, head, &namespace).await?;
    let session = session.ok_or(RequestError::SessionRequired)?;
    agree(header, Some(&session))?;
    if !forget_session(core, &session).await? {
        return Err(RequestError::SessionNotFound);
    }
    Ok(())
}

/// Opens a session, which may cost its principal older ones.
pub(crate) async fn create_session(
    core: &Core,
    binding: Binding,
    client: Option<ClientFacts>,
) -> Result<Arc<Session>, RequestError> {
    let created = core.sessions.create(binding, client, Instant::now()).await;
    let created = created.map_err(|error| store_failure(&error))?;
    core.metrics.sessions_created.inc();
    core.metrics.sessions_evicted.inc_by(created.evicted as u64);
    core.metrics.sessions.set(gauge(core.sessions.count()));
    Ok(created.session)
}

/// Opens a stream of a session, for the responses to these requests where it is for some. It may cost the session's
/// principal other sessions.
pub(crate) async fn open_stream(
    core: &Core,
    session: &Arc<Session>,
    kind: StreamKind,
    prime: bool,
    owes: &[Box<str>],
) -> Result<Arc<Stream>, RequestError> {
    let opened = core.events.open_owing(session, kind, prime, owes).await;
    let stream = opened.map_err(|error| store_failure(&error))?;
    note_stream(core, session, stream.number()).await;
    Ok(stream)
}

/// Records that a session has a stream of that number. A client is not refused its stream because the store fails.
async fn note_stream(core: &Core, session: &Session, number: u32) {
    let opened = SessionPatch::OpenStream(number);
    if core.changes.commit(session, opened).await.is_err() {
        tracing::error!(
            session = &**session.tag(),
            "a stream is known in this process alone"
        );
    }
}

/// Goes on with a stream of a session behind an event.
pub(crate) async fn resume_stream(
    core: &Core,
    session: &Arc<Session>,
    last_event_id: &str,
) -> Result<Subscription, RequestError> {
    let resumed = core.events.resume(session, last_event_id).await;
    let events = resumed.map_err(|error| match error {
        ResumeError::Malformed | ResumeError::Unknown => RequestError::UnknownEventId,
        ResumeError::Store(error) => store_failure(&error),
    })?;
    // One that was forgotten goes on under another number.
    note_stream(core, session, events.number()).await;
    Ok(events)
}

/// Ends a session that its client is done with. Says whether it was still there.
pub(crate) async fn forget_session(
    core: &Core,
    session: &Arc<Session>,
) -> Result<bool, RequestError> {
    let ended = core.sessions.remove(session.id().as_str()).await;
    let ended = ended.map_err(|error| store_failure(&error))?;
    if ended {
        core.metrics.sessions_deleted.inc();
        core.metrics.sessions.set(gauge(core.sessions.count()));
    }
    Ok(ended)
}

impl EndSession for Core {
    fn end_without_waiting(self: Arc<Self>, session: Arc<Session>) {
        session.close();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                // A store that cannot be asked has said so in the log, and forgets by time.
                let _ = forget_session(&self, &session).await;
            });
        }
    }
}

/// A place for a long stream of the caller's principal, which holds so many bytes beside what is said on it.
pub(crate) fn stream_place(
    core: &Core,
    caller: &Caller,
    bytes: usize,
) -> Result<StreamGuard, RequestError> {
    core.stream_limiter
        .enter(caller.principal.as_ref(), bytes)
        .map_err(|_| RequestError::StreamLimit)
}

/// Settles version and session of a legacy message. For `initialize`, which has neither yet, the version is completed
/// from its body.
async fn open<'a>(
    core: &'a Arc<Core>,
    caller: &'a Caller,
    head: &McpHead,
    body: &'a Bytes,
    initialize: bool,
) -> Result<CallContext<'a>, RequestError> {
    let namespace = namespace(core, caller)?;
    let header = header_version(caller, head)?;
    let session = session(core, caller, head, &namespace).await?;
    let version = agree(header, session.as_ref())?;
    if !initialize {
        if session.is_none() && caller.profile.session_required(version) {
            return Err(RequestError::SessionRequired);
        }
        acceptable(caller, head.accept, version)?;
    }
    let client = match session {
        Some(session) => Client::Session(session),
        None => Client::Legacy(version),
    };
    let streams = head.accept.sse_named;
    Ok(context(core, caller, body, namespace, client, streams))
}

/// The context of a message: its namespace's upstream is looked up here alone.
pub(crate) fn context<'a>(
    core: &'a Core,
    caller: &'a Caller,
    body: &'a Bytes,
    namespace: Arc<Namespace>,
    client: Client,
    streams: bool,
) -> CallContext<'a> {
    CallContext {
        caller,
        body,
        upstream: core.upstreams.of(&namespace),
        namespace,
        client,
        streams,
    }
}

/// The namespace of a request, out of the current snapshot.
pub(crate) fn namespace(core: &Core, caller: &Caller) -> Result<Arc<Namespace>, RequestError> {
    let name = caller
        .namespace
        .as_ref()
        .ok_or(RequestError::NamespaceRequired)?;
    core.registry
        .namespace(name.as_str())
        .ok_or_else(|| RequestError::NamespaceNotFound(name.to_string()))
}

/// Refuses GET and DELETE in the era that has neither streams outside of requests nor sessions.
fn takes_method(caller: &Caller, head: &McpHead) -> Result<(), RequestError> {
    let version = head.version.as_deref().map(str::trim);
    if caller.profile.modern && version == Some(modern::VERSION) {
        return Err(RequestError::MethodNotAllowed);
    }
    Ok(())
}

fn header_version(
    caller: &Caller,
    head: &McpHead,
) -> Result<Option<ProtocolVersion>, RequestError> {
    let Some(text) = &head.version else {
        return Ok(None);
    };
    match text.trim().parse() {
        Ok(version) if caller.profile.supports(version) => Ok(Some(version)),
        _ => Err(unsupported_version(caller)),
    }
}

/// The refusal of a version header the listener does not serve.
pub(crate) fn unsupported_version(caller: &Caller) -> RequestError {
    let supported: Vec<_> = caller.profile.versions.iter().map(|v| v.as_str()).collect();
    RequestError::UnsupportedVersion(supported.join(", "))
}

/// The session the request names, if it names one.
async fn session(
    core: &Core,
    caller: &Caller,
    head: &McpHead,
    namespace: &Namespace,
) -> Result<Option<Arc<Session>>, RequestError> {
    match &head.session {
        Some(id) => find_session(core, caller, id, namespace, SessionTransport::Streamable)
            .await
            .map(Some),
        None => Ok(None),
    }
}

/// A session by its id. Another namespace's, principal's or transport's does not exist here (Q-07).
pub(crate) async fn find_session(
    core: &Core,
    caller: &Caller,
    id: &str,
    namespace: &Namespace,
    transport: SessionTransport,
) -> Result<Arc<Session>, RequestError> {
    let now = Instant::now();
    let located = core.sessions.locate(id, now).await;
    let session = match located.map_err(|error| store_failure(&error))? {
        Located::Absent => return Err(RequestError::SessionNotFound),
        Located::Live(session) => session,
        Located::Adopted(adopted) => take_up(core, adopted),
    };
    let theirs = session.belongs_to(&namespace.name, caller.principal.as_deref())
        && session.binding().transport == transport;
    if !theirs || session.state() == SessionState::Closed {
        return Err(RequestError::SessionNotFound);
    }
    // Only now: a stranger must not keep a session alive.
    session.touch(now);
    Ok(session)
}

/// A session that another process had is this one's now.
fn take_up(core: &Core, adopted: Created) -> Arc<Session> {
    let Created { session, evicted } = adopted;
    core.changes.count_evicted(evicted);
    core.metrics.sessions.set(gauge(core.sessions.count()));
    if session.streams().had_general() {
        core.audience.join(&session);
    }
    session
}

/// The version in force: the session's, which the header must repeat if it is there; else the header's; else the
/// oldest (MCP-10 to MCP-12).
fn agree(
    header: Option<ProtocolVersion>,
    session: Option<&Arc<Session>>,
) -> Result<ProtocolVersion, RequestError> {
    match (session.map(|session| session.version()), header) {
        (Some(own), Some(header)) if own != header => Err(RequestError::VersionMismatch {
            session: own.as_str(),
        }),
        (Some(own), _) => Ok(own),
        (None, header) => Ok(header.unwrap_or(ProtocolVersion::FALLBACK)),
    }
}

fn acceptable(
    caller: &Caller,
    accept: head::AcceptFlags,
    version: ProtocolVersion,
) -> Result<(), RequestError> {
    if accept.satisfy(&caller.profile, version) {
        return Ok(());
    }
    let strict = caller.profile.accept == crate::profile::AcceptRule::Strict
        && version >= ProtocolVersion::V2025_06_18;
    Err(RequestError::NotAcceptable(if strict {
        "application/json and text/event-stream, both by name"
    } else {
        "application/json"
    }))
}

#[cfg(test)]
pub(crate) mod tests;
