//! The configured servers, and the arguments and variables of their start.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::{
    and, environment, everything, health, readiness, serving, shared_pid, start, stray,
    with_servers, write_servers,
};
use crate::support::{Gateway, compiled, eventually, tools};

fn names(tools: &Value) -> Vec<&str> {
    let tools = tools
        .as_array()
        .unwrap_or_else(|| panic!("no list: {tools}"));
    tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect()
}

fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

async fn get(gateway: &Gateway, path: &str, namespace: &str) -> (u16, Value) {
    let request = gateway
        .request("GET", path)
        .header("X-Namespace", namespace);
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn servers_of_both_places_answer_by_path_and_header_over_mcp_and_rest() {
    let builder = with_servers(json!({"configured": stray(&[])}));
    let gateway = builder
        .start_with(|data| {
            super::no_examples(data);
            write_servers(
                data,
                &json!({"added": and(stray(&["--era", "dual"]), json!({"source": "custom"}))}),
            );
        })
        .await;
    let (status, namespaces) = get(&gateway, "/namespaces", "added").await;
    assert_eq!(status, 200);
    for namespace in ["configured", "added"] {
        assert!(namespaces.to_string().contains(namespace), "{namespaces}");
        let (_, by_header) = gateway
            .mcp(namespace, request(1, "tools/list", json!({})))
            .await;
        assert!(names(&by_header["result"]["tools"]).contains(&"pid"));
        let by_path = gateway
            .request("POST", &format!("/mcp/{namespace}"))
            .json(&request(1, "tools/list", json!({})));
        let by_path: Value = by_path.send().await.unwrap().json().await.unwrap();
        assert_eq!(by_path, by_header);
        let arguments = json!({"message": "hello"});
        let call = request(
            2,
            "tools/call",
            json!({"name": "echo", "arguments": arguments}),
        );
        let (_, answer) = gateway.mcp(namespace, call).await;
        assert_eq!(answer["result"]["content"][0]["text"], "hello");
        let (status, listed) = get(&gateway, "/tools", namespace).await;
        assert_eq!(status, 200);
        assert_eq!(names(&listed), names(&by_header["result"]["tools"]));
        let called = gateway.call(namespace, "echo", arguments.clone()).await;
        assert_eq!(called, (200, arguments));
        let (status, document) = get(&gateway, "/openapi.json", namespace).await;
        assert!(
            status == 200 && document["paths"]["/tools/echo"].is_object(),
            "{document}"
        );
        let (status, schema) = get(&gateway, "/tools/echo/schema", namespace).await;
        assert_eq!(
            (status, &schema["properties"]["message"]["type"]),
            (200, &json!("string"))
        );
    }
}

#[tokio::test]
async fn a_servers_failures_have_the_shapes_of_all_others_over_rest() {
    let gateway = serving(json!({"any": stray(&[]), "tool": everything("legacy")})).await;
    let (status, body) = gateway.call("any", "no_such_tool", json!({})).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (404, &json!("tool_not_found")),
        "{body}"
    );
    let (status, body) = gateway.call("any", "fail", json!({})).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (500, &json!("internal_error")),
        "{body}"
    );
    assert!(body.to_string().contains("as asked"), "{body}");
    let (status, body) = gateway.call("tool", "test_error_handling", json!({})).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (500, &json!("internal_error")),
        "{body}"
    );
    let words = "This tool intentionally returns an error for testing";
    assert!(body.to_string().contains(words), "{body}");
    let (status, body) = gateway.call("any", "crash", json!({})).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (503, &json!("worker_unavailable")),
        "{body}"
    );
    // The next one finds a process that works.
    assert_eq!(
        gateway.call("any", "huge", json!({"bytes": 3})).await,
        (200, json!("xxx"))
    );
}

#[tokio::test]
async fn a_server_has_its_variables_its_directory_and_nothing_of_the_gateways_own() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let entry = and(
        stray(&[]),
        json!({
            "cwd": folder,
            "env": {"PLAIN": "as it is", "FILLED": "<${FROM_OUTSIDE}>", "NUMBER": 8080, "DOLLAR": "$${KEPT}"},
        }),
    );
    let builder = with_servers(json!({"any": entry}))
        .env("FROM_OUTSIDE", "value-4711")
        .env("UNRELATED_VARIABLE", "not handed on");
    let gateway = start(builder).await;
    let pid = shared_pid(&gateway, "any").await;
    let variables = environment(pid);
    assert_eq!(variables["PLAIN"], "as it is");
    assert_eq!(variables["FILLED"], "<value-4711>");
    assert_eq!(variables["NUMBER"], "8080");
    assert_eq!(variables["DOLLAR"], "${KEPT}");
    assert!(variables.contains_key("PATH") && variables.contains_key("HOME"));
    for own in [
        "BEARER_TOKEN",
        "MANAGER_INTERNAL_TOKEN",
        "UNRELATED_VARIABLE",
        "FROM_OUTSIDE",
    ] {
        assert!(!variables.contains_key(own), "{own}");
    }
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), folder);
    assert!(!gateway.log().contains("value-4711"));
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(!String::from_utf8_lossy(&arguments).contains("value-4711"));
}

#[tokio::test]
async fn a_missing_variable_fails_its_namespace_alone_and_is_named_without_a_value() {
    let broken = and(
        stray(&[]),
        json!({"env": {"API_KEY": "known-part-${NOWHERE_SET}", "OTHER": "secret-4712"}}),
    );
    let gateway = serving(json!({"broken": broken, "whole": stray(&[])})).await;
    let (status, body) = gateway.call("broken", "pid", json!({})).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (503, &json!("worker_unavailable"))
    );
    let message = body["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("env.API_KEY") && message.contains("${NOWHERE_SET}"),
        "{message}"
    );
    let call = request(1, "tools/call", json!({"name": "pid", "arguments": {}}));
    let (status, answer) = gateway.mcp("broken", call).await;
    assert_eq!(
        (status, &answer["result"]["isError"]),
        (200, &json!(true)),
        "{answer}"
    );
    assert!(answer.to_string().contains("NOWHERE_SET"), "{answer}");
    let (_, list) = gateway
        .mcp("broken", request(2, "tools/list", json!({})))
        .await;
    assert_eq!(
        list["error"]["data"]["code"], "worker_unavailable",
        "{list}"
    );
    assert!(shared_pid(&gateway, "whole").await > 0);
    assert_eq!(readiness(&gateway, "broken").await["state"], "failed");
    let health = health(&gateway).await;
    assert_eq!(
        health["failing"],
        json!([{"name": "broken", "code": "worker_unavailable"}])
    );
    for said in [
        body.to_string(),
        answer.to_string(),
        health.to_string(),
        gateway.log(),
    ] {
        assert!(
            !said.contains("known-part") && !said.contains("secret-4712"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn only_allowed_tools_of_a_server_are_listed_described_and_called() {
    let builder = with_servers(json!({"any": stray(&[])})).config(json!({"namespaces":
        {"overrides": {"any": {"tools_allow": ["f*", "echo"], "tools_deny": ["fork"]}}}}));
    let gateway = start(builder).await;
    let (_, list) = gateway
        .mcp("any", request(1, "tools/list", json!({})))
        .await;
    let allowed = names(&list["result"]["tools"]);
    assert!(allowed.contains(&"echo") && allowed.contains(&"flood"));
    assert!(
        !allowed.contains(&"pid") && !allowed.contains(&"fork"),
        "{allowed:?}"
    );
    assert_eq!(names(&get(&gateway, "/tools", "any").await.1), allowed);
    let call = |tool: &str| request(2, "tools/call", json!({"name": tool, "arguments": {}}));
    for denied in ["pid", "fork"] {
        let (status, answer) = gateway.mcp("any", call(denied)).await;
        assert_eq!(status, 200);
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(answer.to_string().contains("tool_not_found"), "{answer}");
        let (status, body) = gateway.call("any", denied, json!({})).await;
        assert_eq!(
            (status, &body["error"]["code"]),
            (404, &json!("tool_not_found"))
        );
        assert_eq!(
            get(&gateway, &format!("/tools/{denied}/schema"), "any")
                .await
                .0,
            404
        );
    }
    let (_, answer) = gateway.mcp("any", call("echo")).await;
    assert!(answer["result"]["isError"].is_null(), "{answer}");
}

#[tokio::test]
async fn a_server_that_is_switched_off_is_no_namespace() {
    let off = and(
        stray(&[]),
        json!({"enabled": false, "env": {"X": "${NOT_THERE}"}}),
    );
    let gateway = serving(json!({"off": off, "on": stray(&[])})).await;
    assert_eq!(gateway.call("off", "pid", json!({})).await.0, 404);
    assert_eq!(
        gateway
            .mcp("off", request(1, "tools/list", json!({})))
            .await
            .0,
        404
    );
    assert!(shared_pid(&gateway, "on").await > 0);
    assert_eq!(readiness(&gateway, "off").await, Value::Null);
}

/// A program that writes its arguments and environment into a file and then is the fixture.
fn write_launcher(bin: &Path, name: &str, seen: &Path) {
    let script = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$0\" \"$@\" \"TOKEN=$GITHUB_TOKEN\" > '{}'\nexec '{}'\n",
        seen.display(),
        compiled::stray().display(),
    );
    let file = bin.join(name);
    fs::write(&file, script).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn a_registry_name_is_launched_by_the_packages_own_runner() {
    let folder = tempfile::tempdir().unwrap();
    let (npx, uvx) = (
        folder.path().join("npx.seen"),
        folder.path().join("uvx.seen"),
    );
    write_launcher(folder.path(), "npx", &npx);
    write_launcher(folder.path(), "uvx", &uvx);
    let path = format!(
        "{}:{}",
        folder.path().display(),
        std::env::var("PATH").unwrap()
    );
    let builder = with_servers(json!({}))
        .config(json!({"namespaces": {"env_allowed": ["GITHUB_TOKEN"]}}))
        .env("PATH", &path)
        .env("GITHUB_TOKEN", "ghp-4713");
    let servers = json!({
        "github": {"source": "registry", "name": "modelcontextprotocol/server-github", "enabled": true,
                   "env": {"GITHUB_TOKEN": "${GITHUB_TOKEN}"}},
        "time": {"source": "registry", "name": "mcp-server-time", "package_type": "pypi", "args": ["--utc"]},
    });
    let gateway = builder
        .start_with(|data| {
            super::no_examples(data);
            write_servers(data, &servers);
        })
        .await;
    for namespace in ["github", "time"] {
        assert!(shared_pid(&gateway, namespace).await > 0);
    }
    let seen = |file: &Path| {
        let text = fs::read_to_string(file).unwrap();
        text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        seen(&npx),
        [
            "-y",
            "@modelcontextprotocol/server-github",
            "TOKEN=ghp-4713"
        ]
    );
    assert_eq!(seen(&uvx), ["mcp-server-time", "--utc", "TOKEN="]);
}

#[tokio::test]
async fn a_wrong_entry_fails_alone_and_says_which_key() {
    let servers = json!({
        "good": stray(&[]),
        "odd-key": and(stray(&[]), json!({"port": 8080})),
        "no-command": {"source": "custom", "env": {"TOKEN": "secret-4714"}},
        "absent": {"command": "/nowhere/to/be/found"},
        "Bad.Name": stray(&[]),
    });
    let gateway = with_servers(json!({}))
        .start_with(|data| {
            super::no_examples(data);
            write_servers(data, &servers);
        })
        .await;
    assert!(shared_pid(&gateway, "good").await > 0);
    for (namespace, key) in [
        ("odd-key", "port"),
        ("no-command", "command"),
        ("absent", "/nowhere"),
    ] {
        let (status, body) = gateway.call(namespace, "pid", json!({})).await;
        assert_eq!(
            (status, &body["error"]["code"]),
            (503, &json!("worker_unavailable")),
            "{namespace}"
        );
        assert!(body.to_string().contains(key), "{namespace}: {body}");
    }
    let report = gateway.reload().await;
    let failed = report["failed"].to_string();
    assert!(
        failed.contains("Bad.Name") && failed.contains("odd-key"),
        "{report}"
    );
    assert!(!gateway.log().contains("secret-4714"));
}

#[tokio::test]
async fn a_configuration_with_a_wrong_server_does_not_start() {
    let wrong = and(stray(&[]), json!({"max_processes": 0}));
    let gateway = with_servers(json!({"any": wrong})).spawn();
    let status = gateway.ended().await;
    assert_eq!(status.code(), Some(2));
    let log = gateway.log();
    assert!(
        log.contains("upstreams.stdio.any") && log.contains("max_processes"),
        "{log}"
    );
}

#[tokio::test]
async fn a_folder_wins_over_an_added_server_of_the_same_name_and_that_is_said() {
    let gateway = Gateway::with_tools([("both", "hello.py", tools::HELLO)])
        .start_with(|data| write_servers(data, &json!({"both": stray(&[])})))
        .await;
    let hello = eventually("the folder serves", || async {
        let answer = gateway.call("both", "say_hello", json!({})).await;
        (answer.0 == 200).then_some(answer.1)
    })
    .await;
    assert_eq!(hello, "Hello, World!");
    assert_eq!(gateway.call("both", "pid", json!({})).await.0, 404);
    let issues = &readiness(&gateway, "both").await["issues"];
    assert_eq!(issues[0]["code"], "name_collision", "{issues}");
    let told = "external/config.yaml: servers.both: is not served: tools/both has the name";
    assert!(gateway.log().contains(told));
}
