//! Sessions of external servers opened and dropped in every way, against servers with every vice: no process, no
//! descriptor and no memory may be left, and the neighbours must not notice.
//!
//! `TOOLDOCK_TORTURE_SESSIONS` says how many; `make torture` takes 10,000 and prints what happens.

mod left_over;
mod vices;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use rustix::process::Signal;
use serde_json::json;

use crate::support::{Gateway, eventually, eventually_within, sha256};
use left_over::{LeftOver, marked, own_memory};
use vices::{ENDINGS, Outcome, VICES, servers};

/// Sessions without the variable: every vice with every ending, in two rounds.
const SESSIONS: usize = 2 * VICES.len() * ENDINGS.len();
/// Sessions at a time.
const CLIENTS: usize = 16;
/// The number of principals that own the sessions.
const PRINCIPALS: usize = 4;
/// Memory in KiB that a round may need beyond the same round before it: as much as the allocator keeps, and less for
/// each session than any state that could be forgotten.
const SLACK: u64 = 12 * 1024;
const SLACK_OF_SESSION: u64 = 1;

fn token(principal: usize) -> String {
    format!("torture-{}-0123456789abcdef", principal % PRINCIPALS)
}

/// Times after which unused sessions and processes end by themselves.
struct Times {
    call: &'static str,
    question: &'static str,
    session: &'static str,
    process: &'static str,
}

/// Soon, so that a round settles; but a session outlives the breaks a busy machine makes between its requests.
const SOON: Times = Times {
    call: "5s",
    question: "3s",
    session: "10s",
    process: "1s",
};

/// Not within a test.
const NEVER: Times = Times {
    call: "5m",
    question: "5m",
    session: "5m",
    process: "5m",
};

/// A gateway in front of every server there is, all of whose processes carry the mark.
async fn gateway(mark: &str, times: Times) -> Gateway {
    let tokens = (0..PRINCIPALS).map(|number| {
        json!({"name": format!("p{number}"), "sha256": sha256(&token(number)), "namespaces": ["*"]})
    });
    let mut gateway = Gateway::empty()
        .config(json!({
            "upstreams": {"stdio": servers(mark, times.process)},
            "admission": {
                "tokens": tokens.collect::<Vec<_>>(),
                "limits": {"sessions_per_principal": 100_000},
            },
            "sessions": {"ttl": times.session},
            "namespaces": {
                "defaults": {
                    "timeout": times.call, "ask_timeout": times.question,
                    "max_concurrency": 1000, "queue": 1000, "max_parked": 1000,
                },
                "overrides": {"neighbour": {"timeout": "30s"}},
            },
            "replicas": {"grace": "1s"},
            // The servers' output would hide the causes of failures.
            "observability": {"log": {"level": "warn"}},
        }))
        .start()
        .await;
    // Connections kept by the client would count as descriptors of the gateway.
    gateway.client = reqwest::Client::builder()
        .pool_max_idle_per_host(0)
        .build()
        .expect("a client");
    gateway
}

fn mark(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

/// Makes a call of the namespace next door.
async fn neighbour_answers(gateway: &Gateway) {
    let answer = gateway
        .call("neighbour", "echo", json!({"message": "hello"}))
        .await;
    assert_eq!(answer.0, 200, "the neighbour is harmed: {}", answer.1);
}

/// The observations of a round.
#[derive(Default)]
struct Round {
    sessions: usize,
    refused: Mutex<BTreeMap<&'static str, usize>>,
    neighbour_calls: usize,
    neighbour_worst: Duration,
}

/// Drops so many sessions while the neighbour is called again and again.
async fn round(gateway: &Gateway, mark: &str, name: &str, sessions: usize) -> Round {
    let mut round = Round {
        sessions,
        ..Round::default()
    };
    let begun = Instant::now();
    let over = AtomicBool::new(false);
    let refused = &round.refused;
    let torture = async {
        let mut dropped = futures_util::stream::iter(0..sessions)
            .map(|number| async move {
                let vice = &VICES[number % VICES.len()];
                let ending = ENDINGS[number / VICES.len() % ENDINGS.len()];
                let outcome = vice.indulge(gateway, &token(number), ending).await;
                if outcome == Outcome::Refused {
                    *refused.lock().unwrap().entry(vice.name).or_default() += 1;
                }
            })
            .buffer_unordered(CLIENTS);
        let mut done = 0;
        while let Some(()) = dropped.next().await {
            done += 1;
            if done % (sessions / 10).max(1) == 0 {
                println!(
                    "torture, {name}: {done} of {sessions} sessions in {:.0} s; {}",
                    begun.elapsed().as_secs_f64(),
                    LeftOver::of(gateway, mark).await
                );
            }
        }
        over.store(true, Ordering::Relaxed);
    };
    let neighbour = async {
        let mut pace = tokio::time::interval(Duration::from_millis(20));
        let (mut calls, mut worst) = (0, Duration::ZERO);
        while !over.load(Ordering::Relaxed) {
            pace.tick().await;
            let asked = Instant::now();
            neighbour_answers(gateway).await;
            worst = worst.max(asked.elapsed());
            calls += 1;
        }
        (calls, worst)
    };
    let ((), (calls, worst)) = tokio::join!(torture, neighbour);
    round.neighbour_calls = calls;
    round.neighbour_worst = worst;
    round
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_dropped_in_every_way_leave_nothing_behind() {
    let sessions = std::env::var("TOOLDOCK_TORTURE_SESSIONS")
        .map_or(SESSIONS, |it| it.parse().expect("a number of sessions"));
    let mark = mark("dropped");
    let gateway = gateway(&mark, SOON).await;
    // Whatever is made once and kept.
    for (number, vice) in VICES.iter().enumerate() {
        vice.indulge(&gateway, &token(number), ENDINGS[0]).await;
    }
    neighbour_answers(&gateway).await;
    let fresh = LeftOver::settled(&gateway, &mark, usize::MAX).await;
    println!("torture, before: {fresh}");

    let mut memory = Vec::new();
    for name in ["first round", "second round"] {
        let round = round(&gateway, &mark, name, sessions / 2).await;
        let settling = Instant::now();
        let left = LeftOver::settled(&gateway, &mark, fresh.descriptors).await;
        println!(
            "torture, {name}: {} sessions dropped, settled {:.1} s later: {left}; {} calls of the neighbour, the slowest \
             {:.0} ms; refused: {:?}",
            round.sessions,
            settling.elapsed().as_secs_f64(),
            round.neighbour_calls,
            round.neighbour_worst.as_secs_f64() * 1000.0,
            round.refused.lock().unwrap(),
        );
        memory.push(left.memory);
    }
    let allowed = memory[0] + SLACK + SLACK_OF_SESSION * (sessions as u64 / 2);
    println!("torture: {memory:?} KiB after the rounds, {allowed} KiB are allowed");
    // The allocator gives pages back some time after they were freed.
    eventually_within(
        Duration::from_secs(60),
        "the second round needs no more memory than the first",
        || async { (own_memory(gateway.pid()) <= allowed).then_some(()) },
    )
    .await;
}

/// Opens a session of every vice, with its call in flight.
async fn herd(gateway: &Gateway, mark: &str) -> Vec<tokio::net::TcpStream> {
    let begun = VICES
        .iter()
        .enumerate()
        .map(|(number, vice)| async move { vice.begin(gateway, &token(number)).await });
    let connections = futures_util::future::join_all(begun).await;
    eventually("most vices have a process", || async {
        (marked(mark).len() > 2 * VICES.len()).then_some(())
    })
    .await;
    connections.into_iter().flatten().collect()
}

async fn nothing_runs(mark: &str) {
    eventually_within(
        Duration::from_secs(60),
        "every process has ended",
        || async { marked(mark).is_empty().then_some(()) },
    )
    .await;
}

/// Ends the gateway in the middle of everything. Calls that never end outlive its grace period, so it does not wait for
/// their servers either way: the guards end them.
async fn ends_servers_with_every_vice(mark: &str, signal: Signal) -> Option<i32> {
    let gateway = gateway(mark, NEVER).await;
    let _connections = herd(&gateway, mark).await;
    gateway.signal(signal);
    let status = gateway.ended().await;
    nothing_runs(mark).await;
    status.code()
}

#[tokio::test]
async fn sigterm_of_the_gateway_ends_servers_with_every_vice() {
    let code = ends_servers_with_every_vice(&mark("sigterm"), Signal::TERM).await;
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn sigkill_of_the_gateway_ends_servers_with_every_vice() {
    let code = ends_servers_with_every_vice(&mark("sigkill"), Signal::KILL).await;
    assert_eq!(code, None);
}

#[tokio::test]
async fn a_process_without_a_gateway_would_be_found() {
    let mark = mark("control");
    let mut child = std::process::Command::new("sleep")
        .arg("infinity")
        .env(left_over::MARK, &mark)
        .spawn()
        .expect("sleep is there");
    eventually("it is found", || async {
        (marked(&mark).len() == 1).then_some(())
    })
    .await;
    child.kill().expect("it runs");
    child.wait().expect("own child");
    nothing_runs(&mark).await;
}
