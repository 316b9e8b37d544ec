//! Workers as clients and operators see them: one process, isolation, crashes, timeouts, limits, nothing left behind.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Gateway, eventually, tools};

mod several;

async fn faulty() -> Gateway {
    Gateway::with_tools([
        ("faulty", "faulty.py", tools::FAULTY),
        ("calc", "math_tools.py", tools::MATH),
    ])
    .start()
    .await
}

async fn worker_pid(gateway: &Gateway, namespace: &str) -> i32 {
    let (status, pid) = gateway.call(namespace, "pid", json!({})).await;
    assert_eq!(status, 200, "{pid}");
    i32::try_from(pid.as_i64().unwrap()).unwrap()
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// A process that is there and is no zombie.
fn alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| stat.rsplit(") ").next().map(|rest| !rest.starts_with('Z')))
        .unwrap_or(false)
}

fn descendants(pid: i32) -> Vec<i32> {
    let children = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<i32>>()
        });
    children
        .flat_map(|child| std::iter::once(child).chain(descendants(child)))
        .collect()
}

#[tokio::test]
async fn a_killed_worker_fails_its_calls_at_once_and_serves_the_next_after_its_restart() {
    let gateway = faulty().await;
    let pid = worker_pid(&gateway, "faulty").await;
    let begun = Instant::now();
    let call = gateway.call("faulty", "slow", json!({"seconds": 25}));
    let killer = async {
        gateway.in_flight("faulty", 1).await;
        kill(pid);
    };
    let neighbour = async {
        for _ in 0..20 {
            assert_eq!(
                gateway.call("calc", "add", json!({"a": 1, "b": 1})).await.0,
                200
            );
            let health = gateway
                .client
                .get(gateway.url("/health"))
                .send()
                .await
                .unwrap();
            assert_eq!(health.status(), 200);
        }
    };
    let ((status, answer), (), ()) = tokio::join!(call, killer, neighbour);
    assert_eq!(
        (status, &answer["error"]["code"]),
        (503, &json!("worker_unavailable")),
        "{answer}"
    );
    assert!(begun.elapsed() < Duration::from_secs(20), "not at once");
    assert_ne!(worker_pid(&gateway, "faulty").await, pid);
    assert!(
        gateway
            .metrics_text()
            .await
            .contains(r#"tooldock_worker_restarts_total{namespace="faulty"} 1"#)
    );
}

#[tokio::test]
async fn a_hundred_concurrent_calls_use_one_process_and_one_socket_of_each_thread() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .config(
            json!({"threads": 2, "namespaces": {"overrides": {"faulty": {"max_concurrency": 64}}}}),
        )
        .start()
        .await;
    let pid = worker_pid(&gateway, "faulty").await;
    let calls = (0..100).map(|_| gateway.call("faulty", "slow", json!({"seconds": 0.2})));
    let sockets = async {
        gateway.in_flight("faulty", 64).await;
        fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .filter(|target| target.to_string_lossy().starts_with("socket:"))
            .count()
    };
    let (answers, sockets) = tokio::join!(futures_util::future::join_all(calls), sockets);
    assert!(answers.iter().all(|(status, _)| *status == 200));
    assert!(
        sockets <= 5,
        "a listener, two connections, the loop's own pair: {sockets}"
    );
    assert_eq!(worker_pid(&gateway, "faulty").await, pid);
}

#[tokio::test]
async fn calls_run_up_to_the_limit_and_the_rest_waits_or_is_turned_away() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .config(
            json!({"namespaces": {"overrides": {"faulty": {"max_concurrency": 2, "queue": 3}}}}),
        )
        .start()
        .await;
    let begun = Instant::now();
    let calls = (0..8).map(|_| gateway.call("faulty", "slow", json!({"seconds": 0.5})));
    let answers = futures_util::future::join_all(calls).await;
    let served = answers.iter().filter(|(status, _)| *status == 200).count();
    let turned_away: Vec<_> = answers
        .iter()
        .filter(|(status, _)| *status == 503)
        .collect();
    assert_eq!((served, turned_away.len()), (5, 3), "{answers:?}");
    assert_eq!(turned_away[0].1["error"]["code"], "overloaded");
    assert!(
        begun.elapsed() >= Duration::from_millis(1500),
        "three rounds of two"
    );
}

#[tokio::test]
async fn a_timeout_cancels_the_call_and_the_worker_serves_on() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .config(json!({"namespaces": {"overrides": {"faulty": {"timeout": "3s"}}}}))
        .start()
        .await;
    let marker = gateway.scratch().join("marker");
    let (status, answer) = gateway
        .call(
            "faulty",
            "mark_after",
            json!({"seconds": 3.5, "file": marker}),
        )
        .await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (504, &json!("execution_timeout"))
    );
    // By the time these have run one after the other, the cancelled call would have written its marker.
    for _ in 0..2 {
        assert_eq!(
            gateway
                .call("faulty", "slow", json!({"seconds": 0.6}))
                .await
                .0,
            200
        );
    }
    assert!(!marker.exists());
}

#[tokio::test]
async fn a_blocking_tool_does_not_stop_others_and_four_abandoned_threads_recycle_the_worker() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .config(json!({"namespaces": {"overrides": {"faulty": {"timeout": "3s"}}}}))
        .start()
        .await;
    let pid = worker_pid(&gateway, "faulty").await;
    for _ in 0..4 {
        let blocked = gateway.call("faulty", "block", json!({"seconds": 600}));
        let other = gateway.call("faulty", "slow", json!({"seconds": 0.1}));
        let (blocked, other) = tokio::join!(blocked, other);
        assert_eq!((blocked.0, other.0), (504, 200));
    }
    eventually("a fresh worker", || async {
        let (status, next) = gateway.call("faulty", "pid", json!({})).await;
        (status == 200 && next != json!(pid)).then_some(())
    })
    .await;
    eventually("the old worker is gone", || async {
        (!alive(pid)).then_some(())
    })
    .await;
}

/// A namespace `busy` of a function that computes on the event loop until a file is there, and plain ones.
const BUSY: &str = r#"
import os, time
from fastmcp.tools import tool


def crunch(until):
    while not os.path.exists(until):
        pass


@tool
async def compute(until: str) -> str:
    """Computes without awaiting."""
    open(until + ".began", "w").close()
    crunch(until)
    return "done"


@tool
def wait(until: str) -> str:
    """Blocks its thread."""
    while not os.path.exists(until):
        time.sleep(0.005)
    return "done"


@tool
async def pid() -> int:
    """The worker's process id."""
    return os.getpid()
"#;

async fn state_of(gateway: &Gateway, namespace: &str) -> Option<String> {
    let ready = gateway.request("GET", "/ready").send().await.ok()?;
    let ready: Value = ready.json().await.ok()?;
    let all = ready["namespaces"].as_array()?;
    let found = all.iter().find(|it| it["name"] == namespace)?;
    found["state"].as_str().map(str::to_owned)
}

async fn reaches(gateway: &Gateway, namespace: &str, state: &str) {
    eventually("the state", || async {
        (state_of(gateway, namespace).await? == state).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_tool_that_blocks_the_event_loop_is_named_and_its_namespace_degraded_while_it_lasts() {
    let gateway = Gateway::with_tools([("busy", "busy.py", BUSY)])
        .config(json!({"namespaces": {"overrides": {"busy": {"timeout": "5m"}}}}))
        .start()
        .await;
    let before = worker_pid(&gateway, "busy").await;
    let go = gateway.scratch().join("go");
    let call = gateway.call("busy", "compute", json!({"until": go}));
    let watch = async {
        reaches(&gateway, "busy", "degraded").await;
        fs::write(&go, "").unwrap();
    };
    let (answer, ()) = tokio::join!(call, watch);
    assert_eq!(answer, (200, json!("done")));
    reaches(&gateway, "busy", "ready").await;
    assert_eq!(worker_pid(&gateway, "busy").await, before);
    let log = gateway.log();
    let mut named = log
        .lines()
        .filter(|line| line.contains("computes on the event loop"));
    let line = named.next().expect("a line");
    for part in ["WARN", "compute", "request_id", "busy.py:", "in crunch"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert_eq!(named.next(), None, "one line");
}

#[tokio::test]
async fn a_process_that_a_tool_blocks_past_its_time_limit_is_replaced_at_once() {
    let gateway = Gateway::with_tools([("busy", "busy.py", BUSY)])
        .config(
            // A single failure would be a crash loop, and the next process a minute away.
            json!({"workers": {"backoff": {"initial": "1m", "max": "1m"},
            "crash_loop": {"failures": 1, "window": "1m"}}}),
        )
        .start_with(|data| {
            let limits = "tools:\n  compute:\n    timeout: 1s\n";
            fs::write(data.join("tools/busy/tooldock.yaml"), limits).unwrap();
        })
        .await;
    let before = worker_pid(&gateway, "busy").await;
    let never = gateway.scratch().join("never");
    let call = gateway.call("busy", "compute", json!({"until": never}));
    let behind = async {
        let began = gateway.scratch().join("never.began");
        eventually("the tool computes", || async {
            began.exists().then_some(())
        })
        .await;
        gateway.call("busy", "pid", json!({})).await
    };
    let (blocked, behind) = tokio::join!(call, behind);
    assert_eq!(
        (blocked.0, &blocked.1["error"]["code"]),
        (504, &json!("execution_timeout"))
    );
    assert_eq!(
        (behind.0, &behind.1["error"]["code"]),
        (503, &json!("worker_unavailable"))
    );
    assert_ne!(worker_pid(&gateway, "busy").await, before);
    assert!(
        gateway
            .metrics_text()
            .await
            .contains(r#"tooldock_worker_restarts_total{namespace="busy"} 1"#)
    );
    eventually("the old process is gone", || async {
        (!alive(before)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn calls_that_wait_behind_a_plain_function_are_counted_and_the_log_names_the_key_that_helps()
{
    let gateway = Gateway::with_tools([("busy", "busy.py", BUSY)])
        .config(json!({"namespaces": {"overrides": {"busy": {"timeout": "5m"}}}}))
        .start()
        .await;
    let go = gateway.scratch().join("go");
    let calls = (0..3).map(|_| gateway.call("busy", "wait", json!({"until": go})));
    let watch = async {
        eventually("two wait for the thread", || async {
            let text = gateway.metrics_text().await;
            text.contains("tooldock_worker_sync_waits_total{namespace=\"busy\"} 2\n")
                .then_some(())
        })
        .await;
        fs::write(&go, "").unwrap();
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(calls), watch);
    assert!(answers.iter().all(|(status, _)| *status == 200));
    let log = gateway.log();
    assert_eq!(
        log.matches("sync_concurrency raises that number").count(),
        1
    );
}

#[tokio::test]
async fn printing_tools_corrupt_nothing_and_their_output_is_logged() {
    let gateway = faulty().await;
    assert_eq!(
        gateway.call("faulty", "noisy", json!({})).await,
        (200, json!("quiet"))
    );
    eventually("the output is in the log", || async {
        let log = gateway.log();
        (log.contains("echo from a child") || log.contains("from a child")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn results_above_the_limit_are_a_clear_error() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .config(json!({"namespaces": {"overrides": {"faulty": {"max_result": "64KiB"}}}}))
        .start()
        .await;
    assert_eq!(
        gateway
            .call("faulty", "big", json!({"size": 60_000}))
            .await
            .0,
        200
    );
    let (status, answer) = gateway
        .call("faulty", "big", json!({"size": 200_000}))
        .await;
    assert_eq!(status, 500, "{answer}");
    assert_eq!(answer["error"]["code"], "result_too_large");
    assert_eq!(
        gateway.call("faulty", "big", json!({"size": 10})).await.0,
        200
    );
}

#[tokio::test]
async fn large_results_pass_whole() {
    let gateway = faulty().await;
    let (status, value) = gateway
        .call("faulty", "big", json!({"size": 5_000_000}))
        .await;
    assert_eq!(status, 200);
    assert_eq!(value.as_str().unwrap().len(), 5_000_000);
}

#[tokio::test]
async fn a_worker_sees_its_namespace_environment_and_none_of_the_gateways_tokens() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .env("SOME_SECRET_OF_THE_OPERATOR", "canary-7f3a")
        .start_with(|data| {
            fs::write(
                data.join("tools/faulty/tooldock.yaml"),
                "description: \"Faulty\"\nenv:\n  MY_URL: \"https://example.test\"\n",
            )
            .unwrap();
        })
        .await;
    let (_, environment) = gateway.call("faulty", "environment", json!({})).await;
    assert_eq!(environment["MY_URL"], "https://example.test");
    let text = environment.to_string();
    for secret in [
        crate::support::TOKEN,
        crate::support::gateway::MANAGER_TOKEN,
        "canary-7f3a",
    ] {
        assert!(!text.contains(secret));
    }
}

#[tokio::test]
async fn a_broken_file_is_skipped_reported_and_its_neighbours_serve() {
    let gateway = Gateway::with_tools([
        ("mixed", "hello.py", tools::HELLO),
        ("mixed", "broken.py", "from fastmcp.tools import tool\n@tool\ndef (:\n"),
        ("mixed", "leaves.py", "import sys\nfrom fastmcp.tools import tool\nsys.exit(3)\n@tool\ndef x() -> int:\n    \"x\"\n    return 1\n"),
        ("mixed", "_private.py", "from fastmcp.tools import tool\n@tool\ndef hidden() -> int:\n    \"x\"\n    return 1\n"),
        ("mixed", "plain.py", "VALUE = 1\n"),
    ])
    .start()
    .await;
    let (_, list) = gateway
        .mcp(
            "mixed",
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        )
        .await;
    let names: Vec<_> = list["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| &tool["name"])
        .collect();
    assert_eq!(names, ["say_hello"]);
    let ready: Value = gateway
        .request("GET", "/ready")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let text = ready.to_string();
    assert!(
        text.contains("broken.py") && text.contains("leaves.py"),
        "{text}"
    );
}

#[tokio::test]
async fn a_namespace_without_calls_has_no_process_and_keeps_its_lists_until_the_next_call() {
    let source = "import os\nfrom fastmcp.tools import tool\n\n@tool\ndef pid() -> int:\n    return os.getpid()\n";
    let gateway = Gateway::with_tools([("calm", "calm.py", source)])
        .config(json!({"workers": {"idle_stop": "200ms"}}))
        .start()
        .await;
    let first = worker_pid(&gateway, "calm").await;
    let state = async || {
        let ready = gateway.request("GET", "/ready").send().await.ok()?;
        let status = ready.status().as_u16();
        Some((status, ready.text().await.ok()?))
    };
    eventually("the namespace is idle", || async {
        let (status, ready) = state().await?;
        assert_eq!(status, 200, "{ready}");
        ready.contains("\"idle\"").then_some(())
    })
    .await;
    eventually("the process has ended", || async {
        (!Path::new(&format!("/proc/{first}")).exists()).then_some(())
    })
    .await;
    let listed = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let (_, listed) = gateway.mcp("calm", listed).await;
    assert!(listed.to_string().contains("pid"), "{listed}");
    assert!(
        state().await.unwrap().1.contains("\"idle\""),
        "a list needs no process"
    );
    assert_ne!(worker_pid(&gateway, "calm").await, first);
    let metrics = gateway.metrics_text().await;
    let restarts = "tooldock_worker_restarts_total{namespace=\"calm\"} 0";
    assert!(metrics.contains(restarts), "{metrics}");
}

#[tokio::test]
async fn a_worker_that_keeps_dying_is_a_crash_loop_and_heals() {
    let source = r#"
import os, pathlib
from fastmcp.tools import tool
if pathlib.Path(__file__).with_name("die.flag").exists():
    os._exit(9)

@tool
def pid() -> int:
    """The process id."""
    return os.getpid()
"#;
    let gateway = Gateway::with_tools([("fragile", "fragile.py", source)])
        .config(
            json!({"workers": {"backoff": {"initial": "20ms", "max": "100ms"},
            "crash_loop": {"failures": 3, "window": "30s"}}}),
        )
        .start()
        .await;
    let pid = worker_pid(&gateway, "fragile").await;
    let flag = gateway.tools_dir().join("fragile/die.flag");
    fs::write(&flag, "").unwrap();
    kill(pid);
    eventually("a crash loop", || async {
        let ready = gateway
            .request("GET", "/ready")
            .send()
            .await
            .ok()?
            .text()
            .await
            .ok()?;
        ready.contains("crash_loop").then_some(())
    })
    .await;
    fs::remove_file(flag).unwrap();
    eventually("the worker is back", || async {
        (gateway.call("fragile", "pid", json!({})).await.0 == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_dies_at_every_boot_is_a_crash_loop_too() {
    let dies = "import os\nfrom fastmcp.tools import tool\nos._exit(7)\n@tool\ndef x() -> int:\n    \"x\"\n    return 1\n";
    let gateway = Gateway::with_tools([
        ("dies", "dies.py", dies),
        ("calc", "math_tools.py", tools::MATH),
    ])
    .config(
        json!({"workers": {"backoff": {"initial": "20ms", "max": "100ms"},
            "crash_loop": {"failures": 3, "window": "30s"}}}),
    )
    .start()
    .await;
    eventually("a crash loop", || async {
        let ready: Value = gateway
            .request("GET", "/ready")
            .send()
            .await
            .ok()?
            .json()
            .await
            .ok()?;
        let dies = ready["namespaces"]
            .as_array()?
            .iter()
            .find(|namespace| namespace["name"] == "dies")?;
        (dies["state"] == "crash_loop").then_some(())
    })
    .await;
    assert_eq!(
        gateway.call("calc", "add", json!({"a": 1, "b": 1})).await.0,
        200
    );
    let (status, answer) = gateway.call("dies", "x", json!({})).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (503, &json!("worker_unavailable")),
        "{answer}"
    );
}

#[tokio::test]
async fn nothing_outlives_a_killed_gateway() {
    let source = r#"
import os, subprocess, sys
from fastmcp.tools import tool

@tool
def leave_children() -> int:
    """A grandchild in a session of its own."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    return child.pid
"#;
    let gateway = Gateway::with_tools([("forks", "forks.py", source)])
        .start()
        .await;
    let (status, grandchild) = gateway.call("forks", "leave_children", json!({})).await;
    assert_eq!(status, 200);
    let grandchild = i32::try_from(grandchild.as_i64().unwrap()).unwrap();
    let mut family = descendants(gateway.pid());
    family.push(grandchild);
    assert!(family.len() >= 3, "guard, worker, grandchild: {family:?}");
    kill(gateway.pid());
    eventually("the whole family is gone", || async {
        (!family.iter().any(|pid| alive(*pid))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn stale_sockets_are_cleaned_at_start() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .start_with(|data| {
            fs::create_dir_all(data.join("workers")).unwrap();
            let left = data.join("workers/left.sock");
            drop(std::os::unix::net::UnixListener::bind(left).unwrap());
        })
        .await;
    assert_eq!(
        gateway.call("calc", "add", json!({"a": 1, "b": 1})).await.0,
        200
    );
    assert!(!gateway.data_dir().join("workers/left.sock").exists());
}

#[tokio::test]
async fn a_data_path_too_long_for_a_socket_works() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .nested_data_dir(&"long-directory-name-".repeat(8))
        .start()
        .await;
    assert_eq!(
        gateway.call("calc", "add", json!({"a": 1, "b": 1})).await.0,
        200
    );
}
