//! Outbox of a server: lines that wait to be written, and the record of how many bytes the pipe may have accepted.
//!
//! A call may be sent again to another process only if no byte of it reached this one. So the position of every line in the
//! byte stream is recorded, and before a writer passes bytes to the kernel it records how far it may write.
//!
//! The outbox owns the pipe while no task writes. A writer takes the pipe out and puts it back.

use bytes::{Buf as _, BytesMut};

/// Maximum size of a buffer that is kept for reuse, in bytes. A larger buffer is freed.
const KEPT: usize = 256 * 1024;

/// The lines that wait to be written to a server, and the pipe to it. The outbox's lock is held at most for the copy of one line.
#[derive(Debug)]
pub(crate) struct Outbox<P> {
    /// The pipe to the server; `None` while a task writes to it.
    pipe: Option<P>,
    lines: BytesMut,
    max: usize,
    /// Number of bytes that were appended so far. This is the position of the next line.
    appended: u64,
    /// Position up to which bytes may have been written to the pipe.
    reached: u64,
    /// True if no more lines are accepted. The waiting lines are still written, and then the pipe is closed.
    finishing: bool,
    /// True if no more bytes are written. Waiting lines are dropped then.
    ended: bool,
}

/// Reason why a line was not appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppendRefusal {
    /// The outbox accepts no more lines, since it is finishing or has ended.
    Over,
    /// The waiting lines have reached their maximum size, since the server reads more slowly than the gateway writes.
    Full,
}

/// Result of taking lines out of the outbox to write them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Batch {
    /// There are lines. Their first byte has this position in the byte stream.
    From(u64),
    /// No line is waiting at present.
    Nothing,
    /// No line is waiting, and none will be added.
    Finished,
}

/// Result of the flusher's request to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WriteTurn<P> {
    /// The flusher may write to this pipe, and must put it back into the outbox.
    Write(P),
    /// Another task is writing. It will notify the flusher when it has finished.
    Wait,
    /// The outbox has ended.
    Over,
}

/// The lines and the pipe for a caller that writes its line itself.
#[derive(Debug)]
pub(crate) struct DirectWrite<P> {
    pub(crate) pipe: P,
    /// Position of the batch's first byte in the byte stream.
    pub(crate) start: u64,
    pub(crate) batch: BytesMut,
}

impl<P> Outbox<P> {
    /// Creates an empty outbox. `max`: maximum size of the waiting lines in bytes. A line is always accepted by an empty outbox,
    /// so that a line larger than `max` can be sent.
    pub(crate) fn new(pipe: P, max: usize) -> Self {
        Self {
            pipe: Some(pipe),
            lines: BytesMut::new(),
            max,
            appended: 0,
            reached: 0,
            finishing: false,
            ended: false,
        }
    }

    /// Appends a line of about `size` bytes and returns the position of its first byte. `write` writes the line without its
    /// newline; line breaks inside it become spaces.
    pub(crate) fn append(
        &mut self,
        size: usize,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<u64, AppendRefusal> {
        if !self.lines.is_empty() && self.lines.len().saturating_add(size) > self.max {
            return Err(if self.takes() {
                AppendRefusal::Full
            } else {
                AppendRefusal::Over
            });
        }
        self.append_always(write)
    }

    /// Appends a line even if the outbox is full. It is meant for small lines whose number is limited otherwise.
    pub(crate) fn append_always(
        &mut self,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<u64, AppendRefusal> {
        if !self.takes() {
            return Err(AppendRefusal::Over);
        }
        let begin = self.lines.len();
        write(&mut self.lines);
        tooldock_protocol::jsonrpc::splice::on_one_line(&mut self.lines[begin..]);
        self.lines.extend_from_slice(b"\n");
        let start = self.appended;
        self.appended += (self.lines.len() - begin) as u64;
        Ok(start)
    }

    /// Returns true if more than twice the maximum is waiting: the server sends requests, whose responses are always appended,
    /// but does not read.
    pub(crate) fn is_swamped(&self) -> bool {
        self.lines.len() > self.max.saturating_mul(2)
    }

    fn takes(&self) -> bool {
        !self.finishing && !self.ended
    }

    /// Takes the pipe for the flusher, if no other task is writing.
    pub(crate) fn turn(&mut self) -> WriteTurn<P> {
        match self.pipe.take() {
            Some(pipe) => WriteTurn::Write(pipe),
            None if self.ended => WriteTurn::Over,
            None => WriteTurn::Wait,
        }
    }

    /// Puts the pipe back into the outbox. If the outbox has ended, the pipe is returned instead, to be dropped by the caller
    /// outside the lock.
    pub(crate) fn rest(&mut self, pipe: P) -> Option<P> {
        if self.ended {
            return Some(pipe);
        }
        self.pipe = Some(pipe);
        None
    }

    /// Takes the pipe and all waiting lines for a caller that has just appended a line, if no other task is writing. The lines
    /// are recorded as possibly sent.
    pub(crate) fn own_turn(&mut self) -> Option<DirectWrite<P>> {
        if self.ended || self.lines.is_empty() {
            return None;
        }
        let pipe = self.pipe.take()?;
        let batch = std::mem::take(&mut self.lines);
        self.reached = self.appended;
        Some(DirectWrite {
            pipe,
            start: self.appended - batch.len() as u64,
            batch,
        })
    }

    /// Ends the write of a caller. `written`: number of bytes that the pipe accepted. The first value is true if the flusher must
    /// continue; the second is a pipe to be dropped by the caller, as for [`Self::rest`].
    pub(crate) fn own_turn_over(
        &mut self,
        turn: DirectWrite<P>,
        written: usize,
    ) -> (bool, Option<P>) {
        let DirectWrite {
            pipe,
            start,
            mut batch,
        } = turn;
        self.settle(start + written as u64);
        if self.ended {
            return (false, Some(pipe));
        }
        if written < batch.len() {
            batch.advance(written);
            batch.extend_from_slice(&self.lines);
            self.lines = batch;
        } else if self.lines.is_empty() && batch.capacity() <= KEPT {
            batch.clear();
            self.lines = batch;
        }
        let more = !self.lines.is_empty() || self.finishing;
        (more, self.rest(pipe))
    }

    /// Moves the waiting lines into the empty `batch`. The memory of `batch` is used for the next lines.
    pub(crate) fn take(&mut self, batch: &mut BytesMut) -> Batch {
        if batch.capacity() > KEPT {
            *batch = BytesMut::new();
        }
        batch.clear();
        if self.ended || (self.finishing && self.lines.is_empty()) {
            return Batch::Finished;
        }
        if self.lines.is_empty() {
            return Batch::Nothing;
        }
        std::mem::swap(batch, &mut self.lines);
        Batch::From(self.appended - batch.len() as u64)
    }

    /// Records that the bytes before this position may be written to the pipe. Returns false if writing has ended; the bytes
    /// must not be written then.
    pub(crate) fn reach(&mut self, byte: u64) -> bool {
        if !self.ended {
            self.reached = byte;
        }
        !self.ended
    }

    /// Corrects the record after a write: the pipe has accepted exactly the bytes before this position. Called after each
    /// [`Self::reach`], even if writing has ended in between.
    pub(crate) fn settle(&mut self, byte: u64) {
        self.reached = byte;
    }

    /// Returns true if no byte of the line that begins at `start` was written to the pipe, or will be. The result is final only
    /// once writing has ended.
    pub(crate) fn is_unsent(&self, start: u64) -> bool {
        self.ended && start >= self.reached
    }

    /// Accepts no more lines. The waiting lines are still written.
    pub(crate) fn finish(&mut self) {
        self.finishing = true;
    }

    /// Ends writing. If no task has taken the pipe, it is returned, to be dropped by the caller.
    pub(crate) fn end(&mut self) -> Option<P> {
        self.ended = true;
        self.lines = BytesMut::new();
        self.pipe.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(text: &'static str) -> impl FnOnce(&mut BytesMut) {
        move |out| out.extend_from_slice(text.as_bytes())
    }

    #[test]
    fn a_line_is_unsent_only_when_writing_ended_before_its_first_byte() {
        let mut outbox = Outbox::new((), 100);
        let first = outbox.append(1, put("a\r\nb")).expect("room");
        let second = outbox.append(1, put("c")).expect("room");
        let mut batch = BytesMut::new();
        assert_eq!(outbox.take(&mut batch), Batch::From(0));
        assert_eq!(&batch[..], b"a  b\nc\n");
        let third = outbox.append(1, put("d")).expect("room");
        assert!(outbox.reach(7));
        outbox.settle(2);
        assert!(!outbox.is_unsent(third), "it may still be written");
        outbox.end();
        assert!(!outbox.is_unsent(first));
        assert!(outbox.is_unsent(second) && outbox.is_unsent(third));
        assert!(!outbox.reach(7), "nothing is written after the end");
        assert_eq!(outbox.take(&mut batch), Batch::Finished);
    }

    #[test]
    fn while_bytes_are_with_the_kernel_their_lines_count_as_sent() {
        let mut outbox = Outbox::new((), 100);
        let line = outbox.append(1, put("a")).expect("room");
        outbox.take(&mut BytesMut::new());
        assert!(outbox.reach(2));
        outbox.end();
        assert!(!outbox.is_unsent(line));
        outbox.settle(0);
        assert!(outbox.is_unsent(line));
    }

    #[test]
    fn only_one_writes_at_a_time_and_what_the_pipe_did_not_take_goes_first() {
        let mut outbox = Outbox::new("pipe", 100);
        assert!(outbox.own_turn().is_none(), "nothing waits");
        let first = outbox.append(1, put("abc")).expect("room");
        let turn = outbox.own_turn().expect("nobody writes");
        assert_eq!((turn.start, &turn.batch[..]), (first, &b"abc\n"[..]));
        let second = outbox.append(1, put("d")).expect("room");
        assert!(outbox.own_turn().is_none());
        assert_eq!(outbox.turn(), WriteTurn::Wait);
        assert_eq!(outbox.own_turn_over(turn, 2), (true, None));
        assert_eq!(outbox.turn(), WriteTurn::Write("pipe"));
        let mut batch = BytesMut::new();
        assert_eq!(outbox.take(&mut batch), Batch::From(2));
        assert_eq!(&batch[..], b"c\nd\n");
        assert_eq!(outbox.rest("pipe"), None);
        let third = outbox.append(1, put("e")).expect("room");
        let turn = outbox.own_turn().expect("nobody writes");
        assert_eq!(outbox.end(), None, "it is out");
        assert!(!outbox.is_unsent(third), "it is with the kernel");
        assert_eq!(outbox.own_turn_over(turn, 0), (false, Some("pipe")));
        assert!(outbox.is_unsent(third) && !outbox.is_unsent(second));
        assert_eq!(outbox.turn(), WriteTurn::Over);
    }

    #[test]
    fn is_bounded_takes_one_large_line_and_closes_when_told() {
        let mut outbox = Outbox::new((), 4);
        assert!(outbox.append(100, put("a large line")).is_ok());
        assert_eq!(outbox.append(1, put("b")), Err(AppendRefusal::Full));
        assert!(outbox.append_always(put("c")).is_ok());
        outbox.finish();
        assert_eq!(outbox.append(1, put("d")), Err(AppendRefusal::Over));
        let mut batch = BytesMut::new();
        assert_eq!(outbox.take(&mut batch), Batch::From(0));
        assert_eq!(&batch[..], b"a large line\nc\n");
        assert_eq!(outbox.take(&mut batch), Batch::Finished);
    }
}
