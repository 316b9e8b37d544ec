//! Aggregates over HTTP: many servers behind one namespace, whose tools the model turns on and off (AGG-01…41).
//!
//! The servers are `fixtures/servers/toolman.py`, which records its requests. Tests of the same with stdio clients stand
//! elsewhere; here a gateway serves the aggregate beside ordinary namespaces.
//!
//! | requirement | test |
//! |---|---|
//! | AGG-01, AGG-10, AGG-34 | `toolman_stdio::the_servers_of_a_project_are_one_server_on_standard_input_and_output` |
//! | AGG-02…04, AGG-06…09, AGG-11…13, AGG-15, AGG-18…23, AGG-28, EX-100, EX-101 | `activating::the_model_sees_what_is_active_and_a_catalogue_of_all` |
//! | AGG-05, AGG-37, AGG-40 | `toolman_stdio::a_signal_leaves_no_process_behind_and_bad_servers_keep_nobody_waiting` |
//! | AGG-11 (each list once, fit for strict clients) | `lifecycle::definitions_that_no_client_takes_are_mended_or_left_out` |
//! | AGG-14, AGG-16, AGG-17, AGG-39, K-43, EX-102, EX-103 | `activating::a_wrong_activation_says_what_to_do_and_changes_nothing` |
//! | AGG-24…26, AGG-29…33, AGG-38, EX-104 | `activating::requests_reach_their_server_and_answers_come_back_as_they_are` |
//! | AGG-27 | nothing to show: a limit of scope |
//! | AGG-35, AGG-36 | `lifecycle::a_server_that_fails_takes_only_its_own_entries_away` |
//! | AGG-35, AGG-39 in one session | `lifecycle::a_session_whose_own_copy_of_a_server_ended_sees_nothing_of_that_server` |
//! | AGG-39 (configuration) | `toolman_stdio::a_file_that_cannot_be_used_is_told_to_the_client_and_on_standard_error` |
//! | AGG-41 | `passing`, `nested`, `members`, `forms::changes_are_announced_to_the_session_that_made_them_and_rest_sees_the_start_set` |
//! | K-16, NSR-17 | `forms`, and `nested::a_listener_of_the_aggregate_alone_serves_members_that_are_namespaces` |
//! | K-17 | `lifecycle`, and the units of `mcp-upstream/servers/src/pool` |
//! | K-36 | the units of `workers/src/aggregate/file` |
//! | K-41, K-42 | the units of `mcp-upstream/engine/src/upstream/aggregate/catalogue.rs` |

mod activating;
mod apps;
mod forms;
mod lifecycle;
mod members;
mod nested;
mod passing;
mod real;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::session::Session;
use crate::support::{Gateway, eventually, programs, tools};

const VERSION: &str = "2025-11-25";

/// The servers of EX-100.
pub const SERVERS: &str = r#"
active_toolsets = ["pjpd*", "vec_search"]

[[servers]]
namespace = "pjpd"
command = "PJPD"
restart = "never"

[[servers]]
namespace = "vec"
command = "VEC"

[[servers]]
namespace = ""
command = "PLAIN"
"#;

/// A gateway with the aggregate `toolman`, and the folder with its file and the servers' journal.
struct House {
    gateway: Gateway,
    folder: TempDir,
}

/// The command of a fixture server.
pub fn server(name: &str, journal: &Path) -> String {
    let script = programs::root().join("tests/fixtures/servers/toolman.py");
    format!(
        "exec python3 '{}' --name {name} --journal '{}'",
        script.display(),
        journal.display()
    )
}

impl House {
    /// The servers of EX-100 behind these switches.
    async fn of(switches: &str) -> Self {
        Self::with(&format!("{switches}\n{SERVERS}"), json!({})).await
    }

    /// The file, its words PJPD, VEC and PLAIN replaced by commands.
    async fn with(file: &str, config: Value) -> Self {
        Self::behind(json!({}), file, config).await
    }

    /// As [`House::with`], behind a listener with these keys.
    async fn behind(listener: Value, file: &str, config: Value) -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        write(folder.path(), file);
        let keys = json!({"toolman": {"toolman": {"config": folder.path().join("tools.toml")}}});
        let builder = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)]);
        let gateway = builder.config(keys).config(config).core(listener);
        let gateway = gateway.start().await;
        Self { gateway, folder }
    }

    /// A session that can be asked nothing.
    async fn session(&self) -> Session {
        let token = crate::support::TOKEN;
        Session::start_as(&self.gateway, "toolman", VERSION, token, json!({})).await
    }

    /// A session that can be asked all there is.
    async fn asking(&self, namespace: &str) -> Session {
        let token = crate::support::TOKEN;
        let capabilities =
            json!({"elicitation": {}, "sampling": {}, "roots": {"listChanged": true}});
        Session::start_as(&self.gateway, namespace, VERSION, token, capabilities).await
    }

    /// The requests to the servers so far.
    fn journal(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("journal")).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).expect("a line of JSON"))
            .collect()
    }

    /// How often a server was asked for that.
    fn asked(&self, server: &str, method: &str) -> usize {
        let journal = self.journal();
        let asked = journal.iter();
        asked
            .filter(|it| it["server"] == server && it["method"] == method)
            .count()
    }
}

/// Writes `tools.toml`, its words PJPD, VEC, PLAIN, ODD and WILD replaced by commands.
pub fn write(folder: &Path, file: &str) {
    let journal: PathBuf = folder.join("journal");
    let mut file = file.to_owned();
    for (word, name) in [
        ("PJPD", "pjpd"),
        ("VEC", "vec"),
        ("PLAIN", "plain"),
        ("ODD", "odd"),
        ("WILD", "wild"),
    ] {
        file = file.replace(word, &server(name, &journal));
    }
    fs::write(folder.join("tools.toml"), file).expect("written");
}

/// The answer to a request in a session, as JSON or at the end of a stream.
async fn answer(session: &Session, method: &str, params: Value) -> Value {
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let mut answer = session.post(&message).await;
    match answer.is_events() {
        true => answer.messages().await.pop().expect("an answer"),
        false => answer.json().await,
    }
}

/// The result of a request in a session, which must have one.
async fn result(session: &Session, method: &str, params: Value) -> Value {
    let answer = answer(session, method, params).await;
    assert!(answer["result"].is_object(), "{method}: {answer}");
    answer["result"].clone()
}

/// The names of a list.
fn names(list: &Value, key: &str) -> Vec<String> {
    let list = list.as_array().unwrap_or_else(|| panic!("no list: {list}"));
    list.iter()
        .map(|it| it[key].as_str().expect("a name").to_owned())
        .collect()
}

pub async fn tools_of(session: &Session) -> Vec<String> {
    let listed = result(session, "tools/list", json!({})).await;
    names(&listed["tools"], "name")
}

/// The lines of the catalogue in the description of `toolman_activate`.
fn catalogue(tools: &Value) -> Vec<String> {
    let tools = tools.as_array().expect("a list");
    let own = tools.iter().find(|it| it["name"] == "toolman_activate");
    let text = own.expect("it is listed")["description"].as_str().unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The four lists, those that are not given empty.
fn lists(given: Value) -> Value {
    let mut lists =
        json!({"tools_on": [], "tools_off": [], "resources_on": [], "resources_off": []});
    for (key, value) in given.as_object().expect("an object") {
        lists[key] = value.clone();
    }
    lists
}

async fn call(session: &Session, tool: &str, arguments: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    result(session, "tools/call", params).await
}

/// The convention's object in an answer of the aggregate.
fn said(result: &Value) -> Value {
    let text = result["content"][0]["text"].as_str();
    let text = text.unwrap_or_else(|| panic!("no text: {result}"));
    serde_json::from_str(text).unwrap_or_else(|_| panic!("no convention: {text}"))
}

pub async fn activate(session: &Session, given: Value) -> Value {
    call(session, "toolman_activate", lists(given)).await
}

/// The process of a member of the aggregate `toolman`; the error is the gateway's answer instead.
pub async fn pid_of(gateway: &Gateway, tool: &str) -> Result<i32, String> {
    let (_, answer) = gateway.call("toolman", tool, json!({})).await;
    // A refusal has digits as well, in the id of the request.
    let pid = answer.as_str().and_then(|pid| pid.parse().ok());
    pid.ok_or_else(|| answer.to_string())
}

/// Waits until the gateway's log says that.
async fn logged(gateway: &Gateway, words: &str) {
    eventually(words, async || gateway.log().contains(words).then_some(())).await;
}
