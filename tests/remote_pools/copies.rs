//! Copies of an MCP server. A test can kill a copy and start the copy again. All copies write the calls that they run into
//! one record.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::backend::{answered, header, read};
use crate::support::eventually;
use crate::support::ports::free_address;

/// How long a call takes that is answered at once, and one that is answered by a stream.
const QUICK: Duration = Duration::from_millis(50);
const SLOW: Duration = Duration::from_millis(600);

/// The calls that all copies have run: the mark of each, with its count.
pub type Record = Arc<Mutex<BTreeMap<String, usize>>>;

/// A copy of the server.
pub struct Copy {
    pub address: SocketAddr,
    record: Record,
    running: Option<Running>,
}

/// A copy that runs, until it is told to end.
struct Running {
    state: Arc<State>,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// The state of a copy while it runs. Sessions do not outlive it.
#[derive(Default)]
struct State {
    sessions: Mutex<BTreeSet<String>>,
    numbers: AtomicUsize,
    /// Questions that wait for their answer.
    questions: Mutex<BTreeMap<String, oneshot::Sender<Value>>>,
    /// Calls that are being answered.
    open: AtomicUsize,
}

impl Copy {
    pub async fn start(record: &Record) -> Self {
        let mut copy = Self {
            // Reserved while the copy is away.
            address: free_address(),
            record: Arc::clone(record),
            running: None,
        };
        copy.come_back().await;
        copy
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Sessions that it has at the moment.
    pub fn sessions(&self) -> usize {
        let sessions = |running: &Running| running.state.sessions.lock().unwrap().len();
        self.running.as_ref().map_or(0, sessions)
    }

    /// The ids of its sessions.
    pub fn session_ids(&self) -> BTreeSet<String> {
        let ids = |running: &Running| running.state.sessions.lock().unwrap().clone();
        self.running.as_ref().map(ids).unwrap_or_default()
    }

    /// Calls that it is answering at the moment, and questions that it has asked.
    pub fn open(&self) -> (usize, usize) {
        let count = |Running { state, .. }: &Running| {
            let questions = state.questions.lock().unwrap().len();
            (state.open.load(Ordering::SeqCst), questions)
        };
        self.running.as_ref().map_or((0, 0), count)
    }

    /// Ends it with all its connections.
    pub async fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = running.end.send(());
            let _ = running.task.await;
        }
    }

    /// Starts the copy again on its port, without its former state.
    pub async fn come_back(&mut self) {
        let listener = eventually("its port is free", || async {
            let socket = TcpSocket::new_v4().ok()?;
            socket.set_reuseaddr(true).ok()?;
            socket.bind(self.address).ok()?;
            socket.listen(1024).ok()
        });
        let listener = listener.await;
        self.serve(listener);
    }

    fn serve(&mut self, listener: TcpListener) {
        let state = Arc::<State>::default();
        let (served, record) = (Arc::clone(&state), Arc::clone(&self.record));
        let (end, mut ended) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let accepted = tokio::select! {
                    _ = &mut ended => break,
                    accepted = listener.accept() => accepted,
                    Some(_) = connections.join_next() => continue,
                };
                let Ok((stream, _)) = accepted else { break };
                connections.spawn(converse(stream, Arc::clone(&served), Arc::clone(&record)));
            }
            drop(listener);
            connections.shutdown().await;
        });
        self.running = Some(Running { state, end, task });
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.task.abort();
        }
    }
}

/// Counts running calls.
struct Open<'a>(&'a State);

impl<'a> Open<'a> {
    fn new(state: &'a State) -> Self {
        state.open.fetch_add(1, Ordering::SeqCst);
        Self(state)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn converse(mut io: TcpStream, state: Arc<State>, record: Record) {
    while let Some((head, body)) = read(&mut io).await {
        let message: Value = serde_json::from_str(&body).unwrap_or_default();
        let known = header(&head, "mcp-session-id")
            .is_some_and(|id| state.sessions.lock().unwrap().contains(&id));
        let text = match message["method"].as_str() {
            Some("initialize") => opened(&state, &message),
            _ if !known => answered(404, "", ""),
            None if head.starts_with("GET") => {
                if io.write_all(EVENTS.as_bytes()).await.is_ok() {
                    let _ = read(&mut io).await;
                }
                return;
            }
            None if head.starts_with("DELETE") => {
                let id = header(&head, "mcp-session-id").unwrap_or_default();
                state.sessions.lock().unwrap().remove(&*id);
                answered(204, "", "")
            }
            Some("tools/call") => match call(&mut io, &state, &record, &message).await {
                Some(text) => text,
                None => return,
            },
            Some("tools/list") => {
                let schema = json!({"type": "object"});
                let tools = ["quick", "slow", "ask"]
                    .map(|name| json!({"name": name, "inputSchema": schema}));
                result(&message, &json!({"tools": tools}))
            }
            Some("ping") => result(&message, &json!({})),
            Some(_) if message.get("id").is_some() => {
                let error = json!({"code": -32601, "message": "no such method"});
                let answer = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
                answered(200, "", &answer.to_string())
            }
            None => {
                let id = message["id"].as_str().unwrap_or_default();
                if let Some(waits) = state.questions.lock().unwrap().remove(id) {
                    let _ = waits.send(message["result"].clone());
                }
                answered(202, "", "")
            }
            Some(_) => answered(202, "", ""),
        };
        if io.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

const EVENTS: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n: open\n\n\r\n";

fn opened(state: &State, message: &Value) -> String {
    // No session of an earlier run has the same id.
    let id = format!(
        "{:p}-{}",
        state,
        state.numbers.fetch_add(1, Ordering::SeqCst)
    );
    state.sessions.lock().unwrap().insert(id.clone());
    let opened = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
        "serverInfo": {"name": "copy", "version": "1"}});
    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": opened});
    answered(
        200,
        &format!("Mcp-Session-Id: {id}\r\n"),
        &answer.to_string(),
    )
}

fn result(message: &Value, result: &Value) -> String {
    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    answered(200, "", &answer.to_string())
}

/// Runs a call, and gives its answer back unless that was a stream.
async fn call(
    io: &mut TcpStream,
    state: &State,
    record: &Record,
    message: &Value,
) -> Option<String> {
    let _open = Open::new(state);
    let arguments = &message["params"]["arguments"];
    let mark = arguments["mark"].as_str().unwrap_or_default();
    *record.lock().unwrap().entry(mark.to_owned()).or_default() += 1;
    let done = |what: &Value| json!({"content": [{"type": "text", "text": mark}], "structuredContent": {"what": what}});
    let tool = message["params"]["name"].as_str();
    if tool == Some("quick") {
        tokio::time::sleep(QUICK).await;
        return Some(result(message, &done(&Value::Null)));
    }
    io.write_all(EVENTS.as_bytes()).await.ok()?;
    let what = match tool {
        Some("slow") => {
            tokio::time::sleep(SLOW).await;
            Value::Null
        }
        _ => {
            let number = state.numbers.fetch_add(1, Ordering::SeqCst);
            let id = format!("question-{number}");
            let (answer, answered) = oneshot::channel();
            state.questions.lock().unwrap().insert(id.clone(), answer);
            let question = json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create",
                "params": {"message": "what?", "requestedSchema": {"type": "object", "properties": {}}}});
            event(io, &question).await?;
            answered.await.ok()?
        }
    };
    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": done(&what)});
    event(io, &answer).await?;
    io.write_all(b"0\r\n\r\n").await.ok()?;
    Some(String::new())
}

async fn event(io: &mut TcpStream, message: &Value) -> Option<()> {
    let event = format!("data: {message}\n\n");
    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
    io.write_all(chunk.as_bytes()).await.ok()
}
