//! A backend that is a good server of 2025-11-25 until a tool is called.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::support::backend::{answered, header, read};
use crate::support::ports::free_address;

/// The backend's own text in refusals. Clients must not read it.
pub const OWN_WORDS: &str = "words of the backend itself";
/// The size of a body that is too large for any client.
const GIANT: u64 = 1024 * 1024 * 1024;
/// Bytes that are sent to a client that does not read.
pub const FLOOD: u64 = 24 * 1024 * 1024;
/// A write that takes longer waits for a client that does not read.
const STALLED: Duration = Duration::from_millis(500);

/// The fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vice {
    /// Nothing: for comparison.
    None,
    /// No process listens.
    Refused,
    /// Connections are accepted, and nothing is ever said on them.
    Mute,
    /// The call is read and never answered.
    Silent,
    /// The head of the answer comes byte by byte and never ends.
    SlowHead,
    /// The stream of the answer ends in the middle of an event.
    CutEvent,
    /// The stream ends likewise, after an event by which it could be resumed.
    CutEventWithId,
    /// The body of the answer is shorter than announced.
    CutBody,
    /// The answer is a page for people.
    Page,
    /// The answer is no JSON.
    NoJson,
    /// The bytes are no HTTP.
    NoHttp,
    /// The answer has a gigabyte, and says so.
    GiantAnnounced,
    /// The answer has a gigabyte, in chunks.
    GiantChunked,
    /// An event that goes on for a gigabyte.
    EndlessEvent,
    /// 307 to somewhere else.
    Redirect(SocketAddr),
    /// This status, with words of the backend's own.
    Status(u16),
    /// This status, to be tried again after seven seconds.
    Later(u16),
    /// The first session that calls a tool is not known any more.
    Forgets,
    /// The backend closes its half of the connection instead of an answer.
    HalfClosed,
    /// The backend closes its half of the connection behind the whole answer.
    HalfClosedAfter,
    /// Events without end, the answer never among them.
    Flood,
    /// A very long answer.
    Long,
}

/// A running backend. Dropping it ends it with all its connections.
pub struct Hostile {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
    task: Option<JoinHandle<()>>,
}

/// The record of a backend's requests and actions.
#[derive(Default)]
pub struct Seen {
    /// Connections.
    pub connections: AtomicU64,
    /// The marks of calls that were run.
    runs: Mutex<Vec<String>>,
    /// Bytes that were taken of long answers.
    pub written: AtomicU64,
    /// A long answer was not taken for a while.
    pub stalled: AtomicBool,
    /// The sessions that are not known any more.
    forgotten: Mutex<Vec<String>>,
    sessions: AtomicU64,
}

impl Seen {
    /// How often the call with that mark was run.
    pub fn runs(&self, mark: &str) -> usize {
        let runs = self.runs.lock().unwrap();
        runs.iter().filter(|it| *it == mark).count()
    }
}

impl Hostile {
    pub async fn start(vice: Vice) -> Self {
        Self::start_with(vice, None).await
    }

    /// Behind TLS.
    pub async fn start_with(vice: Vice, tls: Option<TlsAcceptor>) -> Self {
        let seen = Arc::<Seen>::default();
        if vice == Vice::Refused {
            // A port without a listener stays free only while it is held.
            return Self {
                address: free_address(),
                seen,
                task: None,
            };
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::clone(&seen);
        let accepting = async move {
            // Ends with the task, and with it every connection.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                served.connections.fetch_add(1, Ordering::SeqCst);
                connections.spawn(connection(stream, tls.clone(), vice, Arc::clone(&served)));
            }
        };
        Self {
            address,
            seen,
            task: Some(tokio::spawn(accepting)),
        }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, vice: Vice, seen: Arc<Seen>) {
    match tls {
        None => serve(stream, vice, &seen).await,
        Some(tls) => {
            if let Ok(stream) = tls.accept(stream).await {
                serve(stream, vice, &seen).await;
            }
        }
    }
}

async fn serve(mut io: impl AsyncRead + AsyncWrite + Unpin, vice: Vice, seen: &Seen) {
    if vice == Vice::Mute {
        return until_closed(&mut io).await;
    }
    while let Some((head, body)) = read(&mut io).await {
        let message: Value = serde_json::from_str(&body).unwrap_or_default();
        let goes_on = match message["method"].as_str() {
            Some("tools/call") => misbehave(&mut io, vice, seen, &head, &message).await,
            _ => {
                let said = ordinary(&head, &message, seen);
                io.write_all(said.as_bytes()).await.is_ok()
            }
        };
        if !goes_on {
            return;
        }
    }
}

/// The answer that every server gives.
fn ordinary(head: &str, message: &Value, seen: &Seen) -> String {
    if head.starts_with("GET") {
        return answered(405, "", "");
    }
    let result = match message["method"].as_str() {
        Some("initialize") => {
            let number = seen.sessions.fetch_add(1, Ordering::SeqCst);
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"}});
            let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
            let session = format!("Mcp-Session-Id: s{number}\r\n");
            return answered(200, &session, &answer.to_string());
        }
        Some("ping") => json!({}),
        Some("tools/list") => {
            json!({"tools": [{"name": "act", "inputSchema": {"type": "object"}}]})
        }
        Some(_) if message.get("id").is_some() => {
            let error = json!({"code": -32601, "message": "no such method"});
            let answer = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
            return answered(200, "", &answer.to_string());
        }
        _ => return answered(202, "", ""),
    };
    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    answered(200, "", &answer.to_string())
}

/// Answers a call; whether the connection can be used for another request.
async fn misbehave(
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    vice: Vice,
    seen: &Seen,
    head: &str,
    message: &Value,
) -> bool {
    const EVENTS: &str =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let refuses = matches!(vice, Vice::Status(_) | Vice::Later(_) | Vice::Redirect(_));
    let session = header(head, "mcp-session-id").unwrap_or_default();
    let forgets = vice == Vice::Forgets && is_forgotten(seen, &session);
    if !forgets && !refuses {
        let mark = message["params"]["arguments"]["mark"].as_str();
        let mark = mark.unwrap_or_default().to_owned();
        seen.runs.lock().unwrap().push(mark);
    }
    let begin = format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{{"content":[{{"type":"text","text":""#,
        message["id"]
    );
    let whole = format!(r#"{begin}done"}}]}}}}"#);
    let progress = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#;
    let own_words = json!({"jsonrpc": "2.0", "id": message["id"],
        "error": {"code": -32000, "message": OWN_WORDS}})
    .to_string();
    let text = match vice {
        Vice::None | Vice::Forgets if !forgets => answered(200, "", &whole),
        Vice::None | Vice::Forgets => answered(404, "", ""),
        Vice::Refused | Vice::Mute => return false,
        Vice::Silent => {
            until_closed(io).await;
            return false;
        }
        Vice::SlowHead => {
            let head = format!("HTTP/1.1 200 OK\r\nX-Slow: {}", "s".repeat(100_000));
            for byte in head.as_bytes() {
                if io.write_all(&[*byte]).await.is_err() {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            return false;
        }
        Vice::CutEvent => format!(
            "{EVENTS}{}{}",
            chunk(&format!("data: {progress}\n\n")),
            chunk("data: {\"jsonrpc\":\"2.0\",\"id\"")
        ),
        Vice::CutEventWithId => format!(
            "{EVENTS}{}{}",
            chunk(&format!("id: 1\nretry: 10\ndata: {progress}\n\n")),
            chunk("id: 2\ndata: {\"jsonrpc\":\"2.0\",\"id\"")
        ),
        Vice::CutBody => {
            let text = answered(200, "", &whole);
            text[..text.len() - 10].to_owned()
        }
        Vice::Page => format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{OWN_WORDS}",
            OWN_WORDS.len()
        ),
        Vice::NoJson => answered(200, "", &begin),
        Vice::NoHttp => "SSH-2.0-OpenSSH_9.9\r\n\r\n".to_owned(),
        Vice::GiantAnnounced => {
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {GIANT}\r\n\r\n{begin}"
            );
            return pour(io, seen, &head, &"x".repeat(16 * 1024), GIANT).await;
        }
        Vice::GiantChunked => {
            let head = format!("{CHUNKED}{}", chunk(&begin));
            return pour(io, seen, &head, &chunk(&"x".repeat(16 * 1024)), GIANT).await;
        }
        Vice::EndlessEvent => {
            let head = format!("{EVENTS}{}", chunk(&format!("data: {begin}")));
            return pour(io, seen, &head, &chunk(&"x".repeat(16 * 1024)), GIANT).await;
        }
        Vice::Flood => {
            let note = json!({"jsonrpc": "2.0", "method": "notifications/message",
                "params": {"level": "info", "data": "x".repeat(16 * 1024)}});
            let event = chunk(&format!("data: {note}\n\n"));
            return pour(io, seen, EVENTS, &event, FLOOD).await;
        }
        Vice::Long => {
            let head = format!("{CHUNKED}{}", chunk(&begin));
            return pour(io, seen, &head, &chunk(&"x".repeat(16 * 1024)), FLOOD).await;
        }
        Vice::Redirect(to) => answered(307, &format!("Location: http://{to}/mcp\r\n"), ""),
        Vice::Status(code) => answered(code, "WWW-Authenticate: Bearer\r\n", &own_words),
        Vice::Later(code) => answered(code, "Retry-After: 7\r\n", &own_words),
        Vice::HalfClosed => {
            let _ = io.shutdown().await;
            until_closed(io).await;
            return false;
        }
        Vice::HalfClosedAfter => answered(200, "", &whole),
    };
    let written = io.write_all(text.as_bytes()).await;
    match vice {
        Vice::HalfClosedAfter => {
            let _ = io.shutdown().await;
            until_closed(io).await;
            false
        }
        Vice::CutEvent | Vice::CutEventWithId | Vice::CutBody => {
            let _ = io.shutdown().await;
            false
        }
        _ => written.is_ok(),
    }
}

/// Whether the session is one of those that are not known any more. The first that asks is.
fn is_forgotten(seen: &Seen, session: &str) -> bool {
    let mut forgotten = seen.forgotten.lock().unwrap();
    if forgotten.is_empty() {
        forgotten.push(session.to_owned());
    }
    forgotten.iter().any(|it| it == session)
}

/// Writes so many bytes of the same piece, as far as they are taken.
async fn pour(
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    seen: &Seen,
    head: &str,
    piece: &str,
    bytes: u64,
) -> bool {
    if io.write_all(head.as_bytes()).await.is_err() {
        return false;
    }
    while seen.written.load(Ordering::SeqCst) < bytes {
        let mut writing = std::pin::pin!(io.write_all(piece.as_bytes()));
        let written = match tokio::time::timeout(STALLED, &mut writing).await {
            Ok(written) => written,
            Err(_) => {
                seen.stalled.store(true, Ordering::SeqCst);
                writing.await
            }
        };
        if written.is_err() {
            return false;
        }
        let more = piece.len() as u64;
        seen.written.fetch_add(more, Ordering::SeqCst);
    }
    until_closed(io).await;
    false
}

async fn until_closed(io: &mut (impl AsyncRead + Unpin)) {
    let mut rest = [0; 1024];
    while matches!(io.read(&mut rest).await, Ok(1..)) {}
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}
