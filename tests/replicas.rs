//! Replicas that share the sessions of one Redis, or of one data directory: any replica answers any request, and the death
//! of one loses nothing.

mod clocks;
mod counted;
mod failover;
mod faults;
mod forwarding;
mod limits;
mod one_machine;
mod peers;
mod pool;
mod reloads;
mod sdk_clients;
mod seeded;
mod suite;
mod surfaces;
mod tls;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::gateway::Builder;
use crate::support::ports::free_address;
use crate::support::redis::Redis;
use crate::support::session::Session;
use crate::support::{Gateway, eventually, tools};

const LATEST: &str = "2025-11-25";
const KEY: &str = "a key that all replicas share, long enough";

/// A replica of that name.
async fn replica(redis: &Redis, name: &str) -> Gateway {
    configured(redis, name, json!({})).await
}

async fn configured(redis: &Redis, name: &str, more: Value) -> Gateway {
    let gateway = Gateway::with_tools([("talk", "talking.py", tools::TALKING)]);
    member(gateway, redis, name).config(more).start().await
}

/// Configures a gateway as the replica `name`, with its sessions in `redis`.
pub fn member(gateway: Builder, redis: &Redis, name: &str) -> Builder {
    stored(gateway, &redis.url(), name)
}

/// Configures a gateway like [`member`], with `store` as the URL of the session store.
fn stored(gateway: Builder, store: &str, name: &str) -> Builder {
    let address = free_address().to_string();
    gateway
        .config(json!({
            "sessions": {"store": store},
            "replicas": {"id": name, "address": address, "grace": "5s"},
        }))
        .env("SESSION_KEY", KEY)
}

/// Two replicas that have heard of each other.
pub async fn two(redis: &Redis) -> (Gateway, Gateway) {
    both_up(tokio::join!(replica(redis, "one"), replica(redis, "two"))).await
}

/// Two replicas once they have heard of each other.
async fn both_up(both: (Gateway, Gateway)) -> (Gateway, Gateway) {
    for gateway in [&both.0, &both.1] {
        see(gateway, 2).await;
    }
    both
}

/// Waits until a replica counts so many that are up.
pub async fn see(gateway: &Gateway, replicas: usize) {
    let line = format!("tooldock_replicas_up {replicas}\n");
    eventually("the replicas see each other", || async {
        gateway.metrics_text().await.contains(&line).then_some(())
    })
    .await;
}

async fn ping(session: &Session) -> u16 {
    session.ping().await
}

/// Calls a tool that announces a change of its list, and reads the answer.
async fn announce(session: &Session, id: u64) {
    let mut answer = session.call(id, "announce", json!({})).await;
    let messages = match answer.is_events() {
        true => answer.messages().await,
        false => vec![answer.json().await],
    };
    assert_eq!(messages.last().expect("an answer")["id"], id);
}

#[tokio::test]
async fn any_replica_answers_for_a_session_that_lives_on_another() {
    let redis = Redis::start().await;
    let (one, two) = two(&redis).await;
    let here = Session::start(&one, "talk", LATEST).await;
    let there = here.at(&two);
    let listed = there.request(2, "tools/list", json!({})).await;
    assert!(
        !listed["result"]["tools"].as_array().unwrap().is_empty(),
        "{listed}"
    );

    // The stream is opened at one replica and the call is made at the other.
    let mut stream = there.listen().await;
    announce(&here, 3).await;
    let event = stream.event().await.expect("an announcement");
    assert_eq!(event.json()["method"], "notifications/tools/list_changed");
    announce(&there, 4).await;
    let event = stream.event().await.expect("one more");
    assert_eq!(event.json()["method"], "notifications/tools/list_changed");

    // A question on the stream of a call, answered by way of either.
    let marks = one.scratch().join("marks");
    let mut answer = there.call(5, "runs", json!({"file": marks})).await;
    let question = answer.event().await.expect("a question").json();
    let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "cancel"}});
    assert_eq!(there.post(&reply).await.status, 202);
    let told = answer.messages().await;
    assert_eq!(told.last().expect("the result")["id"], 5, "{told:?}");

    assert_eq!(there.delete().await, 204);
    assert_eq!((ping(&here).await, ping(&there).await), (404, 404));
    let metrics = two.metrics_text().await;
    assert!(
        metrics.contains("tooldock_replica_forwards_total{outcome=\"answered\"}"),
        "{metrics}"
    );
}

/// Kills the first of two replicas behind an event that its client has read and another one, which `announced` causes and waits
/// for until it is stored. The second replica goes on with the session, and keeps it when the first one is back.
async fn killed_behind_two_events(
    one: &mut Gateway,
    two: &Gateway,
    announced: impl AsyncFnOnce(&Gateway, &Session),
) {
    let here = Session::start(one, "talk", LATEST).await;
    let there = here.at(two);
    let mut stream = there.listen().await;
    announce(&here, 2).await;
    let read = stream.event().await.expect("an announcement");
    drop(stream);
    announced(one, &here).await;

    one.kill();
    assert_eq!(ping(&there).await, 200, "claimed");
    let mut stream = there.get(read.id.as_deref()).await;
    assert_eq!(stream.status, 200);
    let kept = stream.event().await.expect("the event that was not read");
    assert_eq!(kept.json()["method"], "notifications/tools/list_changed");
    assert_ne!(kept.id, read.id);

    one.started_again().await;
    see(one, 2).await;
    assert_eq!(ping(&here).await, 200);
    assert!(holds(one, 0).await);
}

/// Freezes the first of two replicas in a call of its session, until the second one has claimed the session. Answers with the
/// session, the id of the event that its client has read, and the end of the call as the client was told.
async fn claimed_while_frozen(one: &Gateway, two: &Gateway) -> (Session, Option<String>, Value) {
    let here = Session::start(one, "talk", LATEST).await;
    let there = here.at(two);
    let gate = one.scratch().join("gate");
    let arguments = json!({"gate": gate, "before": 1, "after": 1});
    let mut answer = here.call(2, "talk", arguments).await;
    let progress = answer.event().await.expect("progress");

    one.signal(Signal::STOP);
    // Until the other replica has claimed the session it may answer 503 or end a stream: clients ask again.
    let lost = eventually("the end of the call", async || {
        let mut resumed = there.get(progress.id.as_deref()).await;
        match resumed.status {
            200 => resumed.event().await,
            _ => None,
        }
    })
    .await;
    assert!(lost.data.contains("worker_unavailable"), "{lost:?}");
    std::fs::write(&gate, "go").expect("written");
    one.signal(Signal::CONT);
    // The client that stayed has its answer, or learns that the stream is over.
    while let Some(event) = answer.event().await {
        assert_eq!(event.id, None, "{event:?}");
    }
    eventually("the frozen replica has given the session up", || async {
        holds(one, 0).await.then_some(())
    })
    .await;
    (here, progress.id, lost.json())
}

/// True if so many sessions live in a replica.
async fn holds(gateway: &Gateway, sessions: usize) -> bool {
    let line = format!("tooldock_sessions {sessions}\n");
    gateway.metrics_text().await.contains(&line)
}

#[tokio::test]
async fn a_killed_replica_loses_no_session_and_no_event() {
    let redis = Redis::start().await;
    let (mut one, two) = two(&redis).await;
    // An announcement is delivered behind the answer of the call that makes it.
    let both = async || {
        let stored = redis.length("tooldock:events:*:2") == 2;
        stored.then_some(())
    };
    killed_behind_two_events(&mut one, &two, async |_, here| {
        announce(here, 3).await;
        eventually("both events are kept", both).await;
    })
    .await;
}

#[tokio::test]
async fn a_call_whose_replica_is_killed_ends_with_an_error_and_is_not_made_again() {
    let redis = Redis::start().await;
    let (mut one, two) = two(&redis).await;
    let here = Session::start(&one, "talk", LATEST).await;
    let there = here.at(&two);
    let marks = two.scratch().join("marks");
    let mut answer = there.call(5, "runs", json!({"file": marks})).await;
    let question = answer.event().await.expect("a question");
    one.kill();
    let mut resumed = there.get(question.id.as_deref()).await;
    let told = resumed.message().await;
    assert_eq!(told["id"], 5, "{told}");
    let text = told.to_string();
    assert!(text.contains("worker_unavailable"), "{told}");
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "run\n");
}

#[tokio::test]
async fn a_replica_that_stops_hands_its_sessions_over_and_one_that_was_frozen_gives_them_up() {
    let redis = Redis::start().await;
    let (one, two) = two(&redis).await;
    let here = Session::start(&one, "talk", LATEST).await;
    let there = here.at(&two);
    one.signal(Signal::STOP);
    // It may be carried out when that process goes on, and must not be twice.
    assert_eq!(ping(&there).await, 502, "sent to the frozen replica");
    assert_eq!(ping(&there).await, 200, "claimed from the frozen replica");
    one.signal(Signal::CONT);
    see(&one, 2).await;
    assert_eq!(ping(&here).await, 200, "forwarded to its new home");
    eventually("the frozen replica has given the session up", || async {
        let metrics = one.metrics_text().await;
        metrics.contains("tooldock_sessions 0\n").then_some(())
    })
    .await;

    two.signal(Signal::TERM);
    assert_eq!(ping(&here).await, 200, "claimed from the one that leaves");
    assert!(two.ended().await.success());
    assert_eq!(ping(&here).await, 200);
}

#[tokio::test]
async fn sessions_go_on_where_they_live_while_redis_is_away_and_are_recorded_when_it_is_back() {
    let mut redis = Redis::start().await;
    let (mut one, two) = two(&redis).await;
    let before = Session::start(&one, "talk", LATEST).await;
    redis.signal(Signal::STOP);
    assert_eq!(ping(&before).await, 200);
    let during = Session::start(&one, "talk", LATEST).await;
    assert_eq!(ping(&during).await, 200);
    redis.signal(Signal::CONT);
    redis.killed_and_started_again().await;
    // Known by its id alone: the record is not there yet, or is again.
    assert_eq!(ping(&during.at(&two)).await, 200);
    eventually("both sessions are recorded", || async {
        (redis.keys("tooldock:session:*") == 2).then_some(())
    })
    .await;
    for gateway in [&one, &two] {
        see(gateway, 2).await;
    }
    one.kill();
    assert_eq!(
        ping(&during.at(&two)).await,
        200,
        "taken up from its record"
    );
}

#[tokio::test]
async fn the_address_for_replicas_takes_nothing_without_a_passport_of_theirs() {
    let redis = Redis::start().await;
    let gateway = replica(&redis, "one").await;
    let address = gateway.configured()["replicas"]["address"]
        .as_str()
        .unwrap();
    let ask = |passport: Option<&str>| {
        let request = gateway
            .client
            .post(format!("http://{address}/mcp/talk"))
            .bearer_auth(crate::support::TOKEN)
            .json(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
        match passport {
            Some(passport) => request.header("tooldock-passport", passport),
            None => request,
        }
    };
    for passport in [None, Some("forged"), Some("")] {
        let answer = ask(passport).send().await.unwrap();
        assert_eq!(answer.status(), 403, "{passport:?}");
    }
    let log = gateway.log();
    assert!(
        log.contains("a request at replicas.address was refused"),
        "{log}"
    );
    // On a listener of clients the header means nothing.
    let (status, _) = gateway
        .mcp("talk", json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
        .await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn replicas_with_different_keys_or_listeners_or_one_name_say_so() {
    let redis = Redis::start().await;
    let one = replica(&redis, "one").await;
    let start = |name: &str, key: &str| {
        Gateway::empty()
            .config(json!({
                "sessions": {"store": redis.url()},
                "replicas": {"id": name, "address": free_address().to_string()},
            }))
            .env("SESSION_KEY", key)
            .start()
    };
    let other_key = start("two", "another key, which the first replica does not have").await;
    let same_name = start("one", KEY).await;
    eventually("both are told of", || async {
        let keys = other_key.log().contains("its session key is another one");
        let names = same_name
            .log()
            .contains("another process runs as replica one: set REPLICA_ID");
        (keys && names).then_some(())
    })
    .await;

    let other_listener = Gateway::with_tools([("talk", "talking.py", tools::TALKING)])
        .config(json!({
            "sessions": {"store": redis.url()},
            "replicas": {"id": "three", "address": free_address().to_string()},
        }))
        .core(json!({"name": "front"}))
        .env("SESSION_KEY", KEY)
        .start()
        .await;
    let lacks = "it lacks a listener of this replica";
    eventually("the listener is told of", || async {
        one.log().contains(lacks).then_some(())
    })
    .await;
    let here = Session::start(&other_listener, "talk", LATEST).await;
    assert_eq!(ping(&here.at(&one)).await, 503);
}
