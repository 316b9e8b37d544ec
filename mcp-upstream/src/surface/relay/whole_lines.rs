//! A reader that fails if a frame stays incomplete for too long, and that reserves memory for a long frame only as its bytes
//! arrive.
//!
//! The reader also fails if its frame has lost its memory to another client's frame. If the connection was chosen to be ended,
//! the reader reports when it has read all input that the client has sent.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::futures::OwnedNotified;
use tokio::task::yield_now;
use tokio::time::{Sleep, sleep};

use super::memory::FrameMemory;
use super::room::RelayRegistration;

/// Number of bytes of a line for which no memory of the shared store is reserved; every connection may use this much.
const SMALL: usize = 64 * 1024;
/// Number of bytes for which memory is reserved at a time, before they are read.
const STEP: usize = 64 * 1024;

/// Reader of a connection. It fails if a line is not complete within its time limit; between lines there is no limit.
pub(super) struct WholeLines<R> {
    inner: R,
    limit: Duration,
    /// Timer that runs while a line is incomplete; `None` between lines.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Number of bytes of the incomplete line that were read.
    size: usize,
    line_max: usize,
    guest: Arc<RelayRegistration>,
    /// Memory reserved for the incomplete line; `None` for a short line.
    memory: Option<FrameMemory>,
    /// Future that resolves when another attempt to reserve memory may succeed; `None` if the line waits for no memory.
    freed: Option<Pin<Box<OwnedNotified>>>,
    complete: Complete,
    last_look: FinalRead,
}

/// Progress of reading the last input of a connection that was chosen to be ended.
enum FinalRead {
    NotBegun,
    /// Waits until the runtime has checked for more input, since it notices new bytes only when it asks the kernel.
    Awaited(Pin<Box<dyn Future<Output = ()> + Send>>),
    Over,
}

/// Memory of the last complete line, until the line is handled, and the flag that a line has lost its memory.
#[derive(Clone, Default)]
pub(super) struct Complete(Arc<CompleteLine>);

#[derive(Default)]
struct CompleteLine {
    memory: Mutex<Option<FrameMemory>>,
    lost: AtomicBool,
}

impl Complete {
    /// Takes the memory of the last complete line.
    pub(super) fn take(&self) -> Option<FrameMemory> {
        let mut memory = self.0.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.take()
    }

    /// Returns true if the last line was dropped because its memory was needed for other clients.
    pub(super) fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Acquire)
    }

    fn put(&self, complete: Option<FrameMemory>) {
        let mut memory = self.0.memory.lock().unwrap_or_else(PoisonError::into_inner);
        *memory = complete;
    }
}

impl<R> WholeLines<R> {
    /// Creates a reader of `inner`. A line must be complete within `limit`; at most `line_max` bytes of a line are buffered.
    pub(super) fn new(
        inner: R,
        limit: Duration,
        line_max: usize,
        guest: Arc<RelayRegistration>,
    ) -> Self {
        Self {
            inner,
            limit,
            deadline: None,
            size: 0,
            line_max,
            guest,
            memory: None,
            freed: None,
            complete: Complete::default(),
            last_look: FinalRead::NotBegun,
        }
    }

    /// Returns the handle by which the memory of complete lines is taken over.
    pub(super) fn complete(&self) -> Complete {
        self.complete.clone()
    }

    /// Reserves memory before the next bytes of a long line are read, and waits if none is available.
    fn poll_memory(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.size <= SMALL {
            return Poll::Ready(Ok(()));
        }
        if self.size > self.line_max {
            // The line is too long. Its further bytes are skipped as they arrive, so they need no memory.
            self.memory = None;
            return Poll::Ready(Ok(()));
        }
        if self.complete.is_lost() {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        let memory = self.memory.get_or_insert_with(|| self.guest.memory());
        let wanted = (self.size + STEP).min(self.line_max);
        loop {
            if memory.is_lost(context.waker()) {
                self.complete.0.lost.store(true, Ordering::Release);
                self.memory = None;
                return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
            }
            let freed = self.freed.get_or_insert_with(|| Box::pin(memory.freed()));
            if memory.reach(wanted) {
                self.freed = None;
                return Poll::Ready(Ok(()));
            }
            ready!(freed.as_mut().poll(context));
            self.freed = None;
        }
    }

    /// Called when no input is available. If the connection was chosen to be ended, reports that all input was read.
    fn has_nothing(&mut self, context: &mut Context<'_>) {
        if !self.guest.is_to_leave(context.waker()) {
            self.last_look = FinalRead::NotBegun;
            return;
        }
        if let FinalRead::NotBegun = self.last_look {
            self.last_look = FinalRead::Awaited(Box::pin(yield_now()));
        }
        if let FinalRead::Awaited(look) = &mut self.last_look
            && look.as_mut().poll(context).is_ready()
        {
            self.last_look = FinalRead::Over;
        }
        if let FinalRead::Over = self.last_look {
            self.guest.has_been_read();
        }
    }

    /// Passes the memory of a line to its handler, since the line is complete.
    fn completed(&mut self, size: usize) {
        self.freed = None;
        if let Some(memory) = self.memory.take() {
            memory.complete(size);
            self.complete.put(Some(memory));
        }
    }

    fn poll_line(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
    {
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        ready!(self.poll_memory(context))?;
        let before = buffer.filled().len();
        let most = buffer.remaining().min(STEP);
        let mut step = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.inner).poll_read(context, &mut step))?;
        let read = step.filled().len();
        buffer.advance(read);
        let read = &buffer.filled()[before..];
        let Some(end) = memchr::memrchr(b'\n', read) else {
            if self.deadline.is_none() && !read.is_empty() {
                self.deadline = Some(Box::pin(sleep(self.limit)));
            }
            self.size += read.len();
            self.guest.is_in_frame(self.size > 0);
            return Poll::Ready(Ok(()));
        };
        self.completed(self.size + end);
        self.size = read.len() - end - 1;
        self.guest.is_in_frame(self.size > 0);
        // The bytes that were read behind the complete line begin the next one, which has its own time limit.
        self.deadline = (self.size > 0).then(|| Box::pin(sleep(self.limit)));
        Poll::Ready(Ok(()))
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for WholeLines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.poll_line(context, buffer);
        match read.is_pending() {
            true => self.has_nothing(context),
            false => self.last_look = FinalRead::NotBegun,
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::{advance, timeout};

    use super::super::memory::MemoryStore;
    use super::super::room::Room;
    use super::super::testing::Keys;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);
    /// The length at which all strangers together may hold a single line.
    const LINE_MAX: usize = 4 * SMALL;

    fn reading(room: &Arc<Room>, uid: u32) -> (DuplexStream, WholeLines<DuplexStream>) {
        let (writer, reader) = duplex(LINE_MAX);
        let guest = Arc::new(room.enter(uid).expect("a place"));
        (writer, WholeLines::new(reader, LIMIT, LINE_MAX, guest))
    }

    fn room() -> Arc<Room> {
        let counts = Keys::new().counts();
        let memory = MemoryStore::new(LINE_MAX, LINE_MAX, Arc::clone(&counts));
        Arc::new(Room::new(memory, counts))
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_line_has_a_time_limit_that_more_of_it_does_not_extend() {
        let (mut writer, mut reader) = reading(&room(), 1000);
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
        let (mut writer, mut reader) = reading(&room(), 1000);
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

    /// Sends this many bytes of a line, and reads them as far as there is memory for them.
    async fn sent(
        writer: &mut DuplexStream,
        reader: &mut WholeLines<DuplexStream>,
        bytes: usize,
    ) -> io::Result<()> {
        writer.write_all(&vec![b'x'; bytes]).await?;
        let mut buffer = vec![0; bytes];
        let read = timeout(LIMIT / 2, reader.read_exact(&mut buffer)).await;
        read.unwrap_or_else(|_| Err(io::ErrorKind::WouldBlock.into()))?;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_long_line_ends_when_another_client_needs_its_memory() {
        let room = room();
        let (mut first, mut one) = reading(&room, 1000);
        let (mut second, mut other) = reading(&room, 2000);
        sent(&mut first, &mut one, LINE_MAX).await.expect("memory");
        sent(&mut second, &mut other, SMALL + 1)
            .await
            .expect("small");
        second.write_all(b"\n").await.expect("room");
        let mut byte = [0];
        assert_eq!(other.read(&mut byte).await.expect("memory"), 1);
        assert!(other.complete().take().is_some());
        let error = one.read(&mut byte).await.expect_err("lost");
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert!(one.complete().is_lost());
        // The rest of the line takes no memory again, although some is free.
        first.write_all(b"x").await.expect("room");
        let error = one.read(&mut byte).await.expect_err("lost for good");
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_line_waits_for_lines_that_are_answered() {
        let room = room();
        let (mut first, mut one) = reading(&room, 1000);
        let (mut second, mut other) = reading(&room, 2000);
        sent(&mut first, &mut one, LINE_MAX - 1)
            .await
            .expect("memory");
        first.write_all(b"\n").await.expect("room");
        let mut byte = [0];
        assert_eq!(one.read(&mut byte).await.expect("the end"), 1);
        let held = one.complete().take().expect("the memory of the line");
        assert!(one.complete().take().is_none());

        sent(&mut second, &mut other, SMALL + 1)
            .await
            .expect("small");
        second.write_all(b"\n").await.expect("room");
        let waits = timeout(LIMIT / 2, other.read(&mut byte)).await;
        assert!(waits.is_err(), "read without memory");
        drop(held);
        assert_eq!(other.read(&mut byte).await.expect("memory"), 1);
    }
}
