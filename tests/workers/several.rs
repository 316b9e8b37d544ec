//! Several worker processes of one namespace: calls shared, crashes kept apart, replaced together.

use std::collections::BTreeSet;
use std::path::PathBuf;

use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{alive, kill, worker_pid};
use crate::support::session::Session;
use crate::support::{Gateway, eventually, tools};

const TOOLS: &str = r#"
import os, time
from fastmcp import Context
from fastmcp.tools import tool


@tool
def pid() -> int:
    """The process."""
    return os.getpid()


@tool
def held(path: str) -> int:
    """Blocks its process's only tool thread until the file is there."""
    with open(f"{path}.{os.getpid()}", "w"):
        pass
    while not os.path.exists(path):
        time.sleep(0.005)
    return os.getpid()


@tool
async def asked(ctx: Context) -> str:
    """Asks for a name and says which process did."""
    answer = await ctx.elicit("Who?", str)
    return f"{os.getpid()} {answer.data}"
"#;

async fn several(processes: usize) -> Gateway {
    Gateway::with_tools([
        ("many", "many.py", TOOLS),
        ("calc", "pid.py", crate::reload::PID),
    ])
    .config(json!({"namespaces": {"overrides": {"many": {"processes": processes}}}}))
    .start()
    .await
}

/// The processes that answer so many calls, one after the other.
async fn pids(gateway: &Gateway, calls: usize) -> BTreeSet<i32> {
    let mut pids = BTreeSet::new();
    for _ in 0..calls {
        pids.insert(worker_pid(gateway, "many").await);
    }
    pids
}

/// Where calls of `held` wait, and who holds one.
struct Hold(PathBuf);

impl Hold {
    fn new(gateway: &Gateway) -> Self {
        Self(gateway.scratch().join("hold"))
    }

    fn arguments(&self) -> Value {
        json!({"path": self.0})
    }

    /// Waits until calls of so many processes wait here.
    async fn by(&self, processes: usize) -> BTreeSet<i32> {
        eventually("so many processes hold a call", || async {
            let pids: BTreeSet<i32> = std::fs::read_dir(self.0.parent().unwrap())
                .unwrap()
                .flatten()
                .filter_map(|entry| {
                    let name = entry.file_name().into_string().ok()?;
                    name.strip_prefix("hold.")?.parse().ok()
                })
                .collect();
            (pids.len() == processes).then_some(pids)
        })
        .await
    }

    fn end(&self) {
        std::fs::write(&self.0, "").unwrap();
    }
}

/// The answer of `/ready` about a namespace.
async fn ready(gateway: &Gateway, namespace: &str) -> Value {
    let ready = gateway.request("GET", "/ready");
    let ready: Value = ready.send().await.unwrap().json().await.unwrap();
    let mut all = ready["namespaces"].as_array().unwrap().iter();
    all.find(|it| it["name"] == namespace)
        .cloned()
        .unwrap_or_default()
}

#[tokio::test]
async fn blocking_calls_run_side_by_side_and_others_take_turns() {
    let gateway = several(2).await;
    assert_eq!(pids(&gateway, 4).await.len(), 2);
    let hold = Hold::new(&gateway);
    let calls = join_all((0..2).map(|_| gateway.call("many", "held", hold.arguments())));
    let both = async {
        let holders = hold.by(2).await;
        hold.end();
        holders
    };
    let (answers, holders) = tokio::join!(calls, both);
    let answered: BTreeSet<_> = answers
        .iter()
        .map(|(status, pid)| {
            assert_eq!(*status, 200, "{pid}");
            i32::try_from(pid.as_i64().unwrap()).unwrap()
        })
        .collect();
    assert_eq!(answered, holders);
    assert_eq!(
        ready(&gateway, "many").await["processes"],
        json!({"ready": 2})
    );
    assert!(ready(&gateway, "calc").await.get("processes").is_none());
    let gauge = r#"tooldock_worker_state{namespace="many",state="ready"} 2"#;
    assert!(gateway.metrics_text().await.contains(gauge));
}

#[tokio::test]
async fn a_killed_process_fails_its_own_calls_and_the_other_goes_on() {
    let gateway = several(2).await;
    let hold = Hold::new(&gateway);
    let calls = join_all((0..2).map(|_| gateway.call("many", "held", hold.arguments())));
    let killer = async {
        let holders = hold.by(2).await;
        let victim = *holders.first().unwrap();
        kill(victim);
        let line = r#"tooldock_worker_in_flight{namespace="many"} 1"#;
        eventually("its call has failed", || async {
            gateway.metrics_text().await.contains(line).then_some(())
        })
        .await;
        hold.end();
        victim
    };
    let (answers, victim) = tokio::join!(calls, killer);
    let mut statuses: Vec<_> = answers.iter().map(|(status, _)| *status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503], "{answers:?}");
    // Nothing fails meanwhile, and the successor shares the calls again.
    let now = eventually("there are two again", || async {
        let now = pids(&gateway, 2).await;
        (now.len() == 2).then_some(now)
    })
    .await;
    assert!(!now.contains(&victim));
    let restarts = r#"tooldock_worker_restarts_total{namespace="many"} 1"#;
    assert!(gateway.metrics_text().await.contains(restarts));
}

#[tokio::test]
async fn a_reload_replaces_all_and_another_number_touches_no_other_namespace() {
    let gateway = several(2).await;
    let (old, neighbour) = (pids(&gateway, 4).await, worker_pid(&gateway, "calc").await);
    gateway.drop_tool("many", "more.py", tools::HELLO);
    assert_eq!(gateway.reload().await["workers_restarted"], json!(["many"]));
    let new = pids(&gateway, 4).await;
    assert_eq!(new.len(), 2);
    assert!(new.is_disjoint(&old), "{new:?} {old:?}");
    eventually("the old ones are gone", || async {
        (!old.iter().any(|pid| alive(*pid))).then_some(())
    })
    .await;

    gateway.reconfigure(json!({"namespaces": {"overrides": {"many": {"processes": 3}}}}));
    gateway.signal(Signal::HUP);
    let three = eventually("three are ready", || async {
        let ready = ready(&gateway, "many").await;
        (ready["processes"] == json!({"ready": 3})).then_some(())
    });
    three.await;
    assert_eq!(pids(&gateway, 6).await.len(), 3);
    assert_eq!(worker_pid(&gateway, "calc").await, neighbour);
}

#[tokio::test]
async fn an_answer_reaches_the_process_that_asked() {
    let gateway = several(3).await;
    let session = Session::start(&gateway, "many", "2025-11-25").await;
    let mut open = Vec::new();
    for id in 1..=3 {
        let mut call = session.call(id, "asked", json!({})).await;
        let question = call.message().await;
        assert_eq!(question["method"], "elicitation/create", "{question}");
        open.push((id, call, question["id"].clone()));
    }
    // Answered in another order than asked.
    let mut processes = BTreeSet::new();
    for (id, mut call, question) in open.into_iter().rev() {
        let answer = json!({"jsonrpc": "2.0", "id": question, "result":
            {"action": "accept", "content": {"value": format!("number {id}")}}});
        assert_eq!(session.post(&answer).await.status, 202);
        let result = call.messages().await.pop().unwrap();
        let text = result["result"]["content"][0]["text"].as_str().unwrap();
        let (process, rest) = text.split_once(' ').unwrap();
        assert!(rest.contains(&format!("number {id}")), "{text}");
        processes.insert(process.to_owned());
    }
    assert_eq!(processes.len(), 3);
}
