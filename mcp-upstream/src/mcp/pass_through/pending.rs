//! Resources of a message in pass-through mode, held until its response has been forwarded.

use std::future::{Pending as Never, pending};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use http::{HeaderMap, StatusCode};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_sessions::call_error::CallCause;
use tooldock_sessions::session::in_flight::InFlightCall;
use tooldock_sessions::session::{CancelNotice, InFlightCalls, Session, SessionState};
use tooldock_workers::registry::Namespace;
use tooldock_workers::remote::BackendId;

use super::affinity::told;
use super::failure::PassThroughFailure;
use super::resume::EventIds;
use super::up::{Up, Way};
use crate::engine::{CallSecrets, PassedCall, timed_out};
use crate::protocol::Era;
use crate::reply::Reply;
use crate::upstream::http::port::Departure;

/// A message that was passed to the server and whose answer is awaited or being passed on.
pub(super) struct PendingMessage {
    namespace: Arc<Namespace>,
    era: Era,
    /// The id of a request, as raw JSON; `None` for other messages.
    id: Option<Box<str>>,
    /// The engine's record of the call, until its end is recorded.
    call: Option<Box<PassedCall>>,
    /// The backend whose response is forwarded, once it has responded.
    backend: Option<BackendId>,
    deadline: Instant,
    max: u64,
    /// True once the client was asked, and the deadline was extended.
    asked: bool,
    stay: Option<InFlightGuard>,
    /// Cancels the request at the server if its client disconnects; `None` once the response has arrived.
    cancel: Option<Cancel>,
    /// The event ids of the session.
    events: Option<Arc<EventIds>>,
    /// The secrets to hide in the server's failures.
    secrets: CallSecrets,
}

/// Guard that, when dropped, sends a server the cancellation of a session's request. For a server of 2026-07-28 the closed
/// connection is the cancellation.
struct Cancel {
    way: Way,
    headers: Arc<HeaderMap>,
    principal: Option<Arc<str>>,
    session: Arc<Session>,
    id: Box<str>,
    departure: Departure,
    wanted: bool,
}

impl Drop for Cancel {
    fn drop(&mut self) {
        let (Some(at), Ok(runtime)) = (self.session.affinity(), Handle::try_current()) else {
            return;
        };
        if !self.wanted || at.session.is_none() || self.session.state() == SessionState::Closed {
            return;
        }
        // The server has not got the request, and will not.
        if self.departure.give_up() {
            return;
        }
        let params = format!(
            r#"{{"requestId":{},"reason":"nobody waits for the answer any more"}}"#,
            self.id
        );
        let body =
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
        let own = (&self.headers, self.principal.as_ref());
        let told = |it| told(it, own, &at, body.into());
        let Some((backend, request)) = self.way.backends().as_deref().and_then(told) else {
            return;
        };
        runtime.spawn(timeout(TELL, async move {
            let _ = backend.send(request).await;
        }));
    }
}

/// Time limit for sending a cancellation to a server.
const TELL: Duration = Duration::from_secs(5);

/// A message's registration in its session: it marks the session as in use, and resolves when the session ends.
pub(super) struct InFlightGuard {
    entry: InFlightCall,
    ended: Abortable<Never<()>>,
    departure: Departure,
}

/// Handler of the client's `notifications/cancelled`: the notification is forwarded after its request, and stops a request that
/// was not sent yet.
struct PassedOn(Departure);

impl CancelNotice for PassedOn {
    fn stops(&self) -> bool {
        self.0.give_up()
    }
}

impl InFlightGuard {
    /// Registers a message with its session. `id` is the raw JSON id of a request; `None` for other messages.
    pub(super) fn enter(session: &Arc<Session>, id: Option<&str>) -> Self {
        let (handle, registration) = AbortHandle::new_pair();
        let id = id.unwrap_or_default();
        let departure = Departure::default();
        let notice = Arc::new(PassedOn(departure.clone()));
        Self {
            entry: InFlightCalls::enter(session, id, handle, notice),
            ended: Abortable::new(pending(), registration),
            departure,
        }
    }

    /// Resolves when the session ends, or when the message is cancelled before it was sent. Returns the reason why there is no
    /// response.
    pub(super) async fn ended(&mut self) -> PassThroughFailure {
        let _ = (&mut self.ended).await;
        match self.entry.is_of_open_session() {
            true => PassThroughFailure::Refused(cancelled()),
            false => PassThroughFailure::SessionEnded,
        }
    }

    /// Switch that can stop the message before it is sent.
    pub(super) fn departure(&self) -> Departure {
        self.departure.clone()
    }
}

fn cancelled() -> CallError {
    CallError::new(CallErrorCode::Cancelled, "The call was cancelled")
}

impl PendingMessage {
    /// Creates the resources of a message, and registers it with its session if it has one. Boxed: it is moved through many
    /// futures on the way to its response, and each would copy all of it.
    pub(super) fn new(
        up: &Up<'_>,
        era: Era,
        id: Option<&str>,
        call: Option<Box<PassedCall>>,
        in_session: Option<(&Arc<Session>, InFlightGuard)>,
    ) -> Box<Self> {
        let (session, stay) = in_session.unzip();
        let namespace = up.namespace;
        let limits = &namespace.limits;
        let departure = stay
            .as_ref()
            .map(InFlightGuard::departure)
            .unwrap_or_default();
        let cancel = session.zip(id).map(|(session, id)| Cancel {
            departure,
            way: up.way.clone(),
            headers: Arc::clone(&up.headers),
            principal: up.principal.clone(),
            session: Arc::clone(session),
            id: id.into(),
            wanted: true,
        });
        let deadline = call.as_deref().map(PassedCall::deadline);
        let max = call.as_deref().map(PassedCall::max_result);
        Box::new(Self {
            namespace: Arc::clone(namespace),
            era,
            id: id.map(Into::into),
            call,
            backend: None,
            deadline: deadline.unwrap_or_else(|| Instant::now() + limits.timeout),
            max: max.unwrap_or_else(|| limits.max_result.as_u64()),
            asked: false,
            stay,
            cancel,
            events: session.map(|session| up.events_of(session)),
            secrets: CallSecrets::new(&up.core.registry, namespace, up.principal.as_ref()),
        })
    }

    /// The id of a request, as raw JSON.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The secrets of the namespace and caller, which the server may quote.
    pub(super) fn secrets(&self) -> &CallSecrets {
        &self.secrets
    }

    /// Switch that can stop the message before it is sent.
    pub(super) fn departure(&self) -> Option<Departure> {
        self.stay.as_ref().map(InFlightGuard::departure)
    }

    /// Deadline of the complete response.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Maximum size of the answer, in bytes.
    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// The error of a message that was not answered in time.
    pub(super) fn timed_out(&self) -> CallError {
        let limit = self.call.as_deref().map(PassedCall::limit);
        timed_out(limit.unwrap_or(self.namespace.limits.timeout))
    }

    /// Resolves as [`InFlightGuard::ended`], and never without a session.
    pub(super) async fn ended(&mut self) -> PassThroughFailure {
        match &mut self.stay {
            Some(stay) => stay.ended().await,
            None => pending().await,
        }
    }

    /// Records the backend whose response is forwarded.
    pub(super) fn answered_by(&mut self, backend: BackendId) {
        self.backend = Some(backend);
    }

    /// Extends the deadline, since the server asked its client. Only the first question extends it, so that a server that keeps
    /// asking does not hold the call's permit for ever.
    pub(super) fn asked(&mut self) {
        if !std::mem::replace(&mut self.asked, true) {
            self.deadline += self.namespace.limits.ask_timeout;
        }
    }

    /// Records that the client can resume from this event id: a client that disconnects may still resume and get the response.
    pub(super) fn may_be_resumed(&mut self, id: &[u8]) {
        if let Some(events) = &self.events {
            events.note(id);
        }
        self.is_over();
    }

    /// Prevents the cancellation to the server on drop.
    fn is_over(&mut self) {
        if let Some(cancel) = &mut self.cancel {
            cancel.wanted = false;
        }
    }

    /// Records that the server answered the call, counted as `status`. Only the first call has an effect.
    pub(super) fn finish(&mut self, status: &'static str) {
        self.end(Ok(status), None, None);
    }

    /// Records that the server answered the call with this message, counted as `status`.
    pub(super) fn answered(&mut self, status: &'static str, message: &[u8]) {
        let cause = (status != "ok").then(|| CallCause::said(status, message));
        self.end(Ok(status), cause.flatten(), None);
    }

    /// Records that the server did not answer the call. `sent`: the HTTP status that the client gets.
    pub(super) fn failed(&mut self, failure: &PassThroughFailure, sent: Option<StatusCode>) {
        let cause = self
            .call
            .is_some()
            .then(|| failure.cause(&self.namespace.name, self.backend.as_ref()));
        self.end(Err(failure.code()), cause, sent);
    }

    fn end(
        &mut self,
        outcome: Result<&'static str, CallErrorCode>,
        cause: Option<CallCause>,
        sent: Option<StatusCode>,
    ) {
        match outcome {
            // The server still works on the request, so it gets a cancellation.
            Err(CallErrorCode::ExecutionTimeout) => {
                if let Some(cancel) = &mut self.cancel {
                    cancel.wanted = true;
                }
                self.cancel = None;
            }
            _ => self.is_over(),
        }
        if let Some(call) = self.call.take() {
            call.finish(outcome, cause, sent);
        }
    }

    /// The failure as a JSON-RPC message.
    pub(super) fn message(&self, failure: &PassThroughFailure) -> Vec<u8> {
        failure.body(&self.namespace.name, self.era, self.id.as_deref())
    }

    /// Ends the message with the failure, before any of an answer was passed on.
    pub(super) fn fail(mut self: Box<Self>, failure: &PassThroughFailure) -> Reply {
        let reply = failure.reply(&self.namespace.name, self.era, self.id.as_deref());
        self.failed(failure, Some(reply.head().status));
        reply
    }
}
