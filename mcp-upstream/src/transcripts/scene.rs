//! A scene of a transcript: its own service, one client, one server, and their messages in the order in which the test sends
//! them.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::BodyDataStream;
use axum::response::IntoResponse;
use futures_util::StreamExt as _;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue, Method};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tooldock_base::route::RouteId;
use tooldock_servers::testing::PlayedLaunchers;
use tooldock_sessions::testing::{caller, full, namespace};
use tooldock_workers::external::StdioSettings;

use super::mask::Mask;
use super::server::{Envelope, Line, Server, done};
use super::worker::{Worker, Workers};
use crate::mcp::head::McpHead;
use crate::protocol::EraSupport;
use crate::reply::Reply;
use crate::service::{AdmittedRequest, Service};
use crate::testing::{Wanted, asked, external_upstream};

/// Maximum time that a test waits for a step of a scene.
const LIMIT: Duration = Duration::from_secs(20);

/// Kind of the client in a scene.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// A client of the legacy era, in a session of 2025-11-25.
    Legacy,
    /// A client of the modern era (2026-07-28).
    Modern,
    Rest,
}

/// Kind of the server in a scene.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answerer {
    Legacy,
    Modern,
    /// A Python worker, which runs functions.
    Worker,
}

/// A pair of a kind of client and a kind of server. Each pair has its own transcript.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub(super) client: Asker,
    pub(super) server: Answerer,
}

impl Cell {
    /// Returns the name of the pair's transcript file.
    pub(super) fn name(self) -> String {
        let client = match self.client {
            Asker::Legacy => "legacy-client",
            Asker::Modern => "modern-client",
            Asker::Rest => "rest",
        };
        let server = match self.server {
            Answerer::Legacy => "legacy-server",
            Answerer::Modern => "modern-server",
            Answerer::Worker => "worker",
        };
        format!("{client}-{server}")
    }
}

/// The name or URI in a request's parameters, for the header `Mcp-Name`.
#[derive(Default, Deserialize)]
struct Subject {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    uri: Option<String>,
}

pub(super) struct Scene {
    pub(super) cell: Cell,
    /// The text of the transcript so far.
    text: String,
    mask: Mask,
    service: Service,
    server: Arc<Server>,
    lines: mpsc::Receiver<Line>,
    worker: Arc<Worker>,
    /// The request that the server is answering: its id, and its line.
    current: Option<(String, Line)>,
    /// The id of the session; `None` for clients without one.
    session: Option<String>,
    /// True while messages are recorded. The opening of a session is recorded in one scene only.
    records: bool,
    /// The capabilities that a modern client declares with each request.
    capabilities: &'static str,
    /// The raw id of the last question that the gateway sent to the client, and the key of the last question in a result.
    question: String,
    key: String,
}

/// A request of the client whose answer was not read completely yet.
pub(super) enum Exchange {
    Asked(JoinHandle<Reply>),
    Reads(BodyDataStream, String),
}

impl Scene {
    pub(super) fn new(cell: Cell, title: &str) -> Self {
        Self::with(cell, title, false)
    }

    /// Starts a scene. With `plays_lists`, a `tools/list` of the client is recorded, and the test answers it.
    pub(super) fn with(cell: Cell, title: &str, plays_lists: bool) -> Self {
        let speaks = match cell.server {
            Answerer::Modern => EraSupport::Modern,
            Answerer::Legacy | Answerer::Worker => EraSupport::Legacy,
        };
        // The pool reads the tools once when the server starts.
        let own_lists = if plays_lists { 1 } else { usize::MAX };
        let (server, lines) = Server::new(speaks, own_lists);
        let worker = Arc::new(Worker::default());
        let mut wanted = Wanted::default();
        if cell.server == Answerer::Worker {
            wanted.namespaces = vec![full("shared")];
            wanted.ports = Some(Arc::new(Workers(Arc::clone(&worker))));
        } else {
            let mut external = namespace("shared");
            external.tools = Vec::new();
            external.upstream = external_upstream(StdioSettings::default());
            wanted.namespaces = vec![external];
            wanted.externals = Some(PlayedLaunchers::of(&server));
        }
        Self {
            cell,
            text: format!("\n== {title}\n"),
            mask: Mask::default(),
            service: wanted.build().service,
            server,
            lines,
            worker,
            current: None,
            session: None,
            records: true,
            capabilities: r#"{"elicitation":{},"sampling":{}}"#,
            question: String::new(),
            key: String::new(),
        }
    }

    /// Makes the client declare no capabilities, so that the server cannot send it questions.
    pub(super) fn declares_nothing(&mut self) {
        self.capabilities = "{}";
    }

    /// Returns the request that the server is answering, so that [`Self::go_on`] can restore it.
    pub(super) fn work(&mut self) -> Option<(String, Line)> {
        self.current.clone()
    }

    /// Continues with a request that [`Self::work`] returned: the server answers it next.
    pub(super) fn go_on(&mut self, work: Option<(String, Line)>) {
        self.current = work;
    }

    /// Returns the id of the last question to the client, as raw JSON.
    pub(super) fn question_id(&self) -> String {
        self.question.clone()
    }

    /// Returns the key of the last question in a result.
    pub(super) fn question_key(&self) -> String {
        self.key.clone()
    }

    /// Waits until the worker has received a call.
    pub(super) async fn worker_has_begun(&mut self) {
        let begun = async {
            while self.worker.counts().0 == 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, begun).await.expect("a call");
        self.record("", "");
    }

    /// Waits until the worker has no running call.
    pub(super) async fn worker_is_done(&mut self) {
        let over = async {
            loop {
                let (started, dropped, finished) = self.worker.counts();
                if started == dropped + finished {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, over).await.expect("its end");
        self.record("", "");
    }

    fn record(&mut self, way: &str, text: &str) {
        let opened = self.server.opened().into_iter();
        let opened = opened.map(|text| ("opens", text));
        let worker = self.worker.passed().into_iter();
        let before: Vec<_> = opened.chain(worker).collect();
        if !self.records {
            return;
        }
        for (way, text) in before {
            self.write(way, &text);
        }
        if !way.is_empty() {
            self.write(way, text);
        }
    }

    fn write(&mut self, way: &str, text: &str) {
        let text = self.mask.hide(text);
        let way = format!("{way}>");
        for line in text.split('\n') {
            let line = format!("{way:<8}{line}");
            writeln!(self.text, "{}", line.trim_end()).expect("into memory");
        }
    }

    /// Sends a message of the client literally, except that names of the [`Mask`] are replaced by their texts, and `$ERA` by the
    /// metadata of a modern request.
    pub(super) fn send(&mut self, message: &str) -> Exchange {
        let modern = self.cell.client == Asker::Modern;
        let message = with_era(
            &self.mask.reveal(message),
            modern.then_some(self.capabilities),
        );
        let mut headers = HeaderMap::new();
        let mut put = |name: &'static str, value: &str| {
            let value = HeaderValue::from_str(value).expect("a value");
            headers.insert(name, value);
        };
        if let Some(session) = &self.session {
            put("mcp-session-id", session);
            put("mcp-protocol-version", "2025-11-25");
        }
        if modern {
            let sent = Envelope::of(&message);
            put("mcp-protocol-version", "2026-07-28");
            put("mcp-method", &sent.method.unwrap_or_default());
            let subject = sent.params.map_or_else(Subject::default, |params| {
                serde_json::from_str(params.get()).unwrap_or_default()
            });
            if let Some(name) = subject.name.or(subject.uri) {
                put("mcp-name", &name);
            }
        }
        let mut lines = "POST /mcp\n".to_owned();
        for (name, value) in &headers {
            let value = value.to_str().expect("ASCII");
            writeln!(lines, "{name}: {value}").expect("into memory");
        }
        // This header is the same in all requests, so it is not recorded.
        let both = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(ACCEPT, both);
        self.record("client", &format!("{lines}\n{message}"));
        let request = AdmittedRequest {
            route: RouteId::Mcp,
            method: Method::POST,
            head: McpHead::from_headers(&headers),
            session: None,
            tool: None,
            namespace_in_path: false,
            accepts_v1: false,
            rest: None,
            known: None,
            query: None,
            body: message.into(),
            web: None,
        };
        self.begin(request)
    }

    /// Sends a REST request.
    pub(super) fn rest(&mut self, method: &Method, path: &str, body: &str) -> Exchange {
        self.record("client", format!("{method} {path}\n\n{body}").trim_end());
        let mut request = asked(path, body.as_bytes());
        request.method = method.clone();
        self.begin(request)
    }

    fn begin(&self, request: AdmittedRequest) -> Exchange {
        let service = self.service.clone();
        Exchange::Asked(tokio::spawn(async move {
            service.handle(caller(), request).await
        }))
    }

    /// Takes the next line that arrives at the server. Its request becomes the one that the server answers.
    pub(super) async fn up(&mut self) {
        let line = timeout(LIMIT, self.lines.recv()).await;
        let Ok(Some(line)) = line else {
            panic!("nothing came up after\n{}", self.text);
        };
        self.came(line);
    }

    fn came(&mut self, line: Line) {
        if let Some(opened) = &line.opened {
            self.record("opens", opened);
        }
        let message = Envelope::of(&line.text);
        let id = message.id.map_or_else(String::new, |id| id.to_string());
        if message.method.is_some() && message.id.is_some() {
            self.mask.learn("up", &id);
        }
        self.record("up", &line.text);
        self.current = Some((id, line));
    }

    /// Writes a line as the server. `$ID` is replaced by the id of the request that the server is answering, and `$DONE` by the
    /// members that a result of the modern era needs.
    pub(super) async fn down(&mut self, line: &str) {
        let (id, to) = {
            let (id, line) = self.current.as_ref().expect("a request");
            (id.clone(), line.to.clone())
        };
        let line = line.replace("$ID", &id);
        let line = done(&line, self.cell.server == Answerer::Modern);
        self.record("down", &line);
        to.line(&line);
    }

    /// Answers the current request with this result, as the server.
    pub(super) async fn result(&mut self, result: &str) {
        self.down(&format!(
            r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#
        ))
        .await;
    }

    /// Reads an answer to its end.
    pub(super) async fn answer(&mut self, exchange: Exchange) {
        let mut exchange = Some(exchange);
        while let Some(now) = exchange.take() {
            exchange = self.part(now, false).await;
        }
    }

    /// Reads an answer that the gateway itself gives. If the request reaches the server nevertheless, the server refuses it.
    pub(super) async fn settle(&mut self, exchange: Exchange) {
        let Exchange::Asked(mut reply) = exchange else {
            panic!("nothing of the answer was read");
        };
        let reply = loop {
            let line = tokio::select! {
                biased;
                reply = &mut reply => break reply,
                Some(line) = self.lines.recv() => line,
            };
            self.came(line);
            self.down(r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32602,"message":"refused by the server"}}"#).await;
        };
        let reply = reply.expect("no panic");
        self.answer(Exchange::Asked(tokio::spawn(async { reply })))
            .await;
    }

    /// Reads an answer up to the next question in its event stream.
    pub(super) async fn question(&mut self, exchange: Exchange) -> Exchange {
        let mut exchange = exchange;
        loop {
            match self.part(exchange, true).await {
                Some(Exchange::Reads(body, text)) if text == "?" => {
                    return Exchange::Reads(body, String::new());
                }
                Some(more) => exchange = more,
                None => panic!("no question in\n{}", self.text),
            }
        }
    }

    /// Reads the next piece of an answer: its head, or an event. If `asks` is set and the event is a question, the text of the
    /// returned exchange is `?`.
    async fn part(&mut self, exchange: Exchange, asks: bool) -> Option<Exchange> {
        match exchange {
            Exchange::Asked(reply) => {
                let reply = timeout(LIMIT, reply).await;
                let Ok(reply) = reply else {
                    panic!("no answer after\n{}", self.text);
                };
                let (head, body) = reply.expect("no panic").into_response().into_parts();
                let mut lines = head.status.as_u16().to_string();
                for (name, value) in &head.headers {
                    let value = value.to_str().expect("ASCII");
                    if name == "mcp-session-id" {
                        self.mask.learn("session", value);
                        self.session = Some(value.to_owned());
                    }
                    // The length of the body is left out, since it varies with the texts that names replace.
                    if name != "content-length" {
                        write!(lines, "\n{name}: {value}").expect("into memory");
                    }
                }
                self.record("answer", &lines);
                Some(Exchange::Reads(body.into_data_stream(), String::new()))
            }
            Exchange::Reads(mut body, mut text) => {
                while !text.contains("\n\n") {
                    let chunk = timeout(LIMIT, body.next()).await;
                    let Ok(chunk) = chunk else {
                        panic!("no more of an answer after\n{}", self.text);
                    };
                    let Some(chunk) = chunk else {
                        self.mask.learn_message(&text);
                        if let Some((_, key)) = text.split_once(r#""inputRequests":{""#) {
                            self.key = key.split('"').next().unwrap_or_default().to_owned();
                        }
                        if !text.is_empty() {
                            self.record("answer", &format!("\n{text}"));
                        }
                        return None;
                    };
                    let chunk = chunk.expect("a body does not fail");
                    text.push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
                }
                let end = text.find("\n\n").expect("an end") + 2;
                let event: String = text.drain(..end).collect();
                let mut question = false;
                for line in event.lines() {
                    if let Some(data) = line.strip_prefix("data: ") {
                        self.mask.learn_message(data);
                        let data = Envelope::of(data);
                        if let (Some(_), Some(id)) = (data.method, data.id) {
                            question = true;
                            self.question = id.to_string();
                        }
                    }
                }
                self.record("answer", &format!("\n{}", event.trim_end()));
                if question && asks {
                    assert_eq!(text, "", "nothing follows a question at once");
                    text.push('?');
                }
                Some(Exchange::Reads(body, text))
            }
        }
    }

    /// Closes the client's connection without reading the answer.
    pub(super) fn leave(&mut self, exchange: Exchange) {
        self.record("client", "(closes the connection)");
        match exchange {
            Exchange::Asked(reply) => reply.abort(),
            Exchange::Reads(body, _) => drop(body),
        }
    }

    /// Opens a session, if the client has sessions. The opening is not recorded.
    pub(super) async fn open(&mut self, capabilities: &str) {
        if self.cell.client != Asker::Legacy {
            return;
        }
        self.records = false;
        self.initialize(capabilities).await;
        self.records = true;
    }

    /// Opens a session, and records the opening.
    pub(super) async fn initialize(&mut self, capabilities: &str) {
        let opened = self.send(&format!(r#"{{"jsonrpc":"2.0","id":"init","method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"clientInfo":{{"name":"c","version":"1"}}}}}}"#));
        self.answer(opened).await;
        self.tell(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)
            .await;
    }

    /// Sends a message to which the answer is only an HTTP status.
    pub(super) async fn tell(&mut self, message: &str) {
        let told = self.send(message);
        self.answer(told).await;
    }

    /// Returns the whole transcript, including lines that arrive at the server when its processes end.
    pub(super) async fn end(mut self) -> String {
        self.server.finish();
        loop {
            let line = timeout(LIMIT, self.lines.recv()).await;
            match line.expect("the end of every process") {
                Some(line) => self.came(line),
                None => break,
            }
        }
        self.record("", "");
        self.text
    }
}

/// Replaces `$ERA` by the metadata of a modern request, followed by a comma if other keys follow.
fn with_era(message: &str, capabilities: Option<&str>) -> String {
    let Some((before, behind)) = message.split_once("$ERA") else {
        return message.to_owned();
    };
    let Some(capabilities) = capabilities else {
        return format!("{before}{behind}");
    };
    let comma = if behind.starts_with('}') { "" } else { "," };
    format!(
        r#"{before}"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{capabilities}{comma}{behind}"#
    )
}
