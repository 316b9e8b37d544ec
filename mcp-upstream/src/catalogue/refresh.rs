//! One reading of a server's tools for all who wait for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::names::NamespaceName;

use super::ToolList;

/// How long after its beginning a reading is waited for by calls, which can do without …
pub(crate) const CALLS_WAIT: Duration = Duration::from_secs(3);
/// … and for how long one that took longer and failed is not begun again.
pub(super) const FAILED: Duration = Duration::from_secs(5);

/// What a reading came to.
pub(crate) type Outcome = Result<Arc<ToolList>, CallError>;

/// One reading of a list, over or not. It goes on when whoever began it leaves, so that with a server that does not
/// answer its tools nobody waits for more than one.
#[derive(Debug)]
pub(crate) struct Reading {
    started: Instant,
    /// Of the tools, as far as was known then.
    version: u64,
    over: watch::Sender<Option<Over>>,
}

/// What came of a reading, and when.
#[derive(Debug)]
struct Over {
    outcome: Outcome,
    at: Instant,
    /// Whoever carried it out is gone: that says nothing of the server.
    abandoned: bool,
}

/// A reading that is to be carried out. Whatever ends whoever does that, those who wait hear of it.
#[derive(Debug)]
pub(crate) struct Begun(Arc<Reading>);

impl Reading {
    /// Until when calls wait for it, of which each has so much time.
    pub(crate) fn patience(&self, limit: Duration) -> Instant {
        // Calls come one after the other, and the server may be silent for long: all of them together wait this once.
        self.started + CALLS_WAIT.min(limit / 4)
    }

    /// What it comes to.
    ///
    /// # Errors
    ///
    /// Why the tools could not be read.
    pub(crate) async fn outcome(&self) -> Outcome {
        let mut over = self.over.subscribe();
        let over = over.wait_for(Option::is_some).await;
        match over.as_deref() {
            Ok(Some(over)) => over.outcome.clone(),
            // The sender is `self`, and that is what was waited for.
            Ok(None) | Err(_) => Err(given_up()),
        }
    }

    /// Whether it took so long that no other one is begun at once.
    pub(crate) fn is_slow(&self) -> bool {
        match &*self.over.borrow() {
            Some(over) => over.is_slow(self.started),
            None => self.started.elapsed() >= CALLS_WAIT,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.over.borrow().is_none()
    }

    /// Whether it serves those who found that the tools of that version are not known.
    pub(super) fn serves(&self, version: u64) -> bool {
        match &*self.over.borrow() {
            // Waited for, so that there is one reading at a time.
            None => true,
            // What it read is known, and good no more.
            Some(over) if over.outcome.is_ok() => false,
            // Failing fast costs nothing and may be over; with what took long nobody starts over at once.
            Some(over) => {
                let slow = over.is_slow(self.started);
                slow && self.version == version && over.at.elapsed() < FAILED
            }
        }
    }
}

impl Over {
    fn new(outcome: Outcome) -> Self {
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

impl Begun {
    pub(super) fn at(version: u64) -> Self {
        Self(Arc::new(Reading {
            started: Instant::now(),
            version,
            over: watch::Sender::new(None),
        }))
    }

    pub(super) fn reading(&self) -> &Arc<Reading> {
        &self.0
    }

    /// Tells all who wait what it came to.
    pub(crate) fn end(self, outcome: Outcome) {
        self.0.over.send_replace(Some(Over::new(outcome)));
    }
}

impl Drop for Begun {
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

/// A server that does not list its tools within the time for it.
pub(crate) fn late(name: &NamespaceName) -> CallError {
    let reason = format!("the server of namespace {name} did not list its tools in time");
    CallError::new(CallErrorCode::ExecutionTimeout, reason)
}
