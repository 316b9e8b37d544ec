//! A client's connection in the form that Pingora uses: a socket, or TLS over it, with features that Pingora's own streams lack.
//!
//! - **Every write has a time limit**, whichever code writes: a response, `100 Continue`, Pingora's own error response, a frame
//!   of HTTP/2, the closing messages of TLS. A client that accepts no bytes for that time is treated as disconnected.
//!
//! Writes are buffered until they are flushed, so that head and body are sent together. Reads are not buffered here, since
//! all layers above read into a larger buffer.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::protocols::l4::socket::SocketAddr as LocalAddress;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::{SslDigest, TlsStream};
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Sleep;

use super::chunks::Chunks;
use super::gathered::GatheringStream;
use super::socket::Socket;

/// Size of the write buffer, in bytes: one TCP segment. A longer write is not buffered: it is sent immediately, after the
/// buffered bytes.
const WRITE_BUFFER: usize = 1460;

/// The byte stream below a connection: a socket, or TLS over it.
pub(crate) trait Carrier: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static {
    /// Returns a number that identifies the connection among the open ones.
    fn id(&self) -> UniqueIDType;

    /// Returns the state of TLS; `None` without TLS.
    fn tls(&self) -> Option<Arc<SslDigest>> {
        None
    }

    /// Returns the protocol negotiated in the TLS handshake; `None` if there was none.
    fn protocol(&self) -> Option<ALPN> {
        None
    }
}

impl Carrier for Socket {
    fn id(&self) -> UniqueIDType {
        self.as_raw_fd()
    }
}

impl Carrier for TlsStream<Wire<Socket>> {
    fn id(&self) -> UniqueIDType {
        UniqueID::id(self)
    }

    fn tls(&self) -> Option<Arc<SslDigest>> {
        self.get_ssl_digest()
    }

    fn protocol(&self) -> Option<ALPN> {
        self.selected_alpn_proto()
    }
}

/// A client's connection: a byte stream with a time limit for writes.
pub(crate) struct Wire<C> {
    carrier: GatheringStream<C>,
    socket: Arc<SocketDigest>,
    write_limit: Duration,
    /// Timer that runs while a write waits for the client; `None` at other times.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Parser that checks the framing of the request body; `None` if the body is not chunked.
    chunks: Option<Chunks>,
}

impl Wire<Socket> {
    /// Creates the connection for a socket that was just accepted. `local` is the listener's address, `peer` the client's.
    pub(crate) fn accepted(
        socket: Socket,
        peer: SocketAddr,
        local: &LocalAddress,
        write_limit: Duration,
    ) -> Self {
        socket.without_delay();
        let digest = SocketDigest::from_raw_fd(socket.as_raw_fd());
        // Setting cannot fail, as the cells are new and empty.
        let _ = digest.peer_addr.set(Some(peer.into()));
        let _ = digest.local_addr.set(Some(local.clone()));
        Self::new(socket, Arc::new(digest), WRITE_BUFFER, write_limit)
    }

    /// Returns the socket, for tests.
    #[cfg(test)]
    pub(crate) fn socket(&self) -> &Socket {
        self.carrier.get_ref()
    }

    /// Returns the socket. Bytes that were not flushed are lost.
    pub(crate) fn into_socket(self) -> Socket {
        self.carrier.into_inner()
    }
}

impl Wire<TlsStream<Wire<Socket>>> {
    /// Creates the connection for a TLS stream after the handshake.
    pub(crate) fn encrypted(tls: TlsStream<Wire<Socket>>, write_limit: Duration) -> Self {
        let socket = tls
            .get_socket_digest()
            .unwrap_or_else(|| Arc::new(SocketDigest::from_raw_fd(UniqueID::id(&tls))));
        Self::new(tls, socket, WRITE_BUFFER, write_limit)
    }
}

impl<C: AsyncRead + AsyncWrite> Wire<C> {
    fn new(carrier: C, socket: Arc<SocketDigest>, buffer: usize, write_limit: Duration) -> Self {
        Self {
            carrier: GatheringStream::new(buffer, carrier),
            socket,
            write_limit,
            stalled: None,
            chunks: None,
        }
    }

    /// Sets the parser that checks the framing of the next body; `None` for a body that is not chunked.
    pub(crate) fn follow(&mut self, chunks: Option<Chunks>) {
        self.chunks = chunks;
    }

    /// Applies the time limit: returns an error if a write has been pending for too long, else the result `step` of the poll.
    fn in_time<T>(
        &mut self,
        context: &mut Context<'_>,
        step: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if step.is_ready() {
            if self.stalled.is_some() {
                self.stalled = None;
            }
            return step;
        }
        let limit = self.write_limit;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client takes nothing of what is written to it",
        )))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> AsyncRead for Wire<C> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut wire.carrier).poll_read(context, buffer))?;
        if let Some(chunks) = &mut wire.chunks {
            chunks.follow(&buffer.filled()[before..])?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<C> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wire = self.get_mut();
        let step = Pin::new(&mut wire.carrier).poll_write(context, bytes);
        wire.in_time(context, step)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wire = self.get_mut();
        let step = Pin::new(&mut wire.carrier).poll_write_vectored(context, parts);
        wire.in_time(context, step)
    }

    fn is_write_vectored(&self) -> bool {
        self.carrier.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        let step = Pin::new(&mut wire.carrier).poll_flush(context);
        wire.in_time(context, step)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        let step = Pin::new(&mut wire.carrier).poll_shutdown(context);
        wire.in_time(context, step)
    }
}

#[async_trait]
impl<C: Carrier> Shutdown for Wire<C> {
    async fn shutdown(&mut self) {
        if let Err(error) = AsyncWriteExt::shutdown(self).await {
            tracing::debug!(%error, "a connection could not be closed in order");
        }
    }
}

impl<C: Carrier> UniqueID for Wire<C> {
    fn id(&self) -> UniqueIDType {
        self.carrier.get_ref().id()
    }
}

impl<C: Carrier> Ssl for Wire<C> {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.carrier.get_ref().tls()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.carrier.get_ref().protocol()
    }
}

impl<C> GetSocketDigest for Wire<C> {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        Some(Arc::clone(&self.socket))
    }
}

impl<C> GetTimingDigest for Wire<C> {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl<C> GetProxyDigest for Wire<C> {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl<C> Peek for Wire<C> {}

impl<C> fmt::Debug for Wire<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("peer", &self.socket.peer_addr.get())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A connection that takes 16 bytes until its client reads, and the client's end of it.
    fn pair(buffer: usize) -> (DuplexStream, Wire<DuplexStream>) {
        let (client, server) = duplex(16);
        let digest = Arc::new(SocketDigest::from_raw_fd(-1));
        (client, Wire::new(server, digest, buffer, LIMIT))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_ends_every_kind_of_write() {
        let (_client, mut wire) = pair(0);
        let write = wire.write_all(&[0; 64]).await.expect_err("nobody reads");
        assert_eq!(write.kind(), io::ErrorKind::TimedOut);

        let (_client, mut wire) = pair(64);
        wire.write_all(&[0; 64]).await.expect("gathered");
        let flush = wire.flush().await.expect_err("nobody reads");
        assert_eq!(flush.kind(), io::ErrorKind::TimedOut);

        let (_client, mut wire) = pair(64);
        wire.write_all(&[0; 64]).await.expect("gathered");
        let end = AsyncWriteExt::shutdown(&mut wire).await;
        assert_eq!(
            end.expect_err("nobody reads").kind(),
            io::ErrorKind::TimedOut
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_now_and_then_gets_everything() {
        let (mut client, mut wire) = pair(0);
        let writing = async {
            for _ in 0..8 {
                wire.write_all(&[1; 16]).await.expect("taken in time");
            }
            drop(wire);
        };
        let reading = async {
            let mut all = Vec::new();
            let mut piece = [0; 16];
            loop {
                tokio::time::sleep(LIMIT - Duration::from_secs(1)).await;
                match client.read(&mut piece).await.expect("open") {
                    0 => return all.len(),
                    read => all.extend_from_slice(&piece[..read]),
                }
            }
        };
        let ((), read) = tokio::join!(writing, reading);
        assert_eq!(read, 128);
    }

    #[tokio::test]
    async fn a_body_that_breaks_its_framing_cannot_be_read_on() {
        let (mut client, mut wire) = pair(0);
        wire.follow(Some(Chunks::default()));
        client.write_all(b"2\r\nab\r\n").await.expect("sent");
        let mut bytes = [0; 16];
        assert_eq!(wire.read(&mut bytes).await.expect("well framed"), 7);
        client.write_all(b"2;x\nab\r\n").await.expect("sent");
        let error = wire.read(&mut bytes).await.expect_err("a bare line feed");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
