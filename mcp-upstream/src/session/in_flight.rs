//! The calls running in a session, so that the client can cancel one by its request id.
//!
//! No bound of its own: what bounds the calls of a namespace bounds the entries. A call runs or waits in its gate
//! (`max_concurrency` and `queue` calls), or it asks its client and holds one of the `max_parked` places until it runs
//! again; one that finds none of these is refused at once.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::AbortHandle;

use super::{Session, SessionState};

/// Request id → the handle that stops the call.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// A handful of entries: a list is smaller than a map. Guards plain data; nothing awaits under it.
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    next: u64,
    running: Vec<Running>,
}

#[derive(Debug)]
struct Running {
    number: u64,
    /// The request's, raw JSON.
    id: Box<str>,
    handle: AbortHandle,
    notice: Arc<dyn CancelNotice>,
}

/// Hears how a client cancels its call, before the call is stopped.
pub(crate) trait CancelNotice: Send + Sync {
    /// The client's whole `notifications/cancelled`. Must not block.
    fn cancelled(&self, _message: &str) {}

    /// Whether the call is to be stopped here. If not, the cancellation is for whoever runs the call, and this notice is
    /// told nothing. Must not block.
    fn stops(&self) -> bool {
        true
    }
}

/// Tells nobody.
#[cfg(test)]
pub(crate) struct NoNotice;

#[cfg(test)]
impl CancelNotice for NoNotice {}

impl fmt::Debug for dyn CancelNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CancelNotice")
    }
}

/// A call's place in the table; dropping it takes it out and marks the session as used.
#[derive(Debug)]
pub(crate) struct InFlightCall {
    session: Arc<Session>,
    number: u64,
}

impl InFlight {
    /// Enters a call under the raw JSON of its request id. A second call under the same id is let in; cancelling hits
    /// the newest.
    pub(crate) fn enter(
        session: &Arc<Session>,
        id: &str,
        handle: AbortHandle,
        notice: Arc<dyn CancelNotice>,
    ) -> InFlightCall {
        let mut calls = session.in_flight.lock();
        let number = calls.next;
        calls.next += 1;
        // A session that ended meanwhile has cancelled what it knew of; this call it did not.
        if session.state() == SessionState::Closed {
            handle.abort();
        }
        calls.running.push(Running {
            number,
            id: id.into(),
            handle,
            notice,
        });
        InFlightCall {
            session: Arc::clone(session),
            number,
        }
    }

    /// Stops the newest call of that request id, with the client's whole notification, and says whether it did. Unknown ids
    /// are fine: the answer may have been faster.
    pub(crate) fn cancel(&self, id: &str, message: &str) -> bool {
        let newest = {
            let calls = self.lock();
            let newest = calls.running.iter().rev().find(|call| *call.id == *id);
            newest.map(|call| (call.handle.clone(), call.notice.clone()))
        };
        let newest = newest.filter(|(_, notice)| notice.stops());
        if let Some((handle, notice)) = &newest {
            notice.cancelled(message);
            handle.abort();
        }
        newest.is_some()
    }

    /// Stops all calls.
    pub(super) fn cancel_all(&self) {
        for call in &self.lock().running {
            call.handle.abort();
        }
    }

    /// How many requests are running; notifications and streams that have a place here have no id.
    pub(crate) fn requests(&self) -> usize {
        let calls = self.lock();
        calls.running.iter().filter(|it| !it.id.is_empty()).count()
    }

    /// Whether nothing is running.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().running.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlightCall {
    /// Whether the call's session is not over.
    pub(crate) fn is_of_open_session(&self) -> bool {
        self.session.state() != SessionState::Closed
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        self.session
            .in_flight
            .lock()
            .running
            .retain(|call| call.number != self.number);
        self.session.touch(tokio::time::Instant::now());
    }
}
