//! GET and DELETE on an MCP path: opening and resuming streams, and ending sessions. Also the functions that open and end
//! sessions and their streams for the other methods.

use std::sync::Arc;

use http::StatusCode;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tooldock_engine::upstream::{gauge, store_away, store_failure};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::profile::SessionRule;
use tooldock_sessions::session::table::{OpenedSession, ResumedStream};
use tooldock_sessions::session::{Binding, ClientFacts, EndSession, Session, SessionPatch};
use tooldock_sessions::stream::open::OpenKind;
use tooldock_sessions::stream::{ResumeError, Stream, StreamKind, StreamPermit, Subscription};
use tooldock_workers::registry::Namespace;

use super::head::McpHead;
use super::{
    Core, agree, events_head, header_version, modern, namespace, pass_through, refused, session,
};
use crate::jsonrpc::RequestError;
use crate::reply::Reply;

/// Answers a GET request: opens or resumes a stream.
pub(crate) async fn get(core: &Arc<Core>, caller: &Caller, head: &McpHead) -> Reply {
    match opened(core, caller, head).await {
        Ok(reply) => reply,
        Err(failure) => refused(caller, failure.into()),
    }
}

/// Answers a DELETE request: ends a session (MCP-03).
pub(crate) async fn delete(core: &Arc<Core>, caller: &Caller, head: &McpHead) -> Reply {
    match end_session(core, caller, head).await {
        Ok(()) => Reply::empty(StatusCode::NO_CONTENT),
        Err(failure) => refused(caller, failure.into()),
    }
}

/// Opens the session's general stream (MCP-02), or resumes the stream that `Last-Event-ID` names (MCP-34).
async fn opened(core: &Arc<Core>, caller: &Caller, head: &McpHead) -> Result<Reply, RequestError> {
    takes_method(caller, head)?;
    let namespace = namespace(core, caller)?;
    let header = header_version(caller, head)?;
    let session = session(core, caller, head, &namespace).await?;
    let version = agree(caller, header, session.as_ref())?;
    let Some(session) = session else {
        return alone(core, caller, head, &namespace);
    };
    if pass_through::has_session(&session) {
        return Box::pin(pass_through::stream(
            core, caller, &namespace, head, &session,
        ))
        .await;
    }
    not_lost(core, &namespace, &session).await?;
    if !head.accept.sse_named {
        return Err(RequestError::NotAcceptable("text/event-stream"));
    }
    // The permit is acquired before events are replayed: a client at its limit of streams must not take over an existing stream.
    let place = stream_place(core, caller, 0)?;
    let events = match &head.last_event_id {
        Some(id) => {
            let events = resume_stream(core, &session, id).await?;
            core.upstreams
                .of(&namespace)
                .stream_opened(&namespace, &session);
            events
        }
        None => {
            let prime = version.has_priming_events();
            let stream = open_stream(core, &session, StreamKind::General, prime, &[]).await?;
            core.audience.join(&session);
            core.upstreams
                .of(&namespace)
                .stream_opened(&namespace, &session);
            stream.read()
        }
    };
    Ok(Reply::Events {
        head: events_head(),
        events,
        guards: vec![Box::new(place)],
    })
}

/// Opens a stream that reports changes in a namespace, for a client without a session, on listeners that require none (NSR-10).
/// The stream cannot be resumed.
fn alone(
    core: &Arc<Core>,
    caller: &Caller,
    head: &McpHead,
    namespace: &Namespace,
) -> Result<Reply, RequestError> {
    if caller.profile.session != SessionRule::Optional {
        return Err(RequestError::SessionRequired);
    }
    if !head.accept.sse_named {
        return Err(RequestError::NotAcceptable("text/event-stream"));
    }
    if head.last_event_id.is_some() {
        return Err(RequestError::UnknownEventId);
    }
    let place = stream_place(core, caller, 0)?;
    let stream = Stream::detached(&core.keep_alive);
    let listening = core.audience.join_alone(&namespace.name, &stream);
    let principal = caller.principal.as_ref();
    let listed = core
        .open_streams
        .enter(OpenKind::Listen, &namespace.name, principal, &stream);
    Ok(Reply::Events {
        head: events_head(),
        events: stream.read(),
        guards: vec![Box::new(place), Box::new(listening), Box::new(listed)],
    })
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
    agree(caller, header, Some(&session))?;
    if pass_through::has_session(&session) {
        pass_through::end(core, caller, &namespace, &session);
    }
    if !forget_session(core, &session).await? {
        return Err(RequestError::SessionNotFound);
    }
    Ok(())
}

/// Refuses GET and DELETE from clients of 2026-07-28. That version has no sessions, and its streams are responses to requests.
fn takes_method(caller: &Caller, head: &McpHead) -> Result<(), RequestError> {
    let version = head.version.as_deref().map(str::trim);
    if caller.profile.modern && version == Some(modern::VERSION) {
        return Err(RequestError::MethodNotAllowed);
    }
    Ok(())
}

/// Opens a session, which may evict older sessions of its principal.
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

/// Opens a stream of a session. `kind`: a stream for the responses to requests, or for general messages. Opening it may evict
/// other sessions of the principal.
pub(crate) async fn open_stream(
    core: &Core,
    session: &Arc<Session>,
    kind: StreamKind,
    prime: bool,
    owes: &[Box<str>],
) -> Result<Arc<Stream>, RequestError> {
    let opened = core
        .events
        .open_for_requests(session, kind, prime, owes)
        .await;
    let stream = opened.map_err(|error| store_failure(&error))?;
    note_stream(core, session, stream.number()).await;
    Ok(stream)
}

/// Records the number of a new stream in its session. If the store fails, the client still gets its stream.
async fn note_stream(core: &Core, session: &Session, number: u32) {
    let opened = SessionPatch::OpenStream(number);
    if core.changes.commit(session, opened).await.is_err() {
        tracing::error!(
            session = &**session.tag(),
            "a stream is known in this process alone"
        );
    }
}

/// Resumes the stream of a session after the event with this id, which the client sent as `Last-Event-ID`.
async fn resume_stream(
    core: &Core,
    session: &Arc<Session>,
    last_event_id: &str,
) -> Result<Subscription, RequestError> {
    let resumed = core.sessions.resume(session, last_event_id).await;
    let resumed = resumed.map_err(|error| match error {
        ResumeError::Malformed | ResumeError::Unknown => RequestError::UnknownEventId,
        ResumeError::Store(error) => store_away(&error),
    })?;
    let events = match resumed {
        ResumedStream::Here(events) => events,
        ResumedStream::Elsewhere(replica) => return Err(RequestError::Elsewhere(replica.0)),
    };
    // A stream that is no longer in the log continues under a new number, which is stored in the session.
    note_stream(core, session, events.number()).await;
    Ok(events)
}

/// Ends the session if its state at the upstream was lost; otherwise does nothing. After an end, the client has to begin a new
/// session.
///
/// # Errors
///
/// `SessionNotFound`, if the state was lost.
pub(super) async fn not_lost(
    core: &Core,
    namespace: &Namespace,
    session: &Arc<Session>,
) -> Result<(), RequestError> {
    let facts = core.upstreams.of(namespace).server_facts();
    if !facts.has_lost_session(namespace, session) {
        return Ok(());
    }
    forget_session(core, session).await?;
    Err(RequestError::SessionNotFound)
}

/// Ends a session, and removes its record from the store. Returns true if the session still existed.
pub(crate) async fn forget_session(
    core: &Core,
    session: &Arc<Session>,
) -> Result<bool, RequestError> {
    let ended = core.sessions.remove(session.id().as_str()).await;
    let ended = ended.map_err(|error| store_away(&error))?;
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
                // A failure of the store was logged before. The record that stays there expires.
                let _ = forget_session(&self, &session).await;
            });
        }
    }
}

/// Acquires the permit for one long stream of the caller's principal. `bytes`: memory of the stream without its events.
pub(crate) fn stream_place(
    core: &Core,
    caller: &Caller,
    bytes: usize,
) -> Result<StreamPermit, RequestError> {
    core.stream_limiter
        .enter(caller.principal.as_ref(), bytes)
        .map_err(|_| RequestError::StreamLimit)
}

/// Registers a session that this process took over from another process.
pub(super) fn register_adopted(core: &Core, adopted: OpenedSession) -> Arc<Session> {
    let OpenedSession { session, evicted } = adopted;
    core.changes.count_evicted(evicted);
    core.metrics.sessions.set(gauge(core.sessions.count()));
    if session.streams().had_general() {
        core.audience.join(&session);
    }
    session
}
