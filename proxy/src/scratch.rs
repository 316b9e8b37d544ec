//! Reads from streams through a buffer that each thread has once.
//!
//! Usually a reader allocates a buffer, waits, and reads into it. For many idle connections that is too much memory. If the
//! buffer is small, a message of some KiB needs a second read and a copy. Here each read uses the large buffer of the thread, and
//! only the received bytes are copied to a buffer of their size.
//!
//! Copying is cheap for short messages. Long messages usually follow each other: after a long read, the thread reads into a new
//! buffer, which is kept without a copy if the bytes fill at least half of it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, ReadBuf};

/// Size in bytes of the buffer that each thread has.
const ROOM: usize = 64 * 1024;
/// Size in bytes of a new buffer into which a long read goes. If the read fills at least half of it, the caller gets this
/// buffer instead of a copy. The allocator caches buffers of this size for each thread.
const KEPT: usize = 32 * 1024;
/// Size in bytes of a read after which more bytes are usually available for the next read.
pub(crate) const MUCH: usize = KEPT;

thread_local! {
    /// The thread's buffer. It still contains the bytes of the last read, but each reader gets only the bytes of its own read.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; ROOM].into());
    /// True if the last read was at least half as long as `KEPT`. The next read then uses a new buffer of that size, which
    /// needs no copy.
    static LONG: Cell<bool> = const { Cell::new(false) };
}

/// Reads once and appends the bytes to `bytes`, at most 64 KiB. Returns 0 if the stream has ended. If the future is dropped while
/// it waits, no bytes are lost.
///
/// # Errors
///
/// Errors of the stream.
pub(crate) async fn read<S: AsyncRead + Unpin>(
    stream: &mut S,
    bytes: &mut BytesMut,
) -> io::Result<usize> {
    poll_fn(|context| {
        let read = ready!(match LONG.get() && bytes.is_empty() {
            true => poll_kept(stream, context, bytes),
            false => poll_scratch(Pin::new(&mut *stream), context, bytes),
        })?;
        LONG.set(read >= KEPT / 2);
        Poll::Ready(Ok(read))
    })
    .await
}

fn poll_scratch<S: AsyncRead>(
    stream: Pin<&mut S>,
    context: &mut Context<'_>,
    bytes: &mut BytesMut,
) -> Poll<io::Result<usize>> {
    SCRATCH.with_borrow_mut(|room| {
        let mut read = ReadBuf::new(room);
        ready!(stream.poll_read(context, &mut read))?;
        bytes.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    })
}

/// Reads into a new buffer and lets it replace `bytes`, which must be empty. Each attempt allocates the buffer again, so that no
/// memory is occupied while the stream has no data.
fn poll_kept<S: AsyncRead + Unpin>(
    stream: &mut S,
    context: &mut Context<'_>,
    bytes: &mut BytesMut,
) -> Poll<io::Result<usize>> {
    let mut kept = BytesMut::with_capacity(KEPT);
    let read = ready!(pin!(stream.read_buf(&mut kept)).poll(context))?;
    match kept.len() >= KEPT / 2 {
        true => *bytes = kept,
        false => bytes.extend_from_slice(&kept),
    }
    Poll::Ready(Ok(read))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn a_read_keeps_what_came_and_no_more_memory_than_that() {
        let (mut near, mut far) = duplex(2 * ROOM);
        let mut bytes = BytesMut::new();
        far.write_all(&[b'x'; 1000]).await.expect("room");
        assert_eq!(read(&mut near, &mut bytes).await.expect("open"), 1000);
        assert_eq!((&bytes[..], bytes.capacity()), (&[b'x'; 1000][..], 1000));

        far.write_all(b"yz").await.expect("room");
        assert_eq!(read(&mut near, &mut bytes).await.expect("open"), 2);
        assert!(bytes.ends_with(b"xyz"));

        bytes.clear();
        far.write_all(&[b'x'; ROOM + 1]).await.expect("room");
        assert_eq!(read(&mut near, &mut bytes).await.expect("open"), ROOM);
        assert_eq!(read(&mut near, &mut bytes).await.expect("open"), 1);
        drop(far);
        assert_eq!(read(&mut near, &mut bytes).await.expect("ended"), 0);
    }

    #[tokio::test]
    async fn behind_a_long_message_a_read_holds_at_most_twice_what_came() {
        let (mut near, mut far) = duplex(2 * ROOM);
        let mut all = Vec::new();
        // Long, and what comes behind a long one: another, a short one, one that is longer than a buffer, its rest.
        for length in [20_000, 17_000, 10, 20_000, KEPT + 5, 10] {
            far.write_all(&vec![b'x'; length]).await.expect("room");
            let mut left = length;
            while left > 0 {
                let mut bytes = BytesMut::new();
                let came = read(&mut near, &mut bytes).await.expect("open");
                assert_eq!(came, bytes.len());
                assert!(
                    bytes.capacity() <= 2 * came,
                    "{length}: {}",
                    bytes.capacity()
                );
                left -= came;
                all.push(came);
            }
        }
        assert_eq!(all, [20_000, 17_000, 10, 20_000, KEPT, 5, 10]);
    }

    #[tokio::test]
    async fn behind_a_long_message_whatever_is_there_is_kept() {
        let (mut near, mut far) = duplex(2 * ROOM);
        far.write_all(&[b'x'; 20_000]).await.expect("room");
        let mut bytes = BytesMut::new();
        read(&mut near, &mut bytes).await.expect("open");
        far.write_all(&[b'y'; 20_000]).await.expect("room");
        read(&mut near, &mut bytes).await.expect("open");
        assert_eq!(bytes.len(), 40_000);
        assert!(bytes.starts_with(b"xx") && bytes.ends_with(b"yy"));
    }
}
