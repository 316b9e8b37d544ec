//! Stdio servers of others behind the gateway, seen from outside: real programs, spoken to over sockets.

mod arguments;
mod bridge;
mod client;
mod configured;
mod failing;
mod installing;
mod isolation;
mod misbehaving;
mod operators;
mod reloaded;
mod tenants;
mod verbatim;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::gateway::Builder;
use crate::support::session::Session;
use crate::support::sse::Answering;
use crate::support::{Gateway, compiled, eventually, programs};

/// A gateway with these stdio servers and no tool files.
fn with_servers(servers: Value) -> Builder {
    Gateway::empty().config(json!({"upstreams": {"stdio": servers}}))
}

/// Starts it without the namespace that an empty data directory gets: its worker would take its time.
async fn start(builder: Builder) -> Gateway {
    builder.start_with(no_examples).await
}

fn no_examples(data: &Path) {
    fs::create_dir_all(data.join("tools/empty")).expect("a folder");
}

async fn serving(servers: Value) -> Gateway {
    start(with_servers(servers)).await
}

/// The entry of one of the servers in `tests/fixtures/servers`.
fn node_server(file: &str, arguments: &[&str]) -> Value {
    let (node, _) = programs::node();
    let script = programs::root().join("tests/fixtures/servers").join(file);
    let script = fs::canonicalize(script).expect("the fixture");
    let mut args = vec![json!(script)];
    args.extend(arguments.iter().map(|it| json!(it)));
    json!({"command": node.get_program().to_str(), "args": args})
}

/// The server that offers everything, in one of the eras `legacy`, `modern` and `dual`.
fn everything(era: &str) -> Value {
    node_server("everything.mjs", &["--era", era])
}

/// The entry of the server with every vice.
pub fn stray(arguments: &[&str]) -> Value {
    json!({"command": compiled::stray(), "args": arguments})
}

/// An entry with further keys.
pub fn and(mut entry: Value, keys: Value) -> Value {
    for (key, value) in keys.as_object().expect("keys") {
        entry[key] = value.clone();
    }
    entry
}

/// Writes `external/config.yaml`.
fn write_servers(data: &Path, servers: &Value) {
    fs::create_dir_all(data.join("external")).expect("a folder");
    let text = json!({"servers": servers}).to_string();
    fs::write(data.join("external/config.yaml"), text).expect("the file");
}

/// The message that ends an answer, be it a stream or not.
async fn last(mut answer: Answering) -> Value {
    if answer.is_events() {
        answer.messages().await.pop().expect("an answer")
    } else {
        answer.json().await
    }
}

/// A call in a session, to its end.
pub async fn called(session: &Session, tool: &str, arguments: Value) -> Value {
    let answer = last(session.call(7, tool, arguments).await).await;
    answer["result"].clone()
}

fn text(result: &Value) -> &str {
    let text = result["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text: {result}"))
}

/// The value of the `pid` tool.
pub fn pid(result: &Value) -> i32 {
    text(result).parse().expect("a pid")
}

/// The pid of the process that answers a client which cannot be asked anything.
async fn shared_pid(gateway: &Gateway, namespace: &str) -> i32 {
    let (status, value) = gateway.call(namespace, "pid", json!({})).await;
    assert_eq!(status, 200, "{value}");
    let pid = value.as_str().and_then(|pid| pid.parse().ok());
    pid.unwrap_or_else(|| panic!("no pid: {value}"))
}

/// A legacy session whose client can be asked nothing.
async fn silent_session(gateway: &Gateway, namespace: &str) -> Session {
    let token = crate::support::TOKEN;
    Session::start_as(gateway, namespace, "2025-11-25", token, json!({})).await
}

/// Whether a process is there and not only waits to be reaped.
fn runs(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
}

pub async fn is_gone(pid: i32) {
    eventually("the process is gone", || async {
        (!runs(pid)).then_some(())
    })
    .await;
}

/// All processes below one.
fn descendants(of: i32) -> BTreeSet<i32> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1)?.parse::<i32>().ok());
        parents.insert(pid, parent.unwrap_or_default());
    }
    let mut found = BTreeSet::from([of]);
    loop {
        let before = found.len();
        let below = parents.iter().filter(|(_, parent)| found.contains(parent));
        let below: Vec<i32> = below.map(|(pid, _)| *pid).collect();
        found.extend(below);
        if found.len() == before {
            found.remove(&of);
            return found;
        }
    }
}

/// The environment a process was started with.
fn environment(pid: i32) -> BTreeMap<String, String> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).expect("the process is there");
    String::from_utf8_lossy(&bytes)
        .split('\0')
        .filter_map(|entry| entry.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The answer of `/health` to a caller with a token.
async fn health(gateway: &Gateway) -> Value {
    let health = gateway.request("GET", "/health").send();
    health.await.unwrap().json().await.unwrap()
}

/// The entry of a namespace in `/ready`.
async fn readiness(gateway: &Gateway, namespace: &str) -> Value {
    let ready = gateway.request("GET", "/ready").send();
    let ready: Value = ready.await.unwrap().json().await.unwrap();
    let all = ready["namespaces"].as_array().expect("namespaces");
    let found = all.iter().find(|entry| entry["name"] == namespace);
    found.cloned().unwrap_or(Value::Null)
}

/// The sum of the series of a metric whose labels contain `labels`.
async fn metric(gateway: &Gateway, name: &str, labels: &str) -> Option<f64> {
    let text = gateway.metrics_text().await;
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (head, value) = rest.rsplit_once(' ')?;
        (rest.starts_with(['{', ' ']) && head.contains(labels))
            .then(|| value.parse::<f64>().ok())?
    });
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}
