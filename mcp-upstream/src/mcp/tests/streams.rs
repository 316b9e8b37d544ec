//! Streams of GET: opening, contents, resumption and limits.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tooldock_sessions::session::config::SessionsConfig;
use tooldock_sessions::testing::{broken, caller, namespace};

use super::super::head::{AcceptFlags, McpHead};
use super::wire::Wire;
use crate::reply::Reply;
use crate::testing::{Harness, Wanted, harness, head, parts};

const CHANGED: &str = "notifications/tools/list_changed";

fn get_head(session: Option<&str>, version: Option<&str>) -> McpHead {
    McpHead {
        accept: AcceptFlags::parse(["text/event-stream"]),
        ..head(session, version)
    }
}

impl Harness {
    async fn open_stream(&self, session: &str) -> Wire {
        Wire::of(
            self.service
                .get(caller(), get_head(Some(session), None))
                .await,
        )
    }

    async fn resume(&self, session: &str, last_event_id: &str) -> Reply {
        let head = McpHead {
            last_event_id: Some(last_event_id.into()),
            ..get_head(Some(session), None)
        };
        self.service.get(caller(), head).await
    }

    /// Makes a change that is announced to every session of `shared`.
    async fn change(&self) {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "talk", "arguments": { "steps": [{ "notice": "tools" }] },
        }});
        let (status, _) = self.post(head(None, None), &body.to_string()).await;
        assert_eq!(status, StatusCode::OK);
        // Announcing only notes the change; its delivery is a task.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn single_faults_of_a_get_have_their_status_and_code() {
    let harness = harness();
    for version in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let session = harness.open(version, true).await;
        let session = Some(session.as_str());
        let other = if version == "2025-11-25" {
            "2025-06-18"
        } else {
            "2025-11-25"
        };
        let accept = |flags| McpHead {
            accept: AcceptFlags::parse([flags]),
            ..get_head(session, None)
        };
        let last = |id: &str| McpHead {
            last_event_id: Some(id.into()),
            ..get_head(session, None)
        };
        let stranger = harness.open(version, true).await;
        let mut foreign = harness.open_stream(&stranger).await;
        harness.change().await;
        foreign.message().await.expect("a change");
        let foreign = foreign.last_id.clone().expect("an id");
        for (fault, head, status, code) in [
            ("no session", get_head(None, None), 400, "session_required"),
            (
                "no session, a version",
                get_head(None, Some(version)),
                400,
                "session_required",
            ),
            (
                "unknown session",
                get_head(Some("nope"), None),
                404,
                "session_not_found",
            ),
            (
                "unknown version",
                get_head(session, Some("1999-01-01")),
                400,
                "unsupported_version",
            ),
            (
                "other version",
                get_head(session, Some(other)),
                400,
                "version_mismatch",
            ),
            (
                "2024-11-05",
                get_head(session, Some("2024-11-05")),
                400,
                "unsupported_version",
            ),
            (
                "2026-07-28",
                get_head(session, Some("2026-07-28")),
                405,
                "method_not_allowed",
            ),
            ("no Accept", accept(""), 406, "not_acceptable"),
            ("wildcard", accept("*/*"), 406, "not_acceptable"),
            ("JSON", accept("application/json"), 406, "not_acceptable"),
            ("malformed event", last("nonsense"), 400, "unknown_event_id"),
            ("empty event", last(""), 400, "unknown_event_id"),
            (
                "event to come",
                last("2-999999999"),
                400,
                "unknown_event_id",
            ),
            ("foreign event", last(&foreign), 400, "unknown_event_id"),
        ] {
            let (got, body) = parts(&harness.service.get(caller(), head).await);
            assert_eq!(got.as_u16(), status, "{fault} {version}: {body}");
            assert_eq!(
                body["error"]["data"]["code"], code,
                "{fault} {version}: {body}"
            );
            assert_eq!(body["id"], Value::Null);
        }
        let mut elsewhere = caller();
        elsewhere.namespace = Some("other".parse().expect("a name"));
        let mut somebody = caller();
        somebody.principal = Some("somebody".into());
        for stranger in [elsewhere, somebody] {
            let reply = harness.service.get(stranger, get_head(session, None)).await;
            assert_eq!(parts(&reply).0, StatusCode::NOT_FOUND);
        }
        for version in [None, Some(version)] {
            let reply = harness
                .service
                .get(caller(), get_head(session, version))
                .await;
            let wire = Wire::of(reply);
            assert_eq!(wire.status, StatusCode::OK);
            assert_eq!(wire.headers["content-type"], "text/event-stream");
            assert_eq!(wire.headers["cache-control"], "no-cache, no-transform");
            assert_eq!(wire.headers["x-accel-buffering"], "no");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn streams_begin_with_an_event_to_come_back_with_where_clients_know_of_it() {
    let harness = harness();
    for (version, primes) in [
        ("2025-11-25", true),
        ("2025-06-18", false),
        ("2025-03-26", false),
    ] {
        let session = harness.open(version, true).await;
        let mut wire = harness.open_stream(&session).await;
        harness.change().await;
        let first = wire.frame().await.expect("a frame");
        assert!(first.id.is_some());
        assert_eq!(first.data.as_deref() == Some(""), primes, "{version}");
        assert_eq!(first.retry.is_some(), primes);
        if primes {
            let id = first.id.expect("an id");
            let mut again = Wire::of(harness.resume(&session, &id).await);
            assert_eq!(again.message().await.expect("it")["method"], CHANGED);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn changes_reach_each_session_of_the_namespace_once_and_no_other() {
    let harness = harness();
    let session = harness.open("2025-11-25", true).await;
    let (mut one, mut two) = (
        harness.open_stream(&session).await,
        harness.open_stream(&session).await,
    );
    let mut other = caller();
    other.namespace = Some("other".parse().expect("a name"));
    let reply = harness
        .service
        .post(
            other.clone(),
            head(None, None),
            super::initialize("2025-11-25").into(),
        )
        .await;
    let (_, id) = reply.head().headers.last().expect("a session").clone();
    let id = id.to_str().expect("ASCII").to_owned();
    let mut untouched = Wire::of(harness.service.get(other, get_head(Some(&id), None)).await);

    harness.change().await;
    assert_eq!(
        two.message().await,
        Some(json!({ "jsonrpc": "2.0", "method": CHANGED }))
    );
    assert!(one.is_silent().await && two.is_silent().await && untouched.is_silent().await);
    // The newest stream with a reader takes over.
    drop(two);
    harness.change().await;
    assert_eq!(one.message().await.expect("it")["method"], CHANGED);
    assert!(one.is_silent().await);
}

#[tokio::test(start_paused = true)]
async fn a_lost_stream_goes_on_behind_the_last_event_without_loss_or_repetition() {
    let harness = harness();
    let session = harness.open("2025-06-18", true).await;
    let mut wire = harness.open_stream(&session).await;
    harness.change().await;
    wire.message().await.expect("the first");
    let first = wire.last_id.clone().expect("an id");
    drop(wire);
    harness.change().await;
    harness.change().await;
    let mut wire = Wire::of(harness.resume(&session, &first).await);
    let mut ids = Vec::new();
    for _ in 0..2 {
        assert_eq!(wire.message().await.expect("it")["method"], CHANGED);
        ids.push(wire.last_id.clone().expect("an id"));
    }
    assert!(wire.is_silent().await);
    assert!(!ids.contains(&first) && ids[0] != ids[1]);
    harness.change().await;
    assert_eq!(wire.message().await.expect("live")["method"], CHANGED);
    // A second reader of the same stream takes it over.
    let mut second = Wire::of(harness.resume(&session, &ids[1]).await);
    assert!(second.message().await.is_some());
    assert_eq!(wire.frame().await, None);
}

#[tokio::test(start_paused = true)]
async fn idle_streams_carry_comments() {
    let harness = Arc::new(harness());
    let timers = tokio::spawn({
        let harness = Arc::clone(&harness);
        async move { harness.service.run_streams().await }
    });
    let session = harness.open("2025-06-18", true).await;
    let mut wire = harness.open_stream(&session).await;
    let start = tokio::time::Instant::now();
    for _ in 0..3 {
        assert!(wire.frame().await.expect("a frame").comment);
    }
    let each = start.elapsed() / 3;
    assert!(each <= SessionsConfig::default().keepalive, "{each:?}");
    timers.abort();
}

#[tokio::test(start_paused = true)]
async fn a_principal_holds_so_many_streams_and_may_come_back_later() {
    let harness = Wanted {
        streams_per_principal: 2,
        ..Wanted::default()
    }
    .build();
    let session = harness.open("2025-11-25", true).await;
    let first = harness.open_stream(&session).await;
    let _second = harness.open_stream(&session).await;
    let refused = harness
        .service
        .get(caller(), get_head(Some(&session), None))
        .await;
    let (status, body) = parts(&refused);
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(body["error"]["code"], -32013);
    let headers = &refused.head().headers;
    let wait = headers.iter().find(|(name, _)| name == "retry-after");
    assert!(wait.is_some_and(|(_, value)| value.to_str().is_ok_and(|it| it != "0")));
    let refused = harness.service.open_sse(caller()).await;
    assert_eq!(refused.head().status, StatusCode::TOO_MANY_REQUESTS);
    let mut somebody = caller();
    somebody.principal = Some("somebody".into());
    assert_eq!(
        harness.service.open_sse(somebody).await.head().status,
        StatusCode::OK
    );
    drop(first);
    harness.open_stream(&session).await;
}

#[tokio::test(start_paused = true)]
async fn streams_end_for_a_shutdown_with_word_of_when_to_come_back() {
    let harness = harness();
    let session = harness.open("2025-06-18", true).await;
    let mut wire = harness.open_stream(&session).await;
    let mut sse = Wire::of(harness.service.open_sse(caller()).await);
    sse.frame().await.expect("the endpoint");
    harness.service.end_streams();
    for wire in [&mut wire, &mut sse] {
        let last = wire.frame().await.expect("a last word");
        assert!(last.retry.is_some() && last.data.is_none(), "{last:?}");
        assert_eq!(wire.frame().await, None);
    }
    let mut late = harness.open_stream(&session).await;
    while let Some(frame) = late.frame().await {
        assert_eq!(frame.event, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_is_announced_to_the_namespaces_it_changed() {
    let harness = Arc::new(harness());
    let timers = tokio::spawn({
        let harness = Arc::clone(&harness);
        async move { harness.service.run_streams().await }
    });
    tokio::task::yield_now().await;
    let session = harness.open("2025-06-18", true).await;
    let mut wire = harness.open_stream(&session).await;
    let mut changed = namespace("shared");
    changed.content_hash = [7; 32];
    changed.tools.pop();
    harness.publish(vec![changed, namespace("other"), broken("broken")]);
    assert_eq!(wire.message().await.expect("it")["method"], CHANGED);
    assert!(wire.is_silent().await);
    timers.abort();
}

crate::testing::shadow::again_adopting!(
    single_faults_of_a_get_have_their_status_and_code,
    streams_begin_with_an_event_to_come_back_with_where_clients_know_of_it,
    changes_reach_each_session_of_the_namespace_once_and_no_other,
    a_lost_stream_goes_on_behind_the_last_event_without_loss_or_repetition,
    idle_streams_carry_comments,
    a_principal_holds_so_many_streams_and_may_come_back_later,
    streams_end_for_a_shutdown_with_word_of_when_to_come_back,
    a_reload_is_announced_to_the_namespaces_it_changed,
);
