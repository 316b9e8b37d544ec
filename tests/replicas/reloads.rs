//! Reloads of all replicas, and replicas that serve different namespaces.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{both_up, configured};
use crate::support::redis::Redis;
use crate::support::{Gateway, eventually};

const MORE: &str = "from fastmcp.tools import tool\n\n@tool\ndef more() -> int:\n    return 1\n";

/// Two replicas that wait to be told to reload.
async fn unwatched(redis: &Redis) -> (Gateway, Gateway) {
    let start = |name| configured(redis, name, json!({"watcher": {"enabled": false}}));
    both_up(tokio::join!(start("one"), start("two"))).await
}

/// The other replica, as `/ready` on the metrics listener shows it.
async fn other(gateway: &Gateway) -> Value {
    let ready = format!("http://{}/ready", gateway.metrics);
    let answer = gateway.client.get(ready).send().await.expect("answered");
    let ready: Value = answer.json().await.expect("a JSON body");
    ready["replicas"]["others"][0].clone()
}

#[tokio::test]
async fn a_reload_of_one_replica_reaches_the_other_and_says_how_it_went_there() {
    let redis = Redis::start().await;
    let (one, two) = unwatched(&redis).await;
    for gateway in [&one, &two] {
        gateway.drop_tool("talk", "more.py", MORE);
    }
    let answer = one.reload().await;
    let there = json!([{"name": "two", "outcome": "ok", "namespaces": 1, "failed": 0}]);
    assert_eq!(answer["replicas"], there, "{answer}");
    assert_eq!(answer["namespaces"], json!(["talk"]));
    let (status, _) = two.call("talk", "more", json!({})).await;
    assert_eq!(status, 200);

    two.signal(Signal::STOP);
    let answer = one.reload().await;
    let there = json!([{"name": "two", "outcome": "pending"}]);
    assert_eq!(answer["replicas"], there, "{answer}");
    two.signal(Signal::CONT);
}

#[tokio::test]
async fn a_reload_while_redis_is_away_says_who_was_not_told() {
    let redis = Redis::start().await;
    let (one, _two) = unwatched(&redis).await;
    redis.signal(Signal::STOP);
    let answer = one.reload().await;
    let there = json!([{"name": "two", "outcome": "not_told"}]);
    assert_eq!(answer["replicas"], there, "{answer}");
    redis.signal(Signal::CONT);
}

#[tokio::test]
async fn replicas_that_serve_different_sources_say_so() {
    let redis = Redis::start().await;
    let (one, two) = unwatched(&redis).await;
    let expect = async |sources: Option<&str>| {
        for gateway in [&one, &two] {
            eventually("the sources are compared", || async {
                let other = other(gateway).await;
                (other["name"].is_string() && other["sources"].as_str() == sources).then_some(())
            })
            .await;
        }
    };
    expect(None).await;
    two.drop_tool("talk", "more.py", MORE);
    one.reload().await;
    expect(Some("differ")).await;
    one.drop_tool("talk", "more.py", MORE);
    one.reload().await;
    expect(None).await;
}
