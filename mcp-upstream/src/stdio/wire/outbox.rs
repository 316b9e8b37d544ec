//! Outbox of a server: lines that wait to be written, and the record of how many bytes the pipe may have accepted.
//!
//! A call may be sent again to another process only if no byte of it reached this one. So the position of every line in the
//! byte stream is known, and the writer records how far it may write before it passes bytes to the kernel.
//!
//! The outbox owns the pipe while no task writes: the writer takes the pipe out and returns it.

use bytes::{Buf as _, BytesMut};

/// Maximum size in bytes of a buffer that is kept for reuse.
const KEPT: usize = 256 * 1024;

/// The lines to write, and the pipe. The lock is held for a copy of one line at most.
#[derive(Debug)]
pub(in crate::stdio) struct Outbox<P> {
    /// The pipe; `None` while a task writes.
    pipe: Option<P>,
    lines: BytesMut,
    max: usize,
    /// Number of bytes that were ever appended, which is the position of the next line.
    appended: u64,
    /// Upper bound of the number of bytes that have reached the pipe.
    reached: u64,
    /// True if no more lines are appended. The waiting lines are still written, and then the pipe is closed.
    finishing: bool,
    /// True if no more bytes are written.
    ended: bool,
}

/// Reason why a line was not appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stdio) enum Unwritten {
    /// The outbox accepts no more lines.
    Over,
    /// The waiting lines have reached the bound: the server reads more slowly than the gateway writes.
    Full,
}

/// Outcome of taking lines to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stdio) enum Batch {
    /// Lines whose first byte has this position in the stream.
    From(u64),
    /// No line waits at the moment.
    Nothing,
    /// No line will be added.
    Finished,
}

/// Outcome of asking for the turn to write.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::stdio) enum WriteTurn<P> {
    /// The caller writes to this pipe, and must return it.
    Write(P),
    /// Another task writes, and notifies when it is done.
    Wait,
    /// The outbox has ended.
    Over,
}

/// The lines and the pipe of a caller that writes its own line.
#[derive(Debug)]
pub(in crate::stdio) struct OwnTurn<P> {
    pub(in crate::stdio) pipe: P,
    /// Position of the batch's first byte in the stream.
    pub(in crate::stdio) start: u64,
    pub(in crate::stdio) batch: BytesMut,
}

impl<P> Outbox<P> {
    /// An empty outbox. `max`: maximum size of the queued lines in bytes. A line into an empty outbox is always accepted, so
    /// that a large line is not blocked for ever.
    pub(in crate::stdio) fn new(pipe: P, max: usize) -> Self {
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

    /// Appends a line of about `size` bytes and returns the position at which it begins. `write` writes the line without its
    /// newline; line breaks in it become spaces.
    pub(in crate::stdio) fn append(
        &mut self,
        size: usize,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<u64, Unwritten> {
        if !self.lines.is_empty() && self.lines.len().saturating_add(size) > self.max {
            return Err(if self.takes() {
                Unwritten::Full
            } else {
                Unwritten::Over
            });
        }
        self.append_always(write)
    }

    /// Appends a line without the bound, for small lines whose number is bounded.
    pub(in crate::stdio) fn append_always(
        &mut self,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<u64, Unwritten> {
        if !self.takes() {
            return Err(Unwritten::Over);
        }
        let begin = self.lines.len();
        write(&mut self.lines);
        crate::jsonrpc::splice::on_one_line(&mut self.lines[begin..]);
        self.lines.extend_from_slice(b"\n");
        let start = self.appended;
        self.appended += (self.lines.len() - begin) as u64;
        Ok(start)
    }

    /// Returns true if more than twice the bound is queued: the server does not read, but continues to send requests whose
    /// responses are always appended.
    pub(in crate::stdio) fn is_swamped(&self) -> bool {
        self.lines.len() > self.max.saturating_mul(2)
    }

    fn takes(&self) -> bool {
        !self.finishing && !self.ended
    }

    /// Begins the flusher's write, if no other task writes.
    pub(in crate::stdio) fn turn(&mut self) -> WriteTurn<P> {
        match self.pipe.take() {
            Some(pipe) => WriteTurn::Write(pipe),
            None if self.ended => WriteTurn::Over,
            None => WriteTurn::Wait,
        }
    }

    /// Returns the pipe to the outbox. If the outbox has ended, the caller gets the pipe back to drop it.
    pub(in crate::stdio) fn rest(&mut self, pipe: P) -> Option<P> {
        if self.ended {
            return Some(pipe);
        }
        self.pipe = Some(pipe);
        None
    }

    /// Begins the write of a caller that has just appended a line, if no other task writes. The write contains all queued
    /// lines, which are recorded as sent.
    pub(in crate::stdio) fn own_turn(&mut self) -> Option<OwnTurn<P>> {
        if self.ended || self.lines.is_empty() {
            return None;
        }
        let pipe = self.pipe.take()?;
        let batch = std::mem::take(&mut self.lines);
        self.reached = self.appended;
        Some(OwnTurn {
            pipe,
            start: self.appended - batch.len() as u64,
            batch,
        })
    }

    /// Ends a caller's own write, for which the pipe accepted `written` bytes. Returns true if the flusher has something to do,
    /// and returns the pipe as [`Self::rest`] does.
    pub(in crate::stdio) fn own_turn_over(
        &mut self,
        turn: OwnTurn<P>,
        written: usize,
    ) -> (bool, Option<P>) {
        let OwnTurn {
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

    /// Swaps the lines with the empty `batch`, whose memory serves the next lines.
    pub(in crate::stdio) fn take(&mut self, batch: &mut BytesMut) -> Batch {
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

    /// Records that all bytes before this position may reach the pipe. Returns false if they must not: writing is over.
    pub(in crate::stdio) fn reach(&mut self, byte: u64) -> bool {
        if !self.ended {
            self.reached = byte;
        }
        !self.ended
    }

    /// Corrects the record: the pipe took all bytes before this position and no more. Called after [`Self::reach`], even if
    /// writing ended between the two.
    pub(in crate::stdio) fn settle(&mut self, byte: u64) {
        self.reached = byte;
    }

    /// Returns true if no byte of the line that begins at `start` has reached the pipe, nor will. Only certain once writing has
    /// ended.
    pub(in crate::stdio) fn is_unsent(&self, start: u64) -> bool {
        self.ended && start >= self.reached
    }

    /// Accepts no more lines; the queued lines are still written.
    pub(in crate::stdio) fn finish(&mut self) {
        self.finishing = true;
    }

    /// Ends writing. If no task has the pipe, the caller gets it to drop.
    pub(in crate::stdio) fn end(&mut self) -> Option<P> {
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
        assert_eq!(outbox.append(1, put("b")), Err(Unwritten::Full));
        assert!(outbox.append_always(put("c")).is_ok());
        outbox.finish();
        assert_eq!(outbox.append(1, put("d")), Err(Unwritten::Over));
        let mut batch = BytesMut::new();
        assert_eq!(outbox.take(&mut batch), Batch::From(0));
        assert_eq!(&batch[..], b"a large line\nc\n");
        assert_eq!(outbox.take(&mut batch), Batch::Finished);
    }
}
