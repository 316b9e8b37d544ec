//! Bounded queue between requests and the exporting thread. Adding never waits: a full queue drops new entries.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Maximum number of spans in their queue; further spans are dropped.
pub(crate) const SPANS_MAX: usize = 16_384;
/// Maximum number of log records in their queue; further records are dropped.
pub(crate) const LOGS_MAX: usize = 16_384;
/// Maximum size of all entries of a queue together, in bytes; further entries are dropped.
pub(crate) const BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum number of entries in one request to the receiver.
pub(crate) const BATCH_MAX: usize = 512;

/// An entry of a queue, with its size.
pub(crate) trait Weight {
    /// Returns the approximate size of the entry in memory, in bytes.
    fn bytes(&self) -> usize;
}

/// Entries that wait for the exporting thread.
pub(crate) struct Queue<T> {
    held: Mutex<QueueContent<T>>,
    count_max: usize,
    bytes_max: usize,
    batch: Notify,
    dropped: AtomicU64,
}

struct QueueContent<T> {
    entries: VecDeque<T>,
    bytes: usize,
}

impl<T: Weight> Queue<T> {
    /// Creates a queue of at most `count_max` entries and `bytes_max` bytes.
    pub(crate) fn new(count_max: usize, bytes_max: usize) -> Self {
        Self {
            held: Mutex::new(QueueContent {
                entries: VecDeque::new(),
                bytes: 0,
            }),
            count_max,
            bytes_max,
            batch: Notify::new(),
            dropped: AtomicU64::new(0),
        }
    }

    /// Adds entries that belong together: all of them, or none if the queue has no room for all.
    pub(crate) fn add(&self, entries: Vec<T>) {
        let bytes: usize = entries.iter().map(Weight::bytes).sum();
        let count = entries.len();
        let mut held = self.lock();
        if held.entries.len() + count > self.count_max || held.bytes + bytes > self.bytes_max {
            drop(held);
            self.dropped.fetch_add(count as u64, Ordering::Relaxed);
            return;
        }
        held.bytes += bytes;
        held.entries.extend(entries);
        let is_batch = held.entries.len() >= BATCH_MAX;
        drop(held);
        if is_batch {
            self.batch.notify_one();
        }
    }

    /// Takes the oldest entries of the queue, at most [`BATCH_MAX`].
    pub(crate) fn take(&self) -> Vec<T> {
        let mut held = self.lock();
        let count = held.entries.len().min(BATCH_MAX);
        let taken: Vec<T> = held.entries.drain(..count).collect();
        held.bytes -= taken.iter().map(Weight::bytes).sum::<usize>();
        if held.entries.is_empty() {
            // After a backlog the queue's memory is freed, except the room for one batch.
            held.entries.shrink_to(BATCH_MAX);
        }
        taken
    }

    /// Waits until the queue contains a whole batch.
    pub(crate) async fn batch(&self) {
        let has_one = self.lock().entries.len() >= BATCH_MAX;
        if !has_one {
            self.batch.notified().await;
        }
    }

    /// Returns the number of entries that were dropped since the last call.
    pub(crate) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, QueueContent<T>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Weight for usize {
        fn bytes(&self) -> usize {
            *self
        }
    }

    #[test]
    fn a_full_queue_drops_what_is_added_and_counts_it() {
        let queue = Queue::new(3, 100);
        queue.add(vec![1, 2]);
        queue.add(vec![3, 4]);
        assert_eq!(queue.take_dropped(), 2);
        queue.add(vec![98]);
        assert_eq!(queue.take_dropped(), 1, "98 bytes beside 3");
        queue.add(vec![97]);
        assert_eq!(queue.take_dropped(), 0);
        assert_eq!(queue.take(), [1, 2, 97]);
        queue.add(vec![100]);
        assert_eq!(queue.take(), [100], "taken entries give their room back");
    }

    #[test]
    fn entries_are_taken_in_batches() {
        let queue = Queue::new(SPANS_MAX, BYTES_MAX);
        queue.add((0..BATCH_MAX + 1).collect());
        assert_eq!(queue.take().len(), BATCH_MAX);
        assert_eq!(queue.take(), [BATCH_MAX]);
        assert!(queue.take().is_empty());
    }
}
