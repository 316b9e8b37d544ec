//! Counts the progress of the clients of a crowd. They count on their thread, and another thread reads the counts.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Counts of streams opened together, and of their events.
pub(crate) struct Tally {
    began: Instant,
    opened_at: Mutex<Vec<Instant>>,
    events: AtomicUsize,
    /// Nanoseconds from `began` to the last event.
    last_event: AtomicU64,
    ended: AtomicUsize,
    /// True if clients reopen streams that end.
    resumes: AtomicBool,
    resumed: AtomicUsize,
    turned_away: Mutex<(usize, Option<String>)>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            opened_at: Mutex::default(),
            events: AtomicUsize::new(0),
            last_event: AtomicU64::new(0),
            ended: AtomicUsize::new(0),
            resumes: AtomicBool::new(false),
            resumed: AtomicUsize::new(0),
            turned_away: Mutex::default(),
        }
    }
}

impl Tally {
    pub(super) fn open(&self) {
        unpoisoned(&self.opened_at).push(Instant::now());
    }

    pub(super) fn arrived(&self) {
        let since = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last_event.store(since, Ordering::Relaxed);
        // Released with the count, so that a reader of the count also sees the time.
        self.events.fetch_add(1, Ordering::Release);
    }

    pub(super) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn resume_what_ends(&self) {
        self.resumes.store(true, Ordering::Relaxed);
    }

    pub(super) fn resumes(&self) -> bool {
        self.resumes.load(Ordering::Relaxed)
    }

    pub(super) fn resume(&self) {
        self.resumed.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of streams that had ended and are open again.
    pub(crate) fn resumed(&self) -> usize {
        self.resumed.load(Ordering::Relaxed)
    }

    pub(super) fn turn_away(&self, why: String) {
        let mut turned_away = unpoisoned(&self.turned_away);
        turned_away.0 += 1;
        turned_away.1.get_or_insert(why);
    }

    pub(crate) fn opened(&self) -> usize {
        unpoisoned(&self.opened_at).len()
    }

    /// The times at which the streams were open, in the order of opening.
    pub(crate) fn opened_at(&self) -> Vec<Instant> {
        unpoisoned(&self.opened_at).clone()
    }

    pub(crate) fn events(&self) -> usize {
        self.events.load(Ordering::Acquire)
    }

    /// The time of the last event.
    pub(crate) fn last_event(&self) -> Instant {
        self.began + Duration::from_nanos(self.last_event.load(Ordering::Relaxed))
    }

    /// Number of streams that the server has ended, or that were lost.
    pub(crate) fn ended(&self) -> usize {
        self.ended.load(Ordering::Relaxed)
    }

    /// Number of failed attempts to open a stream, and the reason of the first.
    pub(crate) fn turned_away(&self) -> (usize, Option<String>) {
        unpoisoned(&self.turned_away).clone()
    }
}

fn unpoisoned<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
