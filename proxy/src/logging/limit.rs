//! Limit of a warning that every client of an address can cause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval in which a warning is logged at most once.
const EVERY: Duration = Duration::from_secs(10);

/// Time of the last warning.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<Option<Instant>>);

impl LogLimit {
    /// Returns true, and notes the time, if no warning was logged within the last 10 s.
    pub(crate) fn allows(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= EVERY);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}
