//! Servers that misbehave harm no other namespace, are reported clearly and leave nothing behind.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use super::{
    and, called, descendants, is_gone, metric, readiness, runs, shared_pid, start, stray, text,
    with_servers,
};
use crate::support::gateway::Builder;
use crate::support::session::Session;
use crate::support::{Gateway, eventually, eventually_within};

/// A server with these flags and one that behaves.
pub(super) fn beside(flags: &[&str], keys: Value) -> Builder {
    with_servers(json!({"bad": and(stray(flags), keys), "good": stray(&[])}))
}

fn with_timeout(builder: Builder, timeout: &str) -> Builder {
    builder.config(json!({"namespaces": {"overrides": {"bad": {"timeout": timeout}}}}))
}

fn call(tool: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}}})
}

/// A call over MCP that must fail as a tool's does, with this code.
pub(super) async fn fails(gateway: &Gateway, tool: &str, code: &str) {
    let (status, answer) = gateway.mcp("bad", call(tool)).await;
    assert_eq!(
        (status, &answer["result"]["isError"]),
        (200, &json!(true)),
        "{answer}"
    );
    assert_eq!(
        answer["result"]["structuredContent"]["code"],
        Value::Null,
        "not for 2025-03-26"
    );
    assert!(text(&answer["result"]).contains(code), "{answer}");
}

/// The most memory the gateway ever had, in bytes.
fn peak_memory(gateway: &Gateway) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn a_server_that_starts_slowly_is_waited_for_while_others_answer() {
    let gateway = start(beside(&["--slow-start", "1500"], json!({}))).await;
    let bad = shared_pid(&gateway, "bad");
    let good = async {
        let pid = shared_pid(&gateway, "good").await;
        let ready = readiness(&gateway, "bad").await;
        assert_eq!(ready["state"], "starting", "{ready}");
        pid
    };
    let (bad, good) = tokio::join!(bad, good);
    assert!(runs(bad) && runs(good));
    assert!(metric(&gateway, "tooldock_server_wait_seconds_sum", "bad").await > Some(0.5));
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up_in_time_and_ended() {
    let keys = json!({"connect_timeout": "600ms", "probe_timeout": "200ms"});
    let gateway = start(beside(&["--never-start"], keys)).await;
    let (status, body) = gateway.call("bad", "pid", json!({})).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (503, &json!("worker_unavailable")),
        "{body}"
    );
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("in time"), "{message}");
    fails(&gateway, "pid", "worker_unavailable").await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let (status, answer) = gateway.mcp("bad", list).await;
    assert_eq!(
        (status, &answer["error"]["data"]["code"]),
        (200, &json!("worker_unavailable")),
        "{answer}"
    );
    assert!(shared_pid(&gateway, "good").await > 0);
    let ready = readiness(&gateway, "bad").await;
    assert_eq!(ready["state"], "failed", "{ready}");
}

#[tokio::test]
async fn a_call_that_hangs_times_out_alone() {
    let gateway = start(with_timeout(beside(&[], json!({})), "2s")).await;
    let before = shared_pid(&gateway, "bad").await;
    let (status, body) = gateway.call("bad", "hang", json!({})).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (504, &json!("execution_timeout")),
        "{body}"
    );
    fails(&gateway, "hang", "execution_timeout").await;
    assert_eq!(shared_pid(&gateway, "bad").await, before);
}

#[tokio::test]
async fn a_server_that_hangs_altogether_is_replaced() {
    let gateway = start(with_timeout(beside(&[], json!({})), "2s")).await;
    let before = shared_pid(&gateway, "bad").await;
    let hung = gateway.call("bad", "stop_self", json!({})).await;
    assert_eq!(hung.0, 504);
    assert!(shared_pid(&gateway, "good").await > 0);
    // It is stopped, so it can hear nothing but SIGKILL.
    let limit = Duration::from_secs(60);
    eventually_within(limit, "another process answers", || async {
        let (status, value) = gateway.call("bad", "pid", json!({})).await;
        assert!(matches!(status, 200 | 503 | 504), "{value}");
        (status == 200).then_some(())
    })
    .await;
    is_gone(before).await;
}

#[tokio::test]
async fn a_flood_on_either_output_harms_nobody() {
    let gateway = start(beside(&[], json!({}))).await;
    let before = shared_pid(&gateway, "bad").await;
    for target in ["stdout", "stderr"] {
        let flood = gateway.call("bad", "flood", json!({"target": target, "bytes": 8 << 20}));
        let good = async {
            for _ in 0..20 {
                shared_pid(&gateway, "good").await;
            }
        };
        let (flood, ()) = tokio::join!(flood, good);
        assert_eq!(flood, (200, json!("flooded")));
    }
    assert_eq!(shared_pid(&gateway, "bad").await, before);
    assert!(
        gateway.log().len() < 1 << 20,
        "{} bytes of log",
        gateway.log().len()
    );
    assert!(metric(&gateway, "tooldock_server_oddities_total", "bad").await > Some(1000.0));
    eventually("what was not logged is counted", || async {
        let suppressed = metric(&gateway, "tooldock_server_output_suppressed_total", "bad").await;
        (suppressed > Some(1000.0)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_server_that_never_stops_complaining_still_answers() {
    let gateway = start(beside(&["--flood-stderr"], json!({}))).await;
    for _ in 0..10 {
        assert!(shared_pid(&gateway, "bad").await > 0);
        assert!(shared_pid(&gateway, "good").await > 0);
    }
    assert!(
        gateway.log().len() < 1 << 20,
        "{} bytes of log",
        gateway.log().len()
    );
}

#[tokio::test]
async fn a_server_that_complains_at_length_about_an_unknown_question_costs_one_line() {
    // As the Python SDK does: a page on standard error, then an error, then all is well.
    let server = r#"
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    answer = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] == "initialize":
        about = {"name": "pages", "version": "1"}
        answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    elif request["method"] == "tools/list":
        answer["result"] = {"tools": []}
    elif request["method"] == "ping":
        answer["result"] = {}
    else:
        for number in range(71):
            print("complaint", number, file=sys.stderr)
        sys.stderr.flush()
        answer["error"] = {"code": -32602, "message": "Invalid request parameters"}
    print(json.dumps(answer), flush=True)
"#;
    let entry = json!({"command": "python3", "args": ["-c", server]});
    let gateway = start(with_servers(json!({"pages": entry}))).await;
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let (status, answer) = gateway.mcp("pages", list).await;
    assert_eq!((status, &answer["result"]["tools"]), (200, &json!([])));
    eventually("it is told", || async {
        let log = gateway.log();
        log.contains("71 lines of the server are left out")
            .then_some(())
    })
    .await;
    assert!(!gateway.log().contains("complaint"), "{}", gateway.log());
}

#[tokio::test]
async fn lines_that_are_no_messages_are_counted_and_passed_over() {
    let gateway = start(beside(&[], json!({}))).await;
    let said = gateway.call("bad", "chatter", json!({"lines": 500})).await;
    assert_eq!(said, (200, json!("said")));
    assert_eq!(
        metric(&gateway, "tooldock_server_oddities_total", "bad").await,
        Some(500.0)
    );
    assert!(gateway.log().matches("Listening on port").count() < 50);
}

#[tokio::test]
async fn a_line_of_fifty_megabytes_is_too_large_for_its_call_alone() {
    let gateway = start(beside(&[], json!({}))).await;
    let before = shared_pid(&gateway, "bad").await;
    let memory = peak_memory(&gateway);
    let huge = gateway.call("bad", "huge", json!({"bytes": 50 << 20}));
    let good = async {
        for _ in 0..20 {
            shared_pid(&gateway, "good").await;
        }
    };
    let ((status, body), ()) = tokio::join!(huge, good);
    assert_eq!(
        (status, &body["error"]["code"]),
        (500, &json!("result_too_large")),
        "{body}"
    );
    let huge = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "huge", "arguments": {"bytes": 50 << 20}}});
    let (status, answer) = gateway.mcp("bad", huge).await;
    assert_eq!((status, &answer["result"]["isError"]), (200, &json!(true)));
    assert!(
        text(&answer["result"]).contains("result_too_large"),
        "{answer}"
    );
    assert_eq!(shared_pid(&gateway, "bad").await, before);
    let grown = peak_memory(&gateway).saturating_sub(memory);
    assert!(
        grown < 40 << 20,
        "{grown} bytes for a line that is thrown away"
    );
    // Up to the limit it passes.
    let (status, value) = gateway.call("bad", "huge", json!({"bytes": 9 << 20})).await;
    assert_eq!((status, value.as_str().map(str::len)), (200, Some(9 << 20)));
}

#[tokio::test]
async fn whoever_ignores_the_end_is_ended_with_all_it_started() {
    let flags = ["--ignore-eof", "--ignore-term", "--fork", "2"];
    let gateway = start(beside(&flags, json!({"warm": 0}))).await;
    assert!(shared_pid(&gateway, "bad").await > 0);
    let before = descendants(gateway.pid());
    let session = Session::start(&gateway, "bad", "2025-11-25").await;
    assert_eq!(
        text(&called(&session, "fork", json!({"n": 2, "setsid": true})).await),
        "forked"
    );
    let added: Vec<i32> = descendants(gateway.pid())
        .difference(&before)
        .copied()
        .collect();
    // A guard, the server, and four children.
    assert!(added.len() >= 6, "{added:?}");
    session.delete().await;
    for pid in added {
        is_gone(pid).await;
    }
    assert!(metric(&gateway, "tooldock_server_processes_killed_total", "bad").await >= Some(1.0));
    let rest = descendants(gateway.pid());
    gateway.signal(rustix::process::Signal::TERM);
    gateway.ended().await;
    for pid in rest {
        is_gone(pid).await;
    }
}

#[tokio::test]
async fn a_stopped_process_ends_with_the_gateway() {
    let gateway = start(with_timeout(beside(&[], json!({})), "300ms")).await;
    assert_eq!(gateway.call("bad", "stop_self", json!({})).await.0, 504);
    let all = descendants(gateway.pid());
    gateway.signal(rustix::process::Signal::TERM);
    assert!(gateway.ended().await.success());
    for pid in all {
        is_gone(pid).await;
    }
}
