//! What a message holds while it waits for its answer, and while the answer is on its way.

use std::future::{Pending as Never, pending};
use std::sync::Arc;

use futures_util::future::{AbortHandle, Abortable};
use tokio::time::Instant;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::registry::Namespace;

use super::failure::Failure;
use crate::engine::{PassedCall, timed_out};
use crate::protocol::Era;
use crate::reply::Reply;
use crate::session::in_flight::InFlightCall;
use crate::session::{CancelNotice, InFlight, Session};

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
}

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
        namespace: &Arc<Namespace>,
        era: Era,
        id: Option<&str>,
        call: Option<PassedCall>,
        session: Option<&Arc<Session>>,
    ) -> Self {
        let limits = &namespace.limits;
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

    /// Records the end of the call, once.
    pub(super) fn finish(&mut self, outcome: Result<&'static str, CallErrorCode>) {
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
