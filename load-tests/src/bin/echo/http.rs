//! The same over HTTP/1.1: a small application as it stands behind a reverse proxy.
//!
//! `POST` with a `Content-Length`, whatever the path; connections are kept. One thread serves all of them, and an answer
//! leaves with one write. Nothing else of HTTP is spoken: no chunks, no other method, no TLS.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::MESSAGE_MAX;
use crate::answer::{Era, answer};

const HEAD_MAX: usize = 16 * 1024;

/// Listens until it is ended.
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
        // A connection that breaks is its peer's affair.
        tokio::spawn(async move { converse(era, connection).await.ok() });
    }
}

/// Answers requests until the peer has no more, or asks for something else.
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
        body.clear();
        answer(era, &received[request.body_at..request.end()], &mut body);
        received.drain(..request.end());
        sending.clear();
        let head = if body.is_empty() {
            "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n".to_owned()
        } else {
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                body.len()
            )
        };
        sending.extend_from_slice(head.as_bytes());
        sending.extend_from_slice(&body);
        connection.write_all(&sending).await?;
        if request.last {
            return connection.shutdown().await;
        }
    }
}

/// Where a request's body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    body_at: usize,
    length: usize,
    /// The peer wants no further one answered.
    last: bool,
}

impl Request {
    /// The request whose head is complete at the start, or the status that refuses it.
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
        if !line.starts_with("POST ") {
            return Err("405 Method Not Allowed");
        }
        let mut length = None;
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
