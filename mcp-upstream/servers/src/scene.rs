//! A server on pipes whose lines a test reads and writes.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::jsonrpc::{Notification, ProtocolViolation, ResponseOutcome, ServerRequest};
pub(crate) use tooldock_protocol::testing::{request, response};

use super::link::{CallOwner, Inbound, Link, LinkCall, LinkLimits, LinkRuntimes, NotificationSink};
use super::pipes::Pipes;

/// The server's ends of the pipes.
pub(super) struct ServerEnd {
    pub(super) input: BufReader<pipe::Receiver>,
    pub(super) output: pipe::Sender,
}

/// Handler that collects messages that belong to no call.
pub(super) struct House {
    pub(super) said: mpsc::Sender<String>,
    pub(super) asked: mpsc::Sender<ServerRequest>,
    pub(super) odd: Mutex<Vec<ProtocolViolation>>,
    /// Notes about calls that were given up or settled, and about tasks that began.
    pub(super) noted: Mutex<Vec<String>>,
}

impl House {
    pub(super) fn new(said: mpsc::Sender<String>, asked: mpsc::Sender<ServerRequest>) -> Self {
        Self {
            said,
            asked,
            odd: Mutex::default(),
            noted: Mutex::default(),
        }
    }

    fn note(&self, what: String) {
        self.noted.lock().expect("not poisoned").push(what);
    }
}

impl Inbound for House {
    fn notification(&self, notification: Notification<'_>) {
        let text = String::from_utf8(notification.message.to_vec()).expect("text");
        let _ = self.said.try_send(text);
    }

    fn request(&self, request: ServerRequest) {
        // A request beyond the channel's bound is dropped, and so answered.
        let _ = self.asked.try_send(request);
    }

    fn given_up(&self, call: u64, _: Option<&CallOwner>) {
        self.note(format!("given up {call}"));
    }

    fn settled(&self, call: u64) {
        self.note(format!("settled {call}"));
    }

    fn began_task(&self, call: Option<u64>, result: &RawValue) {
        let call = call.map_or("nobody".to_owned(), |call| call.to_string());
        self.note(format!("began {result} for {call}"));
    }

    fn violation(&self, violation: ProtocolViolation) {
        self.odd.lock().expect("not poisoned").push(violation);
    }
}

/// Sink that collects a call's messages, as whole messages and as parameters.
pub(super) struct Heard(pub(super) mpsc::Sender<(String, String)>);

impl NotificationSink for Heard {
    fn notification(&self, notification: Notification<'_>) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let params = notification.params.expect("parameters");
        let _ = self
            .0
            .try_send((text(&notification.message), text(&params)));
    }
}

pub(super) struct Scene {
    pub(super) link: Arc<Link>,
    pub(super) peer: ServerEnd,
    pub(super) house: Arc<House>,
    pub(super) said: mpsc::Receiver<String>,
    pub(super) asked: mpsc::Receiver<ServerRequest>,
}

pub(super) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("in time")
}

impl Scene {
    pub(super) fn new() -> Self {
        Self::with(LinkLimits::new(|| 1000))
    }

    pub(super) fn with(limits: LinkLimits) -> Self {
        let (server_in, stdin) = std::io::pipe().expect("a pipe");
        let (stdout, server_out) = std::io::pipe().expect("a pipe");
        let (said_to, said) = mpsc::channel(100);
        let (asked_to, asked) = mpsc::channel(1000);
        let house = Arc::new(House::new(said_to, asked_to));
        let pipes = Pipes {
            stdin: stdin.into(),
            stdout: stdout.into(),
        };
        let link = Link::open(
            "demo".parse().expect("a name"),
            pipes,
            LinkRuntimes::here(),
            limits,
            Arc::clone(&house) as Arc<dyn Inbound>,
        );
        let input = pipe::Receiver::from_owned_fd(server_in.into()).expect("a pipe");
        let output = pipe::Sender::from_owned_fd(server_out.into()).expect("a pipe");
        Self {
            link: link.expect("pipes"),
            peer: ServerEnd {
                input: BufReader::new(input),
                output,
            },
            house,
            said,
            asked,
        }
    }

    pub(super) async fn begin(&mut self, method: &str) -> (LinkCall, u64) {
        let call = self.link.request(method, None, None).expect("begun");
        let line = self.peer.json().await;
        let id = line["id"].as_u64().expect("a number");
        assert_eq!(call.id(), id);
        assert!(id < 1 << 53);
        (call, id)
    }

    /// Makes a call and answers it, after which all earlier lines of the server have been read.
    pub(super) async fn settle(&mut self) {
        let (call, id) = self.begin("ping").await;
        self.peer
            .send(&json!({"jsonrpc":"2.0","id":id,"result":{}}).to_string())
            .await;
        within(call).await.expect("answered");
    }

    pub(super) fn noted(&self) -> Vec<String> {
        std::mem::take(&mut self.house.noted.lock().expect("not poisoned"))
    }

    pub(super) fn odd(&self) -> Vec<ProtocolViolation> {
        std::mem::take(&mut self.house.odd.lock().expect("not poisoned"))
    }
}

impl ServerEnd {
    pub(super) async fn line(&mut self) -> String {
        let mut line = String::new();
        within(self.input.read_line(&mut line))
            .await
            .expect("readable");
        assert_eq!(line.pop(), Some('\n'), "{line}");
        line
    }

    pub(super) async fn json(&mut self) -> Value {
        serde_json::from_str(&self.line().await).expect("JSON")
    }

    pub(super) async fn send(&mut self, line: &str) {
        self.bytes(format!("{line}\n").as_bytes()).await;
    }

    pub(super) async fn bytes(&mut self, bytes: &[u8]) {
        within(self.output.write_all(bytes)).await.expect("written");
    }
}

pub(super) fn raw(text: &str) -> &RawValue {
    serde_json::from_str(text).expect("JSON")
}

pub(super) fn result(reply: Result<ResponseOutcome, CallError>) -> String {
    match reply.expect("a reply") {
        ResponseOutcome::Result(bytes) => String::from_utf8(bytes.to_vec()).expect("text"),
        ResponseOutcome::Error(error) => panic!("{error:?}"),
    }
}

pub(super) fn code(reply: Result<ResponseOutcome, CallError>) -> CallErrorCode {
    reply.expect_err("an error").code
}
