//! The echo server over HTTP/1.1: a small application like those behind a reverse proxy.
//!
//! `POST` needs a `Content-Length`; its path is ignored; connections are kept. One thread serves all connections, and
//! an answer is sent in one write. `initialize` gets a session id that no request needs. A call of `echo_stream` is
//! answered by two events, and `GET` by a stream without events. No other part of HTTP is supported.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::MESSAGE_MAX;
use crate::answer::{Era, answer, opens, wants_events};

const HEAD_MAX: usize = 16 * 1024;
const EVENTS: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n\
                      Transfer-Encoding: chunked\r\n\r\n";
/// The event before the answer on a stream.
const PROGRESS: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":\"half\"}}\n\n";

/// The number in the next session's id.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Listens on `address` and serves connections until the process is ended.
pub(crate) fn serve(era: Era, address: SocketAddr) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async { accept(era, TcpListener::bind(address).await?).await })
}

async fn accept(era: Era, listener: TcpListener) -> io::Result<()> {
    loop {
        let (connection, _) = listener.accept().await?;
        connection.set_nodelay(true)?;
        // An error only ends the connection that has it.
        tokio::spawn(async move { converse(era, connection).await.ok() });
    }
}

/// Answers requests until the client closes the connection or asks for a stream.
async fn converse(era: Era, mut connection: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut received = Vec::with_capacity(16 * 1024);
    let mut sending = Vec::with_capacity(16 * 1024);
    let mut body = Vec::new();
    loop {
        let request = match Request::at_start_of(&received) {
            Ok(Some(request)) if received.len() >= request.end() => request,
            Ok(unfinished) => {
                let missing = unfinished.map_or(1, |request| request.end() - received.len());
                received.reserve(missing);
                if connection.read_buf(&mut received).await? == 0 {
                    return Ok(());
                }
                continue;
            }
            Err(status) => {
                let refusal =
                    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
                return connection.write_all(refusal.as_bytes()).await;
            }
        };
        if request.stream {
            let begun = format!("{EVENTS}8\r\n: open\n\n\r\n");
            connection.write_all(begun.as_bytes()).await?;
            // The stream ends when the client disconnects; bytes that it sends are ignored.
            while connection.read(&mut [0; 64]).await? > 0 {}
            return Ok(());
        }
        body.clear();
        let message = &received[request.body_at..request.end()];
        answer(era, message, &mut body);
        sending.clear();
        if body.is_empty() {
            sending.extend_from_slice(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n");
        } else if wants_events(message) {
            let length = "data: \n\n".len() + body.len();
            let head = format!(
                "{EVENTS}{:x}\r\n{PROGRESS}\r\n{length:x}\r\ndata: ",
                PROGRESS.len()
            );
            sending.extend_from_slice(head.as_bytes());
            sending.extend_from_slice(&body);
            sending.extend_from_slice(b"\n\n\r\n0\r\n\r\n");
        } else {
            let session = match opens(message) {
                true => format!(
                    "Mcp-Session-Id: load-{}\r\n",
                    NEXT.fetch_add(1, Ordering::Relaxed)
                ),
                false => String::new(),
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{session}Content-Length: {}\r\n\r\n",
                body.len()
            );
            sending.extend_from_slice(head.as_bytes());
            sending.extend_from_slice(&body);
        }
        received.drain(..request.end());
        connection.write_all(&sending).await?;
        if request.last {
            return connection.shutdown().await;
        }
    }
}

/// Position of a request's body, and the kind of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    body_at: usize,
    length: usize,
    /// True if the request asks for a stream.
    stream: bool,
    /// True if the client wants the connection closed after the answer.
    last: bool,
}

impl Request {
    /// Parses the request at the start of `bytes`; `None` while its head is incomplete, an error with the status that
    /// refuses it.
    fn at_start_of(bytes: &[u8]) -> Result<Option<Self>, &'static str> {
        let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else {
            return match bytes.len() {
                0..=HEAD_MAX => Ok(None),
                _ => Err("431 Request Header Fields Too Large"),
            };
        };
        let head = std::str::from_utf8(&bytes[..end]).map_err(|_| "400 Bad Request")?;
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap_or_default();
        let stream = line.starts_with("GET ") && head.contains("text/event-stream");
        if !line.starts_with("POST ") && !stream {
            return Err("405 Method Not Allowed");
        }
        let mut length = stream.then_some(0);
        let mut last = line.ends_with("HTTP/1.0");
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.parse::<usize>().map_err(|_| "400 Bad Request")?);
            } else if name.eq_ignore_ascii_case("connection") {
                last = value.eq_ignore_ascii_case("close");
            }
        }
        match length {
            None => Err("411 Length Required"),
            Some(length) if length > MESSAGE_MAX => Err("413 Content Too Large"),
            Some(length) => Ok(Some(Self {
                body_at: end + 4,
                length,
                stream,
                last,
            })),
        }
    }

    fn end(&self) -> usize {
        self.body_at + self.length
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::net::TcpStream;

    use super::*;

    fn call(text: &str, more: &str) -> String {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": {"name": "echo", "arguments": {"text": text}}})
        .to_string();
        format!(
            "POST /mcp HTTP/1.1\r\nHost: x\r\n{more}content-length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    /// Everything the server says to these bytes, sent in pieces of this size.
    async fn said_to(bytes: &str, piece: usize) -> String {
        let (mut near, far) = tokio::io::duplex(piece);
        let server = tokio::spawn(converse(Era::Legacy, far));
        let (mut read, mut write) = tokio::io::split(&mut near);
        let mut text = String::new();
        let sent = async {
            // It need not listen to the end of what it refuses.
            let _ = write.write_all(bytes.as_bytes()).await;
            let _ = write.shutdown().await;
        };
        let (_, received) = tokio::join!(sent, read.read_to_string(&mut text));
        received.unwrap();
        // Refusing ends with an error where the peer has gone already.
        let _ = server.await.unwrap();
        text
    }

    fn bodies(said: &str) -> Vec<Value> {
        said.split("HTTP/1.1 ")
            .filter_map(|answer| serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok())
            .collect()
    }

    #[tokio::test]
    async fn requests_on_one_connection_are_answered_in_turn_however_they_arrive() {
        let all = [call("one", ""), call("two", "X: y\r\n")].concat();
        for piece in [1, 7, 4096] {
            let said = said_to(&all, piece).await;
            let texts: Vec<_> = bodies(&said)
                .iter()
                .map(|body| body["result"]["content"][0]["text"].clone())
                .collect();
            assert_eq!(texts, ["one", "two"], "{said}");
        }
    }

    #[tokio::test]
    async fn a_body_of_a_mebibyte_comes_back_whole() {
        let text = "x".repeat(1024 * 1024);
        let said = said_to(&call(&text, ""), 64 * 1024).await;
        assert_eq!(bodies(&said)[0]["result"]["content"][0]["text"], text);
    }

    #[tokio::test]
    async fn a_connection_that_says_nothing_holds_up_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(accept(Era::Legacy, listener));
        let _silent = TcpStream::connect(address).await.unwrap();
        let mut second = TcpStream::connect(address).await.unwrap();
        let request = call("heard", "Connection: close\r\n");
        second.write_all(request.as_bytes()).await.unwrap();
        let mut said = String::new();
        second.read_to_string(&mut said).await.unwrap();
        assert!(said.contains("\"heard\""), "{said}");
        server.abort();
    }

    #[tokio::test]
    async fn a_notification_is_accepted_and_the_last_request_ends_the_connection() {
        let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let ready = format!(
            "POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{ready}",
            ready.len()
        );
        let all = [
            ready,
            call("last", "Connection: close\r\n"),
            call("never", ""),
        ]
        .concat();
        let said = said_to(&all, 4096).await;
        assert!(said.starts_with("HTTP/1.1 202 Accepted\r\n"), "{said}");
        assert!(
            said.contains("\"last\"") && !said.contains("never"),
            "{said}"
        );
    }

    #[tokio::test]
    async fn a_session_gets_a_name_and_a_call_of_the_streaming_tool_two_events() {
        let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
        let post = |body: &str| {
            let length = body.len();
            format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{body}")
        };
        let call = call("there", "").replace("\"echo\"", "\"echo_stream\"");
        let body = call.split_once("\r\n\r\n").unwrap().1;
        let said = said_to(&(post(hello) + &post(body)), 4096).await;
        assert!(said.contains("Mcp-Session-Id: load-"), "{said}");
        let events: Vec<_> = said.split("data: ").skip(1).collect();
        assert_eq!(events.len(), 2, "{said}");
        assert!(
            events[1].contains("\"there\"") && said.ends_with("\n\n\r\n0\r\n\r\n"),
            "{said}"
        );
    }

    #[tokio::test]
    async fn a_stream_begins_and_lasts_until_its_reader_goes() {
        let said = said_to("GET / HTTP/1.1\r\nAccept: text/event-stream\r\n\r\n", 4096).await;
        assert!(said.ends_with("\r\n\r\n8\r\n: open\n\n\r\n"), "{said}");
    }

    #[tokio::test]
    async fn what_it_does_not_speak_is_refused() {
        let large = format!(
            "POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
            MESSAGE_MAX + 1
        );
        for (request, status) in [
            ("GET /mcp HTTP/1.1\r\n\r\n", "405"),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "411",
            ),
            ("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400"),
            (large.as_str(), "413"),
        ] {
            let said = said_to(request, 4096).await;
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
        }
        let endless = "x".repeat(HEAD_MAX + 2);
        assert!(said_to(&endless, 4096).await.contains(" 431 "));
    }
}
