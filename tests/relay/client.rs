//! `oubliette-client`: the relay's tools as those of an MCP server inside a container.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use rmcp::ServiceExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::{Connection, Host, builder, place_example};
use crate::support::{DEADLINE, eventually, programs};

/// The program. Cargo builds it beside the gateway, if it is missing.
fn program() -> PathBuf {
    programs::run(
        Command::new(env!("CARGO"))
            .current_dir(programs::root())
            .args([
                "build",
                "--quiet",
                "--locked",
                "--offline",
                "--package",
                "oubliette-client",
            ]),
    );
    Path::new(env!("CARGO_BIN_EXE_tooldock")).with_file_name("oubliette-client")
}

/// The program with a key, in an environment with nothing else.
fn command(socket: &Path, key: Option<&str>) -> Command {
    let mut command = Command::new(program());
    configure(&mut command, key);
    command.arg(socket);
    command
}

fn configure(command: &mut Command, key: Option<&str>) {
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("OUBLIETTE_CALLER_WAIT_MS", "0");
    if let Some(key) = key {
        command.env("OUBLIETTE_API_KEY", key);
    }
}

/// An MCP client on the pipes of a server. Dropping it ends the server.
struct Client {
    _process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    log: PathBuf,
    next_id: u32,
    told: Vec<Value>,
}

impl Client {
    fn start(command: Command, log: PathBuf) -> Self {
        let mut process = tokio::process::Command::from(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            input: process.stdin.take().unwrap(),
            output: BufReader::new(process.stdout.take().unwrap()),
            _process: process,
            log,
            next_id: 0,
            told: Vec::new(),
        }
    }

    async fn opened(command: Command, log: PathBuf) -> Self {
        let mut client = Self::start(command, log);
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"}});
        let answer = client.ask("initialize", params).await;
        assert_eq!(
            answer["result"]["protocolVersion"], "2025-11-25",
            "{answer}"
        );
        client
            .send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await;
        client
    }

    async fn send(&mut self, message: Value) {
        let line = format!("{message}\n");
        self.input.write_all(line.as_bytes()).await.unwrap();
    }

    async fn next(&mut self) -> Value {
        let mut line = String::new();
        let read = timeout(DEADLINE, self.output.read_line(&mut line)).await;
        read.expect("a line comes").unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no message: {line:?}"))
    }

    async fn begin(&mut self, method: &str, params: Value) -> u32 {
        self.next_id += 1;
        let id = self.next_id;
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
        id
    }

    async fn answer(&mut self, id: u32) -> Value {
        loop {
            let message = self.next().await;
            if message["id"] == id {
                return message;
            }
            self.told.push(message);
        }
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params).await;
        self.answer(id).await
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let params = json!({"name": tool, "arguments": arguments});
        self.ask("tools/call", params).await["result"].clone()
    }

    async fn tools(&mut self) -> Vec<String> {
        let answer = self.ask("tools/list", json!({})).await;
        let tools = answer["result"]["tools"].as_array().unwrap();
        let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
        tools.iter().map(name).collect()
    }

    fn warnings(&self) -> Vec<String> {
        let log = fs::read_to_string(&self.log).unwrap();
        let warnings = log.lines().filter(|line| line.starts_with("WARNING"));
        warnings.map(str::to_owned).collect()
    }
}

// EX-116
#[tokio::test]
async fn a_droid_creates_a_project_and_is_told_that_it_exists() {
    let host = Host::start().await;
    let key = host.key("droid", &["write"]).await;
    let key = key.text.expose();
    let log = host.folder.path().join("client.log");
    let mut client = Client::opened(command(&host.socket(), Some(key)), log).await;
    let tools = client.tools().await;
    assert!(
        tools.contains(&"oubliette_project_create".to_owned()),
        "{tools:?}"
    );
    assert!(
        !tools.contains(&"oubliette_config_limits".to_owned()),
        "{tools:?}"
    );
    let project = json!({"name": "my-project", "description": "A new project"});
    let created = client
        .call("oubliette_project_create", project.clone())
        .await;
    assert_eq!(created["isError"], false);
    let text = created["content"][0]["text"].as_str().unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    assert!(value["id"].as_str().unwrap().starts_with("proj_"), "{text}");
    let again = client.call("oubliette_project_create", project).await;
    let content = json!([{"type": "text", "text": "project already exists"}]);
    assert_eq!(again, json!({"content": content, "isError": true}));
    assert_eq!(client.warnings(), Vec::<String>::new());
}

#[tokio::test]
async fn a_key_without_value_or_an_invalid_one_gives_no_tools_and_one_warning() {
    let host = Host::start().await;
    for (number, key) in [None, Some(""), Some("oub_invalid_0123456789")]
        .into_iter()
        .enumerate()
    {
        let log = host.folder.path().join(format!("client-{number}.log"));
        let mut client = Client::opened(command(&host.socket(), key), log.clone()).await;
        assert_eq!(client.tools().await, Vec::<String>::new());
        assert_eq!(client.warnings().len(), 1, "{:?}", client.warnings());
        assert!(!fs::read_to_string(&log).unwrap().contains("oub_invalid"));
    }
    // Nor where there is no host at all.
    let log = host.folder.path().join("alone.log");
    let nobody = host.folder.path().join("nobody.sock");
    let mut client = Client::opened(command(&nobody, Some("oub_x")), log).await;
    assert_eq!(client.tools().await, Vec::<String>::new());
    assert_eq!(client.warnings().len(), 1, "{:?}", client.warnings());
}

#[tokio::test]
async fn a_host_that_restarts_in_the_middle_of_a_call_is_found_again() {
    let host = Host::start().await;
    let key = host.key("droid", &["write"]).await;
    let key = key.text.expose();
    let log = host.folder.path().join("client.log");
    let mut client = Client::opened(command(&host.socket(), Some(key)), log).await;
    let begun = host.folder.path().join("begun");
    let params = json!({"name": "oubliette_session_wait", "arguments": {"begun": begun}});
    let waiting = client.begin("tools/call", params).await;
    eventually("the call runs", || async { begun.exists().then_some(()) }).await;
    // Killed, so that it can say nothing.
    host.gateway.signal(rustix::process::Signal::KILL);
    let lost = client.answer(waiting).await;
    assert_eq!(lost["result"]["isError"], true, "{lost}");
    let text = lost["result"]["content"][0]["text"].as_str().unwrap();
    assert!(
        text.contains("closed the connection while the call was running"),
        "{text}"
    );
    let away = client.call("oubliette_project_list", json!({})).await;
    assert_eq!(away["isError"], true, "{away}");

    let keys = fs::read(host.gateway.data_dir().join("keys.json")).unwrap();
    let next = builder(host.folder.path())
        .start_with(|data| {
            place_example(data);
            fs::remove_file(data.join("tools/oubliette/containers.py")).unwrap();
            fs::write(data.join("keys.json"), keys).unwrap();
        })
        .await;
    // The new host has other tools, and the client hears of that.
    while !client
        .told
        .iter()
        .any(|it| it["method"] == "notifications/tools/list_changed")
    {
        let message = client.next().await;
        client.told.push(message);
    }
    let tools = client.tools().await;
    assert!(
        !tools.contains(&"oubliette_container_start".to_owned()),
        "{tools:?}"
    );
    let listed = client.call("oubliette_project_list", json!({})).await;
    assert_eq!(listed["isError"], false, "{listed}");
    drop(next);
}

#[tokio::test]
async fn a_container_with_nothing_but_the_socket_has_the_tools_of_its_own_key() {
    let isolated = Command::new("unshare").args(["-rn", "true"]).output();
    if !isolated.is_ok_and(|it| it.status.success()) {
        eprintln!("SKIP: unshare -rn is not allowed here");
        return;
    }
    let host = Host::start().await;
    let keys = [
        host.key("one", &["write"]).await,
        host.key("two", &["read"]).await,
    ];
    let mut clients = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        let mut command = Command::new("unshare");
        configure(&mut command, Some(key.text.expose()));
        command
            .args(["-rn", "--"])
            .arg(program())
            .arg(host.socket());
        let log = host.folder.path().join(format!("client-{number}.log"));
        clients.push(Client::opened(command, log).await);
    }
    let project = json!({"name": "shared"});
    let created = clients[0]
        .call("oubliette_project_create", project.clone())
        .await;
    assert_eq!(created["isError"], false, "{created}");
    assert!(
        !clients[1]
            .tools()
            .await
            .contains(&"oubliette_project_create".to_owned())
    );
    let params = json!({"name": "oubliette_project_create", "arguments": project});
    let refused = clients[1].ask("tools/call", params).await;
    assert_eq!(
        refused["error"]["code"], -32602,
        "not offered, so not known: {refused}"
    );
    let listed = clients[1].call("oubliette_project_list", json!({})).await;
    assert!(
        listed["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains("shared")
    );
    let ids = keys.each_ref().map(|key| key.record.id.as_str().to_owned());
    for (id, tool) in ids.iter().zip(["project_create", "project_list"]) {
        let line = host
            .audited("the line of the call", |it| {
                it["tool"] == tool && it["token_id"] == *id
            })
            .await;
        assert_eq!(
            line["principal"],
            format!(
                "key:{}",
                if tool == "project_create" {
                    "one"
                } else {
                    "two"
                }
            )
        );
    }
}

#[tokio::test]
async fn the_official_clients_create_a_project_in_both_eras() {
    let host = Host::start().await;
    let key = host.key("droid", &["write"]).await;
    let (key, program) = (key.text.expose(), program());
    let seen = |mut python: Command, script: &str, arguments: &[&str]| -> Value {
        python.arg(programs::root().join("tests/clients").join(script));
        python.arg(&program).arg(host.socket()).args(arguments);
        python
            .env("OUBLIETTE_API_KEY", key)
            .env("OUBLIETTE_CALLER_WAIT_MS", "0");
        let printed = programs::run(&mut python);
        serde_json::from_str(printed.lines().last().expect("a line")).unwrap()
    };
    let is_complete = |seen: &Value| {
        assert!(
            seen["calls"][0][0].as_str().unwrap().contains("proj_"),
            "{seen}"
        );
        assert_eq!(
            seen["calls"][1],
            json!(["project already exists", true]),
            "{seen}"
        );
    };
    for (mode, version) in [("legacy", "2025-11-25"), ("auto", "2026-07-28")] {
        let seen = seen(
            programs::python("clients-mcp2"),
            "oubliette_mcp2.py",
            &[mode],
        );
        is_complete(&seen);
        assert_eq!(seen["version"], version, "{seen}");
        assert_eq!(seen["progress"], json!([1.0, 2.0, 3.0]), "{seen}");
    }
    is_complete(&seen(
        programs::python("clients-mcp1"),
        "oubliette_mcp1.py",
        &[],
    ));

    let mut process = tokio::process::Command::from(command(&host.socket(), Some(key)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pipes = process.stdout.take().zip(process.stdin.take());
    let client = ().serve(pipes.unwrap()).await.unwrap();
    let tools = client.list_all_tools().await.unwrap();
    assert!(tools.iter().any(|it| it.name == "oubliette_project_create"));
    let call = json!({"name": "oubliette_project_create", "arguments": {"name": "of-rust"}});
    let answer = client
        .call_tool(serde_json::from_value(call).unwrap())
        .await
        .unwrap();
    assert_ne!(answer.is_error, Some(true));
}

// K-25, REL-15
#[tokio::test]
async fn the_start_waits_for_the_tools_of_the_caller_and_relays_their_calls() {
    let folder = tempfile::TempDir::new().unwrap();
    let socket = folder.path().join("relay.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let mut command = command(&socket, Some("oub_x"));
    command.env("OUBLIETTE_CALLER_WAIT_MS", "20000");
    let began = Instant::now();
    let mut client = Client::start(command, folder.path().join("log"));
    let mut host = Connection::accepted(listener.accept().await.unwrap().0);
    let asked = host.next().await;
    assert_eq!(asked["method"], "oubliette_tools");
    let tools =
        json!({"tools": [{"name": "a", "description": "", "inputSchema": {"type": "object"}}]});
    host.send(json!({"jsonrpc": "2.0", "id": asked["id"], "result": tools}))
        .await;
    let tools = json!([{"name": "ask", "description": "Asks.", "inputSchema": {"type": "object"}}]);
    let params = json!({"caller_id": "boss", "tools": tools});
    host.send(json!({"jsonrpc": "2.0", "method": "caller_tools_config", "params": params}))
        .await;
    assert_eq!(client.tools().await, ["oubliette_a", "boss_ask"]);
    assert!(
        began.elapsed().as_secs() < 15,
        "the start waited although the tools were there"
    );
    let params = json!({"name": "boss_ask", "arguments": {"q": 1}});
    let waiting = client.begin("tools/call", params).await;
    let frame = host.next().await;
    assert_eq!(frame["method"], "caller_tool");
    assert_eq!(frame["params"]["caller_id"], "boss");
    assert_eq!(frame["params"]["tool"], "ask");
    assert_eq!(frame["params"]["arguments"], json!({"q": 1}));
    let content = json!([{"type": "text", "text": "42"}]);
    let result = json!({"content": content, "isError": false});
    host.send(json!({"jsonrpc": "2.0", "id": frame["id"], "result": result}))
        .await;
    assert_eq!(client.answer(waiting).await["result"]["content"], content);
}
