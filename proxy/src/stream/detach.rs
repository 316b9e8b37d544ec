//! Takes a connection out of Pingora after the head of its response has been written.
//!
//! `Session::downstream_session` is a public field: it is replaced by a session without a connection, and the request then ends
//! with an error that writes nothing (see `Gateway::fail_to_proxy`). Pingora then drops only the replacement, and does not touch
//! the connection.

use std::future::poll_fn;
use std::io::Cursor;
use std::mem;
use std::pin::Pin;
use std::task::Poll;

use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v1::server::HttpSession;
use tokio::io::{AsyncRead, ReadBuf};

use crate::connection::{Socket, Wire};
use crate::respond::ClientGone;

/// A connection, or a stream of an HTTP/2 connection, that was taken out of Pingora for a long stream.
pub(super) enum DetachedConnection {
    /// The socket of an HTTP/1 connection without TLS.
    Socket(Socket),
    /// An HTTP/1 connection over TLS.
    Tls(Stream),
    /// A stream of an HTTP/2 connection.
    Session(Box<ServerSession>),
}

/// Takes the connection out of `slot`, and leaves a session without a connection there.
///
/// # Errors
///
/// When the client has disconnected, or has sent more bytes than its request: this connection must not be used for another
/// request.
pub(super) async fn detach(
    slot: &mut Box<ServerSession>,
) -> Result<DetachedConnection, ClientGone> {
    match *mem::replace(slot, nothing()) {
        ServerSession::H1(session) => {
            let stream = idle(session).await?;
            if !stream.as_any().is::<Wire<Socket>>() {
                return Ok(DetachedConnection::Tls(stream));
            }
            let plain = stream.into_any().downcast::<Wire<Socket>>();
            let plain = plain.map_err(|_| ClientGone)?;
            Ok(DetachedConnection::Socket(plain.into_socket()))
        }
        session => Ok(DetachedConnection::Session(Box::new(session))),
    }
}

/// Creates a session without a connection.
fn nothing() -> Box<ServerSession> {
    Box::new(ServerSession::new_http1(Box::new(Cursor::new(Vec::new()))))
}

/// The connection of a session whose request has been read completely. An error if the client has sent more bytes.
async fn idle(mut session: HttpSession) -> Result<Stream, ClientGone> {
    // The session may have read bytes after the request. It returns them only if the connection is kept, so that is set here.
    session.set_server_keepalive(Some(0));
    session.set_pipelining_enabled(true);
    let mut stream = if session.will_keepalive() {
        let Some(reusable) = session.reuse().await? else {
            return Err(ClientGone);
        };
        let (stream, sent_ahead) = reusable.into_parts();
        if sent_ahead.is_some() {
            return Err(ClientGone);
        }
        stream
    } else {
        // The client has announced that it closes the connection, so no bytes after the request are expected.
        session.into_inner()
    };
    // Bytes after the request may also be in the connection's buffer or in the socket.
    let quiet = poll_fn(|context| {
        let mut byte = [0; 1];
        let mut buffer = ReadBuf::new(&mut byte);
        Poll::Ready(
            Pin::new(&mut stream)
                .poll_read(context, &mut buffer)
                .is_pending(),
        )
    });
    if quiet.await {
        Ok(stream)
    } else {
        Err(ClientGone)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A connection whose first request has been read, and the client's end of it.
    async fn read(request: &str) -> (TcpStream, Box<ServerSession>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let mut client = client.expect("connected");
        client.write_all(request.as_bytes()).await.expect("sent");
        let (socket, peer) = accepted.expect("accepted");
        let stream = Wire::accepted(
            Socket::Tcp(socket),
            peer,
            &address.into(),
            Duration::from_secs(1),
        );
        let mut session = Box::new(ServerSession::new_http1(Box::new(stream)));
        assert!(session.read_request().await.expect("a request"));
        (client, session)
    }

    /// Waits until there is something to read: `detach` looks and does not wait.
    async fn arrived(session: &ServerSession) {
        let stream = session.as_http1().expect("HTTP/1").stream();
        let plain: &Wire<Socket> = stream.as_any().downcast_ref().expect("plain");
        let Socket::Tcp(socket) = plain.socket() else {
            panic!("accepted by TCP");
        };
        socket.readable().await.expect("open");
    }

    #[tokio::test]
    async fn the_socket_lives_on_when_the_session_is_dropped() {
        for close in ["", "Connection: close\r\n"] {
            let (mut client, mut slot) =
                read(&format!("GET / HTTP/1.1\r\nHost: x\r\n{close}\r\n")).await;
            let detached = detach(&mut slot).await.expect("nothing follows");
            drop(slot);
            let DetachedConnection::Socket(mut socket) = detached else {
                panic!("plain HTTP/1 gives its socket");
            };
            let flags = rustix::io::fcntl_getfd(socket.descriptor()).expect("open");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            socket.write_all(b"still here").await.expect("open");
            socket.shutdown().await.expect("open");
            let mut text = String::new();
            client.read_to_string(&mut text).await.expect("the end");
            assert_eq!(text, "still here");
        }
    }

    #[tokio::test]
    async fn bytes_that_came_with_the_request_or_after_it_end_the_connection() {
        let request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let (_client, mut slot) = read(&format!("{request}{request}")).await;
        assert!(detach(&mut slot).await.is_err());

        let (mut client, mut slot) = read(request).await;
        client.write_all(b"G").await.expect("sent");
        arrived(&slot).await;
        assert!(detach(&mut slot).await.is_err());

        let (client, mut slot) = read(request).await;
        drop(client);
        arrived(&slot).await;
        assert!(detach(&mut slot).await.is_err());
    }
}
