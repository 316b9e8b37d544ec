//! Resources of a message in pass-through mode, which are kept until its response has been forwarded.

use std::future::{Pending as Never, pending};
use std::sync::Arc;

use futures_util::future::{AbortHandle, Abortable};
use http::{Method, StatusCode};
use tokio::time::Instant;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_engine::engine::{CallSecrets, PassedCall, timed_out};
use tooldock_servers::http::port::SendRecord;
use tooldock_sessions::call_error::CallCause;
use tooldock_sessions::session::in_flight::InFlightCall;
use tooldock_sessions::session::{CancelNotice, InFlightCalls, Session, SessionState};
use tooldock_workers::registry::Namespace;
use tooldock_workers::remote::BackendId;

use super::failure::PassThroughFailure;
use super::resume::EventIds;
use super::up::{ClientSender, PassThroughContext};
use crate::mcp::call;
use crate::protocol::Era;
use crate::reply::Reply;

/// A message that was sent to the server, from sending until its answer has been forwarded.
pub(super) struct PendingMessage {
    namespace: Arc<Namespace>,
    era: Era,
    /// The raw JSON id of the client's request; `None` if the message is not a request.
    id: Option<Box<str>>,
    /// The engine's record of the call; `None` once the end of the call is recorded.
    call: Option<Box<PassedCall>>,
    /// The backend that responded; `None` until then.
    backend: Option<BackendId>,
    deadline: Instant,
    max: u64,
    /// True once the server has sent a request to the client. The deadline was extended then.
    asked: bool,
    stay: Option<InFlightGuard>,
    /// Guard that cancels the request at the server if the client disconnects; `None` once no cancellation is needed.
    cancel: Option<Cancel>,
    /// The session's record of event ids from which the client can resume.
    events: Option<Arc<EventIds>>,
    /// The secrets to hide in the server's error messages.
    secrets: CallSecrets,
}

/// Guard that, when dropped, cancels a session's request at the server. Servers of 2026-07-28 need no such message: they take
/// the closed connection as the cancellation.
struct Cancel {
    sender: ClientSender,
    session: Arc<Session>,
    id: Box<str>,
    send_record: SendRecord,
    wanted: bool,
}

impl Drop for Cancel {
    fn drop(&mut self) {
        let Some(at) = self.session.affinity() else {
            return;
        };
        if !self.wanted || at.session.is_none() || self.session.state() == SessionState::Closed {
            return;
        }
        // The request was not sent to the server yet and is stopped here, so there is nothing to cancel.
        if self.send_record.give_up() {
            return;
        }
        let params = format!(
            r#"{{"requestId":{},"reason":"nobody waits for the answer any more"}}"#,
            self.id
        );
        let body =
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
        let session = at.session.as_deref();
        let request = self.sender.request(Method::POST, session, body.into());
        self.sender.send_in_background(&at, request);
    }
}

/// Registration of a message in its session. The session counts as in use while it exists, and `ended` resolves when the
/// session ends.
pub(super) struct InFlightGuard {
    entry: InFlightCall,
    ended: Abortable<Never<()>>,
    send_record: SendRecord,
}

/// Handler of the client's `notifications/cancelled`. A request that was not sent yet is stopped; otherwise the notification is
/// forwarded to the server.
struct CancelForwarder(SendRecord);

impl CancelNotice for CancelForwarder {
    fn stops(&self) -> bool {
        self.0.give_up()
    }
}

impl InFlightGuard {
    /// Registers a message with its session. `id` is the raw JSON id of a request; `None` for other messages.
    pub(super) fn enter(session: &Arc<Session>, id: Option<&str>) -> Self {
        let (handle, registration) = AbortHandle::new_pair();
        let id = id.unwrap_or_default();
        let send_record = SendRecord::default();
        let notice = Arc::new(CancelForwarder(send_record.clone()));
        Self {
            entry: InFlightCalls::enter(session, id, handle, notice),
            ended: Abortable::new(pending(), registration),
            send_record,
        }
    }

    /// Waits until the session ends, or until the client cancels the message before it was sent. Returns the reason why there is
    /// no response.
    pub(super) async fn ended(&mut self) -> PassThroughFailure {
        let _ = (&mut self.ended).await;
        match self.entry.is_of_open_session() {
            true => PassThroughFailure::Refused(call::cancelled()),
            false => PassThroughFailure::SessionEnded,
        }
    }

    /// Returns the switch that can stop the message before it is sent.
    pub(super) fn send_record(&self) -> SendRecord {
        self.send_record.clone()
    }
}

impl PendingMessage {
    /// Creates the resources of a message, and registers it in its session if it has one. The value is boxed, since it is moved
    /// through many futures until the response, and each move would copy all of it.
    pub(super) fn new(
        up: &PassThroughContext<'_>,
        era: Era,
        id: Option<&str>,
        call: Option<Box<PassedCall>>,
        in_session: Option<(&Arc<Session>, InFlightGuard)>,
    ) -> Box<Self> {
        let (session, stay) = in_session.unzip();
        let namespace = up.namespace;
        let limits = &namespace.limits;
        let send_record = stay
            .as_ref()
            .map(InFlightGuard::send_record)
            .unwrap_or_default();
        let cancel = session.zip(id).map(|(session, id)| Cancel {
            send_record,
            sender: up.sender.clone(),
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
            secrets: CallSecrets::new(&up.core.registry, namespace, up.sender.principal.as_ref()),
        })
    }

    /// Returns the raw JSON id of the client's request; `None` if the message is not a request.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns the secrets of the namespace and the caller, which must be hidden if the server repeats them in an error.
    pub(super) fn secrets(&self) -> &CallSecrets {
        &self.secrets
    }

    /// Returns the switch that can stop the message before it is sent; `None` for a message without a session.
    pub(super) fn send_record(&self) -> Option<SendRecord> {
        self.stay.as_ref().map(InFlightGuard::send_record)
    }

    /// Returns the time by which the response must be complete.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the maximum size of the server's answer, in bytes.
    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// Returns the error for a message that was not answered in time.
    pub(super) fn timed_out(&self) -> CallError {
        let limit = self.call.as_deref().map(PassedCall::limit);
        timed_out(limit.unwrap_or(self.namespace.limits.timeout))
    }

    /// Waits until the session ends, or until the client cancels the message before it was sent. Never resolves for a message
    /// without a session.
    pub(super) async fn ended(&mut self) -> PassThroughFailure {
        match &mut self.stay {
            Some(stay) => stay.ended().await,
            None => pending().await,
        }
    }

    /// Records the backend that responded.
    pub(super) fn answered_by(&mut self, backend: BackendId) {
        self.backend = Some(backend);
    }

    /// Extends the deadline because the server sent a request to the client. Only the first such request extends it, so that a
    /// server that keeps sending requests does not occupy the call's permit for ever.
    pub(super) fn asked(&mut self) {
        if !std::mem::replace(&mut self.asked, true) {
            self.deadline += self.namespace.limits.ask_timeout;
        }
    }

    /// Records an event id from which the client can resume. From then on a disconnect does not cancel the request, since the
    /// client may resume and get the response.
    pub(super) fn may_be_resumed(&mut self, id: &[u8]) {
        if let Some(events) = &self.events {
            events.note(id);
        }
        self.is_over();
    }

    /// Marks the request as finished: if the client disconnects later, no cancellation is sent to the server.
    fn is_over(&mut self) {
        if let Some(cancel) = &mut self.cancel {
            cancel.wanted = false;
        }
    }

    /// Records that the server answered the call. `status`: the outcome under which the call is counted. Later calls of this
    /// method have no effect.
    pub(super) fn finish(&mut self, status: &'static str) {
        self.end(Ok(status), None, None);
    }

    /// Records that the server answered the call with this message. `status`: the outcome under which the call is counted.
    pub(super) fn answered(&mut self, status: &'static str, message: &[u8]) {
        let cause = (status != "ok").then(|| CallCause::from_answer(status, message));
        self.end(Ok(status), cause.flatten(), None);
    }

    /// Records that the call failed without an answer of the server. `sent`: the HTTP status that the client gets.
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
            // The server still works on a request that timed out, so a cancellation is sent when the message is dropped.
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

    /// Returns the failure as a JSON-RPC error response.
    pub(super) fn message(&self, failure: &PassThroughFailure) -> Vec<u8> {
        failure.body(&self.namespace.name, self.era, self.id.as_deref())
    }

    /// Ends the message with a failure, and returns the reply to the client. No byte of an answer may have been forwarded yet.
    pub(super) fn fail(mut self: Box<Self>, failure: &PassThroughFailure) -> Reply {
        let reply = failure.reply(&self.namespace.name, self.era, self.id.as_deref());
        self.failed(failure, Some(reply.head().status));
        reply
    }
}
