//! The operator's view of servers: metrics, readiness, the audit log, a log without secrets.

use std::fs;

use serde_json::{Value, json};

use super::client::Modern;
use super::{
    and, called, health, metric, readiness, serving, shared_pid, silent_session, start, stray,
    with_servers,
};
use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, eventually};

/// The audit lines written so far.
fn audit(gateway: &Gateway) -> Vec<Value> {
    let Ok(days) = fs::read_dir(gateway.data_dir().join("logs")) else {
        return Vec::new();
    };
    let texts = days.flatten().filter_map(|day| {
        let path = day.path();
        path.extension()
            .is_some_and(|it| it == "jsonl")
            .then(|| fs::read_to_string(path).ok())?
    });
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines
        .filter_map(|line| serde_json::from_str(&line).ok())
        .collect()
}

async fn audited(gateway: &Gateway, what: impl Fn(&Value) -> bool) -> Value {
    eventually("the audit line", || async {
        audit(gateway).into_iter().find(&what)
    })
    .await
}

#[tokio::test]
async fn metrics_follow_processes_calls_and_restarts_by_namespace() {
    let any = and(stray(&[]), json!({"warm": 0}));
    let gateway = serving(json!({"any": any, "quiet": stray(&[])})).await;
    shared_pid(&gateway, "any").await;
    let session = Session::start(&gateway, "any", "2025-11-25").await;
    called(&session, "pid", json!({})).await;
    let value = |name: &'static str| metric(&gateway, name, r#"namespace="any""#);
    assert_eq!(value("tooldock_server_processes_live").await, Some(2.0));
    assert_eq!(
        value("tooldock_server_processes_started_total").await,
        Some(2.0)
    );
    let calls = value("tooldock_server_call_seconds_count").await.unwrap();
    shared_pid(&gateway, "any").await;
    assert!(value("tooldock_server_call_seconds_count").await.unwrap() > calls);
    assert!(value("tooldock_server_wait_seconds_count").await > Some(0.0));
    assert_eq!(value("tooldock_server_breaker").await, Some(0.0));
    session.delete().await;
    eventually("the session's process is reaped", || async {
        (value("tooldock_server_processes_reaped_total").await == Some(1.0)).then_some(())
    })
    .await;
    gateway.call("any", "crash", json!({})).await;
    shared_pid(&gateway, "any").await;
    assert_eq!(value("tooldock_server_restarts_total").await, Some(1.0));
    assert_eq!(value("tooldock_server_processes_live").await, Some(1.0));
    let other = metric(
        &gateway,
        "tooldock_server_processes_started_total",
        r#"namespace="quiet""#,
    );
    assert_eq!(other.await, Some(1.0));
}

#[tokio::test]
async fn the_series_of_a_server_that_is_gone_go_with_it() {
    let gateway = serving(json!({"any": stray(&[])})).await;
    shared_pid(&gateway, "any").await;
    gateway.reconfigure(json!({"upstreams": {"stdio": {"any": {"enabled": false}}}}));
    gateway.signal(rustix::process::Signal::HUP);
    eventually("no series of it are left", || async {
        let text = gateway.metrics_text().await;
        let left = text
            .lines()
            .any(|line| line.starts_with("tooldock_server_") && line.contains("\"any\""));
        (!left).then_some(())
    })
    .await;
}

#[tokio::test]
async fn ready_tells_of_each_servers_state_era_and_processes() {
    let servers = json!({"old": stray(&[]), "new": stray(&["--era", "modern"]), "both": stray(&["--era", "dual"])});
    let gateway = serving(servers).await;
    for (namespace, era) in [("old", "legacy"), ("new", "modern"), ("both", "dual")] {
        shared_pid(&gateway, namespace).await;
        let ready = readiness(&gateway, namespace).await;
        assert_eq!(ready["state"], "ready", "{ready}");
        let server = &ready["server"];
        assert_eq!(
            (&server["era"], &server["breaker"]),
            (&json!(era), &json!("closed")),
            "{ready}"
        );
        assert_eq!(server["processes"]["serving"], 1, "{ready}");
        assert_eq!(server["waiting"], 0);
    }
    let health = health(&gateway).await;
    assert_eq!(
        (&health["status"], &health["failing"]),
        (&json!("ok"), &json!([]))
    );
}

#[tokio::test]
async fn every_request_that_goes_up_leaves_one_audit_line() {
    let gateway = serving(json!({"any": stray(&[])})).await;
    let session = silent_session(&gateway, "any").await;
    called(&session, "echo", json!({"message": "arguments-stay-out"})).await;
    let line = audited(&gateway, |it| it["tool"] == "echo").await;
    assert_eq!(
        (&line["namespace"], &line["transport"], &line["status"]),
        (&json!("any"), &json!("mcp"), &json!("ok"))
    );
    assert_eq!(line["protocol_version"], "2025-11-25");
    assert!(
        line["latency_ms"].is_u64() && line["arguments_blake3"].is_string(),
        "{line}"
    );
    assert!(
        line["session"].is_string() && !line.to_string().contains(&session.id),
        "{line}"
    );
    Modern::new(&gateway, "any")
        .request("resources/read", json!({"uri": "stray://counter"}))
        .await;
    let line = audited(&gateway, |it| it["method"] == "resources/read").await;
    assert_eq!(
        (&line["subject"], &line["protocol_version"]),
        (&json!("stray://counter"), &json!("2026-07-28"))
    );
    gateway.call("any", "fail", json!({})).await;
    let line = audited(&gateway, |it| it["tool"] == "fail").await;
    assert_eq!(
        (&line["transport"], &line["status"]),
        (&json!("rest"), &json!("upstream_error")),
        "{line}"
    );
    gateway.call("any", "crash", json!({})).await;
    let line = audited(&gateway, |it| it["tool"] == "crash").await;
    assert_eq!(line["status"], "worker_unavailable", "{line}");
    let all = audit(&gateway);
    assert_eq!(all.iter().filter(|it| it["tool"] == "echo").count(), 1);
    assert!(!json!(all).to_string().contains("arguments-stay-out"));
}

#[tokio::test]
async fn no_log_and_no_answer_holds_a_secret_even_when_all_is_logged() {
    let entry = and(
        stray(&[]),
        json!({"env": {"API_KEY": "${OUTSIDE_KEY}", "LITERAL": "literal-8802"}}),
    );
    let builder = with_servers(json!({"any": entry, "broken": and(stray(&["--exit-at-start"]), json!({"env": {"API_KEY": "${OUTSIDE_KEY}"}}))}))
        .env("OUTSIDE_KEY", "outside-8801")
        .env("LOG_LEVEL", "trace");
    let gateway = start(builder).await;
    let (_, key) = gateway.call("any", "env", json!({"name": "API_KEY"})).await;
    assert_eq!(key, "outside-8801");
    gateway.call("broken", "pid", json!({})).await;
    let session = Session::start(&gateway, "any", "2025-11-25").await;
    let mut call = session
        .call(4, "ask", json!({"message": "password?"}))
        .await;
    let question = call.message().await;
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"answer": "typed-8803"}}});
    session.post(&answer).await;
    call.message().await;
    let client = Modern::new(&gateway, "any").asked();
    let asked = client.call("ask", json!({})).await;
    let state = asked["requestState"].as_str().unwrap().to_owned();
    let ready = gateway
        .request("GET", "/ready")
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let reload = gateway.reload().await.to_string();
    let texts = [
        gateway.log(),
        gateway.metrics_text().await,
        ready,
        reload,
        json!(audit(&gateway)).to_string(),
    ];
    for secret in [
        "outside-8801",
        "literal-8802",
        "typed-8803",
        &state,
        &session.id,
        TOKEN,
    ] {
        for said in &texts {
            let line = said.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "{secret}: {line:?}");
        }
    }
    let arguments = fs::read(format!("/proc/{}/cmdline", gateway.pid())).unwrap();
    assert!(!String::from_utf8_lossy(&arguments).contains("8801"));
}

#[tokio::test]
async fn what_a_server_prints_on_standard_error_is_in_the_log_under_its_name() {
    let gateway = serving(json!({"any": stray(&[])})).await;
    gateway
        .call("any", "flood", json!({"target": "stderr", "bytes": 100}))
        .await;
    eventually("its words are there", || async {
        let log = gateway.log();
        let line = log.lines().find(|line| line.contains("noise noise"))?;
        assert!(line.contains("any"), "{line}");
        Some(())
    })
    .await;
}
