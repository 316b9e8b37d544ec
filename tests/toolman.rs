//! Aggregates over HTTP: many servers behind one namespace, whose tools the model turns on and off (AGG-01…41).
//!
//! The servers are `fixtures/servers/toolman.py`, which writes down what it is asked. What stdio clients see of the same
//! stands elsewhere; here a gateway serves the aggregate beside ordinary namespaces.

mod activating;
mod forms;
mod lifecycle;
mod members;

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
fn server(name: &str, journal: &Path) -> String {
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
        let folder = TempDir::new().expect("a temporary directory");
        write(folder.path(), file);
        let mut keys =
            json!({"toolman": {"toolman": {"config": folder.path().join("tools.toml")}}});
        for (key, value) in config.as_object().expect("an object") {
            keys[key] = value.clone();
        }
        let builder = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)]);
        let gateway = builder.config(keys).start().await;
        Self { gateway, folder }
    }

    /// A session that can be asked nothing.
    async fn session(&self) -> Session {
        let token = crate::support::TOKEN;
        Session::start_as(&self.gateway, "toolman", VERSION, token, json!({})).await
    }

    /// What the servers were asked so far.
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

fn write(folder: &Path, file: &str) {
    let journal: PathBuf = folder.join("journal");
    let mut file = file.to_owned();
    for (word, name) in [
        ("PJPD", "pjpd"),
        ("VEC", "vec"),
        ("PLAIN", "plain"),
        ("ODD", "odd"),
    ] {
        file = file.replace(word, &server(name, &journal));
    }
    fs::write(folder.join("tools.toml"), file).expect("written");
}

/// The result of a request in a session, which must have one.
async fn result(session: &Session, method: &str, params: Value) -> Value {
    let answer = session.request(7, method, params).await;
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

async fn tools_of(session: &Session) -> Vec<String> {
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

/// The convention's object in what the aggregate says.
fn said(result: &Value) -> Value {
    let text = result["content"][0]["text"].as_str();
    let text = text.unwrap_or_else(|| panic!("no text: {result}"));
    serde_json::from_str(text).unwrap_or_else(|_| panic!("no convention: {text}"))
}

async fn activate(session: &Session, given: Value) -> Value {
    call(session, "toolman_activate", lists(given)).await
}

/// Waits until the gateway's log says that.
async fn logged(gateway: &Gateway, words: &str) {
    eventually(words, async || gateway.log().contains(words).then_some(())).await;
}
