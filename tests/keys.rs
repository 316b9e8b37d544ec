//! API keys from their making to their end: the namespaces and tools that they open, their validity, and their traces
//! in logs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::gateway::MANAGER_TOKEN;
use crate::support::manager::{Manager, with_manager};
use crate::support::ports::free_address;
use crate::support::session::Session;
use crate::support::{DEADLINE, Gateway, TOKEN, eventually, sha256, tools};
use crate::tls;

/// How long a revoked key may still be let in by a process that did not revoke it.
const SOON: Duration = Duration::from_secs(1);

/// Two tools that the scopes `read` and `write` open, and one that only `admin` does.
const PROJECTS: &str = r#"
from fastmcp.tools import tool


@tool
def project_list() -> list[str]:
    """Lists projects."""
    return ["a"]


@tool
def project_create(name: str) -> str:
    """Makes a project."""
    return name


@tool
def other() -> str:
    """No scope but admin has it."""
    return "x"
"#;

/// Runs `tooldock keys` as an operator beside the gateway does: in another process.
fn keys(gateway: &Gateway, arguments: &[&str]) -> Output {
    keys_in(gateway.data_dir(), arguments)
}

fn keys_in(data: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .arg("keys")
        .args(arguments)
        .args(["--data-dir", data.to_str().unwrap()])
        .env_clear()
        .output()
        .unwrap()
}

/// A key and its id.
fn create(gateway: &Gateway, arguments: &[&str]) -> (String, String) {
    let output = keys(
        gateway,
        &[&["create", "--name", "ci", "--json"], arguments].concat(),
    );
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let made: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |key: &str| made[key].as_str().unwrap().to_owned();
    (text("key"), text("id"))
}

fn revoke(gateway: &Gateway, id: &str) {
    assert!(keys(gateway, &["revoke", id]).status.success());
}

/// The status and body of a REST call with a key.
async fn call(gateway: &Gateway, key: &str, tool: &str) -> (u16, Value) {
    let request = gateway.client.post(gateway.url(&format!("/tools/{tool}")));
    let request = request.bearer_auth(key).header("X-Namespace", "work");
    let answer = request.json(&json!({})).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_counts_when_the_command_that_made_it_returns_and_no_more_when_it_is_revoked() {
    let gateway = Gateway::with_tools([("work", "work.py", PROJECTS)])
        .start()
        .await;
    let gateway = std::sync::Arc::new(gateway);
    let writers = (0..8).map(|_| {
        let gateway = std::sync::Arc::clone(&gateway);
        tokio::spawn(async move {
            let made = tokio::task::block_in_place(|| create(&gateway, &["--scope", "admin"]));
            let (key, id) = made;
            let (status, body) = call(&gateway, &key, "project_list").await;
            assert_eq!(status, 200, "{body}");
            tokio::task::block_in_place(|| revoke(&gateway, &id));
            assert_eq!(call(&gateway, &key, "project_list").await.0, 401);
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
}

/// Waits until the gateway lets a new key in.
async fn is_known(gateway: &Gateway, key: &str) {
    eventually("the key is let in", async || {
        let (status, _) = call(gateway, key, "project_list").await;
        (status != 401).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_sessions_of_a_principal_end_with_its_last_key() {
    let gateway = Gateway::with_tools([("work", "work.py", PROJECTS)])
        .start()
        .await;
    let (key, id) = create(&gateway, &["--scope", "admin"]);
    let (other, other_id) = create(&gateway, &["--scope", "admin"]);
    is_known(&gateway, &key).await;
    is_known(&gateway, &other).await;
    let version = "2025-11-25";
    Session::start_as(&gateway, "work", version, &key, json!({})).await;
    Session::start_as(&gateway, "work", version, TOKEN, json!({})).await;
    let sessions = async |count: u32| {
        eventually("so many sessions are alive", async || {
            let metrics = gateway.metrics_text().await;
            let line = format!("\ntooldock_sessions {count}\n");
            metrics.contains(&line).then_some(())
        })
        .await;
    };
    sessions(2).await;
    revoke(&gateway, &id);
    eventually("the key is refused", async || {
        (call(&gateway, &key, "project_list").await.0 == 401).then_some(())
    })
    .await;
    // A key of the same name is the same principal.
    sessions(2).await;
    revoke(&gateway, &other_id);
    sessions(1).await;
}

/// The names of the tools that a key's `GET /tools` lists.
async fn listed(gateway: &Gateway, key: &str) -> Vec<String> {
    listed_in(gateway, key, "work").await
}

async fn listed_in(gateway: &Gateway, key: &str, namespace: &str) -> Vec<String> {
    let request = gateway.client.get(gateway.url("/tools")).bearer_auth(key);
    let answer = request
        .header("X-Namespace", namespace)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let tools: Value = answer.json().await.unwrap();
    let tools = tools
        .as_array()
        .cloned()
        .unwrap_or_else(|| tools["tools"].as_array().unwrap().clone());
    tools
        .iter()
        .map(|it| it["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_key_opens_its_scope_and_ends_with_its_streams_within_a_second_of_its_revocation() {
    let gateway = Gateway::with_tools([
        ("work", "work.py", PROJECTS),
        ("calc", "math.py", tools::MATH),
    ]);
    let gateway = gateway.env("LOG_LEVEL", "debug").start().await;
    let (key, id) = create(&gateway, &["--scope", "read", "--namespaces", "work"]);
    let (admin, _) = create(&gateway, &["--scope", "admin"]);
    is_known(&gateway, &admin).await;

    assert_eq!(listed(&gateway, &key).await, ["project_list"]);
    assert_eq!(listed(&gateway, &admin).await.len(), 3);
    assert_eq!(call(&gateway, &key, "project_list").await.0, 200);
    let (status, refused) = call(&gateway, &key, "project_create").await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (403, &json!("insufficient_scope"))
    );
    // A tool that is not there is told no differently.
    let (status, refused) = call(&gateway, &key, "nothing").await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (403, &json!("insufficient_scope"))
    );
    let elsewhere = gateway.client.get(gateway.url("/tools")).bearer_auth(&key);
    let elsewhere = elsewhere
        .header("X-Namespace", "calc")
        .send()
        .await
        .unwrap();
    assert_eq!(elsewhere.status(), 403);

    let version = "2025-11-25";
    let session = Session::start_as(&gateway, "work", version, &key, json!({})).await;
    let mut stream = session.get(None).await;
    assert_eq!(stream.status, 200);
    let others = Session::start_as(&gateway, "work", version, &admin, json!({})).await;
    let mut stream_of_others = others.listen().await;
    revoke(&gateway, &id);
    eventually("the key is refused", async || {
        let (status, body) = call(&gateway, &key, "project_list").await;
        (status == 401).then(|| assert_eq!(body["detail"], "invalid or expired API key"))
    })
    .await;
    let ended = tokio::time::timeout(DEADLINE, stream.end()).await;
    assert!(ended.is_ok(), "the stream ends");
    assert_eq!(session.get(None).await.status, 401);
    assert_eq!(
        call(&gateway, &admin, "other").await.0,
        200,
        "other keys are not touched"
    );
    gateway.drop_tool("work", "more.py", tools::MATH);
    gateway.reload().await;
    let told = stream_of_others.message().await;
    assert_eq!(told["method"], "notifications/tools/list_changed", "{told}");

    // The calls are in the audit log under the key's id, and the key is nowhere.
    let log = eventually("the audit line is written", async || {
        let log = logs(&gateway);
        log.contains(&format!("\"token_id\":\"{id}\""))
            .then_some(log)
    })
    .await;
    let canary = &key[key.len() - 46..key.len() - 6];
    assert!(log.contains("key:ci") && !log.contains(canary));
    assert!(gateway.log().contains("the API key is revoked"));
    assert!(!gateway.log().contains(&key));
    let stored = fs::read_to_string(gateway.data_dir().join("keys.json")).unwrap();
    assert!(!gateway.log().contains(canary) && !stored.contains(canary));
}

/// All that stands in the folder of logs.
fn logs(gateway: &Gateway) -> String {
    let entries = fs::read_dir(gateway.data_dir().join("logs")).unwrap();
    entries
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap_or_default())
        .collect()
}

#[tokio::test]
async fn another_processs_revocation_counts_within_a_second() {
    let gateway = Gateway::with_tools([("work", "work.py", PROJECTS)])
        .start()
        .await;
    // The machine may be busy with other tests: the shortest of three times is the gateway's.
    let mut shortest = DEADLINE;
    for _ in 0..3 {
        let (key, id) = create(&gateway, &["--scope", "read"]);
        is_known(&gateway, &key).await;
        revoke(&gateway, &id);
        let revoked = Instant::now();
        eventually("the key is refused", async || {
            let (status, _) = call(&gateway, &key, "project_list").await;
            (status == 401).then_some(())
        })
        .await;
        shortest = shortest.min(revoked.elapsed());
    }
    assert!(shortest < SOON, "{shortest:?}");
}

#[tokio::test]
async fn whatever_is_wrong_with_a_key_its_sender_is_told_the_same() {
    let gateway = Gateway::with_tools([("work", "work.py", PROJECTS)])
        .start()
        .await;
    let (good, _) = create(&gateway, &["--scope", "read", "--networks", "127.0.0.0/8"]);
    let (elsewhere, _) = create(&gateway, &["--scope", "read", "--networks", "10.0.0.0/8"]);
    let (short, _) = create(&gateway, &["--scope", "read", "--expires", "1s"]);
    let (relay, _) = create(&gateway, &["--scope", "read", "--relay"]);
    is_known(&gateway, &good).await;
    is_known(&gateway, &relay).await;
    assert!(good.starts_with("td_") && relay.starts_with("oub_"));
    let expired = eventually("the key has expired", async || {
        let (status, body) = call(&gateway, &short, "project_list").await;
        (status == 401).then_some(body)
    })
    .await;
    // At one place only: the prefix may have the same character.
    let mut mistyped = good.clone();
    mistyped.replace_range(20..21, if &good[20..21] == "a" { "b" } else { "a" });
    for wrong in [&elsewhere, &mistyped, "td_", "oub_xxx"] {
        assert_eq!(
            call(&gateway, wrong, "project_list").await,
            (401, expired.clone()),
            "{wrong}"
        );
    }
    assert_eq!(expired["detail"], "invalid or expired API key");
}

#[tokio::test]
async fn a_stream_ends_when_its_key_does() {
    let gateway = Gateway::with_tools([("work", "work.py", PROJECTS)])
        .start()
        .await;
    let (key, _) = create(&gateway, &["--scope", "read", "--expires", "6s"]);
    is_known(&gateway, &key).await;
    let session = Session::start_as(&gateway, "work", "2025-11-25", &key, json!({})).await;
    let mut stream = session.get(None).await;
    assert_eq!(stream.status, 200);
    let ended = tokio::time::timeout(DEADLINE, stream.end()).await;
    assert!(ended.is_ok(), "the stream ends");
}

#[tokio::test]
async fn a_damaged_file_leaves_the_keys_in_force_and_stops_a_start() {
    let gateway = Gateway::with_tools([("work", "work.py", PROJECTS)])
        .start()
        .await;
    let (key, _) = create(&gateway, &["--scope", "read"]);
    is_known(&gateway, &key).await;
    let file = gateway.data_dir().join("keys.json");
    let whole = fs::read_to_string(&file).unwrap();
    replace(&file, &whole[..whole.len() / 2]);
    let line = eventually("the log names the file", async || {
        let log = gateway.log();
        log.lines()
            .find(|line| line.contains("is damaged"))
            .map(str::to_owned)
    })
    .await;
    assert!(
        line.contains("keys.json") && line.contains("stay in force"),
        "{line}"
    );
    assert_eq!(call(&gateway, &key, "project_list").await.0, 200);
    let output = keys(&gateway, &["list"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("is damaged") && told.lines().count() == 1,
        "{told}"
    );

    let starts = Gateway::empty()
        .config(json!({"keys": {"file": file}}))
        .spawn();
    let status = starts.ended().await;
    assert!(!status.success());
    assert!(
        starts.log().contains("keys.json: is damaged"),
        "{}",
        starts.log()
    );
    // Reported once, and a repaired file is read.
    assert_eq!(gateway.log().matches("is damaged").count(), 1);
    replace(&file, &whole);
    let (next, _) = create(&gateway, &["--scope", "read"]);
    is_known(&gateway, &next).await;
    assert_eq!(call(&gateway, &key, "project_list").await.0, 200);
}

/// Puts another file in a file's place, in one step.
fn replace(file: &Path, text: &str) {
    let next = file.with_extension("next");
    fs::write(&next, text).unwrap();
    fs::rename(&next, file).unwrap();
}

#[tokio::test]
async fn the_management_tools_make_and_revoke_keys_that_count_at_once() {
    let (builder, address) = with_manager(Gateway::with_tools([("work", "work.py", PROJECTS)]));
    // A token of the key's name is another principal.
    let tokens = json!([{"name": "ci", "sha256": sha256("static"), "namespaces": ["work"]}]);
    let scopes = json!({"deploy": ["project_create", "other"]});
    let builder =
        builder.config(json!({"admission": {"tokens": tokens}, "relay": {"scopes": scopes}}));
    let gateway = builder.start().await;
    let manager = Manager::open(address).await;
    let wanted =
        json!({"name": "ci", "scopes": ["deploy"], "namespaces": ["work"], "expires": "1h"});
    let made = manager.call("token_create", wanted).await.value();
    let (key, id) = (made["token"].as_str().unwrap(), made["id"].clone());
    assert_eq!(listed(&gateway, key).await, ["project_create", "other"]);
    let listing = manager.call("token_list", json!({})).await.value();
    assert_eq!(listing["tokens"][0]["id"], id);
    assert!(!listing.to_string().contains(key));
    let unknown = json!({"name": "ci", "scopes": ["rad"]});
    let unknown = manager.call("token_create", unknown).await;
    assert!(
        unknown.error().contains("admin, deploy, read, write"),
        "{unknown:?}"
    );

    // A scope that the configuration changes is another one with the next request.
    gateway.reconfigure(json!({"relay": {"scopes": {"deploy": ["other"]}}}));
    gateway.signal(Signal::HUP);
    eventually("the scope is another one", async || {
        (listed(&gateway, key).await == ["other"]).then_some(())
    })
    .await;

    let revoked = manager
        .call("token_revoke", json!({"id": id}))
        .await
        .value();
    assert_eq!(revoked["state"], "revoked");
    assert_eq!(
        call(&gateway, key, "other").await.0,
        401,
        "with the next request"
    );
    assert_eq!(call(&gateway, "static", "other").await.0, 200);
    // No pattern opens the management tools, whatever the scope.
    let made = json!({"name": "all", "scopes": ["admin"], "namespaces": ["*"]});
    let made = manager.call("token_create", made).await.value();
    let request = gateway.client.post(format!("http://{address}/mcp"));
    let request = request.bearer_auth(made["token"].as_str().unwrap());
    let request = request.header("Accept", "application/json, text/event-stream");
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(request.json(&list).send().await.unwrap().status(), 403);
}

/// A key whose scopes fit no tool is made all the same, and its maker reads a scope that would fit.
#[tokio::test]
async fn a_key_that_opens_no_tool_says_so_when_it_is_made() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("many.toml");
    fs::write(
        &file,
        "[[servers]]\nnamespace = \"in_calc\"\nfrom = \"calc\"\n",
    )
    .unwrap();
    let (builder, address) = with_manager(Gateway::with_tools([("calc", "calc.py", tools::MATH)]));
    // The aggregate's own tools are open to every key, and lead to nothing without another one.
    let builder = builder.config(json!({"toolman": {"many": {"config": file}}}));
    let gateway = builder.start().await;
    eventually("the aggregate has its member", async || {
        let condition = crate::conditions::ready(&gateway, "many").await;
        (condition["state"] == "ready").then_some(())
    })
    .await;
    let manager = Manager::open(address).await;
    let make = async |scope: &str, namespace: &str| {
        let wanted = json!({"name": "ci", "scopes": [scope], "namespaces": [namespace]});
        manager.call("token_create", wanted).await.value()
    };
    let made = make("read", "calc").await;
    let notes = made["notes"].to_string();
    assert!(
        notes.contains("tools of calc fits the patterns of scope read"),
        "{made}"
    );
    let example = notes
        .split_once("my-scope: ")
        .and_then(|(_, rest)| rest.split_once(']'));
    let example = example.map(|(patterns, _)| format!("{patterns}]").replace('\\', ""));
    let patterns: Value = serde_json::from_str(&example.unwrap()).unwrap();
    assert_eq!(
        listed_in(&gateway, made["token"].as_str().unwrap(), "calc").await,
        [""; 0]
    );

    let config = gateway.data.path().join("tooldock.test.yaml");
    let command = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tooldock"))
            .args(arguments)
            .args(["-c", config.to_str().unwrap()])
            .env_clear()
            .env("DATA_DIR", gateway.data_dir())
            .env("BEARER_TOKEN", TOKEN)
            .env("MANAGER_INTERNAL_TOKEN", MANAGER_TOKEN)
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{told}");
        (told, String::from_utf8(output.stdout).unwrap())
    };
    let create = ["keys", "create", "--name", "ci", "--scope"];
    let (told, _) = command(&[&create[..], &["read"]].concat());
    assert!(
        told.contains("tools of calc, many fits the patterns of scope read"),
        "{told}"
    );
    let (told, _) = command(&[&create[..], &["admin"]].concat());
    assert_eq!(told, "");
    let (_, reached) = command(&["explain", "--as", "bearer"]);
    assert!(reached.contains("\n  calc: "), "{reached}");

    // The scope of the example opens tools.
    gateway.reconfigure(json!({"relay": {"scopes": {"my-scope": patterns}}}));
    gateway.signal(Signal::HUP);
    let wanted = json!({"name": "ci", "scopes": ["my-scope"], "namespaces": ["calc"]});
    let made = eventually("the scope is known", async || {
        let made = manager.call("token_create", wanted.clone()).await;
        (made.result["isError"] != true).then(|| made.value())
    })
    .await;
    assert_eq!(made.get("notes"), None, "{made}");
    assert_ne!(
        listed_in(&gateway, made["token"].as_str().unwrap(), "calc").await,
        [""; 0]
    );
    let made = make("admin", "no-such").await;
    let notes = made["notes"].to_string();
    assert!(
        notes.contains("no namespace that is served fits no-such"),
        "{made}"
    );
}

/// `keys create` asks a gateway behind a certificate of its own, and says why when it cannot.
#[tokio::test]
async fn a_new_key_is_explained_over_tls_or_the_reason_is_told() {
    let folder = tempfile::TempDir::new().unwrap();
    tls::write_certificate(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (secure, metrics) = (free_address(), free_address());
    // The plain listener, by which the test knows that the gateway serves, is in the gateway's configuration alone.
    let plain = free_address();
    let pair = json!({"cert": file("cert.pem"), "key": file("key.pem")});
    let encrypted =
        json!({"name": "secure", "address": secure.to_string(), "profile": "core", "tls": pair});
    let gateway = Gateway::with_tools([("work", "work.py", PROJECTS)])
        .listening(plain, metrics)
        .config(json!({"listeners": [
            {"name": "core", "address": plain.to_string(), "profile": "core"}, encrypted,
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"}]}))
        .start()
        .await;
    let config = folder.path().join("asking.yaml");
    let asked_at = |listener: Value| {
        fs::write(&config, json!({"listeners": [listener]}).to_string()).unwrap();
    };
    let create = |more: &[&str], tokens: &[(&str, &str)]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tooldock"))
            .args(["keys", "create", "--name", "ci", "--scope", "read"])
            .args(["--namespaces", "no-such", "-c", config.to_str().unwrap()])
            .args(more)
            .arg("--data-dir")
            .arg(gateway.data_dir())
            .env_clear()
            .envs(tokens.iter().copied())
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        let is_made = String::from_utf8(output.stdout).unwrap().contains("key: ");
        (output.status.code(), is_made, told)
    };
    let tokens = [
        ("BEARER_TOKEN", TOKEN),
        ("MANAGER_INTERNAL_TOKEN", MANAGER_TOKEN),
    ];
    asked_at(encrypted.clone());
    let explained = "no namespace that is served fits no-such";
    for (more, tokens, says) in [
        (&["--ca", &file("cert.pem")][..], &tokens[..], explained),
        (&["--insecure"], &tokens, explained),
        (&[], &tokens, "--ca"),
        (&["--insecure"], &[], "MANAGER_INTERNAL_TOKEN"),
    ] {
        let (code, is_made, told) = create(more, tokens);
        assert!(code == Some(0) && is_made, "{more:?}: {told}");
        assert!(told.contains(says), "{more:?}: {told}");
        assert_eq!(told.lines().count(), 1, "{more:?}: {told}");
        assert!(
            !told.contains(TOKEN) && !told.contains(MANAGER_TOKEN),
            "{told}"
        );
    }
    let refused = |more: &[&str], says: &str| {
        let (code, is_made, told) = create(more, &tokens);
        assert!(code == Some(2) && !is_made, "{more:?}: {told}");
        assert!(told.contains(says), "{more:?}: {told}");
    };
    refused(&["--ca", "/no/such/file"], "/no/such/file");
    refused(&["--ca", &file("cert.pem"), "--insecure"], "--insecure");
    let mut elsewhere = encrypted;
    elsewhere["address"] = json!("192.0.2.1:443");
    asked_at(elsewhere);
    refused(&["--insecure"], "no address of this machine");
    let made = keys(&gateway, &["list", "--json"]);
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(made.as_array().unwrap().len(), 4, "{made}");
}

#[tokio::test]
async fn explain_names_the_rule_that_refuses_and_is_right_about_every_tool() {
    let (builder, address) = with_manager(Gateway::with_tools([("work", "work.py", PROJECTS)]));
    let overrides = json!({"work": {"tools_deny": ["project_list"], "principals": ["key:*"]}});
    let tokens = json!([{"name": "ops", "sha256": sha256("static"), "namespaces": ["work"]}]);
    let builder = builder
        .config(json!({"namespaces": {"overrides": overrides}, "admission": {"tokens": tokens}}));
    let gateway = builder.start().await;
    let (key, id) = create(
        &gateway,
        &["--scope", "write,read", "--networks", "127.0.0.1"],
    );
    let (status, _) = eventually("the key is let in", async || {
        let answer = call(&gateway, &key, "project_list").await;
        (answer.0 != 401).then_some(answer)
    })
    .await;
    assert_ne!(status, 200);
    let config = gateway.data.path().join("tooldock.test.yaml");
    let explain = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tooldock"))
            .arg("explain")
            .args(arguments)
            .args(["--namespace", "work", "-c", config.to_str().unwrap()])
            .env_clear()
            .env("DATA_DIR", gateway.data_dir())
            .env("BEARER_TOKEN", TOKEN)
            .env("MANAGER_INTERNAL_TOKEN", MANAGER_TOKEN)
            .output()
            .unwrap();
        let told = [&output.stdout[..], &output.stderr[..]].concat();
        (output.status.code(), String::from_utf8(told).unwrap())
    };
    let (code, told) = explain(&["--as", &id, "--json"]);
    assert_eq!(code, Some(0), "{told}");
    let answer: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&answer["principal"], &answer["allowed"]),
        (&json!("key:ci"), &json!(true))
    );
    let allowed: Vec<_> = answer["tools"].as_array().unwrap().iter().collect();
    assert_eq!(allowed.len(), 3);
    let shown = listed(&gateway, &key).await;
    for tool in allowed {
        let name = tool["name"].as_str().unwrap();
        let is_shown = shown.iter().any(|it| it == name);
        assert_eq!(tool["allowed"], is_shown, "{tool}");
    }
    let (code, told) = explain(&["--as", &id, "--tool", "project_list"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(
        told.contains("key:ci") && told.contains("may not call project_list"),
        "{told}"
    );
    let refuses: Vec<_> = told.lines().filter(|it| it.contains("REFUSES")).collect();
    assert_eq!(refuses.len(), 1, "{told}");
    assert!(refuses[0].contains("tools_deny"), "{told}");
    assert!(
        told.contains("the key counts only from 127.0.0.1"),
        "{told}"
    );
    let (_, told) = explain(&["--as", "key:ci", "--tool", "other"]);
    assert!(
        told.contains("REFUSES  scopes: write, read does not open other"),
        "{told}"
    );
    let (_, told) = explain(&["--as", "ops"]);
    assert!(
        told.contains("REFUSES  principals of the namespace"),
        "{told}"
    );
    // No listener has `auth: none`, so requests without a credential are refused.
    let (_, told) = explain(&["--as", "anonymous"]);
    assert!(
        told.contains("anonymous (the credential of anonymous) may not use work")
            && told.contains("REFUSES  credential: anonymous does not count"),
        "{told}"
    );
    let ask = |variables: &[(&str, &str)]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tooldock"))
            .args(["explain", "-c", config.to_str().unwrap()])
            .env_clear()
            .env("DATA_DIR", gateway.data_dir())
            .env("MANAGER_INTERNAL_TOKEN", MANAGER_TOKEN)
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
    };
    let listed = ask(&[("BEARER_TOKEN", TOKEN)]);
    assert!(
        listed.contains("anonymous  (none, not admitted by any listener)"),
        "{listed}"
    );
    let told = ask(&[]);
    assert!(told.contains("BEARER_TOKEN is not set"), "{told}");
    let (code, told) = explain(&["--as", "nobody"]);
    assert_eq!(code, Some(1));
    assert!(
        told.contains("belongs to \"nobody\"") && told.lines().count() == 1,
        "{told}"
    );
    assert!(told.contains("key:ci") && told.contains("ops"), "{told}");

    // The management tool says the same, also of a key that counts no more.
    revoke(&gateway, &id);
    let manager = Manager::open(address).await;
    let asked = json!({"as": id, "namespace": "work", "tool": "other"});
    let answer = eventually("the gateway knows that the key is revoked", async || {
        let answer = manager.call("explain", asked.clone()).await.value();
        (answer["rules"][0]["allows"] == false).then_some(answer)
    })
    .await;
    assert_eq!(answer["rules"][0]["rule"], "credential");
    assert_eq!(answer["allowed"], false);
    // Requests without the manager's token are refused.
    let asked = gateway
        .request("POST", "/explain")
        .json(&asked)
        .send()
        .await;
    assert_eq!(asked.unwrap().status(), 403);
}

/// An aggregate of two namespaces, all of whose tools are on.
const BOTH: &str = r#"
active_toolsets = ["*"]

[[servers]]
namespace = "work"
from = "work"

[[servers]]
namespace = "closed"
from = "closed"
"#;

/// The aggregate above, once more behind another one.
const OUTER: &str = r#"
active_toolsets = ["*"]

[[servers]]
namespace = "in"
from = "both"
"#;

#[tokio::test]
async fn explain_and_rest_know_of_an_aggregate_what_its_members_say() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        file
    };
    let aggregates = json!({
        "both": {"config": file("both.toml", BOTH)},
        "outer": {"config": file("outer.toml", OUTER)},
    });
    let overrides = json!({
        "closed": {"principals": ["bearer"]},
    });
    let house = [
        ("work", "work.py", PROJECTS),
        ("closed", "closed.py", PROJECTS),
    ];
    let (builder, address) = with_manager(Gateway::with_tools(house));
    let config = json!({"toolman": aggregates, "namespaces": {"overrides": overrides}});
    let gateway = builder.config(config).start().await;
    let (key, id) = create(&gateway, &["--scope", "write,read"]);
    is_known(&gateway, &key).await;
    let manager = Manager::open(address).await;
    let explain = async |namespace: &str, tool: Option<&str>| {
        let asked = json!({"as": id, "namespace": namespace, "tool": tool});
        manager.call("explain", asked).await.value()
    };
    let refused_by = |answer: &Value| -> Vec<String> {
        let rules = answer["rules"].as_array().unwrap().iter();
        let refuse = rules.filter(|rule| rule["allows"] == false);
        refuse
            .map(|rule| rule["rule"].as_str().unwrap().to_owned())
            .collect()
    };

    for (tool, rules) in [
        ("in_work_project_list", &[][..]),
        ("in_work_other", &["scopes of the member work"]),
        (
            "in_closed_project_list",
            &["principals of the namespace of the member closed"],
        ),
    ] {
        let answer = eventually("the members are known", async || {
            let answer = explain("outer", Some(tool)).await;
            answer["notes"].is_null().then_some(answer)
        })
        .await;
        assert_eq!(refused_by(&answer), rules, "{answer:#}");
        assert_eq!(answer["allowed"], rules.is_empty(), "{answer:#}");
    }
    for aggregate in ["both", "outer"] {
        let explained = explain(aggregate, None).await;
        let tools = explained["tools"].as_array().unwrap().iter();
        let mut allowed: Vec<_> = tools
            .filter(|tool| tool["allowed"] == true)
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect();
        let session = Session::start_as(&gateway, aggregate, "2025-11-25", &key, json!({})).await;
        let over_mcp = session.request(1, "tools/list", json!({})).await;
        let mut over_mcp: Vec<_> = over_mcp["result"]["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect();
        let mut over_rest = listed_in(&gateway, &key, aggregate).await;
        for names in [&mut allowed, &mut over_mcp, &mut over_rest] {
            names.sort();
        }
        assert_eq!(allowed, over_mcp, "{explained:#}");
        assert_eq!(over_rest, over_mcp);
    }
    let system = explain("_system", None).await;
    let rule = "namespaces of the credential";
    assert_eq!(refused_by(&system), [rule], "{system:#}");
}

#[tokio::test]
async fn an_aggregate_refuses_a_closed_tool_and_a_missing_one_in_the_same_words() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        file
    };
    let aggregates = json!({
        "both": {"config": file("both.toml", BOTH)},
        "outer": {"config": file("outer.toml", OUTER)},
    });
    let house = [
        ("work", "work.py", PROJECTS),
        ("closed", "closed.py", PROJECTS),
    ];
    let limit = json!({
        "key": ["principal", "tool"], "rate": 1, "burst": 1000, "unit": "tool_call", "namespace": "both",
    });
    let config = json!({"toolman": aggregates, "admission": {"rate_limits": [limit]}});
    let gateway = Gateway::with_tools(house).config(config).start().await;
    let (key, _) = create(&gateway, &["--scope", "write,read"]);
    is_known(&gateway, &key).await;
    for (aggregate, shown, closed, missing) in [
        ("both", "work_project_list", "work_other", "work_nothing"),
        (
            "outer",
            "in_work_project_list",
            "in_work_other",
            "in_work_nothing",
        ),
    ] {
        eventually("the members are known", async || {
            let names = listed_in(&gateway, &key, aggregate).await;
            names.iter().any(|it| it == shown).then_some(())
        })
        .await;
        let session = Session::start_as(&gateway, aggregate, "2025-11-25", &key, json!({})).await;
        let over_mcp = async |tool: &str| {
            let params = json!({"name": tool, "arguments": {}});
            let mut answer = session.request(1, "tools/call", params).await;
            let details = "/result/_meta/tooldock~1error/details";
            if let Some(details) = answer.pointer_mut(details) {
                // Each call has a request id of its own.
                details["request_id"].take();
            }
            let answer = answer.to_string();
            assert!(answer.contains(&format!("the tool {tool}")), "{answer}");
            answer.replace(tool, "TOOL")
        };
        assert_eq!(over_mcp(closed).await, over_mcp(missing).await);
        let over_rest = async |tool: &str| {
            let request = gateway.client.post(gateway.url(&format!("/tools/{tool}")));
            let request = request.bearer_auth(&key).header("X-Namespace", aggregate);
            let answer = request.json(&json!({})).send().await.unwrap();
            let mut names: Vec<_> = answer.headers().keys().map(ToString::to_string).collect();
            names.sort();
            let head = (answer.status().as_u16(), names);
            let body: Value = answer.json().await.unwrap();
            let told = format!("{} {}", body["error"]["code"], body["error"]["message"]);
            assert!(told.contains(&format!("the tool {tool}")), "{body}");
            (head, told.replace(tool, "TOOL"))
        };
        let refused = over_rest(closed).await;
        assert_eq!(refused.0.0, 403, "{refused:?}");
        assert_eq!(refused, over_rest(missing).await);
    }
}

#[tokio::test]
async fn keys_of_a_configured_token_open_no_more_than_its_entry_and_end_with_it() {
    let static_token = "a-static-token";
    let tokens = |token: &str, namespaces: &[&str]| json!([{"name": "ops", "sha256": sha256(token), "namespaces": namespaces}]);
    let own = &["_system", "work"][..];
    let (builder, address) = with_manager(Gateway::with_tools([
        ("work", "work.py", PROJECTS),
        ("calc", "math.py", tools::MATH),
    ]));
    let config = json!({"admission": {"tokens": tokens(static_token, own)}});
    let gateway = builder.config(config).start().await;
    let manager = Manager::open_as(address, static_token).await;
    for (namespaces, name) in [(json!(["*", "_system"]), "ci"), (json!(["calc"]), "ci")] {
        let wide = json!({"name": name, "scopes": ["admin"], "namespaces": namespaces});
        let refused = manager.call("token_create", wide).await;
        assert!(
            refused.error().contains("_system, work alone"),
            "{refused:?}"
        );
    }
    let made = manager.call("token_create", json!({"name": "ci", "scopes": ["admin"]}));
    let made = made.await.value();
    assert_eq!(made["principal"], "key:token:ops/ci");
    assert_eq!(made["made_by"], "ops");
    assert_eq!(made["namespaces"], json!(own));
    let key = made["token"].as_str().unwrap().to_owned();
    let child = Manager::open_as(address, &key).await;
    let child = child.call(
        "token_create",
        json!({"name": "deeper", "scopes": ["read"], "namespaces": ["work"]}),
    );
    let child = child.await.value();
    assert_eq!(child["principal"], "key:token:ops/ci/deeper");
    let child = child["token"].as_str().unwrap().to_owned();
    // The operator's token makes keys as before.
    let operator = Manager::open(address).await;
    let free = json!({"name": "ci", "scopes": ["read"], "namespaces": ["*"]});
    let free = operator.call("token_create", free).await.value();
    assert_eq!(
        (&free["principal"], &free["made_by"]),
        (&json!("key:ci"), &Value::Null)
    );
    let free = free["token"].as_str().unwrap().to_owned();
    assert_eq!(call(&gateway, &key, "project_list").await.0, 200);

    for (entries, counts) in [
        // Another token under the name, fewer namespaces, none at all, and the entry again.
        (tokens("another-token", own), false),
        (tokens(static_token, own), true),
        (tokens(static_token, &["work"]), false),
        (tokens(static_token, &["*", "_system"]), true),
        (json!([]), false),
    ] {
        gateway.reconfigure(json!({"admission": {"tokens": entries}}));
        gateway.signal(Signal::HUP);
        eventually("the keys follow the entry", async || {
            let status = call(&gateway, &key, "project_list").await.0;
            (status == if counts { 200 } else { 401 }).then_some(())
        })
        .await;
        let status = call(&gateway, &child, "project_list").await.0;
        assert_eq!(status == 200, counts, "{entries}");
        assert_eq!(call(&gateway, &free, "project_list").await.0, 200);
    }
    let operator = Manager::open(address).await;
    let listed = operator.call("token_list", json!({})).await.value();
    let listed = listed["tokens"].as_array().unwrap();
    let of = |id: &Value| listed.iter().find(|it| it["id"] == *id).unwrap();
    assert_eq!(of(&made["id"])["state"], "revoked");
}

#[test]
fn keys_are_made_before_the_first_start_and_listed_as_a_table() {
    let folder = tempfile::TempDir::new().unwrap();
    let data = folder.path().join("data");
    let made = keys_in(
        &data,
        &[
            "create",
            "--name",
            "ci",
            "--scope",
            "read,write",
            "--expires",
            "90d",
        ],
    );
    let shown = String::from_utf8(made.stdout).unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let key = shown
        .lines()
        .find_map(|line| line.strip_prefix("key: "))
        .unwrap();
    let id = shown
        .lines()
        .find_map(|line| line.strip_prefix("id:  "))
        .unwrap();
    let listed = keys_in(&data, &["list"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains(id) && listed.contains("read,write"),
        "{listed}"
    );
    assert!(
        !listed.contains(key) && !listed.contains(&key[16..]),
        "{listed}"
    );
    for (arguments, code, told) in [
        (
            &["create", "--name", "ci", "--scope", "rad"][..],
            2,
            "admin, read, write",
        ),
        (&["create", "--name", "a b", "--scope", "read"], 2, "name: "),
        (&["revoke", "aaaaaaaaaaaa"], 2, "no key with the id"),
        (&["revoke", key], 2, "not the id of a key"),
    ] {
        let output = keys_in(&data, arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(
            error.contains(told) && error.lines().count() == 1,
            "{error}"
        );
    }
    assert!(keys_in(&data, &["revoke", id]).status.success());
    let listed = keys_in(&data, &["list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed[0]["state"], "revoked");
}

#[tokio::test]
async fn explain_asks_over_tls_and_over_unix_sockets() {
    let folder = tempfile::TempDir::new().unwrap();
    tls::write_certificate(folder.path());
    let file = |name: &str| folder.path().join(name);
    let (plain, secure, metrics) = (free_address(), free_address(), free_address());
    let pair = json!({"cert": file("cert.pem"), "key": file("key.pem")});
    let encrypted =
        json!({"name": "secure", "address": secure.to_string(), "profile": "core", "tls": pair});
    let socket = format!("unix:{}", file("core.sock").display());
    let local = json!({"name": "local", "address": socket, "profile": "core"});
    let gateway = Gateway::with_tools([("work", "work.py", PROJECTS)])
        .listening(plain, metrics)
        .config(json!({
            "admission": {"internal_cidrs": ["127.0.0.1/32", "unix"]},
            "listeners": [
                {"name": "core", "address": plain.to_string(), "profile": "core"}, encrypted, local,
                {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"}]}))
        .start()
        .await;
    let explain = |listeners: &Value, arguments: &[&str]| {
        let config = file("asking.yaml");
        let admission = json!({"internal_cidrs": ["127.0.0.1/32", "unix"]});
        let text = json!({"listeners": listeners, "admission": admission}).to_string();
        fs::write(&config, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_tooldock"))
            .args(["explain", "-c", config.to_str().unwrap(), "--data-dir"])
            .arg(gateway.data_dir())
            .args(arguments)
            .env_clear()
            .env("BEARER_TOKEN", TOKEN)
            .env("MANAGER_INTERNAL_TOKEN", MANAGER_TOKEN)
            .output()
            .unwrap();
        let told = [&output.stdout[..], &output.stderr[..]].concat();
        (output.status.code(), String::from_utf8(told).unwrap())
    };
    let certificate = file("cert.pem");
    let certificate = certificate.to_str().unwrap();
    let url = format!("https://localhost:{}", secure.port());
    let by_address = format!("https://{secure}");
    let (encrypted, local) = (json!([encrypted]), json!([local]));
    // The listener of a configuration, whose certificate is for a name.
    for (listeners, arguments) in [
        (&encrypted, &["--ca", certificate][..]),
        (&encrypted, &["--insecure"]),
        (&local, &[]),
        (&local, &["--core", &url, "--ca", certificate]),
        (&local, &["--core", &by_address, "--insecure"]),
        (&encrypted, &["--core", &socket]),
        (&encrypted, &["--core", &socket.replace("unix:", "unix://")]),
    ] {
        let (code, told) = explain(listeners, arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {told}");
        assert!(told.contains("bearer  ("), "{arguments:?}: {told}");
    }
    for (arguments, code, says) in [
        // The system's authorities know nothing of it.
        (&[][..], 3, "--ca"),
        (&["--core", &by_address, "--ca", certificate], 3, "TLS"),
        (
            &["--core", "https://gw.example", "--insecure"],
            2,
            "--insecure",
        ),
        (&["--ca", "/no/such/file"], 2, "/no/such/file"),
        (&["--ca", certificate, "--insecure"], 2, "--insecure"),
        (&["--core", "ftp://localhost"], 2, "unix:/PATH"),
    ] {
        let (found, told) = explain(&encrypted, arguments);
        assert_eq!(found, Some(code), "{arguments:?}: {told}");
        assert!(told.contains(says), "{arguments:?}: {told}");
        assert!(
            !told.contains(TOKEN) && !told.contains(MANAGER_TOKEN),
            "{told}"
        );
    }
}
