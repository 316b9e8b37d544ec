//! A server on in-memory pipes, which the test plays line by line. The real link is used, so the recorded bytes are those in the
//! pipe. Only this file depends on the interface between the engine and its servers.

use std::io::{PipeWriter, Write as _};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tooldock_base::error::CallError;
use tooldock_engine::upstream::client::connector::{
    ConnectionKey, Connector, Era, EraSupport, Inbound, Isolation, OpenAs, Opener, SentRequest,
    ServerConnection, ServerInfo,
};
use tooldock_engine::upstream::health::ServerHealth;
use tooldock_process::worker::LogLevel;
use tooldock_servers::link::{
    CallAccount, Link, LinkCall, LinkLimits, LinkRuntimes, NotificationSink,
};
use tooldock_servers::pipes::Pipes;
use tooldock_servers::pool::process::ProcessListener;
use tooldock_servers::pool::process::tasks::Tasks;
use tooldock_sessions::catalogue::Catalogue;
use tooldock_workers::registry::Namespace;

use crate::jsonrpc::{Notification, Request, ResponseOutcome, RpcError, ServerRequest};
use crate::protocol::ClientIdentity;

/// The list of tools for the gateway's own `tools/list`, which is also the answer to that of a client.
pub(super) const TOOLS: &str = r#"{$DONE"tools":[{"name":"echo","description":"Says \u00e9","inputSchema":{"type":"object","n":1.50},"x":2.0},{"name":"secret_tool","inputSchema":{"type":"object"}},{"name":"add","inputSchema":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},"outputSchema":{"type":"object"}},{"name":"count","inputSchema":{"type":"object"},"outputSchema":{"type":"integer"}}],"y":null}"#;

/// An event that the test observes at the server.
pub(super) enum Event {
    /// A line arrived at the server.
    Line(Line),
    /// The gateway closed the input of a process.
    End,
}

/// A line that arrived at the server, with the writer for the answer.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) to: Writer,
    /// Description of the opening of a shared process, given with its first line; `None` for other lines.
    pub(super) opened: Option<String>,
}

/// The members of a message that determine its handling. Other members are not parsed, since they may contain numbers that no
/// Rust type can represent.
#[derive(Default, Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow, default)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(default)]
    pub(super) method: Option<String>,
    #[serde(borrow, default)]
    pub(super) params: Option<&'a RawValue>,
}

impl<'a> Envelope<'a> {
    /// Reads the members from a text, which need not be a valid message.
    pub(super) fn of(text: &'a str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

/// The server's output. The pipe's buffer is large enough for all lines of a test, so writing never waits.
#[derive(Clone)]
pub(super) struct Writer(Arc<Mutex<PipeWriter>>);

impl Writer {
    pub(super) fn line(&self, line: &str) {
        let mut output = self.0.lock().expect("not poisoned");
        output
            .write_all(format!("{line}\n").as_bytes())
            .expect("written");
    }
}

/// The server of the namespace `shared` in a scene.
pub(super) struct Server {
    speaks: EraSupport,
    /// True if the test answers the gateway's own `tools/list`; false if the server answers it with [`TOOLS`].
    plays_lists: bool,
    events: mpsc::Sender<Event>,
    processes: Mutex<Vec<(ConnectionKey, Arc<Process>)>>,
    /// Descriptions of the processes that were opened and are not recorded yet.
    opened: Mutex<Vec<String>>,
}

struct Process {
    link: Arc<Link>,
    info: ServerInfo,
    listener: Arc<Listener>,
    tasks: Tasks,
    /// The log level that the process's only client has requested.
    level: Mutex<Option<LogLevel>>,
}

/// Handler for messages that belong to no call: that of the process's only client, if it has one.
struct Listener(Mutex<Option<Arc<dyn Inbound>>>, bool);

impl Listener {
    fn inbound(&self) -> Option<Arc<dyn Inbound>> {
        self.0.lock().expect("not poisoned").clone()
    }
}

impl Inbound for Listener {
    fn notification(&self, notification: Notification<'_>) {
        if let Some(inbound) = self.inbound() {
            inbound.notification(notification);
        }
    }

    fn request(&self, request: ServerRequest) {
        match self.inbound().filter(|_| self.1) {
            Some(inbound) => inbound.request(request),
            None => {
                request.answer(Err(RpcError {
                    code: -32601,
                    message: "nobody can be asked",
                }));
            }
        }
    }
}

impl Server {
    pub(super) fn new(speaks: EraSupport, plays_lists: bool) -> (Arc<Self>, mpsc::Receiver<Event>) {
        let (events, happened) = mpsc::channel(100);
        let server = Self {
            speaks,
            plays_lists,
            events,
            processes: Mutex::default(),
            opened: Mutex::default(),
        };
        (Arc::new(server), happened)
    }

    /// Returns the descriptions of the processes that were opened since the last call of this function.
    pub(super) fn opened(&self) -> Vec<String> {
        std::mem::take(&mut *self.opened.lock().expect("not poisoned"))
    }

    /// Writes the waiting lines and closes the input of every process. Returns the number of processes.
    pub(super) fn finish(&self) -> usize {
        let processes = self.processes.lock().expect("not poisoned");
        for (_, process) in &*processes {
            process.link.finish();
        }
        processes.len()
    }

    fn info(&self, era: Era) -> ServerInfo {
        let info = json!({ "name": "fake", "version": "1" });
        let capabilities = json!({
            "tools": { "listChanged": true }, "logging": {}, "x/unknown": { "n": 1 },
            "resources": { "subscribe": true }, "prompts": {}, "completions": {},
        });
        match era {
            Era::Legacy => ServerInfo::Legacy(
                json!({ "protocolVersion": "2025-06-18", "serverInfo": info,
                    "capabilities": capabilities, "instructions": "Do it." })
                .to_string()
                .into(),
            ),
            Era::Modern => ServerInfo::Modern(
                json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"],
                    "capabilities": capabilities, "instructions": "Do it.", "ttlMs": 7,
                    "_meta": { "io.modelcontextprotocol/serverInfo": info } })
                .to_string()
                .into(),
            ),
        }
    }

    fn open(&self, key: &ConnectionKey, open: OpenAs) -> Arc<Process> {
        let kind = match key {
            ConnectionKey::Shared => "shared",
            ConnectionKey::Session(_) => "the session's",
            ConnectionKey::Replica(_) => unreachable!("it has one backend"),
            ConnectionKey::Principal(_) => "the principal's",
            ConnectionKey::Exclusive => "the request's",
        };
        let version = match open.era {
            Era::Legacy => open.identity.version.as_str(),
            Era::Modern => "2026-07-28",
        };
        let (told, info) = (&open.identity.capabilities, open.identity.info.get());
        let info = match info == ClientIdentity::gateway().info.get() {
            true => "none",
            false => info,
        };
        let opened = format!("{kind}, {version}, capabilities {told}, client {info}");
        let (server_in, stdin) = std::io::pipe().expect("a pipe");
        let (stdout, server_out) = std::io::pipe().expect("a pipe");
        let own = matches!(key, ConnectionKey::Session(_) | ConnectionKey::Exclusive);
        // A shared process may be opened only for the gateway's own `tools/list`, which is not recorded. So its opening is
        // recorded with the first line that is not this request.
        let opened = if own {
            self.opened.lock().expect("not poisoned").push(opened);
            None
        } else {
            Some(opened)
        };
        let listener = Arc::new(Listener(Mutex::new(open.inbound.filter(|_| own)), own));
        let link = Link::open(
            "shared".parse().expect("a name"),
            Pipes {
                stdin: stdin.into(),
                stdout: stdout.into(),
            },
            LinkRuntimes::here(),
            LinkLimits::new(|| 1 << 20),
            Arc::clone(&listener) as Arc<dyn Inbound>,
        );
        let input = pipe::Receiver::from_owned_fd(server_in.into()).expect("a pipe");
        let output = Writer(Arc::new(Mutex::new(server_out)));
        let lists = (!self.plays_lists).then(|| done(TOOLS, open.era == Era::Modern));
        let events = self.events.clone();
        tokio::spawn(read(input, output, lists, opened, events));
        let process = Arc::new(Process {
            link: link.expect("pipes"),
            info: self.info(open.era),
            listener,
            tasks: Tasks::default(),
            level: Mutex::default(),
        });
        let mut processes = self.processes.lock().expect("not poisoned");
        processes.push((key.clone(), Arc::clone(&process)));
        process
    }
}

/// Replaces `$DONE` in a result by the members that its era needs.
pub(super) fn done(text: &str, modern: bool) -> String {
    let kind = r#""resultType":"complete","ttlMs":5,"cacheScope":"public","#;
    text.replace("$DONE", if modern { kind } else { "" })
}

/// Reads the lines that arrive at the server. The gateway's own `tools/list` is answered here; other lines are passed to the
/// test.
async fn read(
    input: pipe::Receiver,
    to: Writer,
    lists: Option<String>,
    mut opened: Option<String>,
    events: mpsc::Sender<Event>,
) {
    let mut input = BufReader::new(input);
    loop {
        let mut text = String::new();
        input.read_line(&mut text).await.expect("readable");
        if text.pop() != Some('\n') {
            let _ = events.try_send(Event::End);
            return;
        }
        let line = Envelope::of(&text);
        match &lists {
            Some(lists) if line.method.as_deref() == Some("tools/list") => {
                let id = line.id.expect("an id");
                to.line(&format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":{lists}}}"#
                ));
            }
            _ => {
                let to = to.clone();
                let opened = opened.take();
                let _ = events.try_send(Event::Line(Line { text, to, opened }));
            }
        }
    }
}

/// Connector that gives the upstream connections to the test's server.
pub(super) struct Leases(pub(super) Arc<Server>);

#[async_trait]
impl Connector for Leases {
    fn isolation(&self, namespace: &Namespace) -> Option<Isolation> {
        (namespace.name.as_str() == "shared").then_some(Isolation::Auto)
    }

    async fn speaks(&self, _: &Namespace, _: Era, _: Opener) -> Result<EraSupport, CallError> {
        Ok(self.0.speaks)
    }

    async fn lease(
        &self,
        _: &Namespace,
        key: &ConnectionKey,
        open: OpenAs,
    ) -> Result<Arc<dyn ServerConnection>, CallError> {
        let known = {
            let processes = self.0.processes.lock().expect("not poisoned");
            let found = processes.iter().find(|(own, _)| own == key);
            found.map(|(_, process)| Arc::clone(process))
        };
        let process = match known.filter(|_| *key != ConnectionKey::Exclusive) {
            Some(process) => process,
            None => self.0.open(key, open),
        };
        Ok(Arc::new(Leased(process)))
    }

    fn end_session(&self, _: &Arc<str>) {}

    fn last_opening(&self, _: &Namespace, era: Era) -> Option<ServerInfo> {
        let processes = self.0.processes.lock().expect("not poisoned");
        (!processes.is_empty()).then(|| self.0.info(era))
    }

    fn catalogue(&self, _: &Namespace) -> Result<Arc<Catalogue>, CallError> {
        Ok(Arc::default())
    }

    fn health(&self, _: &Namespace) -> Option<ServerHealth> {
        None
    }

    fn unsubscribe(&self, _: &Namespace, _: &ConnectionKey, _: Era, _: &str) {}
}

struct Leased(Arc<Process>);

fn sent(mut call: LinkCall) -> SentRequest {
    let cancel = call.canceller();
    let answer = Box::pin(async move { Ok(call.answer().await?) });
    SentRequest { answer, cancel }
}

impl Leased {
    async fn ask(&self, method: &str, params: &Value) -> Result<ResponseOutcome, CallError> {
        let params = to_raw_value(params).expect("JSON");
        self.0.link.request(method, Some(&params), None)?.await
    }
}

#[async_trait]
impl ServerConnection for Leased {
    fn opening(&self) -> &ServerInfo {
        &self.0.info
    }

    fn request(
        &self,
        method: &str,
        params: Option<&RawValue>,
        sink: Option<Arc<dyn NotificationSink>>,
    ) -> Result<SentRequest, CallError> {
        self.0.link.request(method, params, sink).map(sent)
    }

    fn forward(
        &self,
        request: &Request,
        sink: Option<Arc<dyn NotificationSink>>,
        of_client: Option<&Arc<HeaderMap>>,
        account: Option<CallAccount>,
    ) -> Result<SentRequest, CallError> {
        self.0
            .link
            .forward(request, sink, of_client, account)
            .map(sent)
    }

    fn notify(&self, message: &str) -> Result<(), CallError> {
        self.0.link.forward_notification(message)
    }

    fn tasks(&self) -> &Tasks {
        &self.0.tasks
    }

    fn hear(&self, listener: ProcessListener) {
        *self.0.listener.0.lock().expect("not poisoned") = Some(listener.inbound);
    }

    async fn subscribe(&self, uri: &str) -> Result<Option<ResponseOutcome>, CallError> {
        let params = json!({ "uri": uri });
        self.ask("resources/subscribe", &params).await.map(Some)
    }

    async fn set_log_level(&self, level: LogLevel) -> Result<ResponseOutcome, CallError> {
        if *self.0.level.lock().expect("not poisoned") == Some(level) {
            return Ok(ResponseOutcome::Result("{}".into()));
        }
        let params = json!({ "level": level.as_str() });
        self.ask("logging/setLevel", &params).await
    }

    fn granted(&self, method: &str, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        struct Params {
            level: String,
        }
        let params = params.and_then(|params| serde_json::from_str(params.get()).ok());
        if let ("logging/setLevel", Some(Params { level })) = (method, params) {
            *self.0.level.lock().expect("not poisoned") = level.parse().ok();
        }
    }

    fn answered(&self) {}
}
