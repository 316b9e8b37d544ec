use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use super::*;
use crate::options::key;
use crate::output::OutputCapture;

/// How long anything may take that must come.
const SOON: Duration = Duration::from_secs(20);

/// A host that follows a test's instructions, and a server behind its socket.
struct Scene {
    host: UnixListener,
    server: Server,
    written: OutputCapture,
    relay: Relay,
    _folder: tempfile::TempDir,
}

/// A client's connection, as the host has it.
struct HostConnection {
    reader: BufReader<UnixStream>,
    writer: UnixStream,
}

impl HostConnection {
    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("a frame");
        serde_json::from_str(&line).expect("JSON")
    }

    fn write(&mut self, frame: Value) {
        writeln!(self.writer, "{frame}").expect("a reader");
    }

    /// Answers the request for the tools.
    fn list(&mut self, names: &[&str]) {
        let asked = self.read();
        assert_eq!(asked["method"], "oubliette_tools", "{asked}");
        assert_eq!(asked["params"]["api_key"], "oub_x");
        let tools: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        self.write(json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"tools": tools}}));
    }
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("relay.sock");
        let host = UnixListener::bind(&socket).expect("a socket");
        let written = OutputCapture::default();
        let output = Arc::new(Output::new(written.clone()));
        let relay = Relay::start(socket, Some(key("oub_x")), Arc::clone(&output));
        Self {
            host,
            server: Server::new(output, relay.clone()),
            written,
            relay,
            _folder: folder,
        }
    }

    fn accept(&self) -> HostConnection {
        let (stream, _) = self.host.accept().expect("a connection");
        HostConnection {
            reader: BufReader::new(stream.try_clone().expect("another handle")),
            writer: stream,
        }
    }

    /// A scene whose host has listed these tools.
    fn with(names: &[&str]) -> (Self, HostConnection) {
        let scene = Self::new();
        let mut accepted = scene.accept();
        accepted.list(names);
        assert!(scene.relay.wait_for_tools(SOON));
        (scene, accepted)
    }

    fn say(&self, message: Value) {
        self.server.take(&message.to_string());
    }

    fn ask(&self, id: u32, method: &str, params: Value) {
        self.say(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
    }

    /// Waits for a message that this accepts.
    fn until(&self, what: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            if let Some(found) = self.written.messages().into_iter().find(|it| what(it)) {
                return found;
            }
            assert!(began.elapsed() < SOON, "{:?}", self.written.messages());
            std::thread::yield_now();
        }
    }

    fn answer(&self, id: u32) -> Value {
        self.until(|message| message["id"] == id)
    }
}

fn modern(mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    params
}

#[test]
fn both_eras_see_the_tools_under_their_names_and_call_them() {
    let (scene, mut host) = Scene::with(&["project_create"]);
    for (version, agreed) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-11-25", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        scene.written.clear();
        scene.ask(1, "initialize", json!({"protocolVersion": version}));
        let answer = scene.answer(1);
        assert_eq!(answer["result"]["protocolVersion"], agreed);
        assert_eq!(
            answer["result"]["capabilities"]["tools"]["listChanged"],
            true
        );
    }
    for (era, wrap) in [(0_u32, false), (10, true)] {
        let params = |params: Value| if wrap { modern(params) } else { params };
        scene.ask(era + 2, "tools/list", params(json!({})));
        let listed = scene.answer(era + 2);
        assert_eq!(
            listed["result"]["tools"][0]["name"],
            "oubliette_project_create"
        );
        assert_eq!(listed["result"]["resultType"].is_string(), wrap);
        let call = json!({"name": "oubliette_project_create", "arguments": {"name": "p"}});
        scene.ask(era + 3, "tools/call", params(call));
        let frame = host.read();
        assert_eq!(frame["method"], "oubliette_call_tool");
        assert_eq!(frame["params"]["tool"], "project_create");
        assert_eq!(frame["params"]["arguments"], json!({"name": "p"}));
        let content = json!([{"type": "text", "text": "project already exists"}]);
        let result = json!({"content": content, "isError": true});
        host.write(json!({"jsonrpc": "2.0", "id": frame["id"], "result": result}));
        let answer = scene.answer(era + 3);
        assert_eq!(answer["result"]["content"], content);
        assert_eq!(answer["result"]["isError"], true);
        assert_eq!(answer["result"]["resultType"].is_string(), wrap);
    }
    scene.ask(20, "server/discover", modern(json!({})));
    let found = scene.answer(20);
    assert_eq!(found["result"]["supportedVersions"][0], "2026-07-28");
    let mut other = modern(json!({}));
    other["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2027-01-01".into();
    scene.ask(21, "tools/list", other);
    assert_eq!(scene.answer(21)["error"]["code"], -32022);
}

#[test]
fn an_error_of_the_relay_is_a_result_that_a_model_reads() {
    let (scene, mut host) = Scene::with(&["a"]);
    scene.ask(1, "tools/call", json!({"name": "oubliette_a"}));
    let frame = host.read();
    let error = json!({"code": -32002, "message": "tool not allowed for this token scope"});
    host.write(json!({"jsonrpc": "2.0", "id": frame["id"], "error": error}));
    let answer = scene.answer(1);
    assert_eq!(answer["result"]["isError"], true);
    assert_eq!(
        answer["result"]["content"][0]["text"],
        "tool not allowed for this token scope"
    );
    scene.ask(2, "tools/call", json!({"name": "a"}));
    assert_eq!(scene.answer(2)["error"]["code"], -32602);
}

#[test]
fn a_host_that_restarts_fails_calls_in_flight_and_its_new_tools_are_announced() {
    let (scene, mut host) = Scene::with(&["a"]);
    scene.ask(1, "initialize", json!({"protocolVersion": "2025-11-25"}));
    scene.say(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let kinds = json!({"notifications": {"toolsListChanged": true}});
    scene.ask(5, "subscriptions/listen", modern(kinds));
    scene.ask(2, "tools/call", json!({"name": "oubliette_a"}));
    assert_eq!(host.read()["method"], "oubliette_call_tool");
    drop(host);
    let lost = scene.answer(2);
    assert_eq!(lost["result"]["isError"], true);
    let text = lost["result"]["content"][0]["text"].as_str().expect("text");
    assert!(text.contains("closed the connection"), "{text}");
    let mut host = scene.accept();
    host.list(&["a", "b"]);
    let changed = "notifications/tools/list_changed";
    scene.until(|it| it["method"] == changed && it["params"].is_null());
    let id = "io.modelcontextprotocol/subscriptionId";
    scene.until(|it| it["method"] == changed && it["params"]["_meta"][id] == 5);
    scene.ask(3, "tools/call", json!({"name": "oubliette_b"}));
    assert_eq!(host.read()["params"]["tool"], "b");
}

#[test]
fn progress_comes_through_and_a_cancelled_call_is_not_answered() {
    let (scene, mut host) = Scene::with(&["a"]);
    let params = json!({"name": "oubliette_a", "_meta": {"progressToken": "t"}});
    scene.ask(1, "tools/call", params);
    let frame = host.read();
    assert_eq!(frame["params"]["_meta"]["progressToken"], "t");
    let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": "t", "progress": 1}});
    host.write(progress.clone());
    scene.until(|it| *it == progress);
    let cancelled = json!({"requestId": 1});
    scene.say(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}));
    let taken_back = host.read();
    assert_eq!(taken_back["method"], "notifications/cancelled");
    assert_eq!(taken_back["params"]["requestId"], frame["id"]);
    let result = json!({"content": [], "isError": false});
    host.write(json!({"jsonrpc": "2.0", "id": frame["id"], "result": result}));
    scene.ask(2, "tools/call", json!({"name": "oubliette_a"}));
    let frame = host.read();
    let result = json!({"content": [], "isError": false});
    host.write(json!({"jsonrpc": "2.0", "id": frame["id"], "result": result}));
    scene.answer(2);
    assert!(scene.written.messages().iter().all(|it| it["id"] != 1));
}

#[test]
fn tools_of_the_caller_are_called_through_their_own_method() {
    let (scene, mut host) = Scene::with(&[]);
    let config =
        json!({"caller_id": "boss", "tools": [{"name": "ask", "inputSchema": {"type": "object"}}]});
    host.write(json!({"jsonrpc": "2.0", "method": "caller_tools_config", "params": config}));
    scene.relay.wait_for_caller(SOON);
    scene.ask(
        1,
        "tools/call",
        json!({"name": "boss_ask", "arguments": {"q": 1}}),
    );
    let frame = host.read();
    assert_eq!(frame["method"], "caller_tool");
    assert_eq!(frame["params"]["caller_id"], "boss");
    assert_eq!(frame["params"]["tool"], "ask");
}

#[test]
fn an_invalid_key_offers_no_tools_and_the_server_answers() {
    let scene = Scene::new();
    let mut host = scene.accept();
    let asked = host.read();
    let error = json!({"code": -32001, "message": "invalid or expired API key"});
    host.write(json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}));
    assert!(scene.relay.wait_for_tools(SOON));
    scene.ask(1, "tools/list", json!({}));
    assert_eq!(scene.answer(1)["result"]["tools"], json!([]));
}

#[test]
fn tools_that_could_not_be_listed_are_asked_for_again() {
    let scene = Scene::new();
    let mut host = scene.accept();
    let asked = host.read();
    let error = json!({"code": -32000, "message": "The relay's namespace is not there"});
    host.write(json!({"jsonrpc": "2.0", "id": asked["id"], "error": error}));
    assert!(scene.relay.wait_for_tools(SOON));
    host.list(&["a"]);
    let began = Instant::now();
    while scene.relay.find("oubliette_a").is_none() {
        assert!(began.elapsed() < SOON);
        std::thread::yield_now();
    }
}

#[test]
fn what_is_no_message_is_refused_by_the_codes_of_json_rpc() {
    let (scene, _host) = Scene::with(&[]);
    for (line, code) in [
        ("{", -32700),
        ("[]", -32600),
        ("7", -32600),
        ("{}", -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
        (r#"{"id":1,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"nope"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#, -32602),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}"#,
            -32602,
        ),
    ] {
        scene.written.clear();
        scene.server.take(line);
        let messages = scene.written.messages();
        assert_eq!(messages[0]["error"]["code"], code, "{line}: {messages:?}");
    }
}
