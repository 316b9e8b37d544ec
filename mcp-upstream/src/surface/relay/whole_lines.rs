//! A reader that ends where half a frame stays half, and waits for memory before it reads a long frame on: whoever holds
//! a connection open in the middle of a line holds memory that nobody gets anything for.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::room::{FrameMemory, Guest};

/// A line that is no longer needs no memory from the shared store: every connection may hold so much.
const SMALL: usize = 64 * 1024;

/// Reads until a line that has begun takes longer than its time. Between lines there is no limit.
pub(super) struct WholeLines<R> {
    inner: R,
    limit: Duration,
    /// Runs while a line has begun and is not complete.
    deadline: Option<Pin<Box<Sleep>>>,
    /// The bytes of the line that has begun.
    size: usize,
    line_max: usize,
    guest: Arc<Guest>,
    memory: Memory,
    complete: Complete,
}

/// The memory of the line that has begun.
enum Memory {
    NotNeeded,
    Awaited(Pin<Box<dyn Future<Output = Option<FrameMemory>> + Send>>),
    Held(Option<FrameMemory>),
}

/// The memory of the line that was complete last, until somebody takes it.
#[derive(Clone, Default)]
pub(super) struct Complete(Arc<Mutex<Option<FrameMemory>>>);

impl Complete {
    /// Takes it, with the line.
    pub(super) fn take(&self) -> Option<FrameMemory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, memory: Option<FrameMemory>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = memory;
    }
}

impl<R> WholeLines<R> {
    /// A reader that waits no longer than `limit` for the rest of a line, and keeps no more than `line_max` bytes of a line.
    pub(super) fn new(inner: R, limit: Duration, line_max: usize, guest: Arc<Guest>) -> Self {
        Self {
            inner,
            limit,
            deadline: None,
            size: 0,
            line_max,
            guest,
            memory: Memory::NotNeeded,
            complete: Complete::default(),
        }
    }

    /// Where the memory of complete lines is.
    pub(super) fn complete(&self) -> Complete {
        self.complete.clone()
    }

    /// Waits for the memory of a line that turns out to be long.
    fn poll_memory(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.memory {
                Memory::NotNeeded if self.size <= SMALL => return Poll::Ready(()),
                Memory::NotNeeded => {
                    let (guest, bytes) = (Arc::clone(&self.guest), self.line_max);
                    self.memory =
                        Memory::Awaited(Box::pin(async move { guest.memory(bytes).await }));
                }
                Memory::Awaited(memory) => {
                    self.memory = Memory::Held(ready!(memory.as_mut().poll(context)));
                }
                Memory::Held(_) => return Poll::Ready(()),
            }
        }
    }

    /// The line that had begun is complete.
    fn completed(&mut self, size: usize) {
        if let Memory::Held(memory) = std::mem::replace(&mut self.memory, Memory::NotNeeded) {
            self.complete.put(memory.map(|mut memory| {
                memory.shrink(size);
                memory
            }));
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for WholeLines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(deadline) = &mut this.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        ready!(this.poll_memory(context));
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(context, buffer))?;
        let read = &buffer.filled()[before..];
        let Some(end) = memchr::memrchr(b'\n', read) else {
            if this.deadline.is_none() && !read.is_empty() {
                this.deadline = Some(Box::pin(sleep(this.limit)));
            }
            this.size += read.len();
            return Poll::Ready(Ok(()));
        };
        this.completed(this.size + end);
        this.size = read.len() - end - 1;
        // The next line begins with a time of its own.
        this.deadline = (this.size > 0).then(|| Box::pin(sleep(this.limit)));
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::{advance, timeout};

    use super::super::room::Room;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);
    /// The longest line: so long that all strangers together may hold a single one.
    const LINE_MAX: usize = 4 * SMALL;

    fn reading(room: &Arc<Room>) -> (DuplexStream, WholeLines<DuplexStream>) {
        let (writer, reader) = duplex(LINE_MAX);
        let guest = Arc::new(room.enter().expect("a place"));
        (writer, WholeLines::new(reader, LIMIT, LINE_MAX, guest))
    }

    fn room() -> Arc<Room> {
        Arc::new(Room::new(LINE_MAX, LINE_MAX))
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_line_has_a_time_limit_that_more_of_it_does_not_extend() {
        let (mut writer, mut reader) = reading(&room());
        let mut buffer = [0; 16];
        writer.write_all(b"half").await.expect("room");
        assert_eq!(reader.read(&mut buffer).await.expect("bytes"), 4);
        advance(LIMIT / 2).await;
        writer.write_all(b" more").await.expect("room");
        assert_eq!(reader.read(&mut buffer).await.expect("bytes"), 5);
        let error = reader.read(&mut buffer).await.expect_err("too late");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn between_lines_there_is_no_limit() {
        let (mut writer, mut reader) = reading(&room());
        let mut buffer = [0; 16];
        writer.write_all(b"{}\n").await.expect("room");
        assert_eq!(reader.read(&mut buffer).await.expect("bytes"), 3);
        let later = async {
            tokio::time::sleep(LIMIT * 10).await;
            writer.write_all(b"{}\n").await.expect("room");
        };
        let (read, ()) = tokio::join!(reader.read(&mut buffer), later);
        assert_eq!(read.expect("bytes"), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_line_waits_for_memory_that_another_one_holds() {
        let room = room();
        let (mut first, mut one) = reading(&room);
        let (mut second, mut other) = reading(&room);
        let half = vec![b'x'; SMALL + 1];
        let mut buffer = vec![0; SMALL + 1];
        let complete = one.complete();
        first.write_all(&half).await.expect("room");
        one.read_exact(&mut buffer).await.expect("bytes");
        first.write_all(b"y").await.expect("room");
        assert_eq!(one.read(&mut buffer).await.expect("bytes"), 1);

        second.write_all(&half).await.expect("room");
        other.read_exact(&mut buffer).await.expect("bytes");
        second.write_all(b"\n").await.expect("room");
        let waits = timeout(LIMIT / 2, other.read(&mut buffer)).await;
        assert!(waits.is_err(), "read without memory");

        first.write_all(b"\nnext").await.expect("room");
        assert_eq!(one.read(&mut buffer).await.expect("bytes"), 5);
        let held = complete.take().expect("the memory of the first line");
        assert!(complete.take().is_none());
        drop(held);
        assert_eq!(other.read(&mut buffer).await.expect("bytes"), 1);
        assert!(other.complete().take().is_some());
    }
}
