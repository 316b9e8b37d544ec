//! Long streams of a server: the general stream of a session (GET), and `subscriptions/listen`.
//!
//! The edge handles these streams like the gateway's own, so that an idle stream needs little memory, and inserts the gateway's
//! keepalives between the server's events. A task reads the server's stream until its reader disconnects, the session ends or
//! the server's stream ends. If the server aborts its stream, or the session moves to another backend, the client's stream is
//! aborted too; the client reconnects and gets a stream from the current backend.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use tokio::time::timeout;
use tooldock_engine::engine::{CallSecrets, timed_out};
use tooldock_engine::upstream::CallContext;
use tooldock_servers::http::port::{BackendResponse, ResponseBody};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::session::Session;
use tooldock_sessions::stream::open::OpenKind;
use tooldock_sessions::stream::{Role, Stream, StreamPermit};
use tooldock_workers::registry::Namespace;

use super::events::{self, Splitter};
use super::failure::PassThroughFailure;
use super::headers::{self, BodyKind};
use super::pending::InFlightGuard;
use super::resume::EventIds;
use super::up::{Outgoing, PassThroughContext};
use super::{answer, tap};
use crate::jsonrpc::RequestError;
use crate::mcp::head::McpHead;
use crate::mcp::{Core, stream_place};
use crate::protocol::Era;
use crate::reply::{Head, Reply};

/// Maximum size of an event of a long stream, in bytes; a longer event breaks the stream off.
const EVENT_MAX: usize = 1024 * 1024;
/// Maximum duration of one pause in reading from the server, made while the client reads slowly.
const PACE: Duration = Duration::from_secs(5);

/// Opens or resumes the general stream of a session.
pub(in crate::mcp) async fn open(
    core: &Arc<Core>,
    caller: &Caller,
    namespace: &Arc<Namespace>,
    head: &McpHead,
    session: &Arc<Session>,
) -> Result<Reply, RequestError> {
    if !head.accept.sse_named {
        return Err(RequestError::NotAcceptable("text/event-stream"));
    }
    let place = stream_place(core, caller, 0)?;
    let up = PassThroughContext::new(core, caller, namespace);
    let mut up = up.ok_or(RequestError::SessionNotFound)?;
    let ids = up.events_of(session);
    let place_in_stream = up
        .place_in_stream()
        .filter(|_| head.last_event_id.is_some());
    if !place_in_stream.is_some_and(|it| ids.may_resume(it.as_bytes())) {
        up = up.without_place();
    }
    let what = Outgoing {
        standing: true,
        ..Outgoing::new(Method::GET, Bytes::new())
    };
    let sent = up.in_session(session, &what);
    let stay = InFlightGuard::enter(session, None);
    begin(
        &up,
        Era::Legacy,
        None,
        sent,
        (place, Role::General, Some((stay, ids))),
        caller,
    )
    .await
}

/// Opens the stream of a `subscriptions/listen` request of 2026-07-28.
pub(super) async fn listen(
    up: &PassThroughContext<'_>,
    cx: &CallContext<'_>,
    id: &str,
) -> Result<Reply, RequestError> {
    let place = stream_place(up.core, cx.caller, 0)?;
    let what = Outgoing {
        standing: true,
        ..Outgoing::new(Method::POST, cx.body.clone())
    };
    let sent = async {
        let (_, response) = up.to_any(&what, Vec::new(), up.hash).await?;
        Ok(response)
    };
    let what = (place, Role::Listen, None);
    begin(up, Era::Modern, Some(id), sent, what, cx.caller).await
}

/// A stream's registration in its session, and the session's record of event ids.
type SessionStream = (InFlightGuard, Arc<EventIds>);

/// Waits for the head of the server's stream and starts to forward the stream to the client.
async fn begin(
    up: &PassThroughContext<'_>,
    era: Era,
    id: Option<&str>,
    sent: impl Future<Output = Result<BackendResponse, PassThroughFailure>>,
    (place, role, of_session): (StreamPermit, Role, Option<SessionStream>),
    caller: &Caller,
) -> Result<Reply, RequestError> {
    let limit = up.namespace.limits.timeout;
    let sent = timeout(limit, sent).await;
    let sent = sent.unwrap_or_else(|_| Err(PassThroughFailure::Refused(timed_out(limit))));
    let name = &up.namespace.name;
    let mut response = match sent {
        Ok(response) => response,
        Err(failure) => return Ok(failure.reply(name, era, id)),
    };
    let kind = headers::kind(&response.headers);
    let mut head = Head::new(response.status);
    head.headers = headers::for_client(&response.headers);
    match (response.status, kind) {
        (StatusCode::OK, BodyKind::Events) => {}
        // A server answers GET with 405 if it has no general stream. The status is forwarded, since clients can handle it.
        (StatusCode::METHOD_NOT_ALLOWED, _) if id.is_none() => {
            head.headers
                .retain(|(name, _)| *name == http::header::ALLOW);
            return Ok(Reply::Full {
                head,
                body: Bytes::new(),
            });
        }
        _ => {
            // The server answered with a message instead of a stream.
            let whole = match answer::judged(&response, kind, true) {
                Ok(()) => {
                    let deadline = tokio::time::Instant::now() + limit;
                    answer::whole(&mut response, deadline, limit, EVENT_MAX).await
                }
                Err(failure) => Err(failure),
            };
            return Ok(match whole {
                Ok((body, _)) => Reply::Full { head, body },
                Err(failure) => failure.reply(name, era, id),
            });
        }
    }
    answer::unbuffered(&mut head);
    let stream = Stream::passing(&up.core.keep_alive, role);
    let events = stream.read();
    let principal = caller.principal.as_ref();
    let open = &up.core.open_streams;
    let listed = open.enter(OpenKind::PassedThrough, name, principal, &stream);
    // The task ends when the client disconnects, when the session ends, or when the server's stream ends.
    let secrets = CallSecrets::new(
        &up.core.registry,
        up.namespace,
        up.sender.principal.as_ref(),
    );
    tokio::spawn(pump(response.body, stream, of_session, secrets));
    Ok(Reply::Events {
        head,
        events,
        guards: vec![Box::new(place), Box::new(listed)],
    })
}

/// Guard that aborts the client's stream when dropped, unless the stream was finished before.
struct BreakOffGuard(Arc<Stream>);

impl Drop for BreakOffGuard {
    fn drop(&mut self) {
        self.0.break_off();
    }
}

/// Hides secrets in an event, unless the event contains a successful answer or a request to the client.
fn hide_secrets(event: Bytes, secrets: &CallSecrets) -> Bytes {
    if secrets.are_none() {
        return event;
    }
    let said = match events::fields(&event).data {
        Some(data) => tap::read(&data, None),
        None => return event,
    };
    answer::without_secrets(event, said, secrets)
}

/// Forwards the server's events to the client's stream until one side ends.
async fn pump(
    mut body: Box<dyn ResponseBody>,
    stream: Arc<Stream>,
    of_session: Option<SessionStream>,
    secrets: CallSecrets,
) {
    let unfinished = BreakOffGuard(Arc::clone(&stream));
    let mut splitter = Splitter::default();
    let (mut stay, ids) = of_session.unzip();
    let end = ids.as_ref().map(|ids| ids.end_at_server());
    loop {
        let ended = async {
            match &mut stay {
                Some(stay) => drop(stay.ended().await),
                None => pending().await,
            }
        };
        let moved = async {
            match ids.as_deref().zip(end) {
                Some((ids, end)) => ids.moves_from(end).await,
                None => pending().await,
            }
        };
        // `ended`: the session has ended. `moved`: the session was moved to another backend. `reader_gone`: the client
        // disconnected. `chunk`: a piece of the server's stream, its end, or an error.
        let piece = tokio::select! { biased;
            () = ended => {
                stream.finish();
                break;
            }
            () = moved => return,
            () = stream.reader_gone() => return,
            piece = body.chunk() => piece,
        };
        match piece {
            Ok(Some(piece)) => splitter.push(&piece),
            // The connection may have been cut within the event, so the client's stream is aborted.
            Ok(None) if splitter.pending() > 0 && body.may_be_cut() => return,
            // The server ended its stream properly. An incomplete event at the end is dropped.
            Ok(None) => {
                stream.finish();
                break;
            }
            Err(error) => {
                tracing::debug!(%error, "a server's stream broke off");
                return;
            }
        }
        while let Some(event) = splitter.next() {
            if let Some(ids) = &ids {
                ids.note_event(&event);
            }
            if !stream.push(hide_secrets(event, &secrets)) {
                return;
            }
        }
        if splitter.pending() > EVENT_MAX {
            tracing::warn!("a server's stream was broken off: an event has more than 1 MiB");
            return;
        }
        stream.wait_for_reader(PACE).await;
    }
    drop(unfinished);
}
