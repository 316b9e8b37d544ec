//! The relay: frames on a Unix socket, with an API key in each, over the example namespace of `conf/examples/oubliette`
//! (REL-01…20, EX-110…116).
//!
//! | requirement | test |
//! |---|---|
//! | REL-01…05, REL-07, REL-10, REL-17, REL-19, EX-110…113 | `a_frame_with_a_key_lists_and_calls_the_tools_of_its_namespace` |
//! | REL-06, REL-08, REL-09, EX-114, EX-115, K-24 | `what_a_scope_lists_is_what_it_can_call_for_every_tool` |
//! | REL-11…16, REL-18, CFG-31, EX-116, K-25 | `client` |
//! | SEC-18 | `a_key_that_was_revoked_counts_no_more_on_an_open_connection` |

mod client;
mod crowd;
mod socket;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use tooldock_base::scope::ScopeTable;
use tooldock_credentials::keys::{KeyKind, KeyStore, MadeKey, NewKey};

use crate::observability::audit;
use crate::support::gateway::Builder;
use crate::support::{DEADLINE, Gateway, eventually, programs};

/// Tools beside those of the example: one that takes its time, and one that tells how far it is.
const SLOW: &str = r#"
import asyncio
from pathlib import Path

from fastmcp import Context
from fastmcp.tools import tool


@tool
async def session_wait(begun: str) -> str:
    """Waits until it is cancelled."""
    Path(begun).write_text("begun")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        Path(begun).write_text("cancelled")
        raise


@tool
async def session_until(begun: str, end: str) -> str:
    """Waits for a file."""
    Path(begun).write_text("begun")
    while not Path(end).exists():
        await asyncio.sleep(0.01)
    return "done"


@tool
async def session_steps(ctx: Context) -> str:
    """Tells how far it is."""
    for step in (1, 2, 3):
        await ctx.report_progress(step, 3, f"step {step}")
    return "done"
"#;

/// A gateway with a relay, and a folder with its socket.
pub struct Host {
    pub gateway: Gateway,
    pub folder: TempDir,
    keys: KeyStore,
}

/// Copies the example namespace.
fn place_example(data: &Path) {
    let example = programs::root().join("conf/examples/oubliette");
    let namespace = data.join("tools/oubliette");
    fs::create_dir_all(&namespace).unwrap();
    for entry in fs::read_dir(example).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.ends_with(".py") || name == "tooldock.yaml" {
            fs::copy(&path, namespace.join(name)).unwrap();
        }
    }
    fs::write(namespace.join("slow.py"), SLOW).unwrap();
}

fn keys_of(data: &Path) -> KeyStore {
    fs::create_dir_all(data).unwrap();
    KeyStore::open(data.join("keys.json"), ScopeTable::default()).unwrap()
}

impl Host {
    pub async fn start() -> Self {
        Self::with(json!({})).await
    }

    /// With these keys in the configuration.
    pub async fn with(keys: Value) -> Self {
        let folder = TempDir::new().unwrap();
        let builder = builder(folder.path()).config(keys);
        let gateway = builder.start_with(place_example).await;
        let keys = keys_of(gateway.data_dir());
        Self {
            gateway,
            folder,
            keys,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("relay.sock")
    }

    /// Another process makes a key, which counts within a second.
    pub async fn key(&self, name: &str, scopes: &[&str]) -> MadeKey {
        self.key_for(name, scopes, &["oubliette"]).await
    }

    async fn key_for(&self, name: &str, scopes: &[&str], namespaces: &[&str]) -> MadeKey {
        let texts = |texts: &[&str]| texts.iter().map(|&it| it.to_owned()).collect();
        let key = self.keys.create(NewKey {
            name: name.into(),
            made_by: None,
            scopes: texts(scopes),
            namespaces: texts(namespaces),
            networks: Vec::new(),
            limits: Vec::new(),
            lifetime: None,
            kind: KeyKind::Relay,
        });
        let key = key.unwrap();
        if namespaces == ["oubliette"] {
            eventually("the gateway knows the key", || async {
                let answer = self.connect().await.tools(key.text.expose()).await;
                answer["result"].is_object().then_some(())
            })
            .await;
        }
        key
    }

    pub async fn connect(&self) -> Connection {
        Connection::to(&self.socket()).await
    }

    /// The audit line that this accepts.
    pub async fn audited(&self, what: &str, accepts: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || async {
            audit(&self.gateway).into_iter().find(|line| accepts(line))
        })
        .await
    }
}

/// A gateway whose relay's socket stands in a folder.
pub fn builder(folder: &Path) -> Builder {
    Gateway::empty().config(json!({"relay": {"socket": folder.join("relay.sock")}}))
}

/// A connection to the relay.
pub struct Connection {
    reader: BufReader<OwnedReadHalf>,
    pub writer: Option<OwnedWriteHalf>,
}

impl Connection {
    pub async fn to(socket: &Path) -> Self {
        Self::accepted(UnixStream::connect(socket).await.unwrap())
    }

    /// The other end of a connection.
    pub fn accepted(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self {
            reader: BufReader::new(reader),
            writer: Some(writer),
        }
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        let writer = self.writer.as_mut().unwrap();
        let written = timeout(DEADLINE, writer.write_all(bytes)).await;
        written.expect("it is read").unwrap();
    }

    pub async fn send(&mut self, frame: Value) {
        self.write(format!("{frame}\n").as_bytes()).await;
    }

    pub async fn ask(&mut self, id: u32, method: &str, params: Value) {
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
    }

    pub async fn begin(&mut self, id: u32, key: &str, tool: &str, arguments: Value) {
        let params = json!({"api_key": key, "tool": tool, "arguments": arguments});
        self.ask(id, "oubliette_call_tool", params).await;
    }

    pub async fn next(&mut self) -> Value {
        let line = self.line().await;
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no frame: {line:?}"))
    }

    /// The next line; empty at the end.
    pub async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = timeout(DEADLINE, self.reader.read_line(&mut line)).await;
        read.expect("a frame comes").unwrap();
        line
    }

    pub async fn tools(&mut self, key: &str) -> Value {
        self.ask(1, "oubliette_tools", json!({"api_key": key}))
            .await;
        self.next().await
    }

    pub async fn call(&mut self, key: &str, tool: &str, arguments: Value) -> Value {
        self.begin(2, key, tool, arguments).await;
        self.next().await
    }
}

fn error(id: u32, code: i32, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

fn names(tools: &Value) -> Vec<&str> {
    let tools = tools["result"]["tools"].as_array().expect("tools");
    tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_frame_with_a_key_lists_and_calls_the_tools_of_its_namespace() {
    let host = Host::start().await;
    let key = host.key("droid", &["admin"]).await;
    let text = key.text.expose();
    let mut connection = host.connect().await;
    connection.write(b"OUBLIETTE-DOWNSTREAM proj_abc\n").await;

    // EX-110
    let tools = connection.tools(text).await;
    for tool in [
        "project_create",
        "project_list",
        "project_get",
        "container_start",
        "session_list",
        "session_get",
        "session_events",
        "workspace_list",
        "image_rebuild",
        "config_limits",
    ] {
        assert!(names(&tools).contains(&tool), "{tool}: {tools}");
    }
    let listed = tools["result"]["tools"].as_array().unwrap();
    let create = listed.iter().find(|it| it["name"] == "project_create");
    let create = create.unwrap().as_object().unwrap();
    let members: Vec<_> = create.keys().map(String::as_str).collect();
    assert_eq!(members, ["description", "inputSchema", "name"]);
    assert!(
        create["description"]
            .as_str()
            .unwrap()
            .starts_with("Create new project")
    );
    assert_eq!(create["inputSchema"]["type"], "object");

    // EX-111
    for wrong in [
        "oub_xxx",
        "",
        &text[..text.len() - 1],
        &text.replace("oub_", "td_"),
    ] {
        let expected = error(1, -32001, "invalid or expired API key");
        assert_eq!(connection.tools(wrong).await, expected);
        let expected = error(2, -32001, "invalid or expired API key");
        assert_eq!(
            connection.call(wrong, "project_list", json!({})).await,
            expected
        );
    }
    let elsewhere = host.key_for("other", &["admin"], &["elsewhere"]).await;
    let answer = connection.tools(elsewhere.text.expose()).await;
    assert_eq!(answer["error"]["code"], -32001);

    // EX-112
    let project = json!({"name": "my-project", "description": "A new project"});
    let created = connection
        .call(text, "project_create", project.clone())
        .await;
    let result = created["result"].as_object().unwrap();
    assert_eq!(result.len(), 2, "{created}");
    assert_eq!(result["isError"], false);
    let value = result["content"][0]["text"].as_str().unwrap();
    let value: Value = serde_json::from_str(value).unwrap();
    assert!(
        value["id"].as_str().unwrap().starts_with("proj_"),
        "{value}"
    );

    // EX-113
    let again = connection.call(text, "project_create", project).await;
    let content = json!([{"type": "text", "text": "project already exists"}]);
    assert_eq!(
        again,
        json!({"jsonrpc": "2.0", "id": 2, "result": {"content": content, "isError": true}})
    );
    let container = json!({"project": "my-project"});
    let container = connection.call(text, "container_start", container).await;
    assert_eq!(container["result"]["isError"], true);
    assert_eq!(container["result"]["content"][0]["text"], "not configured");

    // REL-10, and a tool that is not there.
    connection.ask(3, "foo", json!({"api_key": text})).await;
    assert_eq!(connection.next().await["error"]["code"], -32601);
    let unknown = connection.call(text, "no_such_tool", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32000, "{unknown}");

    // REL-17
    let line = host
        .audited("the line of the call", |it| {
            it["tool"] == "project_create" && it["status"] == "ok"
        })
        .await;
    assert_eq!(line["transport"], "relay");
    assert_eq!(line["namespace"], "oubliette");
    assert_eq!(line["token_id"], key.record.id.as_str());
    assert_eq!(line["project"], "proj_abc");
    assert_eq!(line["client"], "unix");
    assert_eq!(line["peer"]["pid"], std::process::id());
    assert_eq!(line["peer"]["uid"], rustix::process::getuid().as_raw());
    let secret = &text[text.len() - 46..];
    let log = host.gateway.log();
    assert!(!log.contains(secret), "{log}");
    assert!(
        log.contains("a frame on the relay's socket was refused"),
        "{log}"
    );
    for line in audit(&host.gateway) {
        assert!(!line.to_string().contains(secret), "{line}");
    }
}

#[tokio::test]
async fn what_a_scope_lists_is_what_it_can_call_for_every_tool() {
    // EX-115, row by row: whether `write` and `read` open it. `admin` opens all.
    let table = [
        ("project_create", true, false),
        ("project_list", true, true),
        ("project_get", true, true),
        ("session_list", true, true),
        ("session_get", true, true),
        ("session_events", true, true),
        ("workspace_list", true, true),
        ("container_start", true, false),
        ("container_exec", true, false),
        ("session_message", true, false),
        ("workspace_delete", true, false),
        ("image_rebuild", true, false),
        ("config_limits", false, true),
    ];
    let host = Host::start().await;
    let mut connection = host.connect().await;
    for scope in ["admin", "write", "read"] {
        let key = host.key(scope, &[scope]).await;
        let key = key.text.expose();
        let listed = connection.tools(key).await;
        let listed = names(&listed);
        for (tool, write, read) in table {
            let opens = match scope {
                "write" => write,
                "read" => read,
                _ => true,
            };
            assert_eq!(listed.contains(&tool), opens, "{scope} lists {tool}");
            // Some of these calls fail for want of arguments, which is the tool's own word.
            let answer = connection.call(key, tool, json!({})).await;
            let refused = error(2, -32002, "tool not allowed for this token scope");
            assert_eq!(answer == refused, !opens, "{scope} calls {tool}: {answer}");
            assert_eq!(
                answer["result"].is_object(),
                opens,
                "{scope} calls {tool}: {answer}"
            );
        }
        // Whether or not there is such a tool.
        let answer = connection.call(key, "no_such_tool", json!({})).await;
        let code = if scope == "admin" { -32000 } else { -32002 };
        assert_eq!(answer["error"]["code"], code, "{scope}: {answer}");
    }
    let line = host
        .audited("the line of a refused call", |it| {
            it["tool"] == "config_limits" && it["status"] != "ok"
        })
        .await;
    assert_eq!(line["status"], "insufficient_scope");
}

#[tokio::test]
async fn a_key_that_was_revoked_counts_no_more_on_an_open_connection() {
    let host = Host::start().await;
    let (one, other) = (
        host.key("one", &["read"]).await,
        host.key("other", &["write"]).await,
    );
    let mut connection = host.connect().await;
    let listed = connection
        .call(one.text.expose(), "project_list", json!({}))
        .await;
    assert_eq!(listed["result"]["isError"], false);
    host.keys.revoke(one.record.id).unwrap();
    eventually("the revoked key is refused", || async {
        let mut fresh = host.connect().await;
        let answer = fresh
            .call(one.text.expose(), "project_list", json!({}))
            .await;
        (answer["error"]["code"] == -32001).then_some(())
    })
    .await;
    let refused = connection
        .call(one.text.expose(), "project_list", json!({}))
        .await;
    assert_eq!(refused, error(2, -32001, "invalid or expired API key"));
    // The other container's key, on the same connection even, is not touched.
    let listed = connection
        .call(other.text.expose(), "project_list", json!({}))
        .await;
    assert_eq!(listed["result"]["isError"], false);
}
