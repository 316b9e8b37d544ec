//! Counts the progress of the clients of a crowd. They count on their thread, and another thread reads the counts.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Counts of streams opened together, and of their events.
#[derive(Default)]
pub(crate) struct Tally(Mutex<Counts>);

#[derive(Default)]
pub(crate) struct Counts {
    /// The times at which the streams were open, in the order of opening.
    pub(crate) opened_at: Vec<Instant>,
    pub(crate) events: usize,
    pub(crate) last_event: Option<Instant>,
    /// Number of streams that the server has ended, or that were lost.
    pub(crate) ended: usize,
    /// True if clients reopen streams that end.
    pub(super) resumes: bool,
    /// Number of streams that had ended and are open again.
    pub(crate) resumed: usize,
    /// Number of failed attempts to open a stream, and the reason of the first.
    pub(crate) turned_away: (usize, Option<String>),
}

impl Tally {
    pub(crate) fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn turn_away(&self, why: String) {
        let turned_away = &mut self.counts().turned_away;
        turned_away.0 += 1;
        turned_away.1.get_or_insert(why);
    }
}

impl Counts {
    pub(crate) fn opened(&self) -> usize {
        self.opened_at.len()
    }
}
