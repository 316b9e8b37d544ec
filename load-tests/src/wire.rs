//! The two framings a server may speak, HTTP/1.1 with `Content-Length` and lines, and a connection that reads them.
//!
//! Deliberately small: no chunked bodies, no redirects, no pipelining. An answer outside that is an error, since the
//! scenarios expect none.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

const HEAD_MAX: usize = 32 * 1024;
const BODY_MAX: usize = 4 * 1024 * 1024;
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Where to connect, and what is spoken there.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Http(SocketAddr),
    /// One JSON message a line; the server speaks first.
    Lines(PathBuf),
}

/// Where an answer at the start of a buffer ends, and what its head says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frame {
    status: u16,
    body_at: usize,
    end: usize,
    closes: bool,
}

/// Finds the answer at the start of a buffer, once it is complete.
type FindFrame = fn(&[u8]) -> anyhow::Result<Option<Frame>>;

/// One complete answer.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    /// 200 for a line, which has no status.
    pub(crate) status: u16,
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
    /// No further request may be sent on this connection.
    pub(crate) closes: bool,
}

impl Answer<'_> {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        headers(self.head).find_map(|(key, value)| key.eq_ignore_ascii_case(name).then_some(value))
    }
}

fn http_frame(bytes: &[u8]) -> anyhow::Result<Option<Frame>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        if bytes.len() > HEAD_MAX {
            bail!("an answer's head of more than {HEAD_MAX} bytes");
        }
        return Ok(None);
    };
    let head = &bytes[..end];
    let status = head
        .strip_prefix(b"HTTP/1.1 ")
        .and_then(|rest| std::str::from_utf8(rest.get(..3)?).ok()?.parse().ok())
        .context("not an HTTP/1.1 answer")?;
    let mut announced = None;
    let mut closes = false;
    for (name, value) in headers(head) {
        if name.eq_ignore_ascii_case("content-length") {
            announced = Some(value.parse::<usize>().context("content-length")?);
        } else if name.eq_ignore_ascii_case("connection") {
            closes = value.eq_ignore_ascii_case("close");
        }
    }
    let size = match announced {
        Some(size) if size > BODY_MAX => bail!("an answer of {size} bytes"),
        Some(size) => size,
        // Accepted and no content have no body and need not say so.
        None if matches!(status, 202 | 204) => 0,
        None => bail!("an answer without content-length"),
    };
    let body_at = end + 4;
    let end = body_at + size;
    Ok((bytes.len() >= end).then_some(Frame {
        status,
        body_at,
        end,
        closes,
    }))
}

fn headers(head: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    head.split(|byte| *byte == b'\n')
        .skip(1)
        .filter_map(|line| {
            let (name, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
            Some((name, value.trim()))
        })
}

fn line_frame(bytes: &[u8]) -> anyhow::Result<Option<Frame>> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        if bytes.len() > BODY_MAX {
            bail!("a line of more than {BODY_MAX} bytes");
        }
        return Ok(None);
    };
    Ok(Some(Frame {
        status: 200,
        body_at: 0,
        end: end + 1,
        closes: false,
    }))
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection with at most one request in flight.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    find_frame: FindFrame,
    buffer: Vec<u8>,
    filled: usize,
    /// Bytes of the last answer, dropped before the next one is read.
    answered: usize,
}

impl Connection {
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
        let mut connection = Self {
            stream,
            find_frame,
            buffer: vec![0; 16 * 1024],
            filled: 0,
            answered: 0,
        };
        if matches!(target, Target::Lines(_)) {
            timeout(CONNECT_LIMIT, connection.answer())
                .await?
                .context("the server's first line")?;
        }
        Ok(connection)
    }

    /// Sends a request and reads its answer. Without a limit of its own: whoever drives connections has one.
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
        Ok(Answer {
            status: frame.status,
            head: &self.buffer[..frame.body_at],
            body: &self.buffer[frame.body_at..frame.end],
            closes: frame.closes,
        })
    }
}

/// One request on a connection of its own, with a limit. The answer's status, head and body.
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

/// `GET path` on a connection of its own.
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

    const WHOLE: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nMcp-Session-Id: abc\r\n\r\nhelloHTTP";

    #[test]
    fn an_answer_is_complete_with_its_last_byte_and_leaves_the_rest() {
        let end = WHOLE.len() - 4;
        for cut in 0..end {
            assert_eq!(http_frame(&WHOLE[..cut]).unwrap(), None, "{cut}");
        }
        let frame = http_frame(WHOLE).unwrap().unwrap();
        assert_eq!((frame.status, frame.end, frame.closes), (200, end, false));
        assert_eq!(&WHOLE[frame.body_at..frame.end], b"hello");
    }

    #[test]
    fn a_closing_answer_says_so() {
        let bytes = b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let frame = http_frame(bytes).unwrap().unwrap();
        assert!(frame.closes && frame.status == 401);
    }

    #[test]
    fn answers_this_client_cannot_frame_are_errors() {
        for bytes in [
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 \r\n\r\n",
        ] {
            assert!(http_frame(bytes.as_bytes()).is_err(), "{bytes}");
        }
        assert!(http_frame(&vec![b'a'; HEAD_MAX + 1]).is_err());
        let accepted = http_frame(b"HTTP/1.1 202 Accepted\r\n\r\n")
            .unwrap()
            .unwrap();
        assert_eq!(accepted.body_at, accepted.end);
    }

    #[test]
    fn a_line_is_an_answer() {
        assert_eq!(line_frame(b"{\"id\":1}").unwrap(), None);
        assert_eq!(line_frame(b"{\"id\":1}\n{").unwrap().unwrap().end, 9);
    }

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
        let mut connection = Connection {
            stream: Box::new(near),
            find_frame: http_frame,
            buffer: vec![0; 8],
            filled: 0,
            answered: 0,
        };
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
