//! Queue of records between the requests and the log's writer thread.
//!
//! The queue is a list under a lock instead of a channel: a record is moved once without an allocation, and the writer takes
//! all records at once. A sender wakes the writer only if the writer sleeps without a time limit.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::losses::Losses;

/// Maximum number of records in the queue, including those that the writer is writing. Further records are lost.
const RECORDS: usize = 16_384;
/// Maximum number of bytes that the records in the queue may refer to, not counting the records themselves.
const BYTES: usize = 64 * 1024 * 1024;
/// Number of records for which memory stays allocated after a burst.
const ROOM_KEPT: usize = 1024;

/// A request's entry in a log, before it is formatted as a line.
pub trait Record: Send + 'static {
    /// Number of bytes of memory that the record refers to, without the record itself.
    fn bytes(&self) -> usize;
}

/// The queue between senders and the writer.
#[derive(Debug)]
pub(crate) struct RecordQueue<R> {
    /// Queued records. The lock is never held while waiting or writing.
    waiting: Mutex<QueuedRecords<R>>,
    /// Wakes the writer when a record is queued, or when the queue ends.
    filled: Condvar,
    losses: Losses,
}

#[derive(Debug)]
struct QueuedRecords<R> {
    records: Vec<R>,
    /// Number of records that are not written yet, and the bytes of memory that they refer to.
    held: usize,
    held_bytes: usize,
    writer_sleeps: bool,
    /// True if the writer must reopen its file.
    reopens: bool,
    /// True if the writer must write the remaining records and end.
    ends: bool,
    /// True once the writer has ended.
    is_over: bool,
}

/// The writer's next step, after it has written a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Wait for the next batch of records.
    Write,
    /// Reopen the file, then wait for the next batch.
    Reopen,
    /// Do the periodic work of an idle writer, since there was nothing to write for a while.
    Idle,
    /// End: the batch was the last one.
    End,
}

/// The writer's end of the queue. Records sent after it is dropped are lost.
#[derive(Debug)]
pub(crate) struct Records<'q, R>(&'q RecordQueue<R>);

impl<R> RecordQueue<R> {
    pub(crate) fn new(losses: Losses) -> Self {
        Self {
            waiting: Mutex::new(QueuedRecords {
                records: Vec::new(),
                held: 0,
                held_bytes: 0,
                writer_sleeps: false,
                reopens: false,
                ends: false,
                is_over: false,
            }),
            filled: Condvar::new(),
            losses,
        }
    }

    pub(super) fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Number of records that are not written yet.
    pub(super) fn held(&self) -> usize {
        self.lock().held
    }

    /// Makes the writer reopen its file.
    pub(super) fn reopen(&self) {
        self.lock().reopens = true;
        self.filled.notify_one();
    }

    /// Asks the writer to write the waiting records, and to end.
    pub(super) fn end(&self) {
        self.lock().ends = true;
        self.filled.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, QueuedRecords<R>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Record> RecordQueue<R> {
    /// Queues a record, or counts it as lost. Never waits for the writer.
    pub(super) fn put(&self, record: R) {
        // The bytes are counted because a record keeps memory allocated until it is written, such as the body of its request.
        let bytes = record.bytes();
        let mut waiting = self.lock();
        if waiting.is_over || waiting.held >= RECORDS || waiting.held_bytes + bytes > BYTES {
            let cause = if waiting.is_over {
                "its writer has ended"
            } else {
                "its writer does not keep up"
            };
            drop(waiting);
            self.losses.lost(1, cause);
            return;
        }
        waiting.held += 1;
        waiting.held_bytes += bytes;
        waiting.records.push(record);
        let wake = std::mem::take(&mut waiting.writer_sleeps);
        drop(waiting);
        if wake {
            self.filled.notify_one();
        }
    }
}

impl<'q, R> Records<'q, R> {
    pub(crate) fn of(queue: &'q RecordQueue<R>) -> Self {
        Self(queue)
    }

    /// Moves the queued records to `batch`, which must be empty. Waits at most `patience` for a first record, then `linger` for
    /// further ones.
    pub(crate) fn take(&self, batch: &mut Vec<R>, linger: Duration, patience: Duration) -> Turn {
        let mut waiting = self.0.lock();
        let has_nothing =
            |it: &mut QueuedRecords<R>| it.records.is_empty() && !it.reopens && !it.ends;
        if has_nothing(&mut waiting) {
            waiting.writer_sleeps = true;
            let woken = self
                .0
                .filled
                .wait_timeout_while(waiting, patience, has_nothing);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
            waiting.writer_sleeps = false;
            if has_nothing(&mut waiting) {
                return Turn::Idle;
            }
        }
        if !waiting.ends && !waiting.reopens {
            drop(waiting);
            std::thread::sleep(linger);
            waiting = self.0.lock();
        }
        std::mem::swap(&mut waiting.records, batch);
        waiting.is_over = waiting.ends;
        if waiting.ends {
            Turn::End
        } else if std::mem::take(&mut waiting.reopens) {
            Turn::Reopen
        } else {
            Turn::Write
        }
    }

    /// Notes that `records` records, which refer to `bytes` bytes of memory, were written or counted as lost.
    pub(crate) fn written(&self, records: usize, bytes: usize) {
        let mut waiting = self.0.lock();
        waiting.held -= records;
        waiting.held_bytes -= bytes;
    }

    /// Frees the capacity of `batch` beyond [`ROOM_KEPT`].
    pub(super) fn trim(batch: &mut Vec<R>) {
        if batch.capacity() > ROOM_KEPT {
            batch.shrink_to(ROOM_KEPT);
        }
    }
}

impl<R> Drop for Records<'_, R> {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.is_over = true;
        // Queued records are dropped without being written, which frees the request bodies that they refer to.
        let unwritten = std::mem::take(&mut waiting.records);
        let lost = std::mem::take(&mut waiting.held);
        drop(waiting);
        drop(unwritten);
        if lost > 0 {
            self.0.losses.lost(lost as u64, "its writer has ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of this many bytes.
    #[derive(Debug)]
    struct Bytes(usize);

    impl Record for Bytes {
        fn bytes(&self) -> usize {
            self.0
        }
    }

    const SMALL: Bytes = Bytes(100);

    fn queue() -> RecordQueue<Bytes> {
        RecordQueue::new(Losses::for_tests())
    }

    fn lost(queue: &RecordQueue<Bytes>) -> u64 {
        queue.losses.counted()
    }

    #[test]
    fn a_full_queue_takes_no_more_until_something_is_written() {
        let queue = queue();
        for _ in 0..RECORDS {
            queue.put(SMALL);
        }
        assert_eq!(lost(&queue), 0);
        queue.put(SMALL);
        assert_eq!(lost(&queue), 1);
        let (records, mut batch) = (Records::of(&queue), Vec::new());
        let turn = records.take(&mut batch, Duration::ZERO, Duration::MAX);
        assert_eq!((turn, batch.len()), (Turn::Write, RECORDS));
        // Taken, but not written: a hanging disk holds them.
        queue.put(SMALL);
        assert_eq!(lost(&queue), 2);
        records.written(1, SMALL.bytes());
        queue.put(SMALL);
        assert_eq!(lost(&queue), 2);
    }

    #[test]
    fn what_waits_is_bounded_in_bytes() {
        let queue = queue();
        queue.put(Bytes(BYTES / 2));
        queue.put(Bytes(BYTES / 2));
        assert_eq!(lost(&queue), 0);
        queue.put(SMALL);
        assert_eq!(lost(&queue), 1);
    }

    #[test]
    fn what_is_sent_after_the_end_is_lost() {
        let queue = queue();
        queue.put(SMALL);
        let (records, mut batch) = (Records::of(&queue), Vec::new());
        queue.end();
        let turn = records.take(&mut batch, Duration::ZERO, Duration::MAX);
        assert_eq!((turn, batch.len()), (Turn::End, 1));
        queue.put(SMALL);
        assert_eq!(lost(&queue), 1);
    }

    #[test]
    fn a_writer_that_ended_in_any_way_takes_nothing_and_what_it_left_is_counted() {
        let queue = queue();
        queue.put(SMALL);
        drop(Records::of(&queue));
        assert!(queue.lock().records.is_empty());
        assert_eq!(lost(&queue), 1);
        queue.put(SMALL);
        assert_eq!(lost(&queue), 2);
    }

    #[test]
    fn the_writer_is_told_to_open_its_file_anew_once_and_wakes_without_a_record() {
        let queue = queue();
        let (records, mut batch) = (Records::of(&queue), Vec::new());
        let mut turn = |patience| records.take(&mut batch, Duration::ZERO, patience);
        queue.reopen();
        assert_eq!(turn(Duration::MAX), Turn::Reopen);
        assert_eq!(turn(Duration::ZERO), Turn::Idle);
    }
}
