//! A gateway with a Python worker, stdio servers and a session store, whose machine has faults while clients call. No call is
//! lost or runs twice, each failure has a type, and the gateway recovers from each fault.
//!
//! `TOOLDOCK_CHAOS_SECONDS` is the length of each run in seconds, `TOOLDOCK_CHAOS_SEED` decides the faults. `make chaos` sets
//! both.

mod client;
mod faults;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::dice::Dice;
use crate::support::redis::Redis;
use crate::support::{Gateway, eventually_within, programs};
use client::{ChaosClient, Outcome};
use faults::{Clock, Fault, Machine, SmallDisk};

/// Length of a run in seconds, and seed of its faults, where the variables are not set.
const SECONDS: u64 = 8;
const SEED: u64 = 40;
/// Number of clients. Each makes one call at a time.
const CLIENTS: usize = 4;
/// Namespaces: a Python worker, a server with one process for all sessions, a server with a process for each session.
pub const NAMESPACES: [&str; 3] = ["worker", "shared", "own"];
/// Time limit for recovery from a fault. A circuit breaker that has opened several times stays open for a minute.
const RECOVERY: Duration = Duration::from_secs(120);

const MARKING: &str = r#"
from fastmcp.tools import tool


@tool
def mark(file: str, mark: str) -> str:
    """Appends a mark to a file."""
    with open(file, "a") as marks:
        marks.write(mark + "\n")
    return mark
"#;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |it| it.parse().expect("a number"))
}

/// Starts the gateway of a run. `store`: the place of its sessions (`sessions.store`). `clock`: its system clock; `None` for the
/// machine's clock.
async fn gateway(store: &str, clock: Option<&Clock>, prepare: impl FnOnce(&Path)) -> Gateway {
    let server = programs::root().join("tests/fixtures/servers/marking.py");
    let server = server.canonicalize().expect("the server is there");
    let stdio = |isolation: &str| json!({"command": "python3", "args": [&server], "isolation": isolation, "idle_stop": "2s"});
    let mut gateway = Gateway::with_tools([("worker", "marking.py", MARKING)])
        .nested_data_dir("data")
        .env("SESSION_KEY", "chaos-0123456789abcdef0123456789abcdef")
        .config(json!({
            "sessions": {"store": store},
            "upstreams": {"stdio": {"shared": stdio("shared"), "own": stdio("session")}},
            "namespaces": {"defaults": {"timeout": "10s"}},
            "observability": {"log": {"level": "warn"}},
        }));
    for (name, value) in clock.iter().flat_map(|clock| clock.variables()) {
        gateway = gateway.env(name, &value);
    }
    gateway.start_with(prepare).await
}

/// Makes calls until `stop` is set. Returns the outcome of each call by its mark, the text that the call appends to a file.
async fn calls(mut client: ChaosClient, stop: Arc<AtomicBool>) -> BTreeMap<String, Outcome> {
    let mut outcomes = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        let (mark, outcome) = client.call().await;
        outcomes.insert(mark, outcome);
    }
    outcomes
}

/// Waits until a call in each namespace succeeds. `cause`: the fault that may make calls fail until then, for error messages.
async fn recovered(probe: &mut ChaosClient, cause: &str) {
    for namespace in NAMESPACES {
        let begun = Instant::now();
        loop {
            if probe.call_of(namespace).await.1 == Outcome::Done {
                break;
            }
            assert!(
                begun.elapsed() < RECOVERY,
                "{namespace} does not recover from {cause}: {}",
                probe.last_failure
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Causes faults while clients call. Then compares the outcomes of the calls with the marks that they have left.
async fn run(gateway: &Gateway, machine: &Machine<'_>) {
    let (seconds, seed) = (
        number("TOOLDOCK_CHAOS_SECONDS", SECONDS),
        number("TOOLDOCK_CHAOS_SEED", SEED),
    );
    println!("chaos: {seconds} s, TOOLDOCK_CHAOS_SEED={seed} makes the same faults");
    let mut dice = Dice(seed);
    let marks = gateway.scratch().join("marks");
    let starved = Arc::new(AtomicUsize::new(0));
    let mut client = |number: usize| {
        let dice = Dice(dice.roll(usize::MAX) as u64);
        ChaosClient::new(gateway.address, number, dice, &marks, Arc::clone(&starved))
    };
    let mut probe = client(CLIENTS);
    let running: Vec<_> = (0..CLIENTS).map(&mut client).collect();
    recovered(&mut probe, "its start").await;
    let calm = gateway.descriptors();
    let stop = Arc::new(AtomicBool::new(false));
    let running: Vec<_> = running
        .into_iter()
        .map(|client| tokio::spawn(calls(client, Arc::clone(&stop))))
        .collect();

    let end = Instant::now() + Duration::from_secs(seconds);
    let kinds = machine.faults();
    // Each kind of fault occurs once in every round, in an order that the seed decides.
    let mut due: Vec<Fault> = Vec::new();
    let mut count = 0;
    while Instant::now() < end {
        if due.is_empty() {
            due.clone_from(&kinds);
        }
        let fault = due.swap_remove(dice.roll(due.len()));
        let pause = Duration::from_millis(100 + dice.roll(900) as u64);
        let starves = fault == Fault::NoDescriptors;
        starved.fetch_add(usize::from(starves), Ordering::SeqCst);
        machine.fault(fault, pause, &mut dice).await;
        recovered(&mut probe, &format!("{fault:?}")).await;
        // The counter is odd while connections may break for lack of descriptors, and even otherwise.
        starved.fetch_add(usize::from(starves), Ordering::SeqCst);
        count += 1;
    }
    stop.store(true, Ordering::Relaxed);

    let mut outcomes = BTreeMap::new();
    for client in running {
        outcomes.extend(client.await.expect("a failure without a type"));
    }
    let written = fs::read_to_string(&marks).expect("calls have run");
    let mut runs: BTreeMap<&str, usize> = BTreeMap::new();
    for mark in written.lines() {
        *runs.entry(mark).or_default() += 1;
    }
    for (mark, outcome) in &outcomes {
        let runs = runs.get(mark.as_str()).copied().unwrap_or_default();
        match outcome {
            Outcome::Done => assert_eq!(runs, 1, "{mark} has a result, and ran {runs} times"),
            Outcome::Failed | Outcome::Broken => assert!(runs <= 1, "{mark} ran {runs} times"),
        }
    }
    let with = |outcome| outcomes.values().filter(|it| **it == outcome).count();
    let (done, broken) = (with(Outcome::Done), with(Outcome::Broken));
    println!(
        "chaos: {count} faults, {} calls: {done} with a result, {} failures with a type, {broken} broken connections",
        outcomes.len(),
        with(Outcome::Failed),
    );
    assert!(done * 2 > outcomes.len(), "most calls meet no fault");
    drop(probe);
    eventually_within(RECOVERY, "descriptors are given back", || async {
        (gateway.descriptors() <= calm + 2 * CLIENTS).then_some(())
    })
    .await;
    let log = gateway.log();
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make chaos"]
async fn faults_of_the_machine_lose_no_call_and_run_none_twice_with_sessions_on_disk() {
    let clock = Clock::found();
    let mut disk = None;
    let gateway = gateway("disk", clock.as_ref(), |data| {
        disk = SmallDisk::mounted(data)
    })
    .await;
    let machine = Machine {
        gateway: &gateway,
        disk: disk.as_ref(),
        clock: clock.as_ref(),
        redis: None,
    };
    run(&gateway, &machine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make chaos"]
async fn faults_of_the_machine_lose_no_call_and_run_none_twice_with_sessions_in_redis() {
    let redis = Redis::start_keeping().await;
    let gateway = gateway(&redis.url(), None, |_: &Path| {}).await;
    let machine = Machine {
        gateway: &gateway,
        disk: None,
        clock: None,
        redis: Some(&redis),
    };
    run(&gateway, &machine).await;
}

/// Returns the path of the file with which a test fills the disk.
fn filler(data: &Path) -> PathBuf {
    data.join("filler")
}
