//! Log lines about calls that waited for a thread, because a process runs only a few synchronous functions at once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Minimum time between two log lines about one namespace.
const PAUSE: Duration = Duration::from_secs(60);

/// Counts calls that waited long for a thread, over all processes of a namespace.
#[derive(Debug, Default)]
pub(super) struct SyncWaits {
    /// State of the log lines. A plain mutex: locked for a few instructions, never held across an await.
    told: Mutex<SyncWaitLog>,
}

#[derive(Debug, Default)]
struct SyncWaitLog {
    last: Option<Instant>,
    since: u64,
}

impl SyncWaits {
    /// Adds `count` calls. Returns the number of calls since the last log line, if a further line is due.
    pub(super) fn add(&self, count: u64, now: Instant) -> Option<u64> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.since = told.since.saturating_add(count);
        let paused = |last| now.saturating_duration_since(last) >= PAUSE;
        if !told.last.is_none_or(paused) {
            return None;
        }
        told.last = Some(now);
        Some(std::mem::take(&mut told.since)).filter(|count| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wait_is_told_at_once_and_those_that_follow_together_after_a_pause() {
        let (waits, start) = (SyncWaits::default(), Instant::now());
        assert_eq!(waits.add(2, start), Some(2));
        for second in 1..10 {
            assert_eq!(waits.add(3, start + Duration::from_secs(second)), None);
        }
        assert_eq!(waits.add(1, start + PAUSE), Some(28));
        assert_eq!(waits.add(1, start + PAUSE), None);
    }
}
