//! The bounds over all kept streams: memory in total, and age.
//!
//! Sequences increase in the process, so the oldest event of all is the one with the smallest sequence. The ledger
//! keeps one entry per stream that holds events, under the sequence of an event no newer than the stream's oldest, and
//! puts an entry that turns out to be behind where it belongs. So appending to a stream that holds something touches
//! one atomic here, and neither bound ever walks the streams.
//!
//! So that one session does not take the room of all others, it may hold a 64th of the total, and at least what one
//! stream may; the log sees to that when it appends. There is no such share per principal: one that opens 64 sessions
//! can still push out what others keep.

use std::cmp::Ordering as Order;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytesize::ByteSize;
use tokio::time::Instant;

use super::kept::Left;
use super::window::Bounds;
use super::{Stream, StreamMetrics};
use crate::session::config::EventLogConfig;

/// The most entries one sweep looks at.
const SWEEP_MAX: usize = 100_000;
/// Entries of dropped streams that are left lying until they are more than half.
const DEAD_MIN: usize = 1024;

/// All sessions' streams together may hold so many times what one session's may. A session may always hold what one
/// stream may.
const SESSIONS_MIN: usize = 64;

/// Counts what all kept streams hold, and finds the oldest.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The last sequence given out.
    sequence: AtomicU64,
    bytes: AtomicUsize,
    limits: EventLogConfig,
    bounds: Bounds,
    /// What the streams of one session may hold, in bytes.
    session_max: usize,
    /// Taken when a stream gets its first event or loses its oldest. Never together with a stream's lock.
    entries: Mutex<Entries>,
    pub(super) metrics: Arc<StreamMetrics>,
}

#[derive(Debug, Default)]
struct Entries {
    oldest_first: BinaryHeap<Entry>,
    /// About how many of them belong to streams that are gone.
    dead: usize,
}

#[derive(Debug)]
struct Entry {
    sequence: u64,
    stream: Weak<Stream>,
}

impl Ledger {
    pub(super) fn new(limits: EventLogConfig, metrics: Arc<StreamMetrics>) -> Self {
        let bounds = Bounds {
            events: limits.events,
            bytes: in_memory(limits.bytes),
        };
        Self {
            sequence: AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
            session_max: (in_memory(limits.total) / SESSIONS_MIN).max(bounds.max_cost()),
            bounds,
            limits,
            entries: Mutex::default(),
            metrics,
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// What the streams of one session may hold together, in bytes.
    pub(super) fn session_max(&self) -> usize {
        self.session_max
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The last sequence given out.
    pub(super) fn newest_sequence(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    /// A window has changed from one cost to another.
    pub(super) fn account(&self, before: usize, after: usize) {
        if after >= before {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes up streams that held nothing before an event of this sequence or a newer one.
    pub(super) fn list<'a>(
        &self,
        sequence: u64,
        streams: impl IntoIterator<Item = &'a Arc<Stream>>,
    ) {
        let mut entries = self.entries();
        let new = streams.into_iter().map(|stream| Entry {
            sequence,
            stream: Arc::downgrade(stream),
        });
        entries.oldest_first.extend(new);
    }

    /// A stream is dropped.
    pub(super) fn unlist(&self, listed: bool) {
        if !listed {
            return;
        }
        let mut entries = self.entries();
        entries.dead += 1;
        if entries.dead > DEAD_MIN && entries.dead > entries.oldest_first.len() / 2 {
            entries
                .oldest_first
                .retain(|entry| entry.stream.strong_count() > 0);
            entries.dead = 0;
        }
    }

    /// Takes the oldest events of all out until they are within their total.
    pub(super) fn enforce_total(&self) {
        let total = in_memory(self.limits.total);
        while self.bytes() > total {
            let Some(entry) = self.oldest() else {
                return;
            };
            if let Some(stream) = entry.stream.upgrade() {
                let left = stream.evict_one(self, entry.sequence);
                self.settle(&stream, &left);
            }
        }
    }

    /// Takes out the events whose time is up.
    pub(super) fn sweep(&self, now: Instant) {
        self.metrics
            .log_bytes
            .set(i64::try_from(self.bytes()).unwrap_or(i64::MAX));
        let Some(since) = now.checked_sub(self.limits.age) else {
            return;
        };
        for _ in 0..SWEEP_MAX {
            let Some(entry) = self.oldest() else {
                return;
            };
            let Some(stream) = entry.stream.upgrade() else {
                continue;
            };
            let left = stream.evict_before(self, since);
            self.settle(&stream, &left);
            if left.oldest == Some(entry.sequence) {
                // The oldest of all is young enough.
                return;
            }
        }
    }

    /// Lists a stream anew after events were taken out, or lets its session forget it.
    fn settle(&self, stream: &Arc<Stream>, left: &Left) {
        if let Some(oldest) = left.oldest {
            self.list(oldest, [stream]);
        } else if left.useless
            && let Some(session) = stream.session.upgrade()
        {
            session.streams().remove(stream);
        }
    }

    /// Entries there are.
    #[cfg(test)]
    pub(super) fn listed(&self) -> usize {
        self.entries().oldest_first.len()
    }

    fn oldest(&self) -> Option<Entry> {
        let mut entries = self.entries();
        let entry = entries.oldest_first.pop()?;
        if entry.stream.strong_count() == 0 {
            entries.dead = entries.dead.saturating_sub(1);
        }
        Some(entry)
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A configured size as one of this machine.
pub(super) fn in_memory(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

impl Ord for Entry {
    /// The greatest is the one with the smallest sequence: that is what a heap gives first.
    fn cmp(&self, other: &Self) -> Order {
        other.sequence.cmp(&self.sequence)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Order::Equal
    }
}

impl Eq for Entry {}
