//! Secrets with `serve --dev`: the gateway makes and keeps their key, and commands beside it find it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::support::Gateway;
use crate::support::manager::{Manager, with_manager};

const CODE: &str = r#"
import os
from fastmcp.tools import tool

@tool
def length() -> int:
    """How long the secret is."""
    return len(os.environ["STORY_KEY"])
"#;

/// Runs the program in an environment that says nothing of a key.
fn tooldock(data: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tooldock"));
    let command = command.args(arguments).env_clear().env("DATA_DIR", data);
    let command = command.env("BEARER_TOKEN", "b-0123456789abcdef");
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

async fn started(data: &Path) -> (Gateway, Manager) {
    let (builder, address) = with_manager(Gateway::empty());
    let gateway = builder
        .env("DATA_DIR", data.to_str().unwrap())
        .arguments(&["--dev"])
        .start()
        .await;
    (gateway, Manager::open(address).await)
}

#[tokio::test]
async fn a_secret_that_an_agent_prepares_is_set_beside_a_dev_gateway_and_outlives_it() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let (gateway, manager) = started(&data).await;
    let here = || json!({"namespace": "story"});
    let status = async |manager: &Manager| {
        let listed = manager.call("list_namespaces", json!({})).await.value();
        let mut all = listed.as_array().unwrap().iter();
        let story = all.find(|it| it["name"] == "story").unwrap();
        story["secrets_status"].clone()
    };
    let name = json!({"name": "story"});
    manager.call("create_namespace", name).await.value();
    assert_eq!(status(&manager).await, "no_secrets_needed");
    let wanted = json!({"key": "STORY_KEY", "namespace": "story"});
    let prepared = manager.call("prepare_secret", wanted).await.value();
    let command = "tooldock secrets set --key STORY_KEY --scope story";
    assert_eq!(prepared["command"], command);

    // The agent's request is a declaration: nothing else that it has can make one.
    let checked = manager.call("check_secrets", here()).await.value();
    assert_eq!(checked["placeholders"], json!(["STORY_KEY"]));
    assert_eq!(status(&manager).await, "placeholders");

    let words: Vec<_> = command.split(' ').skip(1).collect();
    let set = tooldock(&data, &words, "12345678\n");
    assert!(set.status.success(), "{set:?}");
    let checked = manager.call("check_secrets", here()).await.value();
    assert_eq!(checked["satisfied"], json!(["STORY_KEY"]));
    assert_eq!(status(&manager).await, "ok");
    let file = json!({"namespace": "story", "filename": "length.py", "code": CODE});
    manager.call("write_tool", file).await.value();
    // `check` of a path finds the kept key as other commands do, even if DATA_DIR is another folder.
    let story = data.join("tools/story");
    fs::write(
        story.join("tooldock.yaml"),
        "secrets: [STORY_KEY, ABSENT]\n",
    )
    .unwrap();
    let elsewhere = folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for data_dir in [&data, &elsewhere] {
        for checked in [&data, &story] {
            let checked = tooldock(data_dir, &["check", checked.to_str().unwrap()], "");
            let said = [&checked.stdout[..], &checked.stderr[..]].concat();
            let said = String::from_utf8(said).unwrap();
            assert!(
                said.contains("ABSENT") && !said.contains("STORY_KEY"),
                "{said}"
            );
        }
    }
    fs::remove_file(story.join("tooldock.yaml")).unwrap();
    manager.call("reload_core", json!({})).await.value();
    let trial = json!({"namespace": "story", "tool_name": "length", "input": {}});
    let tried = manager.call("test_tool", trial.clone()).await.value();
    assert_eq!(tried["result"], 8, "{tried}");
    gateway.signal(Signal::TERM);
    gateway.ended().await;

    let (gateway, manager) = started(&data).await;
    let tried = manager.call("test_tool", trial).await.value();
    assert_eq!(tried["result"], 8, "{tried}");
    gateway.signal(Signal::TERM);
    gateway.ended().await;
    let key = data.join("dev.secrets-key");
    let mode = fs::metadata(&key).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // Without --dev the key has to be named.
    let refused = tooldock(&data, &["serve"], "");
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("SECRETS_KEY_FILE") && said.contains("secrets rekey"),
        "{said}"
    );
}

#[tokio::test]
async fn a_value_in_the_place_of_a_key_is_refused_and_stored_nowhere() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let (gateway, manager) = started(&data).await;
    for value in [
        "ghp_0123456789abcdefABCD",
        "a3f5c9d2e8b14f7096ad5c3be1f0",
        "sk-proj-0123456789abcdef",
    ] {
        let refused = manager.call("prepare_secret", json!({"key": value})).await;
        assert!(!refused.error().contains(value), "{refused:?}");
        let set = tooldock(
            &data,
            &["secrets", "set", "--key", value, "--scope", "global"],
            "x\n",
        );
        assert_eq!(set.status.code(), Some(2));
        assert!(!gateway.log().contains(value));
    }
    assert!(!data.join("secrets.meta.yaml").exists());
}
