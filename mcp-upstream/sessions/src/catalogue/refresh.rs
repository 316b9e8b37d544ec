//! A request for a server's list of tools ("reading") that several callers share and wait for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;

use super::ToolList;

/// Maximum time for which tool calls wait for a reading, from its beginning. After that, a call continues without the list.
pub(crate) const CALLS_WAIT: Duration = Duration::from_secs(3);
/// Time for which the tools are not requested again after a slow reading has failed.
pub(super) const FAILED: Duration = Duration::from_secs(5);

/// Result of reading a server's tools: the tools, or the reason why they could not be read.
pub type ReadingOutcome = Result<Arc<ToolList>, CallError>;

/// A reading of the tools, in progress or finished. The reading continues if the caller that began it disconnects. So callers of
/// a server that does not respond each wait for at most one reading.
#[derive(Debug)]
pub struct ListReading {
    started: Instant,
    /// Version of the tools that was known when the reading began.
    version: u64,
    over: watch::Sender<Option<FinishedReading>>,
}

/// The result of a finished reading, and the time at which it ended.
#[derive(Debug)]
struct FinishedReading {
    outcome: ReadingOutcome,
    at: Instant,
    /// True if the reading was dropped before its end. It then does not count as a failure of the server.
    abandoned: bool,
}

/// A reading that the owner of this value must carry out. If it is dropped, the waiting callers get an error.
#[derive(Debug)]
pub struct PendingReading(Arc<ListReading>);

impl ListReading {
    /// The time until which calls wait for the reading. `limit` is the time limit of the call.
    pub fn patience(&self, limit: Duration) -> Instant {
        // The wait is counted from the start of the reading. So if several calls to a silent server follow each other, they wait
        // for it only once in total.
        self.started + CALLS_WAIT.min(limit / 4)
    }

    /// Waits for the result of the reading.
    ///
    /// # Errors
    ///
    /// The tools could not be read.
    pub async fn outcome(&self) -> ReadingOutcome {
        let mut over = self.over.subscribe();
        let over = over.wait_for(Option::is_some).await;
        match over.as_deref() {
            Ok(Some(over)) => over.outcome.clone(),
            // This cannot happen: `self` owns the sender, so the channel stays open until it has a value.
            Ok(None) | Err(_) => Err(given_up()),
        }
    }

    /// Returns true if the reading is or was so slow that another one must not begin immediately after it.
    pub fn is_slow(&self) -> bool {
        match &*self.over.borrow() {
            Some(over) => over.is_slow(self.started),
            None => self.started.elapsed() >= CALLS_WAIT,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.over.borrow().is_none()
    }

    /// Returns true if callers that need the tools of this version can use this reading and need not begin another.
    pub(super) fn serves(&self, version: u64) -> bool {
        match &*self.over.borrow() {
            // The reading is in progress. Callers wait for it, so that there is at most one at a time.
            None => true,
            // The reading has succeeded. Its tools were cached, but have become outdated since.
            Some(over) if over.outcome.is_ok() => false,
            // The reading has failed. If that was fast, it is repeated at once; if it was slow, only after a pause.
            Some(over) => {
                let slow = over.is_slow(self.started);
                slow && self.version == version && over.at.elapsed() < FAILED
            }
        }
    }
}

impl FinishedReading {
    fn new(outcome: ReadingOutcome) -> Self {
        let at = Instant::now();
        Self {
            outcome,
            at,
            abandoned: false,
        }
    }

    fn is_slow(&self, started: Instant) -> bool {
        !self.abandoned && self.at.duration_since(started) >= CALLS_WAIT
    }
}

impl PendingReading {
    pub(super) fn at(version: u64) -> Self {
        Self(Arc::new(ListReading {
            started: Instant::now(),
            version,
            over: watch::Sender::new(None),
        }))
    }

    pub(super) fn reading(&self) -> &Arc<ListReading> {
        &self.0
    }

    /// Ends the reading, and passes its result to all waiting callers.
    pub fn end(self, outcome: ReadingOutcome) {
        self.0
            .over
            .send_replace(Some(FinishedReading::new(outcome)));
    }
}

impl Drop for PendingReading {
    fn drop(&mut self) {
        if self.0.is_running() {
            let ended = FinishedReading {
                abandoned: true,
                ..FinishedReading::new(Err(given_up()))
            };
            self.0.over.send_replace(Some(ended));
        }
    }
}

fn given_up() -> CallError {
    let reason = "the server's tools were not read to their end";
    CallError::new(CallErrorCode::WorkerUnavailable, reason)
}

/// Creates the error for a server that does not list its tools in time.
pub fn late(name: &NamespaceName) -> CallError {
    let reason = format!("the server of namespace {name} did not list its tools in time");
    CallError::new(CallErrorCode::ExecutionTimeout, reason)
}
