//! Replicas that are frozen, or cut off from Redis, while their clients continue.

use serde_json::json;

use super::{
    LATEST, announce, both_up, claimed_while_frozen, holds, member, ping, replica, see, two,
};
use crate::support::gateway::Builder;
use crate::support::link::Link;
use crate::support::redis::Redis;
use crate::support::session::Session;
use crate::support::{Gateway, eventually, tools};

#[tokio::test]
async fn a_frozen_replica_writes_nothing_into_a_session_that_another_has_claimed() {
    let redis = Redis::start().await;
    let (one, mut two) = two(&redis).await;
    let (here, read, lost) = claimed_while_frozen(&one, &two).await;

    two.kill();
    assert_eq!(ping(&here).await, 200);
    let mut again = here.get(read.as_deref()).await;
    let told = again.messages().await;
    assert_eq!(told, [lost]);
}

#[tokio::test]
async fn a_home_that_is_cut_off_from_redis_refuses_no_event_of_the_next_home_for_good() {
    let redis = Redis::start().await;
    let (link, one) = linked(&redis, "one");
    let (one, two) = both_up(tokio::join!(one.start(), replica(&redis, "two"))).await;
    let here = Session::start(&one, "talk", LATEST).await;
    let there = here.at(&two);
    let opened = here.get(None).await.next().await.expect("priming").id;
    link.cut();
    eventually("the other replica has claimed the session", async || {
        (ping(&there).await == 200 && holds(&two, 1).await).then_some(())
    })
    .await;
    let mut stream = there.get(opened.as_deref()).await;
    announce(&there, 2).await;
    let later = stream.event().await.expect("an announcement").id;
    drop(stream);

    let mut refused = here.get(later.as_deref()).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("retry-after"), Some("3"));
    let told = refused.json().await;
    let code = &told["error"]["data"]["code"];
    assert_eq!(code, "session_store_unavailable", "{told}");
    assert!(holds(&one, 1).await, "the home still has the session");
    link.mend();
    eventually("the client has its stream again", async || {
        (here.get(later.as_deref()).await.status == 200).then_some(())
    })
    .await;
    eventually("it is given up", async || {
        holds(&one, 0).await.then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_session_that_was_opened_without_redis_is_refused_by_others_while_its_home_answers() {
    let redis = Redis::start().await;
    let ((mended, one), (cut, three)) = (linked(&redis, "one"), linked(&redis, "three"));
    let all = tokio::join!(one.start(), replica(&redis, "two"), three.start());
    let (one, two, mut three) = all;
    for gateway in [&one, &two, &three] {
        see(gateway, 3).await;
    }
    mended.cut();
    cut.cut();
    let kept = Session::start(&one, "talk", LATEST).await;
    let lost = Session::start(&three, "talk", LATEST).await;
    see(&two, 1).await;
    for session in [&kept, &lost] {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": "ping"});
        let mut refused = session.at(&two).post(&message).await;
        assert_eq!(refused.status, 503);
        let told = refused.json().await;
        let code = &told["error"]["data"]["code"];
        assert_eq!(code, "replica_unavailable", "{told}");
        assert_eq!(ping(session).await, 200, "its home has it");
    }

    mended.mend();
    eventually("the session is recorded", async || {
        (ping(&kept.at(&two)).await == 200).then_some(())
    })
    .await;
    three.kill();
    eventually("the home has ended, and its session with it", async || {
        (ping(&lost.at(&two)).await == 404).then_some(())
    })
    .await;
}

/// A replica with a link to Redis that can be cut.
fn linked(redis: &Redis, name: &str) -> (Link, Builder) {
    let (link, url) = redis.link();
    let gateway = Gateway::with_tools([("talk", "talking.py", tools::TALKING)]);
    let store = json!({"sessions": {"store": url}});
    (link, member(gateway, redis, name).config(store))
}
