//! Rate limits of all replicas together, and of each replica where Redis is away.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{LATEST, both_up, member, ping};
use crate::support::redis::Redis;
use crate::support::session::{Session, call};
use crate::support::{DEADLINE, Gateway, eventually, tools};

/// Two replicas with one limit.
async fn limited(redis: &Redis, limit: Value) -> (Gateway, Gateway) {
    let start = |name| {
        let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)]);
        let limits = json!({"admission": {"rate_limits": [limit]}});
        member(gateway, redis, name).config(limits).start()
    };
    both_up(tokio::join!(start("one"), start("two"))).await
}

fn numbers() -> Value {
    json!({"a": 2, "b": 3})
}

/// Calls a tool by REST. Answers `true` if the call was admitted.
async fn admits(gateway: &Gateway, tool: &str) -> bool {
    let (status, answer) = gateway.call("calc", tool, numbers()).await;
    match status {
        200 => true,
        429 => false,
        _ => panic!("{status}: {answer}"),
    }
}

/// Makes so many calls at the same time. Answers how many were admitted.
async fn admitted(gateway: &Gateway, tool: &str, calls: usize) -> usize {
    let calls = (0..calls).map(|_| admits(gateway, tool));
    join_all(calls).await.into_iter().filter(|it| *it).count()
}

async fn exchanges(gateway: &Gateway, outcome: &str) -> u64 {
    let name = format!("tooldock_shared_limit_exchanges_total{{outcome=\"{outcome}\"}} ");
    let metrics = gateway.metrics_text().await;
    let counted = metrics.lines().find_map(|line| line.strip_prefix(&*name));
    counted.map_or(0, |count| count.parse().expect("a number"))
}

/// Waits until a replica has told of all that it has admitted before. An exchange may be on its way already.
async fn told(gateway: &Gateway) {
    let before = exchanges(gateway, "done").await;
    eventually("the replica has told of its calls", || async {
        admits(gateway, "multiply").await;
        (exchanges(gateway, "done").await >= before + 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn two_replicas_admit_together_what_one_limit_allows() {
    const RATE: f64 = 20.0;
    const BURST: usize = 40;
    const CALLS: usize = 180;
    let redis = Redis::start().await;
    let limit = json!({"key": "tool", "rate": RATE as u32, "burst": BURST, "unit": "tool_call"});
    let (one, two) = limited(&redis, limit).await;
    let passed = AtomicUsize::new(0);
    let hammer = async |gateway: &Gateway| {
        while passed.load(Ordering::Relaxed) < CALLS {
            match admits(gateway, "add").await {
                true => _ = passed.fetch_add(1, Ordering::Relaxed),
                false => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let begin = Instant::now();
    let clients = [&one, &two, &one, &two].map(hammer);
    let ended = timeout(2 * DEADLINE, join_all(clients)).await;
    let seconds = begin.elapsed().as_secs_f64();
    ended.expect("the limit lets calls pass");
    let passed = passed.load(Ordering::Relaxed);
    // Each replica may admit a burst before they hear of each other, and more while a busy machine delays an exchange.
    let most = RATE * (seconds + 1.0) + 2.0 * BURST as f64;
    assert!(passed as f64 <= most, "{passed} in {seconds} s");
    let least = RATE * seconds * 0.5;
    assert!(passed as f64 >= least, "{passed} in {seconds} s");
}

#[tokio::test]
async fn a_limit_that_is_used_up_at_one_replica_refuses_at_the_other() {
    const BURST: usize = 100;
    let redis = Redis::start().await;
    let limit =
        json!({"key": ["principal", "tool"], "rate": 1, "burst": BURST, "unit": "tool_call"});
    let (one, two) = limited(&redis, limit).await;
    let begin = Instant::now();
    let mut passed = admitted(&one, "add", BURST).await;
    assert_eq!(passed, BURST, "a limit that is whole");
    told(&one).await;
    // The other replica admits calls until its next exchange with Redis, whose answer has the limit.
    while admits(&two, "add").await {
        passed += 1;
        let allowed = BURST as u64 + begin.elapsed().as_secs() + 2;
        assert!(passed as u64 <= allowed, "{passed} of {allowed}");
        told(&two).await;
    }

    let refused = two
        .request("POST", "/tools/add")
        .header("X-Namespace", "calc");
    let refused = refused.json(&numbers()).send().await.expect("answered");
    // A second brings one call back.
    if refused.status() != 200 {
        assert_eq!(refused.status(), 429);
        let wait = refused.headers()["retry-after"].to_str().expect("text");
        assert!(wait.parse::<u64>().is_ok_and(|wait| wait > 0), "{wait}");
    }
    let session = Session::start(&two, "calc", LATEST).await;
    let refused = eventually("a call of a session is refused", || async {
        let told = session.post(&call(2, "add", numbers())).await.json().await;
        (told["result"]["isError"] == true).then_some(told)
    })
    .await;
    assert!(refused.to_string().contains("rate_limited"), "{refused}");

    // No name of a key says who is limited.
    let names = redis.names("tooldock:budget:*");
    assert!(!names.is_empty() && !names.contains("calc"), "{names}");
}

#[tokio::test]
async fn each_replica_has_the_whole_limit_while_redis_is_away() {
    const BURST: usize = 50;
    let mut redis = Redis::start().await;
    let limit = json!({"key": "tool", "rate": 1, "burst": BURST, "unit": "tool_call"});
    let (one, two) = limited(&redis, limit).await;
    redis.signal(Signal::STOP);
    for gateway in [&one, &two] {
        let begin = Instant::now();
        let passed = admitted(gateway, "add", 2 * BURST).await;
        let allowed = BURST as u64 + begin.elapsed().as_secs() + 1;
        assert!(passed >= BURST && passed as u64 <= allowed, "{passed}");
        eventually("an exchange has failed", || async {
            admits(gateway, "multiply").await;
            (exchanges(gateway, "failed").await > 0).then_some(())
        })
        .await;
    }
    redis.signal(Signal::CONT);
    redis.killed_and_started_again().await;
    for gateway in [&one, &two] {
        told(gateway).await;
    }
}

#[tokio::test]
async fn a_forwarded_request_is_counted_once() {
    const BURST: usize = 60;
    let redis = Redis::start().await;
    let limit = json!({"key": "principal", "rate": 1, "burst": BURST});
    let (one, two) = limited(&redis, limit).await;
    let session = Session::start(&one, "calc", LATEST).await.at(&two);
    for _ in 0..BURST * 2 / 3 {
        assert_eq!(ping(&session).await, 200);
    }
    let metrics = two.metrics_text().await;
    let forwarded = "tooldock_replica_forwards_total{outcome=\"answered\"} 40\n";
    assert!(metrics.contains(forwarded), "{metrics}");
}
