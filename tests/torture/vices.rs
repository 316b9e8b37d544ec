//! Behaviour of clients towards servers, and of servers, before a session is dropped; and the ways to drop one.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::support::session::{Session, call};
use crate::support::sse::Answering;
use crate::support::{Gateway, compiled, eventually};

use super::left_over::MARK;

const VERSION: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";

/// The servers: namespace, isolation, flags.
const SERVERS: [(&str, &str, &[&str]); 12] = [
    ("own", "session", &[]),
    ("broken", "session", &[]),
    ("stubborn", "session", &["--ignore-eof", "--ignore-term"]),
    ("nest", "session", &["--fork", "2", "--ignore-eof"]),
    ("loud", "session", &["--flood-stderr"]),
    ("slow", "session", &["--slow-start", "200"]),
    ("hollow", "session", &["--exit-at-start"]),
    ("mute", "session", &["--never-start"]),
    ("crowd", "shared", &[]),
    ("team", "principal", &[]),
    ("mixed", "auto", &["--fork", "1"]),
    ("neighbour", "auto", &["--read-only"]),
];

/// `upstreams.stdio`. An unused process stops after `idle_stop`.
pub fn servers(mark: &str, idle_stop: &str) -> Value {
    let program = compiled::stray();
    let server = |(name, isolation, flags): &(&str, &str, &[&str])| {
        let keys = json!({
            "command": program, "args": flags, "env": {MARK: mark}, "isolation": isolation,
            "idle_stop": idle_stop, "max_processes": 10_000, "max_per_principal": 10_000,
            "connect_timeout": if *name == "mute" { "500ms" } else { "30s" },
        });
        ((*name).to_owned(), keys)
    };
    Value::Object(SERVERS.iter().map(server).collect())
}

/// The events in a session before it is dropped: a call that may never be answered.
#[derive(Debug)]
pub struct Vice {
    pub name: &'static str,
    namespace: &'static str,
    tool: &'static str,
    arguments: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The server answers other calls while that one is in flight.
    Attentive,
    /// It answers nothing from then on, or something much later.
    Busy,
    /// Its processes may be refused: it does not start, or its breaker is open.
    Refusing,
    /// Not a session, but a request of 2026-07-28.
    Modern,
}

#[rustfmt::skip] // A table reads better with a line for each row.
pub const VICES: [Vice; 25] = {
    use Kind::{Attentive, Busy, Modern, Refusing};
    const fn vice(name: &'static str, namespace: &'static str, tool: &'static str, arguments: &'static str, kind: Kind) -> Vice {
        Vice { name, namespace, tool, arguments, kind }
    }
    [
        vice("nothing wrong", "own", "echo", r#"{"message": "bye"}"#, Attentive),
        vice("a call in flight", "own", "sleep", r#"{"ms": 600000}"#, Attentive),
        vice("a call never answered", "own", "hang", "{}", Attentive),
        vice("input never read again", "own", "hang", r#"{"all": true}"#, Busy),
        vice("stopped", "own", "stop_self", "{}", Busy),
        vice("a flood on stdout", "own", "flood", r#"{"target": "stdout", "bytes": 3000000}"#, Busy),
        vice("a flood on stderr", "own", "flood", r#"{"target": "stderr", "bytes": 3000000}"#, Busy),
        vice("a line too long", "own", "huge", r#"{"bytes": 12000000}"#, Busy),
        vice("lines that are no messages", "own", "chatter", r#"{"lines": 500}"#, Busy),
        vice("detached grandchildren", "own", "fork", r#"{"n": 3, "setsid": true}"#, Attentive),
        vice("grandchildren in the group", "own", "fork", r#"{"n": 3}"#, Attentive),
        vice("a question in flight", "own", "ask", "{}", Attentive),
        vice("much progress", "own", "progress", r#"{"steps": 5000}"#, Busy),
        vice("many log messages", "own", "log", r#"{"count": 5000}"#, Busy),
        vice("a changing list", "own", "change", "{}", Attentive),
        vice("a crash", "broken", "crash", "{}", Refusing),
        vice("no end on EOF and SIGTERM", "stubborn", "sleep", r#"{"ms": 600000}"#, Attentive),
        vice("children from the start", "nest", "echo", r#"{"message": "bye"}"#, Attentive),
        vice("noise all the time", "loud", "echo", r#"{"message": "bye"}"#, Attentive),
        vice("a slow start", "slow", "hang", "{}", Attentive),
        vice("no start", "hollow", "echo", "{}", Refusing),
        vice("no handshake", "mute", "echo", "{}", Refusing),
        vice("one process for all", "crowd", "sleep", r#"{"ms": 600000}"#, Attentive),
        vice("one process for each principal", "team", "hang", "{}", Attentive),
        vice("a leased process", "mixed", "ask", "{}", Modern),
    ]
};

/// How a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// `DELETE`.
    Delete,
    /// The client's socket is closed in mid call.
    Close,
    /// The client's socket is reset in mid call.
    Reset,
    /// The client's socket is reset in mid call, with a stream of the session open, too, and a subscription to a
    /// resource.
    ResetStream,
    /// The client's process is killed in mid call.
    Kill,
    /// The client takes its answer and never comes back.
    Abandon,
}

pub const ENDINGS: [Ending; 6] = [
    Ending::Delete,
    Ending::Close,
    Ending::Reset,
    Ending::ResetStream,
    Ending::Kill,
    Ending::Abandon,
];

/// The state of a session before it was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Opened,
    Refused,
}

impl Vice {
    /// Opens a session, gives way to the vice, drops the session.
    pub async fn indulge(&self, gateway: &Gateway, token: &str, ending: Ending) -> Outcome {
        if self.kind == Kind::Modern {
            self.drop_modern(gateway, token, ending).await;
            return Outcome::Opened;
        }
        let Some(session) = self.open(gateway, token).await else {
            return Outcome::Refused;
        };
        let request = session.post_text(&self.call(2));
        match ending {
            Ending::Delete => {
                let answered =
                    async { Answering::open(gateway.address, &request).await.end().await };
                let deleted = async {
                    self.settle(&session).await;
                    session.delete().await
                };
                let (_, status) = tokio::join!(answered, deleted);
                assert!(matches!(status, 200 | 202 | 204), "DELETE: {status}");
            }
            Ending::Close => {
                let connection = sent(gateway, &request).await;
                self.settle(&session).await;
                drop(connection);
            }
            Ending::Reset => {
                let connection = sent(gateway, &request).await;
                self.settle(&session).await;
                reset(connection);
            }
            Ending::ResetStream => {
                // Whoever waits for news of a resource keeps its process: that ends with the session.
                let uri = json!({"uri": "stray://counter"});
                let subscribed = session.request(3, "resources/subscribe", uri).await;
                assert_eq!(
                    subscribed["result"],
                    json!({}),
                    "{}: {subscribed}",
                    self.name
                );
                let mut stream = session.listen().await;
                let connection = sent(gateway, &request).await;
                self.settle(&session).await;
                let _ = stream.connection().set_zero_linger();
                reset(connection);
            }
            Ending::Kill => {
                let client = Client::start(gateway, &request).await;
                self.settle(&session).await;
                client.kill().await;
            }
            Ending::Abandon => {
                Answering::open(gateway.address, &request).await.end().await;
            }
        }
        Outcome::Opened
    }

    /// Opens a session and a call of the vice that stays in flight as long as the returned stream.
    pub async fn begin(&self, gateway: &Gateway, token: &str) -> Option<TcpStream> {
        if self.kind == Kind::Modern {
            return Some(sent(gateway, &self.modern_text(token)).await);
        }
        let session = self.open(gateway, token).await?;
        let connection = sent(gateway, &session.post_text(&self.call(2))).await;
        self.settle(&session).await;
        Some(connection)
    }

    async fn open(&self, gateway: &Gateway, token: &str) -> Option<Session> {
        let capabilities = json!({"elicitation": {}});
        let opened =
            Session::try_start_as(gateway, self.namespace, VERSION, token, capabilities).await;
        match opened {
            Ok(session) => {
                if self.kind != Kind::Refusing {
                    self.echoes(&session).await;
                }
                Some(session)
            }
            Err(_) if self.kind == Kind::Refusing => None,
            Err(refusal) => panic!("{}: {refusal}", self.name),
        }
    }

    /// Waits until the server has taken the messages, where that can be seen: it answers the message behind them.
    async fn settle(&self, session: &Session) {
        if self.kind == Kind::Attentive {
            self.echoes(session).await;
        }
    }

    /// Waits for `echo` to answer. On a busy machine a call may take longer than the time limit, which is short here.
    async fn echoes(&self, session: &Session) {
        let answer = eventually("a server that answers in time", || async {
            let answer = echo(session).await;
            let code = &answer["result"]["_meta"]["tooldock/error"]["code"];
            (code != "execution_timeout").then_some(answer)
        })
        .await;
        let text = &answer["result"]["content"][0]["text"];
        assert_eq!(text, "here", "before {}: {answer}", self.name);
    }

    fn call(&self, id: u64) -> Value {
        let arguments = serde_json::from_str(self.arguments).expect("arguments are JSON");
        call(id, self.tool, arguments)
    }

    async fn drop_modern(&self, gateway: &Gateway, token: &str, ending: Ending) {
        let request = self.modern_text(token);
        match ending {
            Ending::Delete | Ending::Abandon => {
                let mut answer = Answering::open(gateway.address, &request).await;
                let answer = answer.json().await;
                assert_eq!(
                    answer["result"]["resultType"], "input_required",
                    "{}: {answer}",
                    self.name
                );
            }
            Ending::Close => drop(sent(gateway, &request).await),
            Ending::Reset | Ending::ResetStream => reset(sent(gateway, &request).await),
            Ending::Kill => Client::start(gateway, &request).await.kill().await,
        }
    }

    fn modern_text(&self, token: &str) -> String {
        let mut call = self.call(1);
        call["params"]["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
        });
        let body = call.to_string();
        format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nX-Namespace: {}\r\n\
             Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\
             MCP-Protocol-Version: {MODERN}\r\nMcp-Method: tools/call\r\nMcp-Name: {}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.namespace,
            self.tool,
            body.len()
        )
    }
}

/// Calls `echo` and takes its answer, whatever else the session is told before it: a question of another call may come
/// on any of its streams.
async fn echo(session: &Session) -> Value {
    let mut answer = session.call(1, "echo", json!({"message": "here"})).await;
    if answer.is_events() {
        let mut messages = answer.messages().await;
        messages.pop().unwrap_or_default()
    } else {
        answer.json().await
    }
}

async fn sent(gateway: &Gateway, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address).await.expect("connects");
    stream.write_all(request.as_bytes()).await.expect("sent");
    stream
}

fn reset(stream: TcpStream) {
    stream.set_zero_linger().expect("an option of sockets");
}

/// A client in a process of its own, which can be killed.
struct Client(tokio::process::Child);

impl Client {
    /// Sends its input, prints a word, and keeps its connection.
    const SCRIPT: &str = "exec 3<>/dev/tcp/$0/$1; cat >&3; echo sent; exec sleep infinity";

    async fn start(gateway: &Gateway, request: &str) -> Self {
        let mut client = Command::new("bash")
            .args(["-c", Self::SCRIPT])
            .arg(gateway.address.ip().to_string())
            .arg(gateway.address.port().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("bash is there");
        let mut stdin = client.stdin.take().expect("piped");
        stdin.write_all(request.as_bytes()).await.expect("it reads");
        drop(stdin);
        let mut said = String::new();
        let stdout = client.stdout.take().expect("piped");
        BufReader::new(stdout)
            .read_line(&mut said)
            .await
            .expect("it speaks");
        assert_eq!(said, "sent\n");
        Self(client)
    }

    /// SIGKILL.
    async fn kill(mut self) {
        self.0.kill().await.expect("it ran");
    }
}
