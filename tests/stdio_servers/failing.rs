//! Servers that end or do not start: what their clients are told, and how they come back.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::client::Modern;
use super::misbehaving::{beside, fails};
use super::{
    called, health, is_gone, metric, pid, readiness, serving, shared_pid, silent_session, start,
    stray, with_servers, write_servers,
};
use crate::support::eventually;
use crate::support::session::Session;

/// How often a method is in a journal.
fn count(journal: &Path, what: &str) -> usize {
    let text = fs::read_to_string(journal).unwrap_or_default();
    text.lines().filter(|line| line.contains(what)).count()
}

/// A server that does not start while a file is there.
fn flaky(broken: &Path) -> Value {
    let stray = stray(&[]);
    let program = stray["command"].as_str().unwrap();
    let script = format!("[ -e '{}' ] && exit 1; exec '{program}'", broken.display());
    json!({"command": "sh", "args": ["-c", script]})
}

#[tokio::test]
async fn a_server_that_ends_at_once_is_reported_with_what_it_said_in_the_log() {
    let gateway = start(beside(&["--exit-at-start"], json!({}))).await;
    fails(&gateway, "pid", "worker_unavailable").await;
    let request = gateway
        .request("POST", "/tools/pid")
        .header("X-Namespace", "bad");
    let response = request.json(&json!({})).send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}});
    let (status, answer) = gateway.mcp("bad", initialize).await;
    assert_eq!(
        (status, &answer["error"]["data"]["code"]),
        (200, &json!("worker_unavailable")),
        "{answer}"
    );
    assert!(shared_pid(&gateway, "good").await > 0);
    eventually("its words are in the log", || async {
        gateway.log().contains("stray: not today").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_server_that_keeps_failing_is_left_alone_and_its_last_lists_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken");
    let gateway = serving(json!({"bad": flaky(&broken), "good": stray(&[])})).await;
    let list = || json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let (_, good_list) = gateway.mcp("bad", list()).await;
    assert!(good_list["result"]["tools"].is_array());
    let modern = Modern::new(&gateway, "bad");
    let modern_list = modern.request("tools/list", json!({})).await;
    fs::write(&broken, "").unwrap();
    gateway.call("bad", "crash", json!({})).await;
    eventually("the breaker is open", || async {
        let (status, body) = gateway.call("bad", "pid", json!({})).await;
        assert_eq!(
            (status, &body["error"]["code"]),
            (503, &json!("worker_unavailable")),
            "{body}"
        );
        (readiness(&gateway, "bad").await["server"]["breaker"] == "open").then_some(())
    })
    .await;
    assert_eq!(
        metric(&gateway, "tooldock_server_breaker", "bad").await,
        Some(2.0)
    );
    fails(&gateway, "pid", "worker_unavailable").await;
    assert_eq!(gateway.mcp("bad", list()).await.1, good_list);
    assert_eq!(modern.request("tools/list", json!({})).await, modern_list);
    let tools = gateway
        .request("GET", "/tools")
        .header("X-Namespace", "bad")
        .send()
        .await
        .unwrap();
    assert_eq!(tools.status(), 200);
    let health = health(&gateway).await;
    assert_eq!(
        health["failing"],
        json!([{"name": "bad", "code": "worker_unavailable"}])
    );
    assert!(shared_pid(&gateway, "good").await > 0);
    fs::remove_file(&broken).unwrap();
    eventually("it heals by itself", || async {
        (gateway.call("bad", "pid", json!({})).await.0 == 200).then_some(())
    })
    .await;
    assert_eq!(
        metric(&gateway, "tooldock_server_breaker", "bad").await,
        Some(0.0)
    );
    assert_eq!(readiness(&gateway, "bad").await["state"], "ready");
}

#[tokio::test]
async fn new_clients_are_let_in_while_a_known_server_is_down() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken");
    let gateway = serving(json!({"bad": flaky(&broken)})).await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert!(gateway.mcp("bad", list).await.1["result"]["tools"].is_array());
    fs::write(&broken, "").unwrap();
    gateway.call("bad", "crash", json!({})).await;
    let session = silent_session(&gateway, "bad").await;
    let answer = session.request(3, "tools/list", json!({})).await;
    assert!(answer["result"]["tools"].is_array(), "{answer}");
    let discover = Modern::new(&gateway, "bad")
        .request("server/discover", json!({}))
        .await;
    assert_eq!(
        discover["result"]["instructions"], "Keep away.",
        "{discover}"
    );
}

#[tokio::test]
async fn a_process_that_died_between_calls_is_replaced_unnoticed() {
    let gateway = start(beside(&[], json!({}))).await;
    let session = Session::start(&gateway, "bad", "2025-11-25").await;
    for _ in 0..2 {
        let (shared, own) = (
            shared_pid(&gateway, "bad").await,
            pid(&called(&session, "pid", json!({})).await),
        );
        for pid in [shared, own] {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        is_gone(shared).await;
        is_gone(own).await;
        assert_ne!(shared_pid(&gateway, "bad").await, shared);
        assert_ne!(pid(&called(&session, "pid", json!({})).await), own);
    }
}

#[tokio::test]
async fn a_call_whose_process_dies_is_not_run_twice_unless_its_tool_is_read_only() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, runs) in [(&["--journal"][..], 1), (&["--read-only", "--journal"], 2)] {
        let journal = folder.path().join(runs.to_string());
        let flags = [flags, &[journal.to_str().unwrap()]].concat();
        let gateway = start(beside(&flags, json!({}))).await;
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        assert!(gateway.mcp("bad", list).await.1["result"]["tools"].is_array());
        let before = shared_pid(&gateway, "bad").await;
        let (status, body) = gateway.call("bad", "crash", json!({})).await;
        assert_eq!(
            (status, &body["error"]["code"]),
            (503, &json!("worker_unavailable")),
            "{body}"
        );
        assert_eq!(count(&journal, r#""name":"crash""#), runs);
        let after = eventually("it serves again", || async {
            let (status, value) = gateway.call("bad", "pid", json!({})).await;
            (status == 200).then_some(value)
        })
        .await;
        assert_ne!(after, json!(before.to_string()));
        let restarts = metric(&gateway, "tooldock_server_restarts_total", "bad").await;
        assert!(restarts > Some(0.0));
    }
}

#[tokio::test]
async fn whoever_comes_first_starts_one_process_for_all() {
    let gateway = start(beside(&["--slow-start", "400"], json!({}))).await;
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let call = gateway
                .request("POST", "/tools/pid")
                .header("X-Namespace", "bad");
            tokio::spawn(call.json(&json!({})).send())
        })
        .collect();
    let mut pids = std::collections::BTreeSet::new();
    for call in calls {
        let answer = call.await.unwrap().unwrap();
        assert_eq!(answer.status(), 200);
        pids.insert(answer.json::<String>().await.unwrap());
    }
    assert_eq!(pids.len(), 1, "{pids:?}");
    let started = metric(&gateway, "tooldock_server_processes_started_total", "bad").await;
    assert_eq!(started, Some(1.0));
}

#[tokio::test]
async fn a_server_that_is_never_to_be_restarted_stays_down_and_says_so() {
    let gateway = start(beside(&[], json!({"restart": "never"}))).await;
    assert!(shared_pid(&gateway, "bad").await > 0);
    assert_eq!(gateway.call("bad", "crash", json!({})).await.0, 503);
    for _ in 0..2 {
        let (status, body) = gateway.call("bad", "pid", json!({})).await;
        assert_eq!(
            (status, &body["error"]["code"]),
            (503, &json!("worker_unavailable"))
        );
        assert!(body.to_string().contains("not restarted"), "{body}");
    }
    let started = metric(&gateway, "tooldock_server_processes_started_total", "bad").await;
    assert_eq!(started, Some(1.0));
    assert!(shared_pid(&gateway, "good").await > 0);
}

#[tokio::test]
async fn why_a_server_does_not_start_is_told_to_operators_and_something_to_do_to_clients() {
    let script = "echo starting >&2; echo \"no such tenant: $TENANT\" >&2; exit 3";
    let ends =
        json!({"command": "sh", "args": ["-c", script], "env": {"TENANT": "${TENANT_OF_TEST}"}});
    let servers = json!({
        "ends": ends,
        "missing": {"command": "no-such-server-here"},
        "unset": {"command": "sh", "env": {"TOKEN": "${NOT_SET_ANYWHERE}"}},
    });
    let builder = with_servers(servers).env("TENANT_OF_TEST", "hunter2-hunter2");
    let gateway = start(builder).await;
    for (name, why, said) in [
        (
            "ends",
            "exited with status 3 before it answered",
            Some("it said last: no such tenant: [redacted]"),
        ),
        (
            "missing",
            "no-such-server-here is not on PATH: install it",
            None,
        ),
    ] {
        let (status, body) = gateway.call(name, "pid", json!({})).await;
        assert_eq!(status, 503, "{body}");
        let told = body["error"]["message"].as_str().unwrap();
        assert!(told.contains(why), "{told}");
        assert!(
            told.contains("Try again later") && told.contains("GET /ready"),
            "{told}"
        );
        assert!(!told.contains("tenant"), "{told}");
        let reason = eventually("the reason is in /ready", || async {
            let entry = readiness(&gateway, name).await;
            entry["server"]["reason"].as_str().map(str::to_owned)
        })
        .await;
        assert!(reason.contains(why), "{reason}");
        assert!(said.is_none_or(|said| reason.contains(said)), "{reason}");
        eventually("the log says the same", || async {
            gateway.log().contains(&reason).then_some(())
        })
        .await;
    }
    let unset = readiness(&gateway, "unset").await;
    let message = unset["issues"][0]["message"].as_str().unwrap();
    assert!(
        message.contains("${NOT_SET_ANYWHERE} is set neither"),
        "{unset}"
    );

    let namespaces = gateway.request("GET", "/namespaces").send().await.unwrap();
    let namespaces: Value = namespaces.json().await.unwrap();
    let errors: BTreeMap<&str, &str> = namespaces
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| Some((it["name"].as_str()?, it["error"]["message"].as_str()?)))
        .collect();
    assert!(
        errors["ends"].contains("no such tenant: [redacted]"),
        "{errors:?}"
    );
    assert!(errors["missing"].contains("is not on PATH"), "{errors:?}");
    assert!(errors["unset"].contains("NOT_SET_ANYWHERE"), "{errors:?}");

    write_servers(
        gateway.data_dir(),
        &json!({"late": {"command": "npx-of-nobody"}}),
    );
    let report = gateway.reload().await;
    let failed: BTreeMap<&str, &str> = report["failed"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| Some((it["namespace"].as_str()?, it["message"].as_str()?)))
        .collect();
    for (name, why) in [
        ("late", "npx-of-nobody is not on PATH"),
        ("missing", "no-such-server-here is not on PATH"),
        ("ends", "no such tenant: [redacted]"),
        ("unset", "NOT_SET_ANYWHERE"),
    ] {
        assert!(failed[name].contains(why), "{failed:?}");
    }
    assert!(!gateway.log().contains("hunter2"));
}

#[tokio::test]
async fn a_server_that_keeps_ending_says_how_it_ended_last() {
    let gateway = start(beside(&[], json!({"restart": "never"}))).await;
    assert!(shared_pid(&gateway, "bad").await > 0);
    gateway.call("bad", "crash", json!({})).await;
    let reason = eventually("how it ended is known", || async {
        let entry = readiness(&gateway, "bad").await;
        entry["server"]["reason"].as_str().map(str::to_owned)
    })
    .await;
    assert!(
        reason.contains("a process of the server of namespace bad"),
        "{reason}"
    );
    assert!(
        reason.contains("exited with status") || reason.contains("signal"),
        "{reason}"
    );
}
