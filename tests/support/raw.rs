//! Bytes on a socket, for requests that no HTTP client would send.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{DEADLINE, TOKEN};

/// Sends bytes on a new connection and returns everything until the server closes or `DEADLINE` passes.
pub async fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    // The server may close before it has read everything; only its response counts.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// The bytes of a POST with the bearer token.
pub fn post(path: &str, namespace: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: {namespace}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A response read from a connection that stays open.
pub async fn answer(stream: &mut TcpStream) -> Option<Answer> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some(answer) = Answer::parse(&bytes) {
            return Some(answer);
        }
        let read = tokio::time::timeout(DEADLINE, stream.read(&mut chunk)).await;
        match read {
            Ok(Ok(0)) | Ok(Err(_)) | Err(_) => return None,
            Ok(Ok(n)) => bytes.extend_from_slice(&chunk[..n]),
        }
    }
}

/// Returns true if the server closes the connection within a time.
pub async fn closes_within(stream: &mut TcpStream, time: Duration) -> bool {
    let mut chunk = [0; 4096];
    tokio::time::timeout(time, async {
        loop {
            match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    })
    .await
    .is_ok()
}

/// A response with a known length.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    pub status: u16,
}

impl Answer {
    /// Parses a response once all of it is there.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let length: usize = head
            .to_ascii_lowercase()
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .map_or(Some(0), |value| value.trim().parse().ok())?;
        (body.len() >= length).then_some(Self { status })
    }
}
