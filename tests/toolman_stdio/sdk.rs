//! The clients of the official SDKs, over their own stdio transports.

use std::path::Path;
use std::process::{Command, Stdio};

use rmcp::ServiceExt as _;
use serde_json::{Value, json};

use super::{Project, SERVERS};
use crate::support::programs;

/// Runs a client's program against a project and returns its view.
fn seen(mut client: Command, program: &Path, arguments: &[&str]) -> Value {
    let project = Project::of(SERVERS);
    let printed = programs::run(
        client
            .arg(program)
            .arg(env!("CARGO_BIN_EXE_tooldock"))
            .arg(project.path())
            .args(arguments),
    );
    serde_json::from_str(printed.lines().last().expect("a line")).expect("JSON")
}

fn is_complete(seen: &Value) {
    assert_eq!(seen["before"], false, "{seen}");
    assert_eq!(seen["after"], true, "{seen}");
    assert_eq!(seen["ran"], "vec ran index", "{seen}");
    assert_eq!(seen["read"], "read projects://list", "{seen}");
}

#[test]
fn the_python_sdk_2_activates_and_calls_in_both_eras() {
    let program = programs::root().join("tests/clients/toolman_mcp2.py");
    for (mode, version) in [("legacy", "2025-11-25"), ("auto", "2026-07-28")] {
        let seen = seen(programs::python("clients-mcp2"), &program, &[mode]);
        is_complete(&seen);
        assert_eq!(seen["version"], version, "{seen}");
        assert_eq!(seen["progress"], json!([1.0]), "{seen}");
    }
}

#[test]
fn the_python_sdk_1_activates_and_calls() {
    let program = programs::root().join("tests/clients/toolman_mcp1.py");
    let seen = seen(programs::python("clients-mcp1"), &program, &[]);
    let prompts = ["pjpd_summarize", "vec_explain"];
    let expected =
        json!({ "before": false, "after": true, "ran": "vec ran index", "prompts": prompts });
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn the_rust_sdk_activates_and_calls() {
    let project = Project::of(SERVERS);
    let mut process = tokio::process::Command::from(project.toolman())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts");
    let pipes = process.stdout.take().zip(process.stdin.take());
    let client = ().serve(pipes.expect("piped")).await.expect("the handshake");
    let has = async |name: &str| {
        let listed = client.list_all_tools().await.expect("a list");
        listed.iter().any(|it| it.name == name)
    };
    let call = async |tool: &str, arguments: Value| {
        let call = json!({ "name": tool, "arguments": arguments });
        let call = serde_json::from_value(call).expect("a call");
        let answer = client.call_tool(call).await.expect("an answer");
        let answer: Value = serde_json::to_value(answer).expect("JSON");
        answer["content"][0]["text"].clone()
    };
    assert!(!has("vec_index").await);
    let lists = json!({ "tools_on": ["vec_index"], "tools_off": [], "resources_on": [], "resources_off": [] });
    call("toolman_activate", lists).await;
    assert!(has("vec_index").await);
    assert_eq!(call("vec_index", json!({})).await, "vec ran index");
    client.cancel().await.expect("it ends");
    let ended = tokio::time::timeout(crate::support::DEADLINE, process.wait()).await;
    assert!(ended.expect("it ends").expect("a status").success());
}

#[test]
fn the_typescript_sdk_activates_and_calls() {
    let (mut node, folder) = programs::node();
    // Through the link beside the packages; without these Node would follow the link away.
    node.args(["--preserve-symlinks", "--preserve-symlinks-main"]);
    let program = folder.join("clients/toolman_typescript1.mjs");
    let seen = seen(node, &program, &[]);
    is_complete(&seen);
    assert_eq!(seen["told"], true, "{seen}");
}
