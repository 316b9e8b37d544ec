//! Reading event streams byte by byte: the head, the chunks, the events, and the kind of end.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::DEADLINE;

/// An event, or a comment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    pub id: Option<String>,
    pub name: Option<String>,
    pub data: String,
    pub retry: Option<u64>,
    pub comment: bool,
}

impl Event {
    pub fn parse(block: &str) -> Self {
        let mut event = Self::default();
        let mut data = Vec::new();
        for line in block.lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" => event.comment = true,
                "id" => event.id = Some(value.to_owned()),
                "event" => event.name = Some(value.to_owned()),
                "retry" => event.retry = Some(value.parse().expect("a number of milliseconds")),
                "data" => data.push(value),
                other => panic!("no field of an event: {other:?} in {block:?}"),
            }
        }
        event.data = data.join("\n");
        event
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

/// Kind of a body's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With its last chunk, or after its length.
    Whole,
    /// With the connection.
    Cut,
}

/// A response being read. Most are event streams; [`Answering::json`] reads the others.
pub struct Answering<S = TcpStream> {
    pub status: u16,
    headers: Vec<(String, String)>,
    io: S,
    /// Bytes as they arrived.
    wire: Vec<u8>,
    /// The body without its framing.
    body: Vec<u8>,
    length: Option<usize>,
    end: Option<End>,
}

impl Answering {
    /// Sends a request on a new connection and reads the head of the answer.
    pub async fn open(address: SocketAddr, request: &str) -> Self {
        let stream = TcpStream::connect(address).await.expect("connects");
        Self::on(stream, request).await
    }
}

impl<S: AsyncRead + tokio::io::AsyncWrite + Unpin> Answering<S> {
    /// Sends a request on a connection and reads the head of the answer.
    pub async fn on(mut io: S, request: &str) -> Self {
        io.write_all(request.as_bytes()).await.expect("sent");
        let mut answering = Self {
            status: 0,
            headers: Vec::new(),
            io,
            wire: Vec::new(),
            body: Vec::new(),
            length: None,
            end: None,
        };
        answering.read_head().await;
        answering
    }

    async fn read_head(&mut self) {
        let end = loop {
            if let Some(at) = find(&self.wire, b"\r\n\r\n") {
                break at + 4;
            }
            let before = self.wire.len();
            self.read_some().await;
            assert!(
                self.wire.len() > before,
                "no whole head: {:?}",
                String::from_utf8_lossy(&self.wire)
            );
        };
        let head = String::from_utf8(self.wire.drain(..end).collect()).expect("a head is text");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        self.status = status
            .and_then(|code| code.parse().ok())
            .expect("a status line");
        self.headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        self.length = self
            .header("content-length")
            .map(|text| text.parse().expect("a length"))
            .or_else(|| {
                (self.status == 204 || self.header("transfer-encoding").is_none()).then_some(0)
            });
        self.unframe();
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(have, _)| have == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn is_events(&self) -> bool {
        self.header("content-type")
            .is_some_and(|kind| kind.starts_with("text/event-stream"))
    }

    /// The next event or comment; `None` after the end.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let ends = [&b"\n\n"[..], b"\r\n\r\n"];
            let ends = ends.map(|end| find(&self.body, end).map(|at| at + end.len()));
            if let Some(end) = ends.into_iter().flatten().min() {
                let block: Vec<u8> = self.body.drain(..end).collect();
                return Some(Event::parse(
                    std::str::from_utf8(&block).expect("events are text"),
                ));
            }
            if self.end.is_some() {
                assert!(
                    self.body.is_empty() || self.end == Some(End::Cut),
                    "half an event at the end: {:?}",
                    String::from_utf8_lossy(&self.body)
                );
                return None;
            }
            self.read_some().await;
            self.unframe();
        }
    }

    /// The next event with a message: no comment, no priming.
    ///
    /// # Panics
    ///
    /// When no such event comes in time. Comments, which keep a stream alive, do not count.
    pub async fn event(&mut self) -> Option<Event> {
        let carrying = async {
            while let Some(event) = self.next().await {
                if !event.data.is_empty() {
                    return Some(event);
                }
            }
            None
        };
        tokio::time::timeout(DEADLINE, carrying)
            .await
            .expect("an event or the end in time")
    }

    /// The next message.
    ///
    /// # Panics
    ///
    /// When the stream ends before it.
    pub async fn message(&mut self) -> Value {
        self.event().await.expect("one more message").json()
    }

    /// All messages up to the end.
    pub async fn messages(&mut self) -> Vec<Value> {
        let mut messages = Vec::new();
        while let Some(event) = self.event().await {
            messages.push(event.json());
        }
        messages
    }

    /// Reads on to the end and returns its kind.
    pub async fn end(&mut self) -> End {
        while self.end.is_none() {
            self.read_some().await;
            self.unframe();
        }
        self.end.expect("it has ended")
    }

    /// The whole body as JSON; null for an empty one.
    pub async fn json(&mut self) -> Value {
        self.end().await;
        if self.body.is_empty() {
            return Value::Null;
        }
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    /// The connection, for the next request on it.
    pub fn into_connection(self) -> S {
        assert_eq!(self.end, Some(End::Whole), "the answer is not over");
        self.io
    }

    pub fn connection(&mut self) -> &mut S {
        &mut self.io
    }

    async fn read_some(&mut self) {
        let mut buffer = [0; 16 * 1024];
        let read = tokio::time::timeout(DEADLINE, self.io.read(&mut buffer))
            .await
            .expect("bytes or the end in time");
        match read {
            Ok(0) | Err(_) => self.end = self.end.or(Some(End::Cut)),
            Ok(n) => self.wire.extend_from_slice(&buffer[..n]),
        }
    }

    /// Moves complete chunks from the wire into the body.
    fn unframe(&mut self) {
        if let Some(length) = self.length {
            self.body.append(&mut self.wire);
            if self.body.len() >= length {
                self.end = Some(End::Whole);
            }
            return;
        }
        while let Some(line_end) = find(&self.wire, b"\r\n") {
            let line = std::str::from_utf8(&self.wire[..line_end]).expect("a chunk size is text");
            let size = usize::from_str_radix(line, 16).expect("a chunk size");
            let whole = line_end + 2 + size + 2;
            if self.wire.len() < whole {
                return;
            }
            self.body
                .extend_from_slice(&self.wire[line_end + 2..line_end + 2 + size]);
            self.wire.drain(..whole);
            if size == 0 {
                self.end = Some(End::Whole);
                return;
            }
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
