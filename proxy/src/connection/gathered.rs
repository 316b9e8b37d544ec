//! Buffers writes until a flush, or until they exceed one TCP segment. So a response's head is sent together with its body in one
//! system call, whatever the body's length.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum number of slices in a vectored write that need no allocation: the buffered bytes, and the three slices in which
/// Pingora writes a chunk.
const PARTS: usize = 4;

/// A stream that buffers writes. Reads are passed to the inner stream.
#[derive(Debug)]
pub(super) struct GatheringStream<C> {
    inner: C,
    /// Buffered bytes; the first `gone` of them are already written.
    held: Vec<u8>,
    /// Number of bytes at the beginning of the buffer that are already written.
    gone: usize,
    /// Maximum number of bytes in the buffer; a longer write is not buffered.
    limit: usize,
}

impl<C> GatheringStream<C> {
    pub(super) fn new(limit: usize, inner: C) -> Self {
        Self {
            inner,
            held: Vec::new(),
            gone: 0,
            limit,
        }
    }

    pub(super) fn get_ref(&self) -> &C {
        &self.inner
    }

    /// Returns the inner stream. Bytes that are still buffered are lost.
    pub(super) fn into_inner(self) -> C {
        self.inner
    }

    fn hold(&mut self, parts: &[IoSlice<'_>]) {
        // The buffer gets its full capacity in one allocation, at the first write.
        self.held.reserve_exact(self.limit - self.held.len());
        for part in parts {
            self.held.extend_from_slice(part);
        }
    }

    fn rest(&self) -> &[u8] {
        &self.held[self.gone..]
    }

    /// Records that `bytes` more of the buffered bytes were written.
    fn wrote(&mut self, bytes: usize) {
        self.gone += bytes;
        if self.gone == self.held.len() {
            self.held.clear();
            self.gone = 0;
        }
    }
}

impl<C: AsyncWrite + Unpin> GatheringStream<C> {
    fn poll_held(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            let rest = &self.held[self.gone..];
            let wrote = ready!(Pin::new(&mut self.inner).poll_write(context, rest))?;
            self.wrote(some(wrote)?);
        }
        Poll::Ready(Ok(()))
    }

    /// Buffers `parts` if they fit into the buffer; otherwise writes the buffered bytes followed by `parts`.
    fn poll_parts(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if self.held.len() + length <= self.limit {
            self.hold(parts);
            return Poll::Ready(Ok(length));
        }
        if !self.inner.is_write_vectored() {
            if let [_, _, ..] = parts {
                // The parts are passed one by one, so that short ones are buffered.
                let part = parts.iter().find(|part| !part.is_empty());
                let part = part.map_or(&[][..], |part| &**part);
                return self.poll_parts(context, &[IoSlice::new(part)]);
            }
            ready!(self.poll_held(context))?;
        }
        while !self.held.is_empty() {
            let own = self.rest().len();
            let mut all: SmallVec<[IoSlice<'_>; PARTS]> = SmallVec::new();
            all.push(IoSlice::new(&self.held[self.gone..]));
            all.extend(parts.iter().map(|part| IoSlice::new(part)));
            let wrote = Pin::new(&mut self.inner).poll_write_vectored(context, &all);
            drop(all);
            let wrote = some(ready!(wrote)?)?;
            self.wrote(wrote.min(own));
            if wrote > own {
                return Poll::Ready(Ok(wrote - own));
            }
        }
        match parts {
            [only] => Pin::new(&mut self.inner).poll_write(context, only),
            _ => Pin::new(&mut self.inner).poll_write_vectored(context, parts),
        }
    }
}

/// Returns the number of written bytes; 0 is an error.
fn some(wrote: usize) -> io::Result<usize> {
    match wrote {
        0 => Err(io::ErrorKind::WriteZero.into()),
        _ => Ok(wrote),
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for GatheringStream<C> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(context, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for GatheringStream<C> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_parts(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_parts(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_held(context))?;
        Pin::new(&mut this.inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_held(context))?;
        Pin::new(&mut this.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Takes at most so many bytes with each write, and notes the writes.
    struct Taker {
        most: usize,
        vectored: bool,
        writes: Vec<Vec<u8>>,
    }

    impl Taker {
        fn take(&mut self, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            let mut all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            all.truncate(self.most);
            let length = all.len();
            self.writes.push(all);
            Poll::Ready(Ok(length))
        }
    }

    impl AsyncWrite for Taker {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.get_mut().take(&[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            parts: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.get_mut().take(parts)
        }

        fn is_write_vectored(&self) -> bool {
            self.vectored
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    async fn written(most: usize, vectored: bool, parts: &[&[u8]]) -> Vec<Vec<u8>> {
        let writes = Vec::new();
        let mut gathered = GatheringStream::new(
            8,
            Taker {
                most,
                vectored,
                writes,
            },
        );
        for part in parts {
            gathered.write_all(part).await.expect("taken");
        }
        gathered.flush().await.expect("taken");
        gathered.inner.writes
    }

    #[tokio::test]
    async fn a_head_and_a_body_of_any_length_leave_in_one_write() {
        for body in [
            "body",
            "a longer body",
            "a body of many bytes, more than are ever held",
        ] {
            let whole = format!("head{body}").into_bytes();
            let parts = [b"head".as_slice(), body.as_bytes()];
            assert_eq!(written(1000, true, &parts).await, [whole]);
        }
        let apart = written(1000, false, &[b"head", b"a longer body"]).await;
        assert_eq!(apart, [b"head".to_vec(), b"a longer body".to_vec()]);
    }

    #[tokio::test]
    async fn nothing_is_lost_or_twice_however_little_a_write_takes() {
        let parts: [&[u8]; 5] = [b"one", b"two", b"three, four, five", b"", b"six"];
        for most in 1..30 {
            for vectored in [false, true] {
                let all = written(most, vectored, &parts).await.concat();
                assert_eq!(all, parts.concat(), "{most} {vectored}");
            }
        }
    }

    #[tokio::test]
    async fn parts_of_a_chunk_are_held_or_leave_together() {
        let taker = Taker {
            most: 1000,
            vectored: true,
            writes: Vec::new(),
        };
        let mut gathered = GatheringStream::new(8, taker);
        for data in ["1", "1234", "12345678"] {
            let parts = ["4\r\n", data, "\r\n"].map(|part| IoSlice::new(part.as_bytes()));
            let taken = gathered.write_vectored(&parts).await.expect("taken");
            assert_eq!(taken, data.len() + 5);
        }
        gathered.flush().await.expect("taken");
        let all = ["4\r\n1\r\n4\r\n1234\r\n", "4\r\n12345678\r\n"];
        assert_eq!(gathered.inner.writes, all.map(|it| it.as_bytes().to_vec()));
    }
}
