//! A server that behaves as its callers ask, in either era, and records the messages that it gets.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_engine::upstream::client::connector::{
    ConnectionKey, Connector, Era, EraSupport, Inbound, Isolation, MissingResponse, OpenAs, Opener,
    SentRequest, ServerConnection, ServerInfo,
};
use tooldock_engine::upstream::health::ServerHealth;
use tooldock_process::worker::LogLevel;
use tooldock_protocol::testing::response;
use tooldock_servers::link::{CallAccount, Canceller, Cancels, NotificationSink};
use tooldock_servers::pool::process::ProcessListener;
use tooldock_servers::pool::process::tasks::Tasks;
use tooldock_sessions::catalogue::Catalogue;
use tooldock_workers::registry::Namespace;

use crate::jsonrpc::{
    self, Asker, Message, Notification, RawId, Request, Response, ResponseOutcome, RpcError,
    ServerRequest, spans,
};

/// The server of the namespace `shared`.
pub(super) struct Fake {
    pub(super) isolation: Isolation,
    pub(super) speaks: EraSupport,
    pub(super) seen: Arc<KeyScan>,
    /// The capabilities that it declares.
    pub(super) capabilities: Value,
}

/// The messages that the server got.
#[derive(Default)]
pub(super) struct KeyScan {
    /// The handler of the newest process that a client has alone.
    pub(super) ear: Mutex<Option<Arc<dyn Inbound>>>,
    pub(super) leases: Mutex<Vec<(ConnectionKey, Era, String)>>,
    /// Methods and parameters.
    pub(super) requests: Mutex<Vec<(String, String)>>,
    /// Requests as a server reads them, under the id [`OURS`].
    pub(super) lines: Mutex<Vec<String>>,
    /// Whole messages.
    pub(super) notifications: Mutex<Vec<String>>,
    /// Cancellations by clients, in their own words.
    pub(super) cancel_notices: Mutex<Vec<String>>,
    /// Answers to its own requests.
    pub(super) told: Mutex<Vec<Told>>,
    /// Granted requests of a client's own process.
    pub(super) granted: Mutex<Vec<String>>,
    pub(super) subscriptions: Mutex<Vec<String>>,
    pub(super) levels: Mutex<Vec<LogLevel>>,
    pub(super) ended: Mutex<Vec<Arc<str>>>,
    /// Requests that were dropped without an answer.
    pub(super) cancelled: AtomicUsize,
    /// Calls of `flaky` that find their process gone.
    pub(super) gone: AtomicUsize,
    /// The gateway's catalogue of this server, with the lists that it has cached.
    pub(super) catalogue: Arc<Catalogue>,
    /// Failure of its tool list: no response (1), or a refusal (2). Or very many tools, all without a schema (3).
    pub(super) silent: AtomicUsize,
    /// The server does not start any more.
    pub(super) down: AtomicUsize,
    /// The owners of its tasks.
    pub(super) tasks: Tasks,
}

impl Fake {
    pub(super) fn new(speaks: EraSupport) -> Self {
        Self {
            isolation: Isolation::Auto,
            speaks,
            seen: Arc::default(),
            capabilities: json!({
                "tools": { "listChanged": true }, "logging": {}, "x/unknown": { "n": 1 },
                "resources": { "subscribe": true, "listChanged": true },
            }),
        }
    }
}

#[async_trait]
impl Connector for Fake {
    fn isolation(&self, namespace: &Namespace) -> Option<Isolation> {
        (namespace.name.as_str() == "shared").then_some(self.isolation)
    }

    async fn speaks(&self, _: &Namespace, _: Era, _: Opener) -> Result<EraSupport, CallError> {
        Ok(self.speaks)
    }

    async fn lease(
        &self,
        _: &Namespace,
        key: &ConnectionKey,
        open: OpenAs,
    ) -> Result<Arc<dyn ServerConnection>, CallError> {
        if self.seen.down.load(Ordering::SeqCst) > 0 {
            return Err(CallError::new(CallErrorCode::WorkerUnavailable, "down"));
        }
        let inbound = open.inbound.clone();
        let told = open.identity.capabilities.get().to_owned();
        let lease = (key.clone(), open.era, told);
        self.seen.leases.lock().expect("not poisoned").push(lease);
        let opening = self.opening(open.era);
        let own = !matches!(key, ConnectionKey::Shared | ConnectionKey::Principal(_));
        if own {
            self.seen
                .ear
                .lock()
                .expect("not poisoned")
                .clone_from(&inbound);
        }
        Ok(Arc::new(FakeConnection {
            seen: Arc::clone(&self.seen),
            opening,
            ear: Mutex::new(inbound.filter(|_| own)),
        }))
    }

    fn end_session(&self, tag: &Arc<str>) {
        self.seen
            .ended
            .lock()
            .expect("not poisoned")
            .push(Arc::clone(tag));
    }

    fn last_opening(&self, _: &Namespace, era: Era) -> Option<ServerInfo> {
        let leases = self.seen.leases.lock().expect("not poisoned");
        let opened = leases.iter().any(|(_, own, _)| *own == era);
        opened.then(|| self.opening(era))
    }

    fn catalogue(&self, _: &Namespace) -> Result<Arc<Catalogue>, CallError> {
        Ok(Arc::clone(&self.seen.catalogue))
    }

    fn health(&self, _: &Namespace) -> Option<ServerHealth> {
        None
    }

    fn unsubscribe(&self, _: &Namespace, _: &ConnectionKey, _: Era, uri: &str) {
        let mut subscriptions = self.seen.subscriptions.lock().expect("not poisoned");
        subscriptions.retain(|own| own != uri);
    }
}

impl Fake {
    fn opening(&self, era: Era) -> ServerInfo {
        let info = json!({ "name": "fake", "version": "1" });
        match era {
            Era::Legacy => ServerInfo::Legacy(
                json!({ "protocolVersion": "2025-06-18", "serverInfo": info,
                    "capabilities": self.capabilities, "instructions": "Do it." })
                .to_string()
                .into(),
            ),
            Era::Modern => ServerInfo::Modern(
                json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"],
                    "capabilities": self.capabilities, "instructions": "Do it.", "ttlMs": 7,
                    "_meta": { "io.modelcontextprotocol/serverInfo": info } })
                .to_string()
                .into(),
            ),
        }
    }
}

struct FakeConnection {
    seen: Arc<KeyScan>,
    opening: ServerInfo,
    /// Its handler: the owner's, or the only listener's.
    ear: Mutex<Option<Arc<dyn Inbound>>>,
}

/// The id of all requests on the way to the server.
pub(super) const OURS: &str = "65536";
/// Members of every response that no reader here knows.
pub(super) const BEFORE: &str = r#""top":1.50,"#;
pub(super) const BEHIND: &str = r#", "end":[12345678901234567890],"\u0065nd2":"\u00e9""#;

/// The answer to a request of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// A result on its own.
    Result(String),
    /// A refusal of the gateway's.
    Refused(i32),
    /// A client's whole response, under the server's id.
    Whole(String),
}

/// A server that waits for answers, with one request at a time.
pub(super) struct Waits {
    seen: Arc<KeyScan>,
    give: Mutex<Option<oneshot::Sender<Told>>>,
}

impl Waits {
    fn told(&self, told: Told) -> bool {
        let Some(give) = self.give.lock().expect("not poisoned").take() else {
            return false;
        };
        let mut all = self.seen.told.lock().expect("not poisoned");
        all.push(told.clone());
        let _ = give.send(told);
        true
    }
}

impl Asker for Waits {
    fn answer(&self, _: &RawId, _: u64, outcome: Result<&RawValue, RpcError<'_>>) -> bool {
        self.told(match outcome {
            Ok(result) => Told::Result(result.get().to_owned()),
            Err(error) => Told::Refused(error.code),
        })
    }

    fn forward_answer(&self, id: &RawId, _: u64, response: &Response) -> bool {
        let text = String::from_utf8(response.with_id(id.as_str())).expect("UTF-8");
        self.told(Told::Whole(text))
    }
}

/// A request of the server with this text, and the receiver of its answer.
pub(super) fn server_request(
    seen: &Arc<KeyScan>,
    text: &str,
) -> (ServerRequest, oneshot::Receiver<Told>) {
    let Ok(Message::Request {
        id,
        method,
        members,
    }) = jsonrpc::message(text)
    else {
        panic!("no request: {text}");
    };
    let params = members.params();
    let (give, given) = oneshot::channel();
    let waits = Arc::new(Waits {
        seen: Arc::clone(seen),
        give: Mutex::new(Some(give)),
    });
    let message = Bytes::copy_from_slice(text.as_bytes());
    let request = ServerRequest::new(&message, text, (id, 1), &method, params, waits);
    (request, given)
}

/// The question of the server in a call.
pub(super) const QUESTION: &str = r#"{"a":1.50,"jsonrpc":"2.0","id":"srv\u002d1","m\u0065thod":"elicitation/create","params":{"message":"who?","n":1.50},"z":[]}"#;
/// The cancellation of that question.
pub(super) const TAKEN_BACK: &str = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"srv\u002d1","reason":"never mind","n":1.50},"z":[]}"#;

/// Sends this message from the server.
pub(super) fn said(ear: &dyn Inbound, text: &str) {
    let Ok(Message::Notification { method, members }) = jsonrpc::message(text) else {
        panic!("no notification: {text}");
    };
    let params = members.params();
    ear.notification(Notification {
        method: &method,
        params: params.map(|it| Bytes::copy_from_slice(it.get().as_bytes())),
        message: Bytes::copy_from_slice(text.as_bytes()),
    });
}

struct CancelNotice(Arc<KeyScan>);

impl Cancels for CancelNotice {
    fn cancel(&self, _: u64, message: &str) -> bool {
        let mut words = self.0.cancel_notices.lock().expect("not poisoned");
        words.push(message.to_owned());
        true
    }
}

struct Cancelled(Arc<KeyScan>, bool);

impl Drop for Cancelled {
    fn drop(&mut self) {
        if !self.1 {
            self.0.cancelled.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[async_trait]
impl ServerConnection for FakeConnection {
    fn opening(&self) -> &ServerInfo {
        &self.opening
    }

    fn request(
        &self,
        method: &str,
        params: Option<&RawValue>,
        sink: Option<Arc<dyn NotificationSink>>,
    ) -> Result<SentRequest, CallError> {
        let params = params.map_or_else(|| "{}".to_owned(), |params| params.get().to_owned());
        Ok(self.send(method, params, sink))
    }

    fn forward(
        &self,
        request: &Request,
        sink: Option<Arc<dyn NotificationSink>>,
        _: Option<&Arc<HeaderMap>>,
        _: Option<CallAccount>,
    ) -> Result<SentRequest, CallError> {
        let mut line = BytesMut::new();
        request.write_as(&mut line, OURS, None);
        let line = String::from_utf8(line.to_vec()).expect("UTF-8");
        let mut lines = self.seen.lines.lock().expect("not poisoned");
        lines.push(line.clone());
        drop(lines);
        let Ok(Message::Request {
            id,
            method,
            members,
        }) = jsonrpc::message(&line)
        else {
            panic!("no request: {line}");
        };
        assert_eq!(id, OURS);
        let mut params = members.params().map_or("{}", RawValue::get).to_owned();
        if let Some(token) = request.token() {
            // The link puts the caller's token back into progress messages.
            params = params.replace(OURS, token);
        }
        Ok(self.send(&method, params, sink))
    }

    fn notify(&self, message: &str) -> Result<(), CallError> {
        let mut notifications = self.seen.notifications.lock().expect("not poisoned");
        notifications.push(message.to_owned());
        Ok(())
    }

    fn granted(&self, method: &str, _: Option<&RawValue>) {
        let mut granted = self.seen.granted.lock().expect("not poisoned");
        granted.push(method.to_owned());
    }

    fn tasks(&self) -> &Tasks {
        &self.seen.tasks
    }

    fn hear(&self, listener: ProcessListener) {
        *self.ear.lock().expect("not poisoned") = Some(listener.inbound);
    }

    async fn subscribe(&self, uri: &str) -> Result<Option<ResponseOutcome>, CallError> {
        if uri == "test://never" {
            return std::future::pending().await;
        }
        if uri == "test://no" {
            return Ok(Some(error(json!({ "code": -32000, "message": "no" }))));
        }
        let mut subscriptions = self.seen.subscriptions.lock().expect("not poisoned");
        subscriptions.push(uri.to_owned());
        Ok(None)
    }

    async fn set_log_level(&self, level: LogLevel) -> Result<ResponseOutcome, CallError> {
        self.seen.levels.lock().expect("not poisoned").push(level);
        Ok(ResponseOutcome::Result(Bytes::from_static(b"{}")))
    }

    fn answered(&self) {}
}

impl FakeConnection {
    fn send(
        &self,
        method: &str,
        params: String,
        sink: Option<Arc<dyn NotificationSink>>,
    ) -> SentRequest {
        let mut requests = self.seen.requests.lock().expect("not poisoned");
        requests.push((method.to_owned(), params.clone()));
        drop(requests);
        let modern = matches!(self.opening, ServerInfo::Modern(_));
        let ear = self.ear.lock().expect("not poisoned").clone();
        let seen = Arc::clone(&self.seen);
        let method = method.to_owned();
        let end = Cancelled(Arc::clone(&seen), false);
        let cancel = Canceller::new(Arc::new(CancelNotice(Arc::clone(&seen))), 0);
        let answer = Box::pin(async move {
            // Sets the whole value, not only the flag.
            let mut end = end;
            let reply = answer(&seen, (&method, params), modern, ear, sink).await;
            end.1 = true;
            reply.map(|reply| {
                let (name, part) = match &reply {
                    ResponseOutcome::Result(part) => ("result", part),
                    ResponseOutcome::Error(part) => ("error", part),
                };
                let part = std::str::from_utf8(part).expect("UTF-8");
                response(&format!(
                    r#"{{{BEFORE}"jsonrpc":"2.0","id":{OURS},"{name}":{part}{BEHIND}}}"#
                ))
            })
        });
        SentRequest { answer, cancel }
    }
}

fn error(error: Value) -> ResponseOutcome {
    ResponseOutcome::Error(error.to_string().into())
}

fn result(text: impl Into<Bytes>) -> Result<ResponseOutcome, MissingResponse> {
    Ok(ResponseOutcome::Result(text.into()))
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

async fn answer(
    seen: &Arc<KeyScan>,
    (method, params): (&str, String),
    modern: bool,
    ear: Option<Arc<dyn Inbound>>,
    sink: Option<Arc<dyn NotificationSink>>,
) -> Result<ResponseOutcome, MissingResponse> {
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
            Ok(error(json!({ "code": -32603, "message": "no" })))
        }
        "tools/list" if seen.silent.load(Ordering::SeqCst) == 3 => {
            let all: Vec<_> = (0..MANY_TOOLS)
                .map(|at| format!(r#"{{"name":"tool{at:040}"}}"#))
                .collect();
            result(format!(r#"{{"tools":[{}]}}"#, all.join(",")))
        }
        "tools/list" if modern => result(format!(
            r#"{{"resultType":"complete","ttlMs":5,"cacheScope":"public",{}"#,
            &TOOLS[1..]
        )),
        "tools/list" => result(TOOLS),
        "tools/call" => call(seen, &read, &params, modern, ear, sink).await,
        "resources/read" => Ok(error(json!({ "code": if modern { -32602 } else { -32002 },
            "message": "Resource not found", "data": { "uri": read["uri"] } }))),
        "tasks/list" => result(format!(
            r#"{{"tasks":{},"nextCursor":"after-t2","by":{}}}"#,
            r#"[{"taskId":"t1","n":1.50},{"taskId":"t2"}]"#, read["cursor"]
        )),
        "custom/echo" => result(format!(r#"{{"params":{params}}}"#)),
        "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => result("{}"),
        _ => Ok(error(
            json!({ "code": -32601, "message": "Method not found" }),
        )),
    }
}

async fn call(
    seen: &Arc<KeyScan>,
    read: &Value,
    params: &str,
    modern: bool,
    ear: Option<Arc<dyn Inbound>>,
    sink: Option<Arc<dyn NotificationSink>>,
) -> Result<ResponseOutcome, MissingResponse> {
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
            let calls = requests.iter().filter(|(own, _)| own == "tools/call");
            match name == "page_always" || calls.count() < 3 {
                true => Ok(error(json!({
                    "code": -32042, "message": "a page is needed",
                    "data": { "elicitations": [{
                        "mode": "url", "elicitationId": "page-1", "url": "https://page.example/1", "message": "Log in.",
                    }] },
                }))),
                false => result(r#"{"content":[{"type":"text","text":"paged"}]}"#),
            }
        }
        "ask" => {
            let (request, given) = server_request(seen, QUESTION);
            ear.expect("somebody hears").request(request);
            let told = match given.await.expect("an answer") {
                Told::Result(result) => format!(r#""got":{result}"#),
                Told::Refused(code) => format!(r#""refused":{code}"#),
                Told::Whole(response) => format!(r#""response":{response}"#),
            };
            result(format!(r#"{{"content":[],{told}}}"#))
        }
        // Asks, cancels the question, and goes on.
        name @ ("withdraw" | "withdraw_soon") => {
            let ear = ear.expect("somebody hears");
            let (request, given) = server_request(seen, QUESTION);
            ear.request(request);
            let thinks = if name == "withdraw" { 1000 } else { 5 };
            tokio::time::sleep(Duration::from_millis(thinks)).await;
            said(&*ear, TAKEN_BACK);
            let _ = given.await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            result(r#"{"content":[]}"#)
        }
        "ask_two" => {
            let ear = ear.expect("somebody hears");
            let mut answers = Vec::new();
            for question in [r#"{"message":"first"}"#, r#"{"message":"second"}"#] {
                let message = format!(
                    r#"{{"jsonrpc":"2.0","id":"srv","method":"elicitation/create","params":{question}}}"#
                );
                let (request, given) = server_request(seen, &message);
                ear.request(request);
                answers.push(given);
                // Like a server that writes one line after the other.
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            let mut got = Vec::new();
            for given in answers {
                let Told::Result(result) = given.await.expect("an answer") else {
                    panic!("the question was refused");
                };
                got.push(result);
            }
            result(format!(r#"{{"content":[],"got":[{}]}}"#, got.join(",")))
        }
        "speak" => {
            if let Some(sink) = sink {
                let token = &read["_meta"]["progressToken"];
                let params = format!(r#"{{"progressToken":{token},"progress":1.0}}"#);
                sink.notification(Notification {
                    method: "notifications/progress",
                    message: format!(
                        r#"{{"x":1.50,"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#
                    )
                    .into(),
                    params: Some(params.into()),
                });
            }
            if let Some(ear) = ear {
                for level in ["debug", "error"] {
                    said(&*ear, &logged(level));
                }
                said(&*ear, UNKNOWN);
            }
            result(r#"{"content":[]}"#)
        }
        // Log messages whose level cannot be read.
        "mumble" => {
            for params in ["", r#","params":{"data":1}"#, r#","params":{"level":5}"#] {
                let text =
                    format!(r#"{{"jsonrpc":"2.0","method":"notifications/message"{params}}}"#);
                said(&**ear.as_ref().expect("somebody hears"), &text);
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
            let created = match modern {
                true => format!(r#"{{"resultType":"task",{state},"ttlMs":null}}"#),
                false => format!(r#"{{"task":{{{state},"ttl":null}}}}"#),
            };
            // The link does the same.
            let call = OURS.parse().expect("a number");
            let created_task = serde_json::from_str(&created).expect("JSON");
            seen.tasks.begin(Some(call), created_task);
            result(created)
        }
        "safe" | "unsafe" if seen.gone.load(Ordering::SeqCst) > 0 => {
            seen.gone.fetch_sub(1, Ordering::SeqCst);
            let error = CallError::new(CallErrorCode::WorkerUnavailable, "gone");
            Err(error.into())
        }
        // The arguments hold the answer to give.
        "answers" => match read["arguments"].get("error") {
            Some(odd) => Ok(error(odd.clone())),
            None => result(read["arguments"]["result"].to_string()),
        },
        "fails" => result(r#"{"isError":true,"content":[{"type":"text","text":"no"}]}"#),
        "missing" => Ok(error(
            json!({ "code": -32602, "message": "Unknown tool: missing" }),
        )),
        _ => result(format!(
            r#"{{"content":[],"structuredContent":{{"params":{params}}},"x":1.50}}"#
        )),
    }
}
