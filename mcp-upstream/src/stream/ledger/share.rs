//! What the kept streams of one principal hold, and which of them holds the oldest event.

use std::cmp::Ordering as Order;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::time::Instant;

use super::Ledger;
use crate::stream::Stream;
use crate::stream::resumable::Left;

/// Entries of dropped streams that are left lying until they are more than half.
const DEAD_MIN: usize = 1024;

/// One principal's part of the ledger; its streams hold it.
#[derive(Debug)]
pub(in crate::stream) struct Share {
    ledger: Arc<Ledger>,
    bytes: AtomicUsize,
    /// Taken when a stream gets its first event or loses its oldest. Never together with a stream's lock.
    entries: Mutex<Entries>,
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

impl Share {
    pub(super) fn new(ledger: Arc<Ledger>) -> Self {
        Self {
            ledger,
            bytes: AtomicUsize::new(0),
            entries: Mutex::default(),
        }
    }

    /// The ledger it is a part of.
    pub(in crate::stream) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// A window of one of its streams has changed from one cost to another.
    pub(in crate::stream) fn account(&self, before: usize, after: usize) {
        for bytes in [&self.bytes, &self.ledger.bytes] {
            if after >= before {
                bytes.fetch_add(after - before, Ordering::Relaxed);
            } else {
                bytes.fetch_sub(before - after, Ordering::Relaxed);
            }
        }
    }

    /// What its streams hold.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Takes up a stream that held nothing before an event of this sequence or a newer one.
    pub(in crate::stream) fn list(&self, sequence: u64, stream: &Arc<Stream>) {
        self.entries().oldest_first.push(Entry {
            sequence,
            stream: Arc::downgrade(stream),
        });
    }

    /// A stream is dropped.
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

    /// Takes its oldest event out, or an entry that was behind. Answers whether there was an entry.
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

    /// Takes out the events that are older than `since`, looking at no more than so many entries.
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
            if left.oldest == Some(entry.sequence) {
                // The oldest of all is young enough.
                return;
            }
        }
    }

    /// Lists a stream anew after events were taken out, or lets its session forget it.
    fn settle(&self, stream: &Arc<Stream>, left: &Left) {
        if let Some(oldest) = left.oldest {
            self.list(oldest, stream);
        } else if left.useless
            && let Some(session) = stream.session.as_ref().and_then(Weak::upgrade)
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
