//! A server on in-memory pipes, which the test plays line by line. The real pools and the real link are used, so the recorded
//! bytes are those in the pipe. The server answers the opening of a connection itself.

use std::io::{PipeWriter, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_servers::link::Link;
use tooldock_servers::pipes::Pipes;
use tooldock_servers::pool::ConnectionKey;
use tooldock_servers::testing::{NewConnection, PlayedServer};

use crate::protocol::{ClientIdentity, EraSupport};

/// The list of tools for the gateway's own `tools/list`, which is also the answer to that of a client.
pub(super) const TOOLS: &str = r#"{$DONE"tools":[{"name":"echo","description":"Says \u00e9","inputSchema":{"type":"object","n":1.50},"x":2.0},{"name":"secret_tool","inputSchema":{"type":"object"}},{"name":"add","inputSchema":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},"outputSchema":{"type":"object"}},{"name":"count","inputSchema":{"type":"object"},"outputSchema":{"type":"integer"}}],"y":null}"#;

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
    /// True for a server of 2026-07-28, false for one that is opened by `initialize`.
    is_modern: bool,
    /// Number of further `tools/list` that the server answers with [`TOOLS`]; the test answers those after them.
    own_lists: AtomicUsize,
    /// Sender of the lines that arrive; `None` once the scene ends, after which no connection is opened.
    lines: Mutex<Option<mpsc::Sender<Line>>>,
    links: Mutex<Vec<Arc<Link>>>,
    /// Descriptions of the processes that were opened and are not recorded yet.
    opened: Mutex<Vec<String>>,
}

impl Server {
    pub(super) fn new(speaks: EraSupport, own_lists: usize) -> (Arc<Self>, mpsc::Receiver<Line>) {
        let (lines, arrived) = mpsc::channel(100);
        let server = Self {
            is_modern: speaks == EraSupport::Modern,
            own_lists: AtomicUsize::new(own_lists),
            lines: Mutex::new(Some(lines)),
            links: Mutex::default(),
            opened: Mutex::default(),
        };
        (Arc::new(server), arrived)
    }

    /// Returns the descriptions of the processes that were opened since the last call of this function.
    pub(super) fn opened(&self) -> Vec<String> {
        std::mem::take(&mut *self.opened.lock().expect("not poisoned"))
    }

    /// Writes the waiting lines and closes the input of every process, after which no more lines arrive.
    pub(super) fn finish(&self) {
        self.lines.lock().expect("not poisoned").take();
        for link in &*self.links.lock().expect("not poisoned") {
            link.finish();
        }
    }

    /// Returns true if the server itself answers the next `tools/list`.
    fn answers_list(&self) -> bool {
        let order = Ordering::Relaxed;
        let left = self
            .own_lists
            .fetch_update(order, order, |left| left.checked_sub(1));
        left.is_ok()
    }

    /// The answer to a request that opens a connection, as a member of the response; `None` for other messages.
    fn opening(&self, method: &str) -> Option<String> {
        let (info, capabilities) = (
            json!({ "name": "fake", "version": "1" }),
            json!({
                "tools": { "listChanged": true }, "logging": {}, "x/unknown": { "n": 1 },
                "resources": { "subscribe": true }, "prompts": {}, "completions": {},
            }),
        );
        let result = match (method, self.is_modern) {
            ("initialize", false) => {
                json!({ "protocolVersion": "2025-06-18", "serverInfo": info,
                    "capabilities": capabilities, "instructions": "Do it." })
            }
            ("server/discover", true) => {
                json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"],
                    "capabilities": capabilities, "instructions": "Do it.", "ttlMs": 7,
                    "_meta": { "io.modelcontextprotocol/serverInfo": info } })
            }
            ("initialize" | "server/discover", _) => {
                return Some(r#""error":{"code":-32601,"message":"Method not found"}"#.to_owned());
            }
            _ => return None,
        };
        Some(format!(r#""result":{result}"#))
    }
}

impl PlayedServer for Server {
    fn connect(
        self: Arc<Self>,
        key: ConnectionKey,
        new: NewConnection,
    ) -> Result<Arc<Link>, CallError> {
        let lines = self.lines.lock().expect("not poisoned").clone();
        let over = || CallError::new(CallErrorCode::WorkerUnavailable, "the scene is over");
        let lines = lines.ok_or_else(over)?;
        let (server_in, stdin) = std::io::pipe().expect("a pipe");
        let (stdout, server_out) = std::io::pipe().expect("a pipe");
        let link = new.over_pipes(Pipes {
            stdin: stdin.into(),
            stdout: stdout.into(),
        });
        let input = pipe::Receiver::from_owned_fd(server_in.into()).expect("a pipe");
        let output = Writer(Arc::new(Mutex::new(server_out)));
        tokio::spawn(read(
            Arc::clone(&self),
            key,
            BufReader::new(input),
            output,
            lines,
        ));
        let mut links = self.links.lock().expect("not poisoned");
        links.push(Arc::clone(&link));
        Ok(link)
    }
}

/// Describes a process by its key and by the parameters of the request that opened it.
fn described(key: &ConnectionKey, is_modern: bool, params: &RawValue) -> String {
    #[derive(Deserialize)]
    struct Told<'a> {
        #[serde(
            rename = "protocolVersion",
            alias = "io.modelcontextprotocol/protocolVersion"
        )]
        version: String,
        #[serde(borrow, alias = "io.modelcontextprotocol/clientCapabilities")]
        capabilities: &'a RawValue,
        #[serde(
            borrow,
            rename = "clientInfo",
            alias = "io.modelcontextprotocol/clientInfo"
        )]
        info: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Modern<'a> {
        #[serde(borrow, rename = "_meta")]
        told: Told<'a>,
    }
    let kind = match key {
        ConnectionKey::Shared => "shared",
        ConnectionKey::Session(_) => "the session's",
        ConnectionKey::Replica(_) => unreachable!("it has one backend"),
        ConnectionKey::Principal(_) => "the principal's",
        ConnectionKey::Exclusive => "the request's",
    };
    let told: Told<'_> = match is_modern {
        true => {
            serde_json::from_str::<Modern<'_>>(params.get())
                .expect("metadata")
                .told
        }
        false => serde_json::from_str(params.get()).expect("parameters"),
    };
    let info = match told.info.get() == ClientIdentity::gateway().info.get() {
        true => "none",
        false => told.info.get(),
    };
    let (version, capabilities) = (told.version, told.capabilities);
    format!("{kind}, {version}, capabilities {capabilities}, client {info}")
}

/// Replaces `$DONE` in a result by the members that its era needs.
pub(super) fn done(text: &str, modern: bool) -> String {
    let kind = r#""resultType":"complete","ttlMs":5,"cacheScope":"public","#;
    text.replace("$DONE", if modern { kind } else { "" })
}

/// Reads the lines that arrive at the server, until the gateway closes the process's input. The messages that open the
/// connection, the gateway's own `tools/list` and its subscription are handled here; other lines are passed to the test.
async fn read(
    server: Arc<Server>,
    key: ConnectionKey,
    mut input: BufReader<pipe::Receiver>,
    to: Writer,
    lines: mpsc::Sender<Line>,
) {
    let is_own = matches!(key, ConnectionKey::Session(_) | ConnectionKey::Exclusive);
    let mut opened = None;
    loop {
        let mut text = String::new();
        input.read_line(&mut text).await.expect("readable");
        if text.pop() != Some('\n') {
            return;
        }
        let line = Envelope::of(&text);
        let method = line.method.as_deref().unwrap_or_default();
        let answer = |outcome: &str| {
            let id = line.id.expect("an id");
            to.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},{outcome}}}"#));
        };
        if let Some(outcome) = server.opening(method) {
            if outcome.starts_with(r#""result""#) {
                let params = line.params.expect("parameters");
                let description = described(&key, server.is_modern, params);
                // A shared process may be opened only for the gateway's own `tools/list`, which is not recorded. So its opening
                // is recorded with the first line that is not this request.
                match is_own {
                    true => server
                        .opened
                        .lock()
                        .expect("not poisoned")
                        .push(description),
                    false => opened = Some(description),
                }
            }
            answer(&outcome);
            continue;
        }
        match method {
            "notifications/initialized" | "subscriptions/listen" => {}
            "tools/list" if server.answers_list() => {
                let list = done(TOOLS, server.is_modern);
                answer(&format!(r#""result":{list}"#));
            }
            _ => {
                let (to, opened) = (to.clone(), opened.take());
                let _ = lines.try_send(Line { text, to, opened });
            }
        }
    }
}
