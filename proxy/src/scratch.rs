//! Reading by way of memory that each thread has once.
//!
//! Whoever waits for bytes of unknown number would set memory aside for as long as the wait takes: too much for the many
//! connections that are idle, and too little for a message of some KiB, which then needs a second read and a copy. Here a
//! read has room for much, and what came is kept in a buffer that is as large as that.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, ReadBuf};

/// Bytes that one read has room for.
pub(crate) const ROOM: usize = 64 * 1024;

thread_local! {
    /// Bytes of the last read stay here until the next one writes over them. Nobody sees more than what a read filled.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; ROOM].into());
}

/// Reads once and appends what came, at most [`ROOM`] bytes. 0: the stream has ended. Dropped while it waits, it has read
/// nothing.
///
/// # Errors
///
/// Those of the stream.
pub(crate) async fn read<S: AsyncRead + Unpin>(
    stream: &mut S,
    bytes: &mut BytesMut,
) -> io::Result<usize> {
    poll_fn(|context| poll(Pin::new(&mut *stream), context, bytes)).await
}

fn poll<S: AsyncRead>(
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
}
