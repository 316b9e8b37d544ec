//! Records on their way from the requests to the writer.
//!
//! A list under a lock instead of a channel: a record is moved once, nothing is allocated for it, and the writer takes all
//! there are at once. Whoever adds one wakes the writer only where it sleeps without an end.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::AuditRecord;

/// Records that may wait for the writer, those it is writing included.
const RECORDS: usize = 16_384;
/// Bytes of their arguments.
const BYTES: usize = 64 * 1024 * 1024;
/// Room that is kept for records after a time with more of them.
const ROOM_KEPT: usize = 1024;

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Plain data; nobody waits or writes under the lock.
    waiting: Mutex<Waiting>,
    /// For the writer: the first record is there, or the end.
    filled: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    records: Vec<AuditRecord>,
    /// Records and bytes that are not written yet.
    held: usize,
    held_bytes: usize,
    writer_sleeps: bool,
    /// The writer is to write what there is and end.
    ends: bool,
    /// Nobody writes any more.
    is_over: bool,
}

/// The writer's end; without it nothing more is taken.
#[derive(Debug)]
pub(super) struct Records<'q>(&'q Queue);

/// What was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

impl Queue {
    /// Adds a record; never waits for the writer.
    pub(super) fn put(&self, record: AuditRecord) -> Result<(), Full> {
        // The arguments are a view of the request's body and keep it in memory until they are written.
        let bytes = record.arguments.len();
        let mut waiting = self.lock();
        if waiting.is_over || waiting.held >= RECORDS || waiting.held_bytes + bytes > BYTES {
            return Err(Full);
        }
        waiting.held += 1;
        waiting.held_bytes += bytes;
        waiting.records.push(record);
        let wake = std::mem::take(&mut waiting.writer_sleeps);
        drop(waiting);
        if wake {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Tells the writer to write what there is and end.
    pub(super) fn end(&self) {
        self.lock().ends = true;
        self.filled.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'q> Records<'q> {
    pub(super) fn of(queue: &'q Queue) -> Self {
        Self(queue)
    }

    /// Waits for records, lets others gather for as long as `linger`, and moves all to `batch`, which must be empty. `false`
    /// when these are the last.
    pub(super) fn take(&self, batch: &mut Vec<AuditRecord>, linger: Duration) -> bool {
        let mut waiting = self.0.lock();
        while waiting.records.is_empty() && !waiting.ends {
            waiting.writer_sleeps = true;
            let woken = self.0.filled.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
        if !waiting.ends {
            drop(waiting);
            std::thread::sleep(linger);
            waiting = self.0.lock();
        }
        std::mem::swap(&mut waiting.records, batch);
        waiting.is_over = waiting.ends;
        !waiting.ends
    }

    /// Says that so many records with so many bytes are written.
    pub(super) fn written(&self, records: usize, bytes: usize) {
        let mut waiting = self.0.lock();
        waiting.held -= records;
        waiting.held_bytes -= bytes;
    }

    /// Gives back what `batch` has beyond the usual room.
    pub(super) fn trim(batch: &mut Vec<AuditRecord>) {
        if batch.capacity() > ROOM_KEPT {
            batch.shrink_to(ROOM_KEPT);
        }
    }
}

impl Drop for Records<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.is_over = true;
        // What nobody writes any more need not be held, nor the bodies its arguments are views of.
        let unwritten = std::mem::take(&mut waiting.records);
        drop(waiting);
        drop(unwritten);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::audit::tests::record;

    #[test]
    fn a_full_queue_takes_no_more_until_something_is_written() {
        let queue = Queue::default();
        for _ in 0..RECORDS {
            assert_eq!(queue.put(record()), Ok(()));
        }
        assert_eq!(queue.put(record()), Err(Full));
        let (records, mut batch) = (Records::of(&queue), Vec::new());
        assert!(records.take(&mut batch, Duration::ZERO));
        assert_eq!(batch.len(), RECORDS);
        // Taken, but not written: a disk that hangs holds them.
        assert_eq!(queue.put(record()), Err(Full));
        records.written(1, record().arguments.len());
        assert_eq!(queue.put(record()), Ok(()));
    }

    #[test]
    fn arguments_that_wait_are_bounded_in_bytes() {
        let queue = Queue::default();
        let large = || AuditRecord {
            arguments: Bytes::from(vec![b' '; BYTES / 2]),
            ..record()
        };
        assert_eq!(queue.put(large()), Ok(()));
        assert_eq!(queue.put(large()), Ok(()));
        assert_eq!(queue.put(record()), Err(Full));
    }

    #[test]
    fn who_sends_after_the_end_learns_that_nobody_writes() {
        let queue = Queue::default();
        queue.put(record()).expect("room");
        let (records, mut batch) = (Records::of(&queue), Vec::new());
        queue.end();
        assert!(!records.take(&mut batch, Duration::ZERO));
        assert_eq!(batch.len(), 1);
        assert_eq!(queue.put(record()), Err(Full));
    }

    #[test]
    fn a_writer_that_ended_in_any_way_takes_nothing_and_leaves_nothing() {
        let queue = Queue::default();
        queue.put(record()).expect("room");
        drop(Records::of(&queue));
        assert!(queue.lock().records.is_empty());
        assert_eq!(queue.put(record()), Err(Full));
    }
}
