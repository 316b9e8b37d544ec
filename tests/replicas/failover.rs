//! A Redis behind Sentinels, whose primary dies under clients that go on.
//!
//! A session that another replica may have claimed is compared with its record, for which Redis has 50 ms. On a busy machine that
//! passes now and then: the answer is 503 `session_store_unavailable` with `Retry-After`, nothing was done, and the client asks
//! again, as [`answered`] does. No other failure is accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{LATEST, both_up, member};
use crate::support::redis::Failover;
use crate::support::session::{Session, call};
use crate::support::sse::Answering;
use crate::support::{Gateway, eventually, tools};

/// A replica whose Redis is the primary that the Sentinels name.
async fn replica(redis: &Failover, name: &str) -> Gateway {
    let gateway = Gateway::with_tools([("talk", "talking.py", tools::TALKING)]);
    let store = json!({"sessions": {"store": redis.url()}});
    member(gateway, &redis.primary, name)
        .config(store)
        .start()
        .await
}

/// Sends a message until its answer is not the request to come back.
async fn answered(session: &Session, message: &Value) -> Answering {
    eventually("an answer", async || {
        let mut answer = session.post(message).await;
        if answer.status != 503 {
            return Some(answer);
        }
        assert!(answer.header("retry-after").is_some());
        let told = answer.json().await;
        let code = &told["error"]["data"]["code"];
        assert_eq!(code, "session_store_unavailable", "{told}");
        None
    })
    .await
}

/// The status of a `ping`.
async fn ping(session: &Session) -> u16 {
    let message = json!({"jsonrpc": "2.0", "id": 7, "method": "ping"});
    answered(session, &message).await.status
}

/// Calls of a session without a pause: some answers are JSON, others streams whose events are stored. Ends with their number
/// once it is told to stop and some more have been answered.
async fn calls(session: Session, stop: Arc<AtomicBool>) -> u64 {
    const AFTER: u64 = 10;
    let mut end = u64::MAX;
    for id in 1.. {
        let tool = ["quiet", "logs"][(id % 2) as usize];
        let mut answer = answered(&session, &call(id, tool, json!({}))).await;
        assert_eq!(answer.status, 200);
        let told = match answer.is_events() {
            true => answer.messages().await.pop().expect("the answer"),
            false => answer.json().await,
        };
        let text = &told["result"]["content"][0]["text"];
        assert_eq!((&told["id"], text), (&json!(id), &json!("done")), "{told}");
        if stop.load(Ordering::Acquire) {
            end = end.min(id + AFTER);
        }
        if id == end {
            break;
        }
    }
    end
}

/// The number of sessions that `/ready` marks as not recorded.
async fn unrecorded(gateway: &Gateway) -> u64 {
    let url = format!("http://{}/ready", gateway.metrics);
    let answer = gateway.client.get(url).send().await.expect("answered");
    let told: Value = answer.json().await.expect("JSON");
    told["session_store"]["unrecorded"].as_u64().unwrap_or(0)
}

#[tokio::test]
async fn no_call_fails_while_sentinels_promote_a_replica_and_sessions_opened_meanwhile_are_recorded_then()
 {
    let mut redis = Failover::start().await;
    let both = tokio::join!(replica(&redis, "one"), replica(&redis, "two"));
    let (mut one, two) = both_up(both).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let session = Session::start(&one, "talk", LATEST).await;
        clients.spawn(calls(session.clone(), Arc::clone(&stop)));
        // Forwarded by the other replica.
        let other = Session::start(&one, "talk", LATEST).await;
        clients.spawn(calls(other.at(&two), Arc::clone(&stop)));
        sessions.extend([session, other]);
    }
    eventually("the replica of the Redis has the sessions", async || {
        (redis.replica.keys("tooldock:session:*") == 4).then_some(())
    })
    .await;

    redis.primary.kill();
    let during = Session::start(&one, "talk", LATEST).await;
    assert!(unrecorded(&one).await >= 1, "the new session is marked");
    assert_eq!(ping(&during).await, 200);
    assert_eq!(ping(&during.at(&two)).await, 200, "known by its id");
    redis.promoted().await;
    eventually("all sessions are recorded", async || {
        let all = unrecorded(&one).await == 0 && redis.replica.keys("tooldock:session:*") == 5;
        all.then_some(())
    })
    .await;
    stop.store(true, Ordering::Release);
    while let Some(client) = clients.join_next().await {
        client.expect("no call has failed");
    }

    one.kill();
    for session in sessions.iter().chain([&during]) {
        let there = session.at(&two);
        assert_eq!(ping(&there).await, 200, "taken up from its record");
    }
}
