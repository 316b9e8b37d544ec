//! What a message holds while it waits for its answer, and while the answer is on its way.

use std::future::{Pending as Never, pending};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use http::HeaderMap;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::registry::Namespace;

use super::affinity::told;
use super::failure::Failure;
use super::resume::EventIds;
use super::up::{Up, Way};
use crate::engine::{PassedCall, timed_out};
use crate::protocol::Era;
use crate::reply::Reply;
use crate::session::in_flight::InFlightCall;
use crate::session::{CancelNotice, InFlight, Session, SessionState};

/// A message on its way.
pub(super) struct Pending {
    namespace: Arc<Namespace>,
    era: Era,
    /// The id of a request, raw JSON.
    id: Option<Box<str>>,
    /// What the engine knows of it, until its end is recorded.
    call: Option<PassedCall>,
    deadline: Instant,
    max: u64,
    /// The client was asked something, and got the time for it.
    asked: bool,
    stay: Option<Stay>,
    /// How the server hears that nobody waits any more, until the answer is there.
    cancel: Option<Cancel>,
    /// The events of its session.
    events: Option<Arc<EventIds>>,
}

/// What it takes to tell a server that a request of a session is given up. Dropped, it does so. A server of 2026-07-28 hears
/// of that by the end of the connection.
struct Cancel {
    way: Way,
    headers: Arc<HeaderMap>,
    session: Arc<Session>,
    id: Box<str>,
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
        let params = format!(
            r#"{{"requestId":{},"reason":"nobody waits for the answer any more"}}"#,
            self.id
        );
        let body =
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
        let told = |it| told(it, &self.headers, &at, body.into());
        let Some((backend, request)) = self.way.backends().as_deref().and_then(told) else {
            return;
        };
        runtime.spawn(timeout(TELL, async move {
            let _ = backend.send(request).await;
        }));
    }
}

/// How long it may take to tell a server that nobody waits any more.
const TELL: Duration = Duration::from_secs(5);

/// A message's place in its session: the session is in use, and its end is the message's.
pub(super) struct Stay {
    _entry: InFlightCall,
    ended: Abortable<Never<()>>,
}

/// A client cancels by its own notification, which is passed on.
struct PassedOn;

impl CancelNotice for PassedOn {}

impl Stay {
    /// Takes a place. `id` is raw JSON; what is not a request has none.
    pub(super) fn enter(session: &Arc<Session>, id: Option<&str>) -> Self {
        let (handle, registration) = AbortHandle::new_pair();
        let id = id.unwrap_or_default();
        Self {
            _entry: InFlight::enter(session, id, handle, Arc::new(PassedOn)),
            ended: Abortable::new(pending(), registration),
        }
    }

    /// Resolves when the session is over.
    pub(super) async fn ended(&mut self) {
        let _ = (&mut self.ended).await;
    }
}

impl Pending {
    /// A message that is about to be passed on.
    pub(super) fn new(
        up: &Up<'_>,
        era: Era,
        id: Option<&str>,
        call: Option<PassedCall>,
        session: Option<&Arc<Session>>,
    ) -> Self {
        let namespace = up.namespace;
        let limits = &namespace.limits;
        let cancel = session.zip(id).map(|(session, id)| Cancel {
            way: up.way.clone(),
            headers: Arc::clone(&up.headers),
            session: Arc::clone(session),
            id: id.into(),
            wanted: true,
        });
        let deadline = call.as_ref().map(PassedCall::deadline);
        let max = call.as_ref().map(PassedCall::max_result);
        Self {
            namespace: Arc::clone(namespace),
            era,
            id: id.map(Into::into),
            call,
            deadline: deadline.unwrap_or_else(|| Instant::now() + limits.timeout),
            max: max.unwrap_or_else(|| limits.max_result.as_u64()),
            asked: false,
            stay: session.map(|session| Stay::enter(session, id)),
            cancel,
            events: session.map(|session| up.events_of(session)),
        }
    }

    /// The id of a request.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// By when the answer must be there.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The most bytes that may be answered.
    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// What the message failed with when it was not answered in time.
    pub(super) fn timed_out(&self) -> CallError {
        let limit = self.call.as_ref().map(PassedCall::limit);
        timed_out(limit.unwrap_or(self.namespace.limits.timeout))
    }

    /// Resolves when the session is over, and never where there is none.
    pub(super) async fn ended(&mut self) {
        match &mut self.stay {
            Some(stay) => stay.ended().await,
            None => pending().await,
        }
    }

    /// The server asks its client something: the client gets the time to answer. It gets it once, so that a server that
    /// goes on asking does not hold the call's place for ever.
    pub(super) fn asked(&mut self) {
        if !std::mem::replace(&mut self.asked, true) {
            self.deadline += self.namespace.limits.ask_timeout;
        }
    }

    /// The client can come back by that id for the answer: that it goes away does not mean that it waits no more.
    pub(super) fn may_be_resumed(&mut self, id: &[u8]) {
        if let Some(events) = &self.events {
            events.note(id);
        }
        self.is_over();
    }

    /// Whoever goes away now waits for nothing.
    fn is_over(&mut self) {
        if let Some(cancel) = &mut self.cancel {
            cancel.wanted = false;
        }
    }

    /// Records the end of the call, once.
    pub(super) fn finish(&mut self, outcome: Result<&'static str, CallErrorCode>) {
        match outcome {
            // The server still works on it.
            Err(CallErrorCode::ExecutionTimeout) => {
                if let Some(cancel) = &mut self.cancel {
                    cancel.wanted = true;
                }
                self.cancel = None;
            }
            _ => self.is_over(),
        }
        if let Some(call) = self.call.take() {
            call.finish(outcome);
        }
    }

    /// The failure as a message.
    pub(super) fn message(&self, failure: &Failure) -> Vec<u8> {
        failure.body(&self.namespace.name, self.era, self.id.as_deref())
    }

    /// Nothing was passed on to the client yet: the failure is its answer.
    pub(super) fn fail(mut self, failure: &Failure) -> Reply {
        self.finish(Err(failure.code()));
        failure.reply(&self.namespace.name, self.era, self.id.as_deref())
    }
}
