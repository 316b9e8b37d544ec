//! A copy of a remote server on a socket: a small MCP server with sessions over streamable HTTP, which a test can end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::eventually;

/// A running copy. Dropping it ends it with all its connections, soon; [`Backend::end`] waits for that.
pub struct Backend {
    pub address: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    name: String,
    sessions: Mutex<BTreeSet<String>>,
    /// Heads and bodies of requests, as they came.
    requests: Mutex<Vec<(String, String)>>,
    /// Streams that are open.
    streams: Mutex<usize>,
    /// Documents by path, for requests without a session.
    documents: Mutex<BTreeMap<String, Value>>,
    /// Calls of the tool `meet` wait here for one another.
    meeting: Option<Arc<Barrier>>,
}

impl Backend {
    pub async fn start(name: &str) -> Self {
        Self::start_with(State {
            name: name.to_owned(),
            ..State::default()
        })
        .await
    }

    /// A copy whose tool `meet` holds each call until `calls` of them have arrived.
    pub async fn start_meeting(name: &str, calls: usize) -> Self {
        Self::start_with(State {
            name: name.to_owned(),
            meeting: Some(Arc::new(Barrier::new(calls))),
            ..State::default()
        })
        .await
    }

    async fn start_with(state: State) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let state = Arc::new(state);
        let served = Arc::clone(&state);
        let task = tokio::spawn(async move {
            // Ends with the task, and all connections with it.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&served)));
            }
        });
        Self {
            address,
            state,
            task,
        }
    }

    /// Ends the copy. Every connection is closed afterwards: later requests fail.
    pub async fn end(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
        // Each connection holds the state.
        let closed = || async { (Arc::strong_count(&self.state) == 1).then_some(()) };
        eventually("all connections are closed", closed).await;
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// All requests: heads and bodies.
    pub fn all(&self) -> Vec<(String, String)> {
        self.state.requests.lock().expect("fine").clone()
    }

    /// Requests with that method: heads and bodies.
    pub fn requests(&self, method: &str) -> Vec<(String, String)> {
        let method = format!("\"method\":\"{method}\"");
        let mut all = self.state.requests.lock().expect("fine").clone();
        all.retain(|(_, body)| body.contains(&method));
        all
    }

    /// Answers `GET` of a path with that document from now on.
    pub fn publish(&self, path: &str, document: Value) {
        let mut documents = self.state.documents.lock().expect("fine");
        documents.insert(path.to_owned(), document);
    }

    pub fn open_streams(&self) -> usize {
        *self.state.streams.lock().expect("fine")
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Counts an open stream.
struct Open<'a>(&'a State);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        *self.0.streams.lock().expect("fine") -= 1;
    }
}

async fn serve(mut stream: TcpStream, state: Arc<State>) {
    while let Some((head, body)) = read(&mut stream).await {
        let message: Value = serde_json::from_str(&body).unwrap_or_default();
        state
            .requests
            .lock()
            .expect("fine")
            .push((head.clone(), body.clone()));
        if let Some(document) = document(&state, &head) {
            if stream.write_all(document.as_bytes()).await.is_err() {
                return;
            }
            continue;
        }
        let session = header(&head, "mcp-session-id").unwrap_or_default();
        let known = state.sessions.lock().expect("fine").contains(&session);
        let text = if message["method"] == "initialize" {
            let id = format!("{}-{}", state.name, message["id"].to_string().len());
            let id = format!("{id}-{}", state.sessions.lock().expect("fine").len());
            state.sessions.lock().expect("fine").insert(id.clone());
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": state.name, "version": "1"}});
            let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
            answered(
                200,
                &format!("Mcp-Session-Id: {id}\r\nSet-Cookie: a=b\r\n"),
                &answer.to_string(),
            )
        } else if !known {
            answered(404, "", "")
        } else if head.starts_with("GET") || message["params"]["name"] == "wait" {
            let event = ": open\n\n";
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            let chunk = format!("{head}{:x}\r\n{event}\r\n", event.len());
            *state.streams.lock().expect("fine") += 1;
            let _open = Open(&state);
            if stream.write_all(chunk.as_bytes()).await.is_err() {
                return;
            }
            // Until the client closes the connection.
            let _ = stream.read(&mut [0; 16]).await;
            return;
        } else if message["params"]["name"] == "events" {
            let progress = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{}}"#;
            let result =
                json!({"jsonrpc": "2.0", "id": message["id"], "result": {"who": state.name}});
            let events = format!("data: {progress}\n\ndata: {result}\n\n");
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            format!("{head}{:x}\r\n{events}\r\n0\r\n\r\n", events.len())
        } else if head.starts_with("DELETE") {
            state.sessions.lock().expect("fine").remove(&session);
            answered(200, "", "")
        } else {
            if let (Some(meeting), "meet") = (&state.meeting, tool(&message)) {
                meeting.wait().await;
            }
            match message.get("id") {
                None => answered(202, "", ""),
                // The id with its original spelling.
                Some(_) => {
                    let id = body.split("\"id\":").nth(1).unwrap_or_default();
                    let id = id.split([',', '}']).next().unwrap_or_default();
                    let result = format!(r#"{{"who":"{}","n":1.50,"x":{{}}}}"#, state.name);
                    answered(
                        200,
                        "",
                        &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
                    )
                }
            }
        };
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The tool that a message calls; empty for other messages.
fn tool(message: &Value) -> &str {
    message["params"]["name"].as_str().unwrap_or_default()
}

/// The published document that a request asks for.
fn document(state: &State, head: &str) -> Option<String> {
    let path = head.strip_prefix("GET ")?.split(' ').next()?;
    let documents = state.documents.lock().expect("fine");
    let document = documents.get(path)?;
    Some(answered(200, "", &document.to_string()))
}

/// A response, whose body is JSON if it has one.
pub fn answered(status: u16, headers: &str, body: &str) -> String {
    let kind = match body.is_empty() {
        true => "",
        false => "Content-Type: application/json\r\n",
    };
    format!(
        "HTTP/1.1 {status} X\r\n{kind}{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The next request: its head and its body.
pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = header(head, "content-length").map_or(0, |it| it.parse().unwrap_or(0));
            if body.len() >= length {
                return Some((head.to_owned(), body.to_owned()));
            }
        }
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk).await {
            Ok(read @ 1..) => bytes.extend_from_slice(&chunk[..read]),
            _ => return None,
        }
    }
}

/// A header of a request.
pub fn header(head: &str, name: &str) -> Option<String> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines
        .find(|(have, _)| have.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim().to_owned())
}
