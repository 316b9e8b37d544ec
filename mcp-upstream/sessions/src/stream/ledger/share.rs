//! Account of one principal's kept streams: their memory, and the stream with the oldest event.

use std::cmp::Ordering as Order;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::time::Instant;

use super::Ledger;
use crate::stream::Stream;
use crate::stream::resumable::RemainingEvents;

/// Number of entries of dropped streams that an account always tolerates. Beyond it, such entries are removed once they are more
/// than half of all entries.
const DEAD_MIN: usize = 1024;

/// Account of the streams of one principal. It exists as long as a stream refers to it.
#[derive(Debug)]
pub(in crate::stream) struct Share {
    ledger: Arc<Ledger>,
    bytes: AtomicUsize,
    /// Entries of the streams. Locked when a stream gets its first event or loses its oldest; never together with a stream's
    /// lock.
    entries: Mutex<ShareEntries>,
}

#[derive(Debug, Default)]
struct ShareEntries {
    oldest_first: BinaryHeap<ShareEntry>,
    /// Approximate number of entries whose streams were dropped.
    dead: usize,
}

#[derive(Debug)]
struct ShareEntry {
    at: Instant,
    sequence: u64,
    stream: Weak<Stream>,
}

impl Share {
    pub(super) fn new(ledger: Arc<Ledger>) -> Self {
        Self {
            ledger,
            bytes: AtomicUsize::new(0),
            entries: Mutex::default(),
        }
    }

    /// The ledger (memory of all kept streams) to which this principal's account belongs.
    pub(in crate::stream) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Records a change of the memory that one stream's events use.
    pub(in crate::stream) fn account(&self, before: usize, after: usize) {
        for bytes in [&self.bytes, &self.ledger.bytes] {
            if after >= before {
                bytes.fetch_add(after - before, Ordering::Relaxed);
            } else {
                bytes.fetch_sub(before - after, Ordering::Relaxed);
            }
        }
    }

    /// Number of bytes that the principal's streams use.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds an entry for a stream that has none. `(sequence, at)` are the sequence and the time of the stream's oldest event, or
    /// of an earlier event.
    pub(in crate::stream) fn list(&self, (sequence, at): (u64, Instant), stream: &Arc<Stream>) {
        self.entries().oldest_first.push(ShareEntry {
            at,
            sequence,
            stream: Arc::downgrade(stream),
        });
    }

    /// Records that a stream was dropped; `listed` is true if the stream has an entry in the account.
    pub(in crate::stream) fn unlist(&self, listed: bool) {
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

    /// Removes the oldest event of the principal's streams, or an outdated entry of the account. Returns false if the account has
    /// no entries.
    pub(super) fn evict_oldest(&self) -> bool {
        let Some(entry) = self.oldest() else {
            return false;
        };
        if let Some(stream) = entry.stream.upgrade() {
            let left = stream.evict_one(entry.sequence);
            self.settle(&stream, &left);
        }
        true
    }

    /// Removes the events that are older than `since`, checking at most `entries` entries of the account.
    pub(super) fn sweep(&self, since: Instant, entries: usize) {
        for _ in 0..entries {
            let Some(entry) = self.oldest() else {
                return;
            };
            let Some(stream) = entry.stream.upgrade() else {
                continue;
            };
            let left = stream.evict_before(since);
            self.settle(&stream, &left);
            if left
                .oldest
                .is_some_and(|(oldest, _)| oldest == entry.sequence)
            {
                // The oldest event has not expired, so no other event has.
                return;
            }
        }
    }

    /// After events of a stream were removed, adds its entry again, or removes the stream from its session if nothing is left.
    fn settle(&self, stream: &Arc<Stream>, left: &RemainingEvents) {
        if let Some(oldest) = left.oldest {
            self.list(oldest, stream);
        } else if left.useless
            && let Some(session) = stream.session.as_ref().and_then(Weak::upgrade)
        {
            session.streams().remove(stream);
        }
    }

    /// Number of entries in this account.
    #[cfg(test)]
    pub(super) fn listed(&self) -> usize {
        self.entries().oldest_first.len()
    }

    fn oldest(&self) -> Option<ShareEntry> {
        let mut entries = self.entries();
        let entry = entries.oldest_first.pop()?;
        if entry.stream.strong_count() == 0 {
            entries.dead = entries.dead.saturating_sub(1);
        }
        Some(entry)
    }

    fn entries(&self) -> MutexGuard<'_, ShareEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ord for ShareEntry {
    /// Orders entries so that the oldest is the greatest, because the heap returns the greatest first. Entries of the same time
    /// are ordered by sequence.
    fn cmp(&self, other: &Self) -> Order {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl PartialOrd for ShareEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ShareEntry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Order::Equal
    }
}

impl Eq for ShareEntry {}
