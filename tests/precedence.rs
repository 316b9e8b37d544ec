//! Names that several places claim: the operator's file keeps its names from every place where tools can write.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::gateway::Builder;
use crate::support::{Gateway, TOKEN, eventually, sha256, tools};

const PRINTS: &str = r#"
import os

from fastmcp.tools import tool


@tool
def told() -> str:
    """What the process was given."""
    return os.environ.get("FAR_TOKEN", "nothing")
"#;

async fn far() -> Gateway {
    Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .start()
        .await
}

fn remote(far: &Gateway) -> Value {
    json!({
        "backends": [far.url("/mcp/calc")], "credentials": "Bearer ${FAR_TOKEN}", "mode": "client",
    })
}

/// A gateway whose operator has the remote server `near`, with a folder of that name.
fn before(far: &Gateway) -> Builder {
    Gateway::with_tools([("near", "planted.py", PRINTS)])
        .config(json!({"upstreams": {"remote": {"near": remote(far)}}}))
        .env("SECRETS_KEY", "a key of some length, for tests")
        .env("FAR_TOKEN", TOKEN)
}

async fn ready(gateway: &Gateway) -> Value {
    let ready = gateway.request("GET", "/ready").send().await.unwrap();
    ready.json().await.unwrap()
}

fn plant(gateway: &Gateway, name: &str) {
    let data = gateway.data_dir();
    fs::create_dir_all(data.join("external")).unwrap();
    let server = json!({"servers": {name: {"command": "false"}}});
    fs::write(data.join("external/config.yaml"), server.to_string()).unwrap();
}

#[tokio::test]
async fn a_remote_server_of_the_operator_is_not_replaced_by_files_that_tools_can_write() {
    let far = far().await;
    let gateway = before(&far).start().await;
    plant(&gateway, "near");
    gateway.reload().await;
    let (status, answer) = gateway.call("near", "add", json!({"a": 2, "b": 3})).await;
    assert_eq!(status, 200, "{answer}");
    assert_ne!(gateway.call("near", "told", json!({})).await.0, 200);
    let ready = ready(&gateway).await;
    let near = ready["namespaces"].as_array().unwrap().iter();
    let near = near.filter(|it| it["name"] == "near").collect::<Vec<_>>();
    let issues = near[0]["issues"].as_array().unwrap();
    let subjects: Vec<_> = issues.iter().map(|it| &it["subject"]).collect();
    assert_eq!(
        subjects,
        ["tools/near", "external/config.yaml: servers.near"]
    );
    assert!(issues.iter().all(|it| it["code"] == "name_collision"));
    assert!(
        gateway
            .log()
            .contains("tools/near: is not served: upstreams.remote.near has the name")
    );
}

#[tokio::test]
async fn a_name_that_the_operator_switches_off_serves_nothing_else() {
    let far = far().await;
    let gateway = before(&far).start().await;
    let mut off = remote(&far);
    off["enabled"] = false.into();
    gateway.reconfigure(json!({"upstreams": {"remote": {"near": off}}}));
    gateway.signal(Signal::HUP);
    eventually("it is off", || async {
        let ready = ready(&gateway).await;
        let told = ready["unserved"][0]["namespace"] == "near";
        (told && gateway.call("near", "told", json!({})).await.0 == 404).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_folder_that_gets_the_name_of_a_former_server_does_not_get_its_secrets() {
    let far = far().await;
    let gateway = before(&far).start_with(|data| {
        let mut set = std::process::Command::new(env!("CARGO_BIN_EXE_tooldock"))
            .args([
                "secrets",
                "set",
                "--key",
                "FAR_TOKEN",
                "--scope",
                "near",
                "--data-dir",
            ])
            .arg(data)
            .env("SECRETS_KEY", "a key of some length, for tests")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut set.stdin.take().unwrap(), TOKEN.as_bytes()).unwrap();
        assert!(set.wait().unwrap().success());
    });
    let gateway = gateway.await;
    let (status, answer) = gateway.call("near", "add", json!({"a": 2, "b": 3})).await;
    assert_eq!(status, 200, "{answer}");
    gateway.replace_configuration(|config| config["upstreams"] = json!({}));
    gateway.signal(Signal::HUP);
    let told = eventually("the folder has the name now", || async {
        let (status, answer) = gateway.call("near", "told", json!({})).await;
        (status == 200).then_some(answer)
    })
    .await;
    assert_eq!(told, "nothing");
    let ready = ready(&gateway).await.to_string();
    assert!(ready.contains("secret_of_another"), "{ready}");

    // Nor after a start on the values alone, with no other record of who had them.
    let values = fs::read(gateway.data_dir().join("secrets.enc")).unwrap();
    let again = Gateway::with_tools([("near", "planted.py", PRINTS)])
        .env("SECRETS_KEY", "a key of some length, for tests")
        .start_with(|data| {
            use std::os::unix::fs::PermissionsExt as _;
            fs::write(data.join("secrets.enc"), values).unwrap();
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(data.join("secrets.enc"), mode).unwrap();
        })
        .await;
    let told = again.call("near", "told", json!({})).await;
    assert_eq!(told, (200, json!("nothing")));
}

#[tokio::test]
async fn a_second_file_changes_no_server_of_the_operator_but_to_take_away() {
    let gateway = Gateway::empty()
        .config(
            json!({"upstreams": {"stdio": {"mine": {"command": "false", "enabled": false}}},
            "toolman": {}}),
        )
        .start_with(|data| {
            let theirs = json!({"upstreams": {"stdio": {
                "mine": {"command": "sleep", "args": ["1000"], "enabled": true}
            }}});
            fs::write(data.join("config.yaml"), theirs.to_string()).unwrap();
        })
        .await;
    assert!(
        gateway
            .log()
            .contains("upstreams.stdio.mine: stays as the operator's file has it")
    );
    let ready = ready(&gateway).await;
    assert!(
        !ready["namespaces"].to_string().contains("\"mine\""),
        "{ready}"
    );
    assert!(
        ready["unserved"].to_string().contains("\"mine\""),
        "{ready}"
    );
}

#[tokio::test]
async fn a_second_file_that_is_damaged_holds_up_neither_a_start_nor_the_operators_changes() {
    let ci = "ci-token-0123456789abcdef";
    let admits = |tokens: Value| json!({"admission": {"tokens": tokens}});
    let entry = json!({"name": "ci", "sha256": sha256(ci), "namespaces": ["*"]});
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .config(admits(json!([entry])))
        .start_with(|data| {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            let fifo = rustix::fs::FileType::Fifo;
            let path = data.join("config.yaml");
            rustix::fs::mknodat(rustix::fs::CWD, path, fifo, mode, 0).unwrap();
        })
        .await;
    // The listener of the metrics tells the whole message.
    let problem = async || {
        let url = format!("http://{}/ready", gateway.metrics);
        let answer = gateway.client.get(url).send().await.unwrap();
        let ready: Value = answer.json().await.unwrap();
        ready["problem"].clone()
    };
    let told = problem().await;
    assert_eq!(told["code"], "invalid_config");
    let message = told["message"].as_str().unwrap();
    assert!(
        message.contains("a named pipe, not a regular file"),
        "{message}"
    );
    let file = gateway.data_dir().join("config.yaml");
    let statuses = async || {
        let arguments = json!({"a": 1, "b": 2});
        let (with_bearer, _) = gateway.call("calc", "add", arguments.clone()).await;
        let url = gateway.url("/mcp/calc");
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        let asked = gateway.client.post(url).bearer_auth(ci).json(&list);
        let asked = asked.header("Accept", "application/json, text/event-stream");
        let with_ci = asked.send().await.unwrap().status().as_u16();
        (with_bearer, with_ci == 401)
    };
    assert_eq!(statuses().await, (200, false));

    fs::remove_file(&file).unwrap();
    let closes = json!({"namespaces": {"overrides": {"calc": {"principals": []}}}});
    fs::write(&file, closes.to_string()).unwrap();
    gateway.signal(Signal::HUP);
    eventually("the namespace is closed", || async {
        (statuses().await.0 == 403 && problem().await.is_null()).then_some(())
    })
    .await;

    fs::write(&file, "]{ no YAML").unwrap();
    gateway.replace_configuration(|config| config["admission"]["tokens"] = json!([]));
    gateway.signal(Signal::HUP);
    eventually("the token counts no more", || async {
        statuses().await.1.then_some(())
    })
    .await;
    assert_eq!(
        statuses().await.0,
        403,
        "what the file took away stays away"
    );
    assert!(
        problem().await["message"]
            .as_str()
            .unwrap()
            .contains("used last")
    );
    // The new rules are in force before the reload ends, so the metric follows later.
    eventually("the reload is counted as failed", || async {
        let metrics = gateway.metrics_text().await;
        metrics
            .contains("tooldock_config_last_reload_successful 0")
            .then_some(())
    })
    .await;
}
