//! One reading of a server's tools for all who wait for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tooldock_workers::error::{CallError, CallErrorCode};

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
    /// What came of it, and when.
    over: watch::Sender<Option<(Outcome, Instant)>>,
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
            Ok(Some((outcome, _))) => outcome.clone(),
            // The sender is `self`, and that is what was waited for.
            Ok(None) | Err(_) => Err(given_up()),
        }
    }

    /// Whether it took so long that no other one is begun at once.
    pub(crate) fn is_slow(&self) -> bool {
        let over = self.over.borrow();
        let until = over.as_ref().map_or_else(Instant::now, |(_, at)| *at);
        until.duration_since(self.started) >= CALLS_WAIT
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
            Some((Ok(_), _)) => false,
            // Failing fast costs nothing and may be over; with what took long nobody starts over at once.
            Some((Err(_), at)) => {
                let slow = at.duration_since(self.started) >= CALLS_WAIT;
                slow && self.version == version && at.elapsed() < FAILED
            }
        }
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
        self.0.over.send_replace(Some((outcome, Instant::now())));
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.0.is_running() {
            let ended = (Err(given_up()), Instant::now());
            self.0.over.send_replace(Some(ended));
        }
    }
}

fn given_up() -> CallError {
    let reason = "the server's tools were not read to their end";
    CallError::new(CallErrorCode::InternalError, reason)
}
