//! The thread that formats and writes a log's records, with the sender and the owner of its queue.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use super::losses::Losses;
use super::queue::{Record, RecordQueue, Records, Turn};

/// Time for which records gather before they are written. Meanwhile senders need not wake the writer.
const LINGER: Duration = Duration::from_millis(10);
/// Interval at which the writer checks its file while there is nothing to write.
const IDLE: Duration = Duration::from_secs(60);
/// Interval of the check while records are being lost, so that the end of the losses is logged in time.
const IDLE_WHILE_LOSING: Duration = Duration::from_secs(1);
/// Longest time that a shutdown waits for the writer.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Formats and writes records of a log. Runs in the writer's thread.
pub trait Sink: Send + 'static {
    /// The type of the log's records.
    type Record: Record;

    /// Formats a record as a line, which may be buffered until the next flush.
    fn put(&mut self, record: Self::Record);

    /// Writes all buffered lines.
    fn flush(&mut self);

    /// Reopens the log's file.
    fn reopen(&mut self);

    /// Called when there was nothing to write for a while.
    fn idle(&mut self);
}

/// Sends records to a log's writer. Cheap to clone.
#[derive(Debug)]
pub struct LogSender<R>(Arc<RecordQueue<R>>);

impl<R> Clone for LogSender<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: Record> LogSender<R> {
    /// Queues a record; never waits. A record beyond the queue's limits is counted as lost.
    pub fn send(&self, record: R) {
        self.0.put(record);
    }

    #[cfg(test)]
    pub(crate) fn of(queue: &Arc<RecordQueue<R>>) -> Self {
        Self(Arc::clone(queue))
    }
}

/// Owner of a log's writer. Dropping it writes the queued records and ends the thread, within five seconds.
#[must_use = "dropping the guard ends the log"]
pub struct LogGuard<R: Record> {
    queue: Arc<RecordQueue<R>>,
    finished: Receiver<()>,
}

impl<R: Record> LogGuard<R> {
    /// Makes the writer reopen its file, soon. Records that are queued already may still go to the former file.
    pub fn reopen(&self) {
        self.queue.reopen();
    }
}

impl<R: Record> Drop for LogGuard<R> {
    fn drop(&mut self) {
        self.queue.end();
        if let Err(RecvTimeoutError::Timeout) = self.finished.recv_timeout(SHUTDOWN) {
            tracing::error!(
                "the {} did not finish in time; its last {} lines may be missing",
                self.queue.losses().log(),
                self.queue.held()
            );
        }
    }
}

/// The sender of a log and the owner of its writer.
pub type LogEnds<R> = (LogSender<R>, LogGuard<R>);

/// Starts the writer of a log, in a thread with this name.
///
/// # Errors
///
/// If the thread cannot be started.
pub fn start<S: Sink>(thread: &str, mut sink: S, losses: Losses) -> io::Result<LogEnds<S::Record>> {
    let queue = Arc::new(RecordQueue::new(losses));
    let (done, finished) = sync_channel(1);
    let written = Arc::clone(&queue);
    std::thread::Builder::new()
        .name(thread.to_owned())
        .spawn(move || {
            write_until_stopped(&written, &mut sink);
            let _ = done.send(());
        })?;
    let guard = LogGuard {
        queue: Arc::clone(&queue),
        finished,
    };
    Ok((LogSender(queue), guard))
}

/// Runs until the queue's end. Each iteration waits for a record, waits [`LINGER`] for more, writes all of them and flushes.
fn write_until_stopped<S: Sink>(queue: &RecordQueue<S::Record>, sink: &mut S) {
    let records = Records::of(queue);
    let losses = queue.losses();
    let mut batch = Vec::new();
    loop {
        let patience = if losses.are_open() {
            IDLE_WHILE_LOSING
        } else {
            IDLE
        };
        let turn = records.take(&mut batch, LINGER, patience);
        let (count, mut bytes) = (batch.len(), 0);
        for record in batch.drain(..) {
            bytes += record.bytes();
            sink.put(record);
        }
        sink.flush();
        records.written(count, bytes);
        Records::trim(&mut batch);
        match turn {
            Turn::Write => {}
            Turn::Reopen => sink.reopen(),
            Turn::Idle => {
                sink.idle();
                losses.settle();
            }
            Turn::End => {
                losses.end();
                return;
            }
        }
    }
}
