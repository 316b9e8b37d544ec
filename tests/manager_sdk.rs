//! Every management tool through the official SDKs, which refuse a result that does not fit the tool's output schema.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::repositories::sample;
use crate::support::manager::with_manager;
use crate::support::programs::{node, python, root};
use crate::support::registry::registry;
use crate::support::tools::write_wheel;
use crate::support::{Gateway, TOKEN};

/// How a call ends, and a piece of the text that the model reads.
type Row = (&'static str, Value, &'static str, &'static str);

const CODE: &str = "from fastmcp.tools import tool\n\n\n@tool\ndef add(a: int, b: int) -> int:\n    \"\"\"Add two numbers.\"\"\"\n    return a + b\n";

/// The story of a namespace, from its making to its end: every management tool with a success and a refusal.
fn story(repository: &str) -> Vec<Row> {
    let file = |filename: &str, code: &str| json!({"namespace": "story", "filename": filename, "code": code});
    let trial =
        |tool: &str, input: Value| json!({"namespace": "story", "tool_name": tool, "input": input});
    let here = || json!({"namespace": "story"});
    let nowhere = || json!({"namespace": "nowhere"});
    vec![
        ("health", json!({}), "ok", "core_reachable"),
        ("health", json!({"surplus": 1}), "refused", "surplus"),
        ("server_config", json!({}), "ok", "manager_port"),
        ("server_config", json!({"surplus": 1}), "refused", "surplus"),
        ("list_namespaces", json!({}), "ok", "["),
        (
            "list_namespaces",
            json!({"surplus": 1}),
            "refused",
            "surplus",
        ),
        (
            "create_namespace",
            json!({"name": "story"}),
            "ok",
            "created",
        ),
        (
            "create_namespace",
            json!({"name": "story"}),
            "refused",
            "story",
        ),
        (
            "create_namespace",
            json!({"name": "No Name"}),
            "refused",
            "name",
        ),
        ("write_tool", file("sums.py", CODE), "ok", "add"),
        ("write_tool", file("sums.py", CODE), "ok", "unchanged"),
        (
            "write_tool",
            file("sums.py", "def broken(:"),
            "ok",
            "\"written\":false",
        ),
        (
            "write_tool",
            file("../sums.py", CODE),
            "ok",
            "\"written\":false",
        ),
        ("write_tool", nowhere(), "refused", "filename"),
        (
            "generate_tool",
            file("more.py", &CODE.replace("add", "plus")),
            "ok",
            "plus",
        ),
        (
            "generate_tool",
            file("more.py", "import ("),
            "ok",
            "\"written\":false",
        ),
        (
            "write_tool",
            file("_shared.py", "FACTOR = 2\n"),
            "ok",
            "\"written\":true",
        ),
        (
            "write_tool",
            file("_shared.py", "FACTOR ="),
            "ok",
            "\"written\":false",
        ),
        ("list_tools", here(), "ok", "add"),
        ("list_tools", nowhere(), "refused", "nowhere"),
        (
            "get_tool_source",
            json!({"namespace": "story", "filename": "sums.py"}),
            "ok",
            "def add",
        ),
        (
            "get_tool_source",
            json!({"namespace": "story", "filename": "none.py"}),
            "refused",
            "_shared.py",
        ),
        (
            "get_tool_source",
            json!({"namespace": "story", "filename": ".history/sums.py.7"}),
            "refused",
            "no earlier version of sums.py",
        ),
        (
            "add_requirement",
            json!({"namespace": "story", "package": "local_package"}),
            "ok",
            "\"added\":true",
        ),
        (
            "add_requirement",
            json!({"namespace": "story", "package": "no-such-package"}),
            "ok",
            "\"added\":false",
        ),
        (
            "add_requirement",
            json!({"namespace": "nowhere", "package": "x"}),
            "refused",
            "nowhere",
        ),
        ("list_requirements", here(), "ok", "local_package"),
        ("list_requirements", nowhere(), "refused", "nowhere"),
        ("install_requirements", here(), "ok", "\"installed\":true"),
        ("install_requirements", nowhere(), "refused", "nowhere"),
        (
            "install_pip_packages",
            json!({"packages": ["local_package"]}),
            "ok",
            "\"installed\":true",
        ),
        (
            "install_pip_packages",
            json!({"packages": ["no-such-package"]}),
            "ok",
            "\"installed\":false",
        ),
        (
            "install_pip_packages",
            json!({"packages": [7]}),
            "refused",
            "packages",
        ),
        ("reload_core", json!({}), "ok", "\"reloaded\":true"),
        ("reload_core", json!({"surplus": 1}), "refused", "surplus"),
        (
            "test_tool",
            trial("add", json!({"a": 1, "b": 2})),
            "ok",
            "\"success\":true",
        ),
        (
            "test_tool",
            trial("add", json!({"a": "x", "b": 2})),
            "ok",
            "\"success\":false",
        ),
        (
            "test_tool",
            trial("none", json!({})),
            "ok",
            "tool_not_found",
        ),
        ("test_tool", here(), "refused", "tool_name"),
        ("read_output", here(), "ok", "lines"),
        ("read_output", nowhere(), "refused", "nowhere"),
        (
            "read_output",
            json!({"namespace": "story", "lines": 501}),
            "refused",
            "from 1 to 500",
        ),
        (
            "add_server",
            json!({"name": "others", "config": {"command": "true", "env": {"TOKEN": "${TOKEN}"}}}),
            "ok",
            "\"added\":true",
        ),
        (
            "add_server",
            json!({"name": "others", "config": {"command": "true"}}),
            "refused",
            "others",
        ),
        (
            "add_server",
            json!({"name": "more", "config": {"comand": "true"}}),
            "refused",
            "comand",
        ),
        ("list_servers", json!({}), "ok", "others"),
        ("list_servers", json!({"surplus": 1}), "refused", "surplus"),
        ("remove_server", json!({"name": "others"}), "ok", "removed"),
        (
            "remove_server",
            json!({"name": "others"}),
            "refused",
            "others",
        ),
        (
            "prepare_secret",
            json!({"key": "STORY_KEY", "namespace": "story"}),
            "ok",
            "STORY_KEY",
        ),
        (
            "prepare_secret",
            json!({"key": "no name"}),
            "refused",
            "key",
        ),
        ("list_secrets", json!({}), "ok", "["),
        (
            "list_secrets",
            json!({"namespace": "No Name"}),
            "refused",
            "namespace",
        ),
        ("check_secrets", here(), "ok", "{"),
        ("check_secrets", nowhere(), "refused", "nowhere"),
        (
            "remove_secret",
            json!({"key": "STORY_KEY", "namespace": "story"}),
            "ok",
            "removed",
        ),
        ("remove_secret", json!({"key": "no name"}), "refused", "key"),
        (
            "search_registry",
            json!({"query": "github"}),
            "ok",
            "server-github",
        ),
        ("search_registry", json!({"query": ""}), "refused", "query"),
        (
            "analyze_repo",
            json!({"repo_url": repository}),
            "ok",
            "list_issues",
        ),
        (
            "analyze_repo",
            json!({"repo_url": "git@host:o/r"}),
            "refused",
            "GIT_ALLOWED_SCHEMES",
        ),
        (
            "read_repo_file",
            json!({"repo_url": repository, "path": "package.json"}),
            "ok",
            "octokit",
        ),
        (
            "read_repo_file",
            json!({"repo_url": repository, "path": "../x"}),
            "refused",
            "leads out",
        ),
        (
            "install_from_repo",
            json!({"repo_url": repository, "namespace": "story"}),
            "ok",
            "list_issues",
        ),
        (
            "install_from_repo",
            json!({"repo_url": repository, "namespace": "No"}),
            "refused",
            "namespace",
        ),
        (
            "install_from_registry",
            json!({"package": "../x", "namespace": "story"}),
            "refused",
            "package",
        ),
        (
            "token_create",
            json!({"name": "reader", "scopes": ["read"]}),
            "ok",
            "token",
        ),
        (
            "token_create",
            json!({"name": "reader", "scopes": ["rad"]}),
            "refused",
            "rad",
        ),
        ("token_list", json!({}), "ok", "reader"),
        ("token_list", json!({"surplus": 1}), "refused", "surplus"),
        (
            "explain",
            json!({"as": "$id", "namespace": "story"}),
            "ok",
            "story",
        ),
        ("explain", json!({}), "ok", "key:reader"),
        (
            "explain",
            json!({"as": "stranger", "namespace": "story"}),
            "refused",
            "key:reader",
        ),
        ("token_revoke", json!({"id": "$id"}), "ok", "revoked"),
        (
            "token_revoke",
            json!({"id": "none"}),
            "refused",
            "not the id of a key",
        ),
        (
            "explain",
            json!({"as": "reader", "namespace": "No Name"}),
            "refused",
            "namespace",
        ),
        (
            "delete_tool",
            json!({"namespace": "story", "filename": "sums.py"}),
            "ok",
            "\"deleted\":true",
        ),
        (
            "delete_tool",
            json!({"namespace": "story", "filename": "sums.py"}),
            "refused",
            "sums.py",
        ),
        (
            "delete_namespace",
            json!({"name": "story"}),
            "ok",
            "\"deleted\":true",
        ),
        (
            "delete_namespace",
            json!({"name": "story"}),
            "refused",
            "story",
        ),
    ]
}

/// Runs a client with the calls of `rows`, checks how each call ends, and returns the client's report.
async fn tell(mut client: Command, url: &str, rows: &[Row]) -> Value {
    let url = url.to_owned();
    let calls: Vec<_> = rows
        .iter()
        .map(|(tool, arguments, ..)| json!([tool, arguments]))
        .collect();
    let calls = json!(calls).to_string();
    let output = tokio::task::spawn_blocking(move || {
        client.args([&url, TOKEN]);
        let client = client.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = client.spawn().unwrap();
        client
            .stdin
            .take()
            .unwrap()
            .write_all(calls.as_bytes())
            .unwrap();
        client.wait_with_output().unwrap()
    });
    let output = output.await.unwrap();
    let seen: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let results = seen["results"].as_array().unwrap();
    let wrong: Vec<_> = rows
        .iter()
        .zip(results)
        .filter(|((.., ends, says), result)| {
            result[0] != *ends || !result[1].as_str().unwrap().contains(says)
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(results.len(), rows.len());
    seen
}

async fn every_tool_is_called_by(client: Command) {
    let found = json!({"servers": [{"server": {
        "name": "server-github", "description": "GitHub API tools",
        "repository": {"url": "https://github.com/modelcontextprotocol/server-github"},
        "packages": [{"registryType": "npm", "identifier": "@modelcontextprotocol/server-github"}],
    }}]});
    let folder = tempfile::tempdir().unwrap();
    let wheels = tempfile::tempdir().unwrap();
    write_wheel(wheels.path(), "local_package", "1.2.3");
    let repository = sample(folder.path());
    let (builder, address) = with_manager(Gateway::empty());
    let _gateway = builder
        .env("ALLOW_INSECURE_SECRETS", "1")
        .env("GIT_ALLOWED_SCHEMES", "https,file")
        .env("MCP_REGISTRY_URL", &format!("http://{}", registry(&found)))
        .env("PIP_NO_INDEX", "1")
        .env("PIP_FIND_LINKS", wheels.path().to_str().unwrap())
        .env("UV_NO_INDEX", "1")
        .env("UV_FIND_LINKS", wheels.path().to_str().unwrap())
        .start()
        .await;
    let rows = story(&repository);
    let seen = tell(client, &format!("http://{address}/mcp"), &rows).await;
    let called: BTreeSet<_> = rows.iter().map(|(tool, ..)| *tool).collect();
    let listed = seen["listed"].as_object().unwrap().keys();
    let listed: BTreeSet<_> = listed.map(String::as_str).collect();
    assert_eq!(called, listed, "every management tool has its rows");
}

const HELPER: &str = "RATE = 3\n";

/// A tool that needs a helper module, a package and a secret, and prints a line.
const FARE: &str = r#"import os

import local_package
from _rates import RATE
from fastmcp.tools import tool


@tool
def fare(km: int) -> int:
    """Tell the fare of a trip."""
    print("a fare is asked for")
    assert local_package.__name__ and len(os.environ["FARES_KEY"]) == 8
    return RATE * km // 1
"#;

/// The first part of an agent's work: up to the point where a person has to set the secret.
fn before_the_secret() -> Vec<Row> {
    let file = |filename: &str, code: &str| json!({"namespace": "trips", "filename": filename, "code": code});
    vec![
        (
            "create_namespace",
            json!({"name": "trips"}),
            "ok",
            "created",
        ),
        (
            "write_tool",
            file("_rates.py", HELPER),
            "ok",
            "\"written\":true",
        ),
        // A mistake that the check finds, and its repair.
        (
            "write_tool",
            file("fares.py", &FARE.replace("km: int", "km")),
            "ok",
            "Missing type hints",
        ),
        (
            "write_tool",
            file("fares.py", FARE),
            "ok",
            "\"tools_found\":[\"fare\"]",
        ),
        (
            "add_requirement",
            json!({"namespace": "trips", "package": "local_package"}),
            "ok",
            "\"added\":true",
        ),
        (
            "check_secrets",
            json!({"namespace": "trips"}),
            "ok",
            "\"missing\":[]",
        ),
        (
            "prepare_secret",
            json!({"key": "FARES_KEY", "namespace": "trips"}),
            "ok",
            "--scope trips",
        ),
    ]
}

/// The second part of an agent's work: from the set secret to the end of the namespace.
fn after_the_secret() -> Vec<Row> {
    let file = |code: &str| json!({"namespace": "trips", "filename": "fares.py", "code": code});
    let trial = || json!({"namespace": "trips", "tool_name": "fare", "input": {"km": 4}});
    let here = || json!({"namespace": "trips"});
    let reload = || ("reload_core", json!({}), "ok", "\"reloaded\":true");
    vec![
        (
            "check_secrets",
            here(),
            "ok",
            "\"satisfied\":[\"FARES_KEY\"]",
        ),
        reload(),
        ("test_tool", trial(), "ok", "\"result\":12"),
        ("read_output", here(), "ok", "a fare is asked for"),
        // A mistake that only a call shows, …
        (
            "write_tool",
            file(&FARE.replace("// 1", "// 0")),
            "ok",
            "previous_version",
        ),
        reload(),
        ("test_tool", trial(), "ok", "ZeroDivisionError"),
        ("read_output", here(), "ok", "ZeroDivisionError"),
        // … is taken back by the path that the answer named.
        (
            "get_tool_source",
            json!({"namespace": "trips", "filename": "$previous_version"}),
            "ok",
            "// 1",
        ),
        ("write_tool", file("$source"), "ok", "\"written\":true"),
        reload(),
        ("test_tool", trial(), "ok", "\"result\":12"),
        (
            "token_create",
            json!({"name": "trips", "scopes": ["all"], "namespaces": ["trips"]}),
            "ok",
            "token",
        ),
        (
            "explain",
            json!({"as": "$id", "namespace": "trips"}),
            "ok",
            "\"allowed\":true",
        ),
        ("token_revoke", json!({"id": "$id"}), "ok", "revoked"),
        (
            "delete_tool",
            json!({"namespace": "trips", "filename": "fares.py"}),
            "ok",
            "\"deleted\":true",
        ),
        (
            "delete_namespace",
            json!({"name": "trips"}),
            "ok",
            "\"deleted\":true",
        ),
        reload(),
    ]
}

/// Checks that each tool is named before its call: by the server's instructions, by the description of a tool that was
/// called before, or by an answer. An agent reads nothing else.
fn every_step_is_named_before_it(read: &mut String, seen: &Value, rows: &[Row]) {
    *read += seen["instructions"].as_str().unwrap();
    for ((tool, ..), result) in rows.iter().zip(seen["results"].as_array().unwrap()) {
        assert!(read.contains(tool), "nothing named {tool} before its call");
        *read += seen["listed"][tool].as_str().unwrap();
        *read += result[1].as_str().unwrap();
    }
}

async fn an_agents_work_is_done_by(client: impl Fn() -> Command) {
    let wheels = tempfile::tempdir().unwrap();
    write_wheel(wheels.path(), "local_package", "1.2.3");
    let (builder, address) = with_manager(Gateway::empty());
    let gateway = builder
        .arguments(&["--dev"])
        .env("PIP_NO_INDEX", "1")
        .env("PIP_FIND_LINKS", wheels.path().to_str().unwrap())
        .env("UV_NO_INDEX", "1")
        .env("UV_FIND_LINKS", wheels.path().to_str().unwrap())
        .config(json!({"relay": {"scopes": {"all": ["*"]}}}))
        .start()
        .await;
    let url = format!("http://{address}/mcp");
    let rows = before_the_secret();
    let seen = tell(client(), &url, &rows).await;
    let mut read = String::new();
    every_step_is_named_before_it(&mut read, &seen, &rows);
    // A person runs the command that the last answer names, and sets the secret.
    let prepared = seen["results"].as_array().unwrap().last().unwrap();
    let prepared: Value = serde_json::from_str(prepared[1].as_str().unwrap()).unwrap();
    let mut words = prepared["command"].as_str().unwrap().split(' ');
    assert_eq!(words.next(), Some("tooldock"));
    let mut set = Command::new(env!("CARGO_BIN_EXE_tooldock"));
    let set = set.args(words).env_clear().stdin(Stdio::piped());
    let mut set = set.env("DATA_DIR", gateway.data_dir()).spawn().unwrap();
    set.stdin.take().unwrap().write_all(b"12345678\n").unwrap();
    assert!(set.wait().unwrap().success());
    let rows = after_the_secret();
    let seen = tell(client(), &url, &rows).await;
    every_step_is_named_before_it(&mut read, &seen, &rows);
    assert!(!gateway.log().contains("12345678"));
}

fn python_sdk() -> Command {
    let mut client = python("clients-mcp1");
    client.arg(root().join("tests/clients/rows_mcp1.py"));
    client
}

fn typescript_sdk() -> Command {
    let (mut client, packages) = node();
    client.args(["--preserve-symlinks", "--preserve-symlinks-main"]);
    client.arg(packages.join("clients/rows_typescript1.mjs"));
    client
}

#[tokio::test]
async fn an_agent_makes_repairs_takes_back_and_ends_a_namespace_through_the_python_sdk() {
    an_agents_work_is_done_by(python_sdk).await;
}

#[tokio::test]
async fn an_agent_makes_repairs_takes_back_and_ends_a_namespace_through_the_typescript_sdk() {
    an_agents_work_is_done_by(typescript_sdk).await;
}

#[tokio::test]
async fn every_answer_of_a_management_tool_is_taken_by_the_python_sdk() {
    every_tool_is_called_by(python_sdk()).await;
}

#[tokio::test]
async fn every_answer_of_a_management_tool_is_taken_by_the_typescript_sdk() {
    every_tool_is_called_by(typescript_sdk()).await;
}
