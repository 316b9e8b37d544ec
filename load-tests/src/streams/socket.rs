//! Opens a `GET /mcp` stream, and reads its events one by one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, ensure};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use super::decoder::{Decoder, Event};
use crate::message::Envelope;

const HEAD_MAX: usize = 16 * 1024;
const READ: usize = 4 * 1024;

/// Number of local addresses from which streams are opened in turn. For a single one the kernel has some 28,000 ports, takes
/// ever longer to find a free one, and blocks closed ones for a minute: that would be measured instead of the gateway.
const SOURCES: u8 = 16;

/// The result of an attempt to open a stream.
pub(crate) enum Opened {
    Stream(Socket),
    /// The server answered without a stream: the answer's first line.
    Refused(String),
}

/// An open stream.
pub(crate) struct Socket {
    stream: TcpStream,
    decoder: Decoder,
    /// Bytes of the stream that arrived together with the head.
    early: Vec<u8>,
}

impl Socket {
    /// Opens a stream, or resumes it after the event `last_event_id`. Without a separate time limit.
    pub(crate) async fn open(
        envelope: &Envelope<'_>,
        last_event_id: Option<&str>,
    ) -> anyhow::Result<Opened> {
        let mut stream = connect(envelope.to).await?;
        let request = request(envelope, last_event_id);
        stream.write_all(&request).await.context("sending")?;
        let mut head = Vec::with_capacity(512);
        let end = loop {
            if let Some(at) = head.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            ensure!(head.len() <= HEAD_MAX, "a head without end");
            let read = read(&stream, &mut |bytes| head.extend_from_slice(bytes)).await?;
            ensure!(
                read > 0,
                "closed before its head: {}",
                String::from_utf8_lossy(&head)
            );
        };
        let text = String::from_utf8_lossy(&head[..end]);
        if !text.starts_with("HTTP/1.1 200") {
            let line = text.lines().next().unwrap_or_default().to_owned();
            return Ok(Opened::Refused(line));
        }
        ensure!(text.contains("text/event-stream"), "not a stream: {text}");
        ensure!(
            text.to_ascii_lowercase()
                .contains("transfer-encoding: chunked"),
            "not in chunks: {text}"
        );
        let early = head.split_off(end);
        Ok(Opened::Stream(Self {
            stream,
            decoder: Decoder::default(),
            early,
        }))
    }

    /// Reads once, and calls `take` with each complete event. Returns true if more may come. Cancel safe.
    pub(crate) async fn read(&mut self, mut take: impl FnMut(Event)) -> anyhow::Result<bool> {
        if !self.early.is_empty() {
            let early = std::mem::take(&mut self.early);
            self.decoder.feed(&early, &mut take)?;
            return Ok(!self.decoder.is_over());
        }
        let decoder = &mut self.decoder;
        let mut fed = Ok(());
        let length = read(&self.stream, &mut |bytes| {
            fed = decoder.feed(bytes, &mut take)
        })
        .await?;
        fed?;
        Ok(length > 0 && !self.decoder.is_over())
    }
}

fn request(envelope: &Envelope<'_>, last_event_id: Option<&str>) -> Vec<u8> {
    let mut request = envelope.stream();
    if let Some(id) = last_event_id {
        // Inserted before the empty line.
        request.truncate(request.len() - 2);
        request.extend_from_slice(format!("Last-Event-ID: {id}\r\n\r\n").as_bytes());
    }
    request
}

async fn connect(to: SocketAddr) -> anyhow::Result<TcpStream> {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let socket = TcpSocket::new_v4().context("a socket")?;
    let source = 2 + NEXT.fetch_add(1, Ordering::Relaxed) % SOURCES;
    let source = IpAddr::from(Ipv4Addr::new(127, 0, 0, source));
    socket.bind((source, 0).into()).context("a port")?;
    socket.connect(to).await.context("connecting")
}

/// Reads once. The buffer is not part of the future, since tens of thousands of these wait at a time.
async fn read(stream: &TcpStream, take: &mut impl FnMut(&[u8])) -> anyhow::Result<usize> {
    loop {
        stream.readable().await.context("receiving")?;
        let mut buffer = [0; READ];
        match stream.try_read(&mut buffer) {
            Ok(length) => {
                take(&buffer[..length]);
                return Ok(length);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("receiving"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    /// A server that says this once and what it was asked.
    async fn against(answer: &'static str) -> (anyhow::Result<Opened>, String) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let envelope =
            Envelope::new(listener.local_addr().unwrap(), "t", "n").in_session(Some("s"));
        let server = tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = client.read(&mut request).await.unwrap();
            client.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap()
        });
        let opened = Socket::open(&envelope, Some("1-7")).await;
        (opened, server.await.unwrap())
    }

    #[tokio::test]
    async fn events_that_come_with_the_head_are_not_lost() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n\
             12\r\nid: 1-9\ndata: x\n\ni\r\n5\r\nd: 1\n\r\n";
        let (opened, request) = against(answer).await;
        assert!(
            request.ends_with("\r\nLast-Event-ID: 1-7\r\n\r\n"),
            "{request}"
        );
        let Opened::Stream(mut socket) = opened.unwrap() else {
            panic!("a stream");
        };
        let mut ids = Vec::new();
        while socket.read(|event| ids.push(event.id)).await.unwrap() {}
        assert_eq!(ids, [Some("1-9".to_owned())]);
    }

    #[tokio::test]
    async fn a_refusal_is_told_apart_from_a_failure() {
        let (refused, _) = against("HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n").await;
        assert!(
            matches!(refused.unwrap(), Opened::Refused(line) if line == "HTTP/1.1 429 Too Many")
        );
        let (failed, _) = against("HTTP/1.1 200 OK\r\n").await;
        assert!(failed.is_err());
    }
}
