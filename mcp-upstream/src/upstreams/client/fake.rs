//! A server in memory behind the real pools. It behaves as its callers ask, in either era, and records the messages that it gets.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_servers::link::Link;
use tooldock_servers::pool::ConnectionKey;
use tooldock_servers::testing::{NewConnection, PlayedServer, ServerEnd, Speaker};
use tooldock_workers::server_settings::Isolation;

use crate::jsonrpc::{self, Message, ResponseOutcome, spans};
use crate::protocol::{Era, EraSupport};

/// The server of the namespace `shared`.
pub(super) struct Fake {
    pub(super) isolation: Isolation,
    pub(super) seen: Arc<FakeServer>,
}

/// The server, and the messages that it got.
pub(super) struct FakeServer {
    speaks: EraSupport,
    /// The result of its tool list.
    tools: &'static str,
    connections: Mutex<Vec<Arc<Connection>>>,
    /// Requests in their order, those of the gateway included.
    pub(super) requests: Mutex<Vec<SeenRequest>>,
    /// Whole notifications, without those that open or cancel.
    pub(super) notifications: Mutex<Vec<String>>,
    /// Cancellations, each in the words in which it came, with the id of the cancelled request.
    pub(super) cancel_notices: Mutex<Vec<(String, String)>>,
    /// Whole answers to its own requests.
    pub(super) told: Mutex<Vec<String>>,
    pub(super) subscriptions: Mutex<Vec<String>>,
    /// The connections that the gateway has closed.
    pub(super) ended: Mutex<Vec<ConnectionKey>>,
    /// Calls of `safe` and `unsafe` during which the server ends.
    pub(super) gone: AtomicUsize,
    /// Failure of its tool list: no response (1), or a refusal (2). Or very many tools, all without a schema (3).
    pub(super) silent: AtomicUsize,
    down: AtomicBool,
}

/// A request as the server got it, and the connection on which it came.
#[derive(Debug, Clone)]
pub(super) struct SeenRequest {
    pub(super) id: String,
    pub(super) method: String,
    pub(super) params: String,
    /// The whole message.
    pub(super) line: String,
    pub(super) key: ConnectionKey,
    pub(super) era: Era,
    /// The capabilities that the server was told when the connection was opened.
    pub(super) told: String,
}

/// Methods of the requests that the gateway sends on its own behalf.
const OWN: [&str; 5] = [
    "initialize",
    "server/discover",
    "tools/list",
    "subscriptions/listen",
    "ping",
];

impl Fake {
    pub(super) fn new(speaks: EraSupport) -> Self {
        Self::with_tools(speaks, TOOLS)
    }

    /// A server with this tool list.
    pub(super) fn with_tools(speaks: EraSupport, tools: &'static str) -> Self {
        let seen = FakeServer {
            speaks,
            tools,
            connections: Mutex::default(),
            requests: Mutex::default(),
            notifications: Mutex::default(),
            cancel_notices: Mutex::default(),
            told: Mutex::default(),
            subscriptions: Mutex::default(),
            ended: Mutex::default(),
            gone: AtomicUsize::new(0),
            silent: AtomicUsize::new(0),
            down: AtomicBool::new(false),
        };
        Self {
            isolation: Isolation::Auto,
            seen: Arc::new(seen),
        }
    }
}

impl FakeServer {
    /// Ends the server, which does not start any more.
    pub(super) fn go_down(&self) {
        self.down.store(true, Ordering::SeqCst);
        for connection in self.connections() {
            connection.speaker.hang_up();
        }
    }

    /// The newest connection that all clients share.
    pub(super) fn shared(&self) -> Arc<Connection> {
        let mut all = self.connections().into_iter().rev();
        all.find(|it| it.key == ConnectionKey::Shared)
            .expect("a shared connection")
    }

    /// The newest connection that a client has alone.
    pub(super) fn own(&self) -> Arc<Connection> {
        let own = |key: &ConnectionKey| {
            matches!(key, ConnectionKey::Session(_) | ConnectionKey::Exclusive)
        };
        let mut all = self.connections().into_iter().rev();
        all.find(|it| own(&it.key))
            .expect("a connection of its own")
    }

    fn connections(&self) -> Vec<Arc<Connection>> {
        self.connections.lock().expect("not poisoned").clone()
    }

    /// The cancellations so far.
    pub(super) fn cancellations(&self) -> Vec<(String, String)> {
        self.cancel_notices.lock().expect("not poisoned").clone()
    }

    /// The requests of clients.
    pub(super) fn of_clients(&self) -> Vec<SeenRequest> {
        let requests = self.requests.lock().expect("not poisoned").clone();
        let requests = requests.into_iter();
        requests.filter(|it| !OWN.contains(&&*it.method)).collect()
    }

    fn opening(&self, era: Era) -> Value {
        let info = json!({ "name": "fake", "version": "1" });
        let capabilities = json!({
            "tools": { "listChanged": true }, "logging": {}, "x/unknown": { "n": 1 },
            "resources": { "subscribe": true, "listChanged": true },
        });
        let versions = match self.speaks {
            EraSupport::Dual => json!(["2026-07-28", "2025-06-18"]),
            _ => json!(["2026-07-28"]),
        };
        match era {
            Era::Legacy => json!({ "protocolVersion": "2025-06-18", "serverInfo": info,
                "capabilities": capabilities, "instructions": "Do it." }),
            Era::Modern => json!({ "resultType": "complete", "supportedVersions": versions,
                "capabilities": capabilities, "instructions": "Do it.", "ttlMs": 7,
                "_meta": { "io.modelcontextprotocol/serverInfo": info } }),
        }
    }
}

impl PlayedServer for FakeServer {
    fn connect(
        self: Arc<Self>,
        key: ConnectionKey,
        new: NewConnection,
    ) -> Result<Arc<Link>, CallError> {
        if self.down.load(Ordering::SeqCst) {
            return Err(CallError::new(CallErrorCode::WorkerUnavailable, "down"));
        }
        Ok(new.in_memory(|speaker| {
            let connection = Arc::new(Connection {
                seen: Arc::clone(&self),
                key,
                speaker,
                opened: OnceLock::new(),
                running: Mutex::default(),
                asked: Mutex::default(),
            });
            let mut connections = self.connections.lock().expect("not poisoned");
            connections.push(Arc::clone(&connection));
            connection
        }))
    }
}

/// The server's end of a connection.
pub(super) struct Connection {
    seen: Arc<FakeServer>,
    key: ConnectionKey,
    speaker: Speaker,
    /// The era in which the connection was opened, and the capabilities that the server was told.
    opened: OnceLock<(Era, String)>,
    /// The requests without an answer, by their ids.
    running: Mutex<HashMap<String, AbortHandle>>,
    /// The requests of the server without an answer, by their ids.
    asked: Mutex<HashMap<String, oneshot::Sender<String>>>,
}

/// Members of every response that no reader here knows.
pub(super) const BEFORE: &str = r#""top":1.50,"#;
pub(super) const BEHIND: &str = r#", "end":[12345678901234567890],"\u0065nd2":"\u00e9""#;

/// The question of the server in a call.
pub(super) const QUESTION: &str = r#"{"a":1.50,"jsonrpc":"2.0","id":"srv\u002d1","m\u0065thod":"elicitation/create","params":{"message":"who?","n":1.50},"z":[]}"#;
/// The cancellation of that question.
pub(super) const TAKEN_BACK: &str = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"srv\u002d1","reason":"never mind","n":1.50},"z":[]}"#;

impl Connection {
    /// Sends this message.
    pub(super) fn say(&self, text: &str) {
        self.speaker.say(text);
    }

    /// Ends the connection, as a server does that crashes.
    pub(super) fn hang_up(&self) {
        self.speaker.hang_up();
    }

    /// Sends this request, and returns the receiver of its whole answer.
    pub(super) fn ask(&self, text: &str) -> oneshot::Receiver<String> {
        let Ok(Message::Request { id, .. }) = jsonrpc::message(text) else {
            panic!("no request: {text}");
        };
        let (give, given) = oneshot::channel();
        self.asked
            .lock()
            .expect("not poisoned")
            .insert(id.to_owned(), give);
        self.say(text);
        given
    }

    fn era(&self) -> Era {
        self.opened.get().map_or(Era::Legacy, |(era, _)| *era)
    }

    /// Notes a request that opens the connection, if the server accepts it.
    fn open(&self, method: &str, params: &str) -> Option<ResponseOutcome> {
        let (era, path) = match method {
            "initialize" => (Era::Legacy, ["capabilities"].as_slice()),
            "server/discover" => {
                let path = ["_meta", "io.modelcontextprotocol/clientCapabilities"].as_slice();
                (Era::Modern, path)
            }
            _ => return None,
        };
        let accepts = match self.seen.speaks {
            EraSupport::Legacy => era == Era::Legacy,
            EraSupport::Modern | EraSupport::ModernAtLeast => era == Era::Modern,
            EraSupport::Dual => true,
        };
        if !accepts {
            return Some(error(
                json!({ "code": -32601, "message": "Method not found" }),
            ));
        }
        let params: Value = serde_json::from_str(params).expect("JSON");
        let told = path.iter().fold(&params, |value, key| &value[key]);
        let _ = self.opened.set((era, told.to_string()));
        Some(ResponseOutcome::Result(
            self.seen.opening(era).to_string().into(),
        ))
    }
}

impl ServerEnd for Connection {
    fn message(self: Arc<Self>, text: String) {
        match jsonrpc::message(&text) {
            Ok(Message::Request {
                id,
                method,
                members,
            }) => {
                let (id, method) = (id.to_owned(), method.into_owned());
                let params = members.params().map_or("{}", RawValue::get).to_owned();
                let opening = self.open(&method, &params);
                let told = self.opened.get().map_or("", |(_, told)| told).to_owned();
                self.seen
                    .requests
                    .lock()
                    .expect("not poisoned")
                    .push(SeenRequest {
                        id: id.clone(),
                        method: method.clone(),
                        params: params.clone(),
                        line: text.clone(),
                        key: self.key.clone(),
                        era: self.era(),
                        told,
                    });
                let (connection, own_id) = (Arc::clone(&self), id.clone());
                // Registered before the task runs, since this thread runs no task meanwhile.
                let task = tokio::spawn(async move {
                    let outcome = match opening {
                        Some(outcome) => outcome,
                        None => answer(&connection, (&method, params)).await,
                    };
                    connection
                        .running
                        .lock()
                        .expect("not poisoned")
                        .remove(&own_id);
                    let (name, part) = match &outcome {
                        ResponseOutcome::Result(part) => ("result", part),
                        ResponseOutcome::Error(part) => ("error", part),
                    };
                    let part = std::str::from_utf8(part).expect("UTF-8");
                    connection.say(&format!(
                        r#"{{{BEFORE}"jsonrpc":"2.0","id":{own_id},"{name}":{part}{BEHIND}}}"#
                    ));
                });
                let mut running = self.running.lock().expect("not poisoned");
                running.insert(id, task.abort_handle());
            }
            Ok(Message::Notification { method, members }) => match &*method {
                "notifications/initialized" => {}
                "notifications/cancelled" => {
                    let id = members
                        .params()
                        .and_then(|it| spans::member(it, "requestId"));
                    let id = id.expect("an id").get().to_owned();
                    let task = self.running.lock().expect("not poisoned").remove(&id);
                    let is_own = self
                        .seen
                        .requests
                        .lock()
                        .expect("not poisoned")
                        .iter()
                        .any(|it| it.id == id && it.key == self.key && OWN.contains(&&*it.method));
                    if let Some(task) = task {
                        task.abort();
                        if !is_own {
                            let mut notices =
                                self.seen.cancel_notices.lock().expect("not poisoned");
                            notices.push((id, text.clone()));
                        }
                    }
                }
                _ => {
                    let mut notifications = self.seen.notifications.lock().expect("not poisoned");
                    notifications.push(text.clone());
                }
            },
            Ok(Message::Response { id, .. }) => {
                let asked = self.asked.lock().expect("not poisoned").remove(id);
                if let Some(give) = asked {
                    let mut told = self.seen.told.lock().expect("not poisoned");
                    told.push(text.clone());
                    let _ = give.send(text.clone());
                }
            }
            Err(_) => panic!("no message: {text}"),
        }
    }

    fn closed(&self) {
        let mut ended = self.seen.ended.lock().expect("not poisoned");
        ended.push(self.key.clone());
    }
}

fn error(error: Value) -> ResponseOutcome {
    ResponseOutcome::Error(error.to_string().into())
}

fn result(text: impl Into<Bytes>) -> ResponseOutcome {
    ResponseOutcome::Result(text.into())
}

/// Number of tools in a list that is too long to be mended on a message thread.
pub(super) const MANY_TOOLS: usize = 2_000;

const TOOLS: &str = r#"{"tools":[{"name":"echo","inputSchema":{"type":"object","n":1.50},"x":2.0},{"name":"secret_tool","inputSchema":{}},{"name":"headed","inputSchema":{"properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}],"y":null}"#;

/// A log message of the server.
pub(super) fn logged(level: &str) -> String {
    format!(
        r#"{{"x":1.50,"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"{level}","data":1.0}}}}"#
    )
}

/// An unknown notification.
pub(super) const UNKNOWN: &str =
    r#"{"x":1.50,"jsonrpc":"2.0","m\u0065thod":"x\/unknown","params":{"a":12345678901234567890}}"#;

async fn answer(connection: &Connection, (method, params): (&str, String)) -> ResponseOutcome {
    let seen = &connection.seen;
    let modern = connection.era() == Era::Modern;
    // Only the name is read, since the arguments may be values that no type can hold.
    let name = || {
        let params = spans::raw(params.as_bytes())?;
        let name = spans::member(params, "name").and_then(jsonrpc::string)?;
        Some(json!({ "name": name }))
    };
    let read: Value = serde_json::from_str(&params).unwrap_or_else(|_| name().unwrap_or_default());
    match method {
        "completion/complete"
        | "resources/templates/list"
        | "tasks/get"
        | "tasks/result"
        | "tasks/cancel"
        | "tasks/update" => result(format!(r#"{{"params":{params}}}"#)),
        "tools/list" if seen.silent.load(Ordering::SeqCst) == 1 => std::future::pending().await,
        "tools/list" if seen.silent.load(Ordering::SeqCst) == 2 => {
            error(json!({ "code": -32603, "message": "no" }))
        }
        "tools/list" if seen.silent.load(Ordering::SeqCst) == 3 => {
            let all: Vec<_> = (0..MANY_TOOLS)
                .map(|at| format!(r#"{{"name":"tool{at:040}"}}"#))
                .collect();
            result(format!(r#"{{"tools":[{}]}}"#, all.join(",")))
        }
        "tools/list" if !read["cursor"].is_null() => result(r#"{"tools":[]}"#),
        "tools/list" if modern => result(format!(
            r#"{{"resultType":"complete","ttlMs":5,"cacheScope":"public",{}"#,
            &seen.tools[1..]
        )),
        "tools/list" => result(seen.tools),
        "tools/call" => call(connection, &read, &params).await,
        "resources/read" => error(json!({ "code": if modern { -32602 } else { -32002 },
            "message": "Resource not found", "data": { "uri": read["uri"] } })),
        "tasks/list" => result(format!(
            r#"{{"tasks":{},"nextCursor":"after-t2","by":{}}}"#,
            r#"[{"taskId":"t1","n":1.50},{"taskId":"t2"}]"#, read["cursor"]
        )),
        "custom/echo" => result(format!(r#"{{"params":{params}}}"#)),
        "subscriptions/listen" => {
            let wanted = &read["notifications"]["resourceSubscriptions"];
            let wanted = serde_json::from_value(wanted.clone()).expect("URIs");
            *seen.subscriptions.lock().expect("not poisoned") = wanted;
            std::future::pending().await
        }
        "resources/subscribe" if read["uri"] == "test://never" => std::future::pending().await,
        "resources/subscribe" if read["uri"] == "test://no" => {
            error(json!({ "code": -32000, "message": "no" }))
        }
        "resources/subscribe" => {
            let uri = read["uri"].as_str().expect("a URI").to_owned();
            seen.subscriptions.lock().expect("not poisoned").push(uri);
            result("{}")
        }
        "resources/unsubscribe" => {
            let mut subscriptions = seen.subscriptions.lock().expect("not poisoned");
            subscriptions.retain(|own| read["uri"] != **own);
            result("{}")
        }
        "logging/setLevel" | "ping" => result("{}"),
        _ => error(json!({ "code": -32601, "message": "Method not found" })),
    }
}

async fn call(connection: &Connection, read: &Value, params: &str) -> ResponseOutcome {
    let seen = &connection.seen;
    let modern = connection.era() == Era::Modern;
    match read["name"].as_str().unwrap_or_default() {
        "ask" if modern => {
            let raw: &RawValue = serde_json::from_str(params).expect("JSON");
            match spans::member(raw, "inputResponses") {
                Some(responses) => result(format!(
                    r#"{{"resultType":"complete","content":[],"got":{},"state":{}}}"#,
                    responses.get(),
                    read["requestState"]
                )),
                None => result(
                    r#"{"resultType":"input_required","inputRequests":{"who":{"method":"elicitation/create","params":{"message":"who?","n":1.50}}},"requestState":"theirs"}"#,
                ),
            }
        }
        "page" if modern => {
            let raw: &RawValue = serde_json::from_str(params).expect("JSON");
            match spans::member(raw, "inputResponses") {
                Some(responses) => result(format!(r#"{{"content":[],"got":{}}}"#, responses.get())),
                None => result(
                    r#"{"resultType":"input_required","inputRequests":{"login":{"method":"elicitation/create","params":{"mode":"url","url":"https://page.example/1","message":"Log in."}}}}"#,
                ),
            }
        }
        // `page` requires that a page is opened for its first two calls, `page_always` for every call.
        name @ ("page" | "page_always") => {
            let requests = seen.requests.lock().expect("not poisoned");
            let calls = requests.iter().filter(|it| it.method == "tools/call");
            match name == "page_always" || calls.count() < 3 {
                true => error(json!({
                    "code": -32042, "message": "a page is needed",
                    "data": { "elicitations": [{
                        "mode": "url", "elicitationId": "page-1", "url": "https://page.example/1", "message": "Log in.",
                    }] },
                })),
                false => result(r#"{"content":[{"type":"text","text":"paged"}]}"#),
            }
        }
        "ask" => {
            let told = connection.ask(QUESTION).await.expect("an answer");
            let raw: &RawValue = serde_json::from_str(&told).expect("JSON");
            let got = spans::member(raw, "result").map_or("null", RawValue::get);
            result(format!(r#"{{"content":[],"got":{got},"response":{told}}}"#))
        }
        // Asks, cancels the question, and goes on.
        name @ ("withdraw" | "withdraw_soon") => {
            let _given = connection.ask(QUESTION);
            let thinks = if name == "withdraw" { 1000 } else { 5 };
            tokio::time::sleep(Duration::from_millis(thinks)).await;
            connection.say(TAKEN_BACK);
            tokio::time::sleep(Duration::from_millis(500)).await;
            result(r#"{"content":[]}"#)
        }
        "ask_two" => {
            let mut answers = Vec::new();
            for number in ["first", "second"] {
                answers.push(connection.ask(&format!(
                    r#"{{"jsonrpc":"2.0","id":"{number}","method":"elicitation/create","params":{{"message":"{number}"}}}}"#
                )));
                // Like a server that writes one line after the other.
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            let mut got = Vec::new();
            for given in answers {
                let told: Value =
                    serde_json::from_str(&given.await.expect("an answer")).expect("JSON");
                got.push(told["result"].to_string());
            }
            result(format!(r#"{{"content":[],"got":[{}]}}"#, got.join(",")))
        }
        "speak" => {
            if let Some(token) = read["_meta"].get("progressToken") {
                connection.say(&format!(
                    r#"{{"x":1.50,"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1.0}}}}"#
                ));
            }
            for level in ["debug", "error"] {
                connection.say(&logged(level));
            }
            connection.say(UNKNOWN);
            result(r#"{"content":[]}"#)
        }
        // Log messages whose level cannot be read.
        "mumble" => {
            for params in ["", r#","params":{"data":1}"#, r#","params":{"level":5}"#] {
                connection.say(&format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/message"{params}}}"#
                ));
            }
            result(r#"{"content":[]}"#)
        }
        "relays" => {
            let raw: &RawValue = serde_json::from_str(params).expect("JSON");
            match spans::member(raw, "requestState") {
                Some(state) => result(format!(r#"{{"content":[],"state":{}}}"#, state.get())),
                None => result(
                    r#"{"resultType":"input_required","inputRequests":{},"requestState":"theirs"}"#,
                ),
            }
        }
        "hang" => std::future::pending().await,
        "begin" => {
            let state = format!(r#""taskId":{},"status":"working""#, read["arguments"]["id"]);
            result(match modern {
                true => format!(r#"{{"resultType":"task",{state},"ttlMs":null}}"#),
                false => format!(r#"{{"task":{{{state},"ttl":null}}}}"#),
            })
        }
        "safe" | "unsafe" if seen.gone.load(Ordering::SeqCst) > 0 => {
            seen.gone.fetch_sub(1, Ordering::SeqCst);
            connection.hang_up();
            std::future::pending().await
        }
        // The arguments hold the answer to give.
        "answers" => match read["arguments"].get("error") {
            Some(odd) => error(odd.clone()),
            None => result(read["arguments"]["result"].to_string()),
        },
        "fails" => result(r#"{"isError":true,"content":[{"type":"text","text":"no"}]}"#),
        "missing" => error(json!({ "code": -32602, "message": "Unknown tool: missing" })),
        _ => result(format!(
            r#"{{"content":[],"structuredContent":{{"params":{params}}},"x":1.50}}"#
        )),
    }
}
