//! Secrets of the gateway: where they may come from, and what tools of the same user see of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Gateway, TOKEN, eventually};

/// Tools that look at processes of the machine.
const PEEK: &str = r#"
import os
from fastmcp.tools import tool

@tool
def pid() -> int:
    return os.getpid()

@tool
def peek(pid: int, file: str) -> str:
    try:
        with open(f"/proc/{pid}/{file}", "rb") as opened:
            return opened.read(65536).decode(errors="replace")
    except OSError as error:
        return type(error).__name__
"#;

/// The gateway as a user without rights over processes of the same user. For a test that runs as root, that is root
/// without capabilities; whoever is not root has no such rights anyway.
fn without_rights_over_processes(folder: &Path) -> std::path::PathBuf {
    let tooldock = env!("CARGO_BIN_EXE_tooldock");
    if !rustix::process::geteuid().is_root() {
        return tooldock.into();
    }
    let script = folder.join("gateway.sh");
    let text = format!("#!/bin/sh\nexec setpriv --bounding-set=-all {tooldock} \"$@\"\n");
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

#[tokio::test]
async fn tools_of_the_same_user_read_neither_environment_nor_memory_of_the_gateway() {
    let folder = TempDir::new().unwrap();
    let gateway = Gateway::with_tools([("spy", "peek.py", PEEK), ("other", "peek.py", PEEK)])
        .binary(&without_rights_over_processes(folder.path()))
        // The gateway hides itself also from tools without a sandbox.
        .config(json!({"namespaces": {"defaults": {"sandbox": "off"}}}))
        .start()
        .await;
    let peek = async |pid: &Value, file: &str| {
        let arguments = json!({"pid": pid, "file": file});
        let (status, text) = gateway.call("spy", "peek", arguments).await;
        assert_eq!(status, 200, "{text}");
        text.as_str().unwrap().to_owned()
    };
    let (_, other) = gateway.call("other", "pid", json!({})).await;
    let seen = peek(&other, "environ").await;
    assert!(seen.contains("PATH="), "the tool sees its like: {seen}");
    let gateway_pid = json!(gateway.pid());
    for file in ["environ", "mem", "maps"] {
        let seen = peek(&gateway_pid, file).await;
        assert!(!seen.contains(TOKEN), "{file}");
        assert_eq!(seen, "PermissionError", "{file}");
    }
}

#[tokio::test]
async fn tokens_come_from_files_and_change_with_them_on_sighup() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let bearer = file("bearer", &format!("{TOKEN}\n"));
    let gateway = Gateway::empty()
        .without_tokens()
        .env("BEARER_TOKEN_FILE", &bearer)
        .env(
            "MANAGER_INTERNAL_TOKEN_FILE",
            &file("manager", "m-0123456789abcdef\n"),
        )
        .env("SESSION_KEY_FILE", &file("key", &"k".repeat(40)))
        .start()
        .await;
    let status = async |token: &str| {
        let request = gateway.client.get(gateway.url("/namespaces"));
        request
            .bearer_auth(token)
            .send()
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(status(TOKEN).await, 200);
    let reload = gateway.request("POST", "/reload");
    let reload = reload.header("X-Manager-Token", "m-0123456789abcdef");
    assert_eq!(reload.send().await.unwrap().status(), 200);

    file("bearer", "another-token-0123456789\n");
    gateway.signal(Signal::HUP);
    eventually("the new token", || async {
        (status("another-token-0123456789").await == 200).then_some(())
    })
    .await;
    assert_eq!(status(TOKEN).await, 401);
}

#[tokio::test]
async fn dev_keeps_its_token_from_one_start_to_the_next() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let gateway = Gateway::empty()
            .without_tokens()
            .env("DATA_DIR", data.to_str().unwrap())
            .arguments(&["--dev"])
            .start()
            .await;
        let line = eventually("the announcement", || async {
            let log = gateway.log();
            log.lines()
                .find(|line| line.starts_with("Bearer token"))
                .map(str::to_owned)
        })
        .await;
        let token = line.split_whitespace().nth(2).unwrap().to_owned();
        let request = gateway.client.get(gateway.url("/namespaces"));
        assert_eq!(
            request.bearer_auth(&token).send().await.unwrap().status(),
            200
        );
        tokens.push(token);
        // A command on the gateway's machine finds both tokens.
        let core = gateway.url("");
        let explained = Command::new(env!("CARGO_BIN_EXE_tooldock"))
            .args(["explain", "--core", &core])
            .env_clear()
            .env("DATA_DIR", &data)
            .output()
            .unwrap();
        assert!(explained.status.success(), "{explained:?}");
        let listed = String::from_utf8(explained.stdout).unwrap();
        assert!(listed.contains("bearer  (BEARER_TOKEN)"), "{listed}");
        gateway.signal(Signal::TERM);
        gateway.ended().await;
    }
    assert_eq!(tokens[0], tokens[1]);
    let mode = fs::metadata(data.join("dev.token"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}
