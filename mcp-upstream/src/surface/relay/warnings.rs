//! Limit on the number of refusals that are logged as warnings, since a client must not be able to fill the log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Maximum number of warnings of a relay within [`WINDOW`]. Further refusals are logged at debug level.
const WARNINGS_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);

/// Counter of recent warnings about the clients of a relay.
#[derive(Debug)]
pub(super) struct Warnings(Mutex<(Instant, u32)>);

impl Warnings {
    pub(super) fn new() -> Self {
        Self(Mutex::new((Instant::now(), 0)))
    }

    /// Counts a refusal. Returns true if it may be logged as a warning.
    pub(super) fn admit(&self) -> bool {
        let now = Instant::now();
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, count) = &mut *counted;
        if now.saturating_duration_since(*since) >= WINDOW {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= WARNINGS_MAX
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn so_many_warnings_are_given_in_a_minute_and_then_again() {
        let warnings = Warnings::new();
        for _ in 0..2 {
            assert!((0..WARNINGS_MAX).all(|_| warnings.admit()));
            assert!(!warnings.admit());
            advance(WINDOW).await;
        }
    }
}
