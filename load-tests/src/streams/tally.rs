//! How far the clients of a crowd are: counted by them on their thread, looked at from another.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Streams opened together, and what came on them.
pub(crate) struct Tally {
    began: Instant,
    opened_at: Mutex<Vec<Instant>>,
    events: AtomicUsize,
    /// Nanoseconds from the beginning.
    last_event: AtomicU64,
    ended: AtomicUsize,
    /// True if clients come back to streams that end.
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
        // Whoever sees the count sees the time that belongs to it.
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

    /// Streams that had ended and are open again.
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

    /// When each stream was open, the earliest first.
    pub(crate) fn opened_at(&self) -> Vec<Instant> {
        unpoisoned(&self.opened_at).clone()
    }

    pub(crate) fn events(&self) -> usize {
        self.events.load(Ordering::Acquire)
    }

    /// When the last event came.
    pub(crate) fn last_event(&self) -> Instant {
        self.began + Duration::from_nanos(self.last_event.load(Ordering::Relaxed))
    }

    /// Streams that the server has ended, or that were lost.
    pub(crate) fn ended(&self) -> usize {
        self.ended.load(Ordering::Relaxed)
    }

    /// Attempts to open a stream that failed, and why the first one did.
    pub(crate) fn turned_away(&self) -> (usize, Option<String>) {
        unpoisoned(&self.turned_away).clone()
    }
}

fn unpoisoned<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
