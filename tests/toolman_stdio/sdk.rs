//! The clients of the official SDKs, over their own stdio transports.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{Project, SERVERS};
use crate::support::programs;

/// Runs a client's program against a project and gives back what it saw.
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
        assert_eq!(seen["progress"], serde_json::json!([1.0]), "{seen}");
    }
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
