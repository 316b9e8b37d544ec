//! Running calls of a session. They are found by request id, so that a client can cancel a call.
//!
//! The number of calls needs no separate bound, because the bounds on the calls of a namespace apply: a call runs or waits in
//! its gate (`max_concurrency` and `queue` calls), or it waits for its client with one of the `max_parked` permits. Any other
//! call is refused immediately. Waits for tasks pass no gate: a further wait is refused according to [`InFlightCalls::waits`].

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::AbortHandle;

use super::{Session, SessionState};

/// The running calls by request id, each with the handle that stops it.
#[derive(Debug, Default)]
pub struct InFlightCalls {
    /// Entries of the running calls. There are usually few, for which a list is smaller than a map. The lock is never held across
    /// an await.
    calls: Mutex<CallRegistry>,
}

#[derive(Debug, Default)]
struct CallRegistry {
    next: u64,
    running: Vec<InFlightEntry>,
}

#[derive(Debug)]
struct InFlightEntry {
    number: u64,
    /// Id of the request, as raw JSON.
    id: Box<str>,
    handle: AbortHandle,
    notice: Arc<dyn CancelNotice>,
}

/// Observer of a client's cancellation of its call; notified before the call is stopped.
pub trait CancelNotice: Send + Sync {
    /// Handles the client's complete `notifications/cancelled`. Must not block.
    fn cancelled(&self, _message: &str) {}

    /// Returns true if the call must be stopped by the gateway. If false, the upstream that runs the call handles the
    /// cancellation, and [`Self::cancelled`] is not called. Must not block.
    fn stops(&self) -> bool {
        true
    }

    /// Returns true if the session is in use while the call runs, so that it does not expire.
    fn keeps_session(&self) -> bool {
        true
    }

    /// Returns true if the request is no call, but waits for the end of a task.
    fn is_wait(&self) -> bool {
        false
    }
}

/// Observer that ignores cancellations.
#[cfg(any(test, feature = "testing"))]
pub struct NoNotice;

#[cfg(any(test, feature = "testing"))]
impl CancelNotice for NoNotice {}

impl fmt::Debug for dyn CancelNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CancelNotice")
    }
}

/// A call's entry among the running calls of its session. Dropping it removes the call and marks the session as used.
#[derive(Debug)]
pub struct InFlightCall {
    session: Arc<Session>,
    number: u64,
}

impl InFlightCalls {
    /// Registers a call under the raw JSON of its request id. A second call with the same id is accepted; a cancellation then
    /// stops the newer one.
    pub fn enter(
        session: &Arc<Session>,
        id: &str,
        handle: AbortHandle,
        notice: Arc<dyn CancelNotice>,
    ) -> InFlightCall {
        let mut calls = session.in_flight.lock();
        let number = calls.next;
        calls.next += 1;
        // If the session was closed before the call was registered, closing it has not cancelled this call.
        if session.state() == SessionState::Closed {
            handle.abort();
        }
        calls.running.push(InFlightEntry {
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

    /// Stops the newest call of this request id, and passes the client's complete notification to the call's observer. Returns
    /// true if a call was stopped. An unknown id is no error, since the call may have been answered already.
    pub fn cancel(&self, id: &str, message: &str) -> bool {
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

    /// Number of running requests; registered notifications and streams have no id and are not counted.
    pub fn requests(&self) -> usize {
        let calls = self.lock();
        calls.running.iter().filter(|it| !it.id.is_empty()).count()
    }

    /// Number of requests that wait for the end of a task.
    pub fn waits(&self) -> usize {
        let calls = self.lock();
        calls
            .running
            .iter()
            .filter(|it| it.notice.is_wait())
            .count()
    }

    /// Returns true if a running call keeps the session in use.
    pub(super) fn keep_session(&self) -> bool {
        let calls = self.lock();
        calls.running.iter().any(|call| call.notice.keeps_session())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CallRegistry> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlightCall {
    /// Returns true unless the call's session has ended.
    pub fn is_of_open_session(&self) -> bool {
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
