//! Tests in which the process ends during a session, and another process continues the session.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use tooldock_sessions::testing::shadow::Shadow;

use tooldock_process::worker::LogLevel;
use tooldock_sessions::testing::{caller, full};

use super::PING;
use super::wire::Wire;
use crate::mcp::head::McpHead;
use crate::testing::shadow;
use crate::testing::{Harness, Wanted, head};

/// A service whose sessions are recorded.
fn recorded() -> (Harness, Arc<Shadow>) {
    let wanted = Wanted {
        namespaces: vec![full("shared")],
        ..Wanted::default()
    };
    shadow::recorded(|| wanted.build())
}

impl Harness {
    /// Ends the process, with all calls and streams of the session.
    fn end_process(&self, session: &str) {
        self.service.core().sessions.lose(session);
    }

    async fn stream(&self, session: &str, last_event_id: Option<&str>) -> Wire {
        let head = McpHead {
            last_event_id: last_event_id.map(str::to_owned),
            ..head(Some(session), None)
        };
        Wire::of(self.service.get(caller(), head).await)
    }

    async fn say(&self, session: &str, message: Value) -> (StatusCode, Value) {
        let message = message.to_string();
        self.post(head(Some(session), None), &message).await
    }

    async fn tools_change(&self) {
        let params = json!({ "name": "talk", "arguments": { "steps": [{ "notice": "tools" }] } });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let (status, _) = self.post(head(None, None), &body.to_string()).await;
        assert_eq!(status, StatusCode::OK);
        // Announcing only notes the change; its delivery is a task.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    async fn talk_in(&self, session: &str, steps: Value) -> Wire {
        let params = json!({ "name": "talk", "arguments": { "steps": steps },
            "_meta": { "progressToken": 1 } });
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
        let body = body.to_string();
        Wire::of(self.reply(head(Some(session), None), &body).await)
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ended_with_its_process_is_answered_with_an_error_and_not_repeated() {
    let (harness, _) = recorded();
    let session = harness.session("2025-11-25").await;
    let steps = json!([{ "progress": 1 }, { "hang": true }]);
    let mut wire = harness.talk_in(&session, steps).await;
    let said = wire.message().await.expect("progress");
    assert_eq!(said["method"], "notifications/progress");
    let last = wire.last_id.clone().expect("an id");
    harness.end_process(&session);
    assert_eq!(wire.frame().await, None);
    for _ in 0..2 {
        let mut wire = harness.stream(&session, Some(&last)).await;
        let error = wire.message().await.expect("an answer");
        assert_eq!(error["id"], 7);
        assert_eq!(error["error"]["data"]["code"], "worker_unavailable");
        assert_eq!(wire.frame().await, None);
    }
    assert_eq!(harness.backend.counts().0, 1, "the call ran once");
}

#[tokio::test(start_paused = true)]
async fn a_stream_goes_on_in_the_next_process_without_loss_or_repetition() {
    let (harness, shadow) = recorded();
    let session = harness.session("2025-11-25").await;
    let mut wire = harness.stream(&session, None).await;
    let mut ids = Vec::new();
    for process in 0..4 {
        harness.tools_change().await;
        let change = wire.message().await.expect("a change");
        assert_eq!(change["method"], "notifications/tools/list_changed");
        let last = wire.last_id.clone().expect("an id");
        assert!(!ids.contains(&last));
        // Not read in this process: the next one delivers it.
        harness.tools_change().await;
        harness.end_process(&session);
        let mut missed = 1;
        if process % 2 == 0 {
            // Announced before the client has come back for its stream.
            let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
            harness.say(&session, ping).await;
            harness.tools_change().await;
            missed += 1;
        }
        wire = harness.stream(&session, Some(&last)).await;
        for _ in 0..missed {
            wire.message().await.expect("what was missed");
        }
        assert!(wire.is_silent().await);
        ids.push(last);
    }
    assert_eq!(shadow.claims(), 4);
}

#[tokio::test(start_paused = true)]
async fn questions_end_with_their_process_and_late_answers_go_nowhere() {
    let (harness, _) = recorded();
    let session = harness.session("2025-11-25").await;
    let ask = json!([{ "ask": [{ "key": "k", "method": "roots/list", "params": {} }] }]);
    let mut wire = harness.talk_in(&session, ask.clone()).await;
    let first = wire.message().await.expect("a question");
    harness.end_process(&session);
    let answer = |id: &Value| json!({ "jsonrpc": "2.0", "id": id, "result": { "roots": [] } });
    let (status, _) = harness.say(&session, answer(&first["id"])).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let mut wire = harness.talk_in(&session, ask).await;
    let second = wire.message().await.expect("a question");
    assert_ne!(first["id"], second["id"]);
    // Repeating the old answer does not answer the new question.
    harness.say(&session, answer(&first["id"])).await;
    assert!(wire.is_silent().await);
    harness.say(&session, answer(&second["id"])).await;
    let response = wire.message().await.expect("the response");
    let outcome = (&response["id"], &response["result"]["isError"]);
    assert_eq!(outcome, (&json!(7), &json!(false)));
}

#[tokio::test(start_paused = true)]
async fn what_a_client_settled_holds_in_the_next_process() {
    let (harness, _) = recorded();
    let session = harness.session("2025-06-18").await;
    let set = |method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    for request in [
        set("logging/setLevel", json!({ "level": "critical" })),
        set("resources/subscribe", json!({ "uri": "test://static" })),
        set("resources/subscribe", json!({ "uri": "test://item/1" })),
        set("resources/unsubscribe", json!({ "uri": "test://item/1" })),
    ] {
        let (status, answer) = harness.say(&session, request).await;
        assert_eq!((status, &answer["result"]), (StatusCode::OK, &json!({})));
        harness.end_process(&session);
    }
    let head = head(Some(&session), Some("2025-06-18"));
    assert_eq!(harness.post(head, PING).await.0, StatusCode::OK);
    let live = harness.service.core().sessions.live(&session);
    let live = live.expect("taken up");
    assert_eq!(live.log_level().as_str(), "critical");
    assert_eq!(live.version().as_str(), "2025-06-18");
    assert!(live.client().capabilities.get().contains("elicitation"));
    assert!(live.subscriptions().contains("test://static"));
    assert!(!live.subscriptions().contains("test://item/1"));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_takes_no_answer_from_a_client_that_is_there() {
    let (harness, shadow) = recorded();
    let session = harness.session("2025-11-25").await;
    shadow.fail(usize::MAX);
    let mut wire = harness.talk_in(&session, json!([{ "progress": 2 }])).await;
    let messages = wire.rest().await;
    assert_eq!(messages.len(), 3);
    assert_eq!(messages[2]["result"]["isError"], false);
    let level = json!({ "jsonrpc": "2.0", "id": 1, "method": "logging/setLevel",
        "params": { "level": "error" } });
    let (_, answer) = harness.say(&session, level).await;
    assert_eq!(answer["result"], json!({}));
    let level = || shadow.record(&session).map(|record| record.log_level);
    assert_ne!(level(), Some(LogLevel::Error));
    shadow.fail(0);
    harness.service.evict_expired().await;
    assert_eq!(level(), Some(LogLevel::Error));
}
