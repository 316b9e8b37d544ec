//! `tooldock toolman`: many servers as one, on standard input and output (AGG-01…41, EX-100…104).
//!
//! The servers are `fixtures/servers/toolman.py`, as in `toolman.rs`, which has the tests that are the same over HTTP.
//! Here are the tests of a process of one client: its start, its end, its pipes.

mod sdk;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

use crate::support::{DEADLINE, eventually, programs};
use crate::toolman::SERVERS;

/// A project with a `tools.toml`, its words PJPD, VEC, PLAIN and LISTLESS replaced by commands.
pub struct Project(TempDir);

impl Project {
    pub fn of(file: &str) -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        let script = programs::root().join("tests/fixtures/servers/toolman.py");
        let mut file = file.to_owned();
        for (word, name) in [
            ("PJPD", "pjpd"),
            ("VEC", "vec"),
            ("PLAIN", "plain"),
            ("LISTLESS", "listless"),
        ] {
            let command = format!(
                "exec python3 '{}' --name {name} --journal journal",
                script.display()
            );
            file = file.replace(word, &command);
        }
        fs::write(folder.path().join("tools.toml"), file).expect("written");
        Self(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The program, to be run in the project.
    fn toolman(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tooldock"));
        command
            .arg("toolman")
            .current_dir(self.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// The last words of a process that does not start.
    pub fn refusal(&self, arguments: &[&str]) -> String {
        let mut command = self.toolman();
        let ended = command.args(arguments).stdin(Stdio::null()).output();
        let ended = ended.expect("the program starts");
        assert!(!ended.status.success());
        String::from_utf8(ended.stderr).expect("text")
    }

    /// The requests to the servers so far.
    fn journal(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path().join("journal")).unwrap_or_default();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect()
    }

    fn asked(&self, server: &str, method: &str) -> usize {
        let journal = self.journal();
        let asked = journal.iter();
        asked
            .filter(|it| it["server"] == server && it["method"] == method)
            .count()
    }

    /// The processes of the servers, as they said themselves.
    fn pids(&self) -> Vec<i32> {
        let journal = self.journal();
        let begun = journal.iter().filter(|it| it["method"] == "initialize");
        begun
            .map(|it| it["pid"].as_i64().expect("a number") as i32)
            .collect()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }
}

fn is_there(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// A client on the pipes of `tooldock toolman`. Dropping it ends the process.
pub struct Client {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    next_id: u32,
    /// Messages that came while an answer was waited for.
    told: Vec<Value>,
}

impl Client {
    fn start(project: &Project) -> Self {
        Self::of(project.toolman(), project)
    }

    fn of(command: Command, project: &Project) -> Self {
        let mut command = tokio::process::Command::from(command);
        let log = fs::File::create(project.path().join("log")).expect("a file");
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        Self {
            input: process.stdin.take(),
            output: BufReader::new(process.stdout.take().expect("piped")),
            process,
            next_id: 0,
            told: Vec::new(),
        }
    }

    async fn opened(project: &Project) -> Self {
        Self::initialized(Self::start(project)).await
    }

    /// With further arguments of the command.
    pub async fn opened_with(project: &Project, arguments: &[&str]) -> Self {
        let mut command = project.toolman();
        command.args(arguments);
        Self::initialized(Self::of(command, project)).await
    }

    async fn initialized(mut client: Self) -> Self {
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "c", "version": "1" } });
        let answer = client.ask("initialize", params).await;
        assert!(answer["result"].is_object(), "{answer}");
        client
            .send(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))
            .await;
        client
    }

    async fn send(&mut self, message: Value) {
        let input = self.input.as_mut().expect("open");
        let line = format!("{message}\n");
        input.write_all(line.as_bytes()).await.expect("it is read");
    }

    /// The next message; every line is one.
    async fn next(&mut self) -> Value {
        let mut line = String::new();
        let read = timeout(DEADLINE, self.output.read_line(&mut line)).await;
        read.expect("a line comes").expect("text");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no message: {line:?}"))
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        self.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .await;
        loop {
            let message = self.next().await;
            if message["id"] == id {
                return message;
            }
            self.told.push(message);
        }
    }

    pub async fn result(&mut self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params).await;
        assert!(answer["result"].is_object(), "{method}: {answer}");
        answer["result"].clone()
    }

    pub async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let params = json!({ "name": tool, "arguments": arguments });
        self.result("tools/call", params).await
    }

    /// The convention's object in an answer of the aggregate itself.
    async fn said(&mut self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await;
        let text = result["content"][0]["text"].as_str().expect("a text");
        serde_json::from_str(text).unwrap_or_else(|_| panic!("no convention: {text}"))
    }

    async fn tools(&mut self) -> Vec<String> {
        let listed = self.result("tools/list", json!({})).await;
        let tools = listed["tools"].as_array().expect("a list").iter();
        tools
            .map(|it| it["name"].as_str().expect("a name").to_owned())
            .collect()
    }

    /// Closes standard input, which ends the process.
    pub fn close(&mut self) {
        drop(self.input.take());
    }

    /// Waits for the end, and says whether all was fine.
    pub async fn ended(&mut self) -> bool {
        let ended = timeout(DEADLINE, self.process.wait()).await;
        ended.expect("it ends").expect("a status").success()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id().expect("it runs") as i32).expect("a process");
        kill_process(pid, signal).expect("it is told");
    }
}

fn lists(given: Value) -> Value {
    let mut lists =
        json!({ "tools_on": [], "tools_off": [], "resources_on": [], "resources_off": [] });
    for (key, value) in given.as_object().expect("an object") {
        lists[key] = value.clone();
    }
    lists
}

/// AGG-01, 06, 10…20, 23…26, 29, 34, 38, K-16, and EX-100…104 on one pair of pipes.
#[tokio::test]
async fn the_servers_of_a_project_are_one_server_on_standard_input_and_output() {
    let project = Project::of(SERVERS);
    let mut client = Client::opened(&project).await;
    let listed = client.tools().await;
    assert!(listed.contains(&"toolman_activate".to_owned()));
    assert!(listed.contains(&"pjpd_create_task".to_owned()));
    assert!(listed.contains(&"vec_search".to_owned()));
    assert!(!listed.contains(&"vec_index".to_owned()), "{listed:?}");

    let inactive = client.said("vec_index", json!({})).await;
    assert_eq!(inactive["success"], false);
    let error = inactive["error"].as_str().expect("a text");
    assert!(
        error.contains("toolman_activate") && error.contains("tools_on"),
        "{error}"
    );
    let nothing = client.said("toolman_activate", lists(json!({}))).await;
    assert_eq!(nothing["success"], false);
    let misspelt = lists(json!({ "tools_on": ["vec_index", "vec_serch"] }));
    let misspelt = client.said("toolman_activate", misspelt).await;
    let error = misspelt["error"].as_str().expect("a text");
    assert!(
        error.contains("vec_serch") && error.contains("vec_search"),
        "{error}"
    );
    assert_eq!(client.tools().await, listed);

    let on = lists(json!({ "tools_on": ["vec_index"], "tools_off": ["pjpd_create_task"] }));
    let done = client.call("toolman_activate", on).await;
    assert_ne!(done["isError"], true, "{done}");
    // The definitions follow over HTTP alone: a client on pipes lists again.
    assert_eq!(done["content"].as_array().expect("a list").len(), 1);
    let now = client.tools().await;
    assert!(now.contains(&"vec_index".to_owned()) && !now.contains(&"pjpd_create_task".to_owned()));
    let changed = |it: &Value| it["method"] == "notifications/tools/list_changed";
    while !client.told.iter().any(changed) {
        let message = client.next().await;
        client.told.push(message);
    }
    let ran = client.call("vec_index", json!({})).await;
    assert_eq!(ran["content"][0]["text"], "vec ran index");
    let read = client.result("resources/read", json!({ "uri": "pjpd_projects://list" }));
    let read = read.await["contents"][0]["text"].clone();
    assert_eq!(read, "read projects://list");
    let params = json!({ "name": "pjpd_refuse", "arguments": {} });
    let refused = client.ask("tools/call", params).await;
    let expected = json!({ "code": -32099, "message": "upstream says no", "data": { "k": 1 } });
    assert_eq!(refused["error"], expected);

    // A process for each server, and all pages of its tools were read.
    for server in ["pjpd", "vec", "plain"] {
        assert_eq!(project.asked(server, "initialize"), 1, "{server}");
        assert!(project.asked(server, "tools/list") >= 2, "{server}");
    }

    // The active set is the process's: a request of the other era sees it, too.
    let modern = json!({ "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    } });
    let listed = client.result("tools/list", modern).await["tools"].clone();
    let listed = listed.as_array().expect("a list").iter();
    assert!(listed.into_iter().any(|it| it["name"] == "vec_index"));

    // AGG-35 to AGG-37: a crash removes the server's entries, and the end of the client ends the others.
    let pids = project.pids();
    assert_eq!(pids.len(), 3);
    client.call("pjpd_steps", json!({})).await;
    let params = json!({ "name": "pjpd_crash", "arguments": {} });
    client.ask("tools/call", params).await;
    let entries_leave = async { while client.tools().await.iter().any(|it| it == "pjpd_mixed") {} };
    let left = tokio::time::timeout(DEADLINE, entries_leave).await;
    left.expect("the entries to leave");
    assert_eq!(project.asked("pjpd", "initialize"), 1);
    assert!(project.log().contains("pjpd"), "{}", project.log());
    drop(client.input.take());
    assert!(client.ended().await, "{}", project.log());
    eventually("the servers to end", async || {
        (!pids.iter().any(|pid| is_there(*pid))).then_some(())
    })
    .await;
}

/// AGG-05, AGG-37, AGG-40: commands are lines of a shell, and their grandchildren end with the process.
#[tokio::test]
async fn a_signal_leaves_no_process_behind_and_bad_servers_keep_nobody_waiting() {
    let file = r#"
active_toolsets = ["*"]
[[servers]]
namespace = "pjpd"
env = { NAME = "pjpd" }
command = '''sleep 1000 & echo $! > "grand child"; PJPD'''
[[servers]]
namespace = "gone"
command = "exit 3"
[[servers]]
namespace = "absent"
command = "/no/such/program"
[[servers]]
namespace = "mute"
command = "exec sleep 1000"
connect_timeout = "500ms"
[[servers]]
namespace = "listless"
command = "LISTLESS"
connect_timeout = "500ms"
"#;
    let project = Project::of(&file.replace("PJPD", "PJPD | cat"));
    let mut client = Client::opened(&project).await;
    let listed = client.tools().await;
    assert!(
        listed.contains(&"pjpd_list_projects".to_owned()),
        "{listed:?}"
    );
    let grandchild = fs::read_to_string(project.path().join("grand child")).expect("written");
    let grandchild: i32 = grandchild.trim().parse().expect("a number");
    let mut pids = project.pids();
    pids.push(grandchild);
    assert!(pids.iter().all(|pid| is_there(*pid)), "{pids:?}");
    client.signal(Signal::TERM);
    assert!(client.ended().await, "{}", project.log());
    // The aggregate's own requests to a server no longer keep that server from ending.
    assert!(
        !project.log().contains("did not end in time"),
        "{}",
        project.log()
    );
    eventually("all processes to end", async || {
        (!pids.iter().any(|pid| is_there(*pid))).then_some(())
    })
    .await;
}

/// The first words of a client, which then closes its end.
const FIRST_WORDS: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#,
    "\n",
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    "\n",
    r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#,
    "\n",
);

fn piped(project: &Project, arguments: &[&str], input: &str) -> Output {
    use std::io::Write as _;
    let mut process = project
        .toolman()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut pipe = process.stdin.take().expect("piped");
    // A process that has ended already does not read.
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
    process.wait_with_output().expect("it ends")
}

#[test]
fn a_script_that_pipes_its_requests_in_gets_its_answers_and_nothing_else() {
    let project = Project::of(SERVERS);
    let output = piped(&project, &[], FIRST_WORDS);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    let messages: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no message: {line}")))
        .collect();
    let listed = messages.iter().find(|it| it["id"] == 2).expect("an answer");
    assert!(listed["result"]["tools"].is_array(), "{listed}");
}

#[test]
fn a_file_that_cannot_be_used_is_told_to_the_client_and_on_standard_error() {
    let project = Project::of("[[servers]]\nnamespace = \"a\"\ncomand = \"x\"\n");
    for (arguments, expected) in [
        (
            &[][..],
            "tools.toml:3:1: unknown key \"comand\" of a server; did you mean \"command\"?",
        ),
        (
            &["--config", "other.toml"],
            "other.toml: there is no such file in ",
        ),
    ] {
        let output = piped(&project, arguments, FIRST_WORDS);
        assert_eq!(output.status.code(), Some(2));
        let log = String::from_utf8(output.stderr).expect("text");
        assert!(log.starts_with(&format!("tooldock: {expected}")), "{log}");
        assert_eq!(log.lines().count(), 1, "{log}");
        let answer: Value = serde_json::from_slice(&output.stdout).expect("one message");
        assert_eq!(answer["id"], 1);
        let data = &answer["error"]["data"];
        assert_eq!(
            (&data["success"], &data["result"]),
            (&json!(false), &Value::Null)
        );
        let error = data["error"].as_str().expect("a text");
        assert!(error.starts_with(expected), "{error}");
        // Without a request, the answer is on standard error alone.
        let output = piped(&project, arguments, "");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    }
}
