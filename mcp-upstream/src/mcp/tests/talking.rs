//! Calls that send messages or questions before they answer, over Streamable HTTP.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tooldock_sessions::session::config::{PollAfter, SessionsConfig};
use tooldock_sessions::testing::caller;

use super::wire::Wire;
use super::{PING, accept, call};
use crate::mcp::head::McpHead;
use crate::reply::Reply;
use crate::testing::{Harness, Wanted, delivered, harness, head, parts};

/// The greatest id that JavaScript can represent: no session asks that many questions, in any number of processes.
const NEVER_ASKED: u64 = (1 << 53) - 1;

/// A call of `talk` with the id 7 and a progress token.
fn talk(steps: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {
        "name": "talk", "arguments": { "steps": steps }, "_meta": { "progressToken": "p\u{0}1" },
    }})
    .to_string()
}

fn ask(key: &str, method: &str) -> Value {
    json!({ "ask": [{ "key": key, "method": method, "params": { "message": key } }] })
}

impl Harness {
    /// A confirmed session whose client can be asked everything.
    pub(super) async fn session(&self, version: &str) -> String {
        let body = json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
                "protocolVersion": version,
                "capabilities": { "elicitation": {}, "sampling": {}, "roots": {} },
            },
        });
        let reply = self
            .service
            .post(caller(), head(None, None), body.to_string().into())
            .await;
        let headers = &reply.head().headers;
        let (_, id) = headers.last().expect("a session").clone();
        let id = id.to_str().expect("ASCII").to_owned();
        delivered(reply);
        let confirmed = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        self.post(head(Some(&id), None), confirmed).await;
        id
    }

    pub(super) async fn reply(&self, head: McpHead, body: &str) -> Reply {
        let body = body.to_owned().into();
        self.service.post(caller(), head, body).await
    }

    async fn talk(&self, session: &str, steps: Value) -> Wire {
        Wire::of(self.reply(head(Some(session), None), &talk(steps)).await)
    }

    async fn get(&self, session: &str, last_event_id: Option<&str>) -> Reply {
        let head = McpHead {
            last_event_id: last_event_id.map(str::to_owned),
            ..head(Some(session), None)
        };
        self.service.get(caller(), head).await
    }

    async fn answer(&self, session: &str, body: Value) -> StatusCode {
        let body = body.to_string();
        self.post(head(Some(session), None), &body).await.0
    }
}

fn progress(n: u32, total: u32) -> Value {
    json!({ "jsonrpc": "2.0", "method": "notifications/progress",
        "params": { "progressToken": "p\u{0}1", "progress": n, "total": total } })
}

#[tokio::test(start_paused = true)]
async fn what_a_call_says_comes_before_its_answer_on_the_same_stream() {
    let harness = harness();
    for version in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let session = harness.session(version).await;
        let mut wire = harness
            .talk(&session, json!([{ "progress": 2 }, { "log": "warning" }]))
            .await;
        assert_eq!(wire.status, StatusCode::OK);
        assert_eq!(wire.headers["content-type"], "text/event-stream");
        assert_eq!(wire.headers["cache-control"], "no-cache, no-transform");
        assert_eq!(wire.headers["x-accel-buffering"], "no");
        if version == "2025-11-25" {
            let first = wire.frame().await.expect("a priming event");
            assert_eq!((first.data.as_deref(), first.event), (Some(""), None));
            assert!(first.id.is_some() && first.retry.is_some());
        }
        let messages = wire.rest().await;
        assert_eq!(messages[..2], [progress(1, 2), progress(2, 2)], "{version}");
        assert_eq!(messages[2]["method"], "notifications/message");
        assert_eq!(
            messages[2]["params"],
            json!({ "level": "warning", "data": "said" })
        );
        assert_eq!(messages[3]["id"], 7);
        assert_eq!(messages[3]["result"]["isError"], false);
        assert_eq!(messages.len(), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_says_nothing_its_client_wants_is_answered_as_json() {
    let harness = harness();
    let session = harness.session("2025-06-18").await;
    let level =
        r#"{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"error"}}"#;
    harness.post(head(Some(&session), None), level).await;
    let no_token = |steps: Value| {
        let body = talk(steps);
        let mut body: Value = serde_json::from_str(&body).expect("JSON");
        body["params"]
            .as_object_mut()
            .expect("an object")
            .remove("_meta");
        body.to_string()
    };
    for body in [
        talk(json!([])),
        talk(json!([{ "log": "warning" }])),
        no_token(json!([{ "progress": 3 }])),
    ] {
        let (status, answer) = harness.post(head(Some(&session), None), &body).await;
        assert_eq!((status, &answer["id"]), (StatusCode::OK, &json!(7)));
    }
    let only_json = McpHead {
        session: None,
        ..accept("application/json")
    };
    let (status, answer) = harness
        .post(only_json, &talk(json!([{ "progress": 3 }])))
        .await;
    assert_eq!((status, &answer["id"]), (StatusCode::OK, &json!(7)));
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_a_session_is_the_calls_life() {
    let harness = harness();
    let mut wire = Wire::of(
        harness
            .reply(head(None, None), &talk(json!([{ "progress": 1 }])))
            .await,
    );
    let messages = wire.rest().await;
    assert_eq!(
        (&messages[0], &messages[1]["id"]),
        (&progress(1, 1), &json!(7))
    );
    assert_eq!(wire.last_id, None);
    let steps = json!([{ "progress": 1 }, { "hang": true }]);
    let mut wire = Wire::of(harness.reply(head(None, None), &talk(steps)).await);
    assert_eq!(wire.message().await, Some(progress(1, 1)));
    drop(wire);
    while harness.backend.counts().1 == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(harness.backend.counts(), (2, 1, 1));
}

#[tokio::test]
async fn a_call_whose_post_goes_before_it_says_anything_goes_on_in_a_session_alone() {
    for (in_session, end) in [(true, "ok"), (false, "cancelled")] {
        let harness = harness();
        let session = harness.session("2025-11-25").await;
        let session = in_session.then_some(&*session);
        let body = talk(json!([{ "hang": true }, { "progress": 1 }]));
        let mut post = Box::pin(harness.reply(head(session, None), &body));
        assert!(futures_util::poll!(&mut post).is_pending());
        drop(post);
        harness.backend.release.add_permits(1);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(harness.metrics.calls_of("shared", end), 1, "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn questions_go_on_the_calls_own_stream_and_their_answers_come_by_post() {
    let harness = harness();
    let session = harness.session("2025-11-25").await;
    let mut general = Wire::of(harness.get(&session, None).await);
    let steps = json!([{ "ask": [
        { "key": "a", "method": "elicitation/create", "params": { "message": "?" } },
        { "key": "b", "method": "roots/list" },
    ]}]);
    let mut wire = harness.talk(&session, steps).await;
    let mut other = harness
        .talk(&session, json!([ask("c", "sampling/createMessage")]))
        .await;
    let (a, b) = (
        wire.message().await.expect("a"),
        wire.message().await.expect("b"),
    );
    let c = other.message().await.expect("c");
    assert_eq!(a["method"], "elicitation/create");
    assert_eq!(a["params"], json!({ "message": "?" }));
    assert_eq!(b["method"], "roots/list");
    assert_eq!(c["method"], "sampling/createMessage");
    assert!(a["id"] != b["id"] && a["id"] != c["id"] && b["id"] != c["id"]);

    let result =
        |id: &Value, result: Value| json!({ "jsonrpc": "2.0", "id": id, "result": result });
    let roots = result(&b["id"], json!({ "roots": [] }));
    assert_eq!(
        harness.answer(&session, roots.clone()).await,
        StatusCode::ACCEPTED
    );
    // A second answer is too late, but not wrong.
    assert_eq!(harness.answer(&session, roots).await, StatusCode::ACCEPTED);
    let never = result(&json!(NEVER_ASKED), json!({}));
    assert_eq!(
        harness.answer(&session, never).await,
        StatusCode::BAD_REQUEST
    );
    let stranger = harness.session("2025-11-25").await;
    let foreign = result(&a["id"], json!({}));
    assert_eq!(
        harness.answer(&stranger, foreign).await,
        StatusCode::BAD_REQUEST
    );
    let refused = json!({ "jsonrpc": "2.0", "id": c["id"],
        "error": { "code": -1, "message": "User rejected" } });
    assert_eq!(
        harness.answer(&session, refused).await,
        StatusCode::ACCEPTED
    );
    let accepted = result(
        &a["id"],
        json!({ "action": "accept", "content": { "n": 1 } }),
    );
    assert_eq!(
        harness.answer(&session, accepted).await,
        StatusCode::ACCEPTED
    );

    let messages = wire.rest().await;
    let structured = &messages[0]["result"]["structuredContent"];
    assert_eq!(
        structured["a"],
        json!({ "action": "accept", "content": { "n": 1 } })
    );
    assert_eq!(structured["b"], json!({ "roots": [] }));
    assert_eq!(messages.len(), 1);
    let messages = other.rest().await;
    let failed = messages[0]["result"]["structuredContent"]["c"]["failed"].clone();
    let failed = failed.as_str().expect("a text");
    assert!(failed.contains("(-1): User rejected"), "{failed}");
    assert!(general.is_silent().await);
}

#[tokio::test(start_paused = true)]
async fn who_cannot_be_asked_is_not_asked() {
    let harness = harness();
    let declared = harness.session("2025-11-25").await;
    let silent = harness.open("2025-11-25", true).await;
    let json_only = harness.session("2025-03-26").await;
    let unheard = McpHead {
        session: Some(json_only),
        ..accept("application/json")
    };
    for head in [head(Some(&silent), None), head(None, None), unheard] {
        let body = talk(json!([ask("k", "elicitation/create")]));
        let (status, answer) = harness.post(head, &body).await;
        assert_eq!(status, StatusCode::OK);
        let answer = answer["result"]["content"][0]["text"].to_string();
        assert!(answer.contains("failed"), "{answer}");
    }
    let mut wire = harness
        .talk(&declared, json!([ask("k", "elicitation/create")]))
        .await;
    assert_eq!(
        wire.message().await.expect("it")["method"],
        "elicitation/create"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ends_takes_its_open_questions_back() {
    let harness = harness();
    let session = harness.session("2025-11-25").await;
    let mut wire = harness
        .talk(&session, json!([ask("k", "roots/list")]))
        .await;
    let question = wire.message().await.expect("a question");
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": { "requestId": 7 } });
    assert_eq!(
        harness.answer(&session, cancel.clone()).await,
        StatusCode::ACCEPTED
    );
    let messages = wire.rest().await;
    assert_eq!(messages[0]["method"], "notifications/cancelled");
    assert_eq!(messages[0]["params"]["requestId"], question["id"]);
    assert_eq!(
        messages[1]["result"]["_meta"]["tooldock/error"]["code"],
        "cancelled"
    );
    // The call is over: cancelling it, or answering its question, changes nothing and is no fault.
    assert_eq!(harness.answer(&session, cancel).await, StatusCode::ACCEPTED);
    let late = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "roots": [] } });
    assert_eq!(harness.answer(&session, late).await, StatusCode::ACCEPTED);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_runs_out_of_time_is_taken_back() {
    let harness = harness();
    let session = harness.session("2025-11-25").await;
    let mut wire = harness
        .talk(&session, json!([ask("k", "roots/list")]))
        .await;
    let question = wire.message().await.expect("a question");
    let messages = wire.rest().await;
    assert_eq!(messages[0]["method"], "notifications/cancelled");
    assert_eq!(messages[0]["params"]["requestId"], question["id"]);
    let failed = &messages[1]["result"]["structuredContent"]["k"]["failed"];
    assert!(failed.is_string(), "{messages:?}");
    assert_eq!(messages.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_lost_its_stream_gets_the_rest_once() {
    let harness = harness();
    for version in ["2025-11-25", "2025-06-18"] {
        let session = harness.session(version).await;
        let steps = json!([{ "progress": 2 }, { "hang": true }, { "progress": 3 }]);
        let mut wire = harness.talk(&session, steps).await;
        assert_eq!(wire.message().await, Some(progress(1, 2)));
        let seen = wire.last_id.clone().expect("events have ids");
        drop(wire);
        // The call continues without a reader.
        harness.backend.release.add_permits(1);
        let mut wire = Wire::of(harness.get(&session, Some(&seen)).await);
        let messages = wire.rest().await;
        assert_eq!(
            messages[..4],
            [
                progress(2, 2),
                progress(1, 3),
                progress(2, 3),
                progress(3, 3)
            ]
        );
        assert_eq!(messages[4]["id"], 7);
        assert_eq!(messages.len(), 5);
        // All messages are still there for another resume, but only in this session.
        let mut again = Wire::of(harness.get(&session, Some(&seen)).await);
        assert_eq!(again.rest().await, messages);
        let other = harness.session(version).await;
        let (status, body) = parts(&harness.get(&other, Some(&seen)).await);
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(body["error"]["data"]["code"], "unknown_event_id");
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_post_is_cut_and_resumed_where_polling_is_on() {
    let harness = Wanted {
        sessions: SessionsConfig {
            poll_after: PollAfter::After(Duration::from_secs(20)),
            ..SessionsConfig::default()
        },
        ..Wanted::default()
    }
    .build();
    let harness = Arc::new(harness);
    let session = harness.session("2025-11-25").await;
    // A function that cannot send messages is polled for, too.
    let reply = harness
        .reply(head(Some(&session), None), &call("hang", "{}"))
        .await;
    let mut wire = Wire::of(reply);
    let first = wire.frame().await.expect("an event to come back with");
    assert!(first.id.is_some() && first.retry.is_some());
    assert_eq!(wire.frame().await, None);
    harness.backend.release.add_permits(1);
    let resumed = harness.get(&session, first.id.as_deref()).await;
    let messages = Wire::of(resumed).rest().await;
    assert_eq!((messages.len(), &messages[0]["id"]), (1, &json!(7)));

    // A call that sends messages is cut at the same time.
    let mut wire = harness
        .talk(&session, json!([{ "progress": 1 }, { "hang": true }]))
        .await;
    let start = tokio::time::Instant::now();
    assert_eq!(wire.rest().await, [progress(1, 1)]);
    assert_eq!(start.elapsed().as_secs(), 20);
    harness.backend.release.add_permits(1);
    let resumed = harness.get(&session, wire.last_id.as_deref()).await;
    assert_eq!(Wire::of(resumed).rest().await[0]["id"], 7);

    // Quick calls, and clients of earlier versions, are not affected.
    let (status, _) = harness
        .post(head(Some(&session), None), &call("echo", "{}"))
        .await;
    assert_eq!(status, StatusCode::OK);
    let older = harness.session("2025-06-18").await;
    harness.backend.release.add_permits(1);
    let (status, answer) = harness
        .post(head(Some(&older), None), &call("hang", "{}"))
        .await;
    assert_eq!((status, &answer["id"]), (StatusCode::OK, &json!(7)));
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_a_stream_when_one_of_its_calls_speaks() {
    let harness = harness();
    let batch = format!(
        r#"[{PING},{},{{"jsonrpc":"2.0","id":"u","method":"nope"}},{{"jsonrpc":"2.0","method":"x"}}]"#,
        talk(json!([{ "progress": 1 }]))
    );
    let session = harness.session("2025-03-26").await;
    for head in [head(None, None), head(Some(&session), None)] {
        let mut wire = Wire::of(harness.reply(head, &batch).await);
        let messages = wire.rest().await;
        assert_eq!(messages.len(), 4, "{messages:?}");
        let place = |id: Value| messages.iter().position(|message| message["id"] == id);
        assert!(place(json!(3)).is_some() && place(json!("u")).is_some());
        let told = messages
            .iter()
            .position(|message| *message == progress(1, 1));
        assert!(told < place(json!(7)) && told.is_some());
    }
    let quiet = format!("[{PING},{}]", talk(json!([])));
    let (status, answers) = harness.post(head(None, None), &quiet).await;
    assert_eq!(
        (status, answers.as_array().map(Vec::len)),
        (StatusCode::OK, Some(2))
    );
    let unheard = accept("application/json");
    let (status, answers) = harness.post(unheard, &batch).await;
    assert_eq!(
        (status, answers.as_array().map(Vec::len)),
        (StatusCode::OK, Some(3))
    );
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_ends_its_streams() {
    let harness = harness();
    let session = harness.session("2025-11-25").await;
    let mut general = Wire::of(harness.get(&session, None).await);
    let mut wire = harness
        .talk(&session, json!([ask("k", "roots/list")]))
        .await;
    assert!(wire.message().await.is_some());
    let deleted = harness.service.delete(caller(), head(Some(&session), None));
    assert_eq!(deleted.await.head().status, StatusCode::NO_CONTENT);
    assert_eq!(general.message().await, None);
    wire.rest().await;
    while harness.backend.counts().1 == 0 {
        tokio::task::yield_now().await;
    }
    let (status, _) = parts(&harness.get(&session, None).await);
    assert_eq!(status, StatusCode::NOT_FOUND);
}

// Without the facts that need no session, or that count polls of a request.
crate::testing::shadow::again_adopting!(
    what_a_call_says_comes_before_its_answer_on_the_same_stream,
    a_call_that_says_nothing_its_client_wants_is_answered_as_json,
    questions_go_on_the_calls_own_stream_and_their_answers_come_by_post,
    who_cannot_be_asked_is_not_asked,
    a_call_that_ends_takes_its_open_questions_back,
    a_question_that_runs_out_of_time_is_taken_back,
    a_client_that_lost_its_stream_gets_the_rest_once,
    a_long_post_is_cut_and_resumed_where_polling_is_on,
    a_batch_is_a_stream_when_one_of_its_calls_speaks,
    a_session_that_ends_ends_its_streams,
);
