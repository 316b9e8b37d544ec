//! A shared reading of a server's tools, for which all callers wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;

use super::ToolList;

/// Maximum wait of calls for a reading, from its beginning. Calls can do without the tools.
pub(crate) const CALLS_WAIT: Duration = Duration::from_secs(3);
/// Time for which a slow reading that failed is not repeated.
pub(super) const FAILED: Duration = Duration::from_secs(5);

/// Result of a reading: the tools, or the reason why they could not be read.
pub type ReadingOutcome = Result<Arc<ToolList>, CallError>;

/// A reading of a list, in progress or finished. It continues when the caller that began it disconnects, so that with a server
/// that does not respond, no caller waits for more than one reading.
#[derive(Debug)]
pub struct ListReading {
    started: Instant,
    /// The version of the tools that was known when the reading began.
    version: u64,
    over: watch::Sender<Option<Over>>,
}

/// The result of a reading, and when it ended.
#[derive(Debug)]
struct Over {
    outcome: ReadingOutcome,
    at: Instant,
    /// True when the reading was dropped before its end, which is no evidence about the server.
    abandoned: bool,
}

/// A reading that its owner must carry out. Dropping it notifies the waiting callers that it was abandoned.
#[derive(Debug)]
pub struct BegunReading(Arc<ListReading>);

impl ListReading {
    /// The moment until which calls wait for the reading, if each call has this time limit.
    pub fn patience(&self, limit: Duration) -> Instant {
        // The limit counts from the start of the reading, so that successive calls to a silent server together wait for it only
        // once.
        self.started + CALLS_WAIT.min(limit / 4)
    }

    /// Waits for the result of the reading.
    ///
    /// # Errors
    ///
    /// If the tools could not be read.
    pub async fn outcome(&self) -> ReadingOutcome {
        let mut over = self.over.subscribe();
        let over = over.wait_for(Option::is_some).await;
        match over.as_deref() {
            Ok(Some(over)) => over.outcome.clone(),
            // Unreachable: `self` owns the sender, so the channel cannot close before it has a value.
            Ok(None) | Err(_) => Err(given_up()),
        }
    }

    /// Returns true if the reading took so long that no other may begin immediately.
    pub fn is_slow(&self) -> bool {
        match &*self.over.borrow() {
            Some(over) => over.is_slow(self.started),
            None => self.started.elapsed() >= CALLS_WAIT,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.over.borrow().is_none()
    }

    /// Returns true if the reading serves callers that miss the tools of this version.
    pub(super) fn serves(&self, version: u64) -> bool {
        match &*self.over.borrow() {
            // Callers wait for a running reading, so that there is at most one at a time.
            None => true,
            // The tools of a successful reading are cached, and were found to be out of date.
            Some(over) if over.outcome.is_ok() => false,
            // A failed reading is retried if it failed fast, since a retry is cheap; a slow reading is not repeated
            // immediately.
            Some(over) => {
                let slow = over.is_slow(self.started);
                slow && self.version == version && over.at.elapsed() < FAILED
            }
        }
    }
}

impl Over {
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

impl BegunReading {
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

    /// Ends the reading and gives its result to all waiting callers.
    pub fn end(self, outcome: ReadingOutcome) {
        self.0.over.send_replace(Some(Over::new(outcome)));
    }
}

impl Drop for BegunReading {
    fn drop(&mut self) {
        if self.0.is_running() {
            let ended = Over {
                abandoned: true,
                ..Over::new(Err(given_up()))
            };
            self.0.over.send_replace(Some(ended));
        }
    }
}

fn given_up() -> CallError {
    let reason = "the server's tools were not read to their end";
    CallError::new(CallErrorCode::WorkerUnavailable, reason)
}

/// The error for a server that does not list its tools in time.
pub fn late(name: &NamespaceName) -> CallError {
    let reason = format!("the server of namespace {name} did not list its tools in time");
    CallError::new(CallErrorCode::ExecutionTimeout, reason)
}
