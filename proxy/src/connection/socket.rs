//! Sockets that accept connections and sockets of connections: TCP or Unix sockets.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tooldock_filters::network::UNIX;

/// Peer address that is used for clients of Unix sockets, which have none. Its port is not 0, since port 0 has another meaning
/// (`names_no_client`).
const UNIX_CLIENT: SocketAddr = SocketAddr::new(UNIX, 1);

use crate::sockets::BoundSocket;

/// A listening socket that is registered with the async runtime.
pub(crate) enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl ListeningSocket {
    /// Registers a bound socket with this runtime.
    ///
    /// # Errors
    ///
    /// Errors of the operating system.
    pub(crate) fn new(socket: BoundSocket) -> io::Result<Self> {
        Ok(match socket {
            BoundSocket::Tcp(socket) => Self::Tcp(TcpListener::from_std(socket)?),
            BoundSocket::Unix(socket) => Self::Unix(UnixListener::from_std(socket)?),
        })
    }

    /// Accepts a connection. Returns it with the client's address, which is [`UNIX_CLIENT`] for a Unix socket.
    ///
    /// # Errors
    ///
    /// Errors of the operating system.
    pub(crate) async fn accept(&self) -> io::Result<(Socket, SocketAddr)> {
        match self {
            Self::Tcp(socket) => {
                let (socket, peer) = socket.accept().await?;
                Ok((Socket::Tcp(socket), peer))
            }
            Self::Unix(socket) => {
                let (socket, _) = socket.accept().await?;
                Ok((Socket::Unix(socket), UNIX_CLIENT))
            }
        }
    }
}

/// The socket of an accepted connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Disables Nagle's algorithm, so that a response is sent before the client has acknowledged the previous one. An error is
    /// ignored.
    pub(crate) fn without_delay(&self) {
        if let Self::Tcp(socket) = self {
            let _ = socket.set_nodelay(true);
        }
    }

    /// Waits for the first byte of a TCP connection without consuming it. Returns true if the byte is a letter: HTTP/1 requests
    /// begin with a letter, TLS handshakes never do.
    pub(crate) async fn begins_as_text(&self) -> bool {
        let Self::Tcp(socket) = self else {
            return false;
        };
        let mut first = [0];
        matches!(socket.peek(&mut first).await, Ok(1)) && first[0].is_ascii_alphabetic()
    }
}

#[cfg(test)]
impl Socket {
    /// Returns the file descriptor, for tests.
    pub(crate) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd;
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Tcp(socket) => socket.as_raw_fd(),
            Self::Unix(socket) => socket.as_raw_fd(),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Unix(socket) => Pin::new(socket).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_write_vectored(context, parts),
            Self::Unix(socket) => Pin::new(socket).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(socket) => socket.is_write_vectored(),
            Self::Unix(socket) => socket.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_flush(context),
            Self::Unix(socket) => Pin::new(socket).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Unix(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }
}
