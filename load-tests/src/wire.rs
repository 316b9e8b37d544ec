//! A connection to a server over HTTP/1.1 or lines, with one request in flight.
//!
//! Deliberately small: no redirects, no pipelining. Any other answer is an error, since the scenarios expect none.

mod frame;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use frame::{FindFrame, headers, http_frame, join_chunks, line_frame};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The address of a server, and its protocol.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Http(SocketAddr),
    /// A Unix socket with one JSON message per line; the server sends the first one.
    Lines(PathBuf),
}

/// One complete response.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    /// The HTTP status; 200 for a line, which has none.
    pub(crate) status: u16,
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
    /// True if no further request may be sent on this connection.
    pub(crate) closes: bool,
}

impl Answer<'_> {
    /// Returns an error if the answer to the message `to` has another status.
    pub(crate) fn has_status(&self, status: u16, to: &str) -> anyhow::Result<()> {
        ensure!(
            self.status == status,
            "{to} answered {} instead of {status}: {}",
            self.status,
            String::from_utf8_lossy(self.body)
        );
        Ok(())
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        headers(self.head).find_map(|(key, value)| key.eq_ignore_ascii_case(name).then_some(value))
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection with at most one request in flight.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    find_frame: FindFrame,
    buffer: Vec<u8>,
    filled: usize,
    /// Length of the last answer in the buffer, which is dropped before the next one is read.
    answered: usize,
}

impl Connection {
    fn new(stream: Box<dyn Stream>, find_frame: FindFrame, buffer: usize) -> Self {
        Self {
            stream,
            find_frame,
            buffer: vec![0; buffer],
            filled: 0,
            answered: 0,
        }
    }

    pub(crate) async fn open(target: &Target) -> anyhow::Result<Self> {
        let (stream, find_frame): (Box<dyn Stream>, FindFrame) = match target {
            Target::Http(address) => {
                let stream = timeout(CONNECT_LIMIT, TcpStream::connect(address)).await??;
                stream.set_nodelay(true)?;
                (Box::new(stream), http_frame)
            }
            Target::Lines(path) => {
                let stream = timeout(CONNECT_LIMIT, UnixStream::connect(path)).await??;
                (Box::new(stream), line_frame)
            }
        };
        let mut connection = Self::new(stream, find_frame, 16 * 1024);
        if matches!(target, Target::Lines(_)) {
            timeout(CONNECT_LIMIT, connection.answer())
                .await?
                .context("the server's first line")?;
        }
        Ok(connection)
    }

    /// A connection for lines over an open stream, such as the pipes of a process.
    pub(crate) fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        Self::new(Box::new(stream), line_frame, 16 * 1024)
    }

    /// Sends a request and reads its answer. Without a time limit, which the caller sets.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> anyhow::Result<Answer<'_>> {
        self.stream.write_all(request).await.context("sending")?;
        self.answer().await
    }

    async fn answer(&mut self) -> anyhow::Result<Answer<'_>> {
        self.buffer.copy_within(self.answered..self.filled, 0);
        self.filled -= self.answered;
        self.answered = 0;
        let frame = loop {
            if let Some(frame) = (self.find_frame)(&self.buffer[..self.filled])? {
                break frame;
            }
            if self.filled == self.buffer.len() {
                self.buffer.resize(self.filled * 2, 0);
            }
            let free = &mut self.buffer[self.filled..];
            match self.stream.read(free).await.context("receiving")? {
                0 => bail!("the server closed the connection"),
                read => self.filled += read,
            }
        };
        self.answered = frame.end;
        let body = &mut self.buffer[frame.body_at..frame.end];
        let length = if frame.chunked {
            join_chunks(body)
        } else {
            body.len()
        };
        Ok(Answer {
            status: frame.status,
            head: &self.buffer[..frame.body_at],
            body: &self.buffer[frame.body_at..frame.body_at + length],
            closes: frame.closes,
        })
    }
}

/// A client that connects when it has to: at first, and again after a connection was closed or has failed.
pub(crate) struct Caller {
    target: Target,
    connection: Option<Connection>,
}

impl Caller {
    pub(crate) fn new(target: Target) -> Self {
        let connection = None;
        Self { target, connection }
    }

    /// Opens the connection, unless it is open.
    pub(crate) async fn connect(&mut self) -> anyhow::Result<()> {
        if self.connection.is_none() {
            let opened = Connection::open(&self.target).await;
            self.connection = Some(opened.context("connecting")?);
        }
        Ok(())
    }

    /// Sends a request, and returns what `read` makes of the answer. Without a time limit.
    pub(crate) async fn ask<T>(
        &mut self,
        request: &[u8],
        read: impl FnOnce(&Answer<'_>) -> T,
    ) -> anyhow::Result<T> {
        self.connect().await?;
        // Lost if the request fails, or its future is dropped.
        let mut connection = self.connection.take().context("no connection")?;
        let answer = connection.ask(request).await?;
        let outcome = read(&answer);
        if !answer.closes {
            self.connection = Some(connection);
        }
        Ok(outcome)
    }
}

/// Sends one request on a separate connection, with a time limit. Returns the response's status, head and body.
pub(crate) async fn exchange(
    address: SocketAddr,
    request: &[u8],
    limit: Duration,
) -> anyhow::Result<(u16, Option<String>, String)> {
    let asked = async {
        let mut connection = Connection::open(&Target::Http(address)).await?;
        let answer = connection.ask(request).await?;
        let session = answer.header("mcp-session-id").map(str::to_owned);
        let body = String::from_utf8_lossy(answer.body).into_owned();
        anyhow::Ok((answer.status, session, body))
    };
    timeout(limit, asked)
        .await
        .with_context(|| format!("no answer within {limit:?}"))?
}

/// Sends `GET path` on a separate connection.
pub(crate) async fn get(
    address: SocketAddr,
    path: &str,
    limit: Duration,
) -> anyhow::Result<(u16, String)> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let (status, _, body) = exchange(address, request.as_bytes(), limit).await?;
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_are_read_one_by_one_however_they_arrive() {
        let (near, mut far) = tokio::io::duplex(7);
        let server = tokio::spawn(async move {
            let answer = b"HTTP/1.1 200 OK\r\nMcp-Session-Id: abc\r\nContent-Length: 1\r\n\r\n";
            for letter in [b'a', b'b'] {
                let mut request = [0; 1];
                far.read_exact(&mut request).await.unwrap();
                far.write_all(&[&answer[..], &[letter]].concat())
                    .await
                    .unwrap();
            }
        });
        let mut connection = Connection::new(Box::new(near), http_frame, 8);
        assert_eq!(connection.ask(b"1").await.unwrap().body, b"a");
        let second = connection.ask(b"2").await.unwrap();
        assert_eq!(
            (second.body, second.header("mcp-session-id")),
            (&b"b"[..], Some("abc"))
        );
        server.await.unwrap();
        assert!(
            connection.ask(b"3").await.is_err(),
            "a closed connection is an error"
        );
    }
}
