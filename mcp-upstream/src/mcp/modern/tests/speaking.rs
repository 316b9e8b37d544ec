//! Calls that send messages before they answer, and clients that leave.

use super::*;

#[tokio::test]
async fn what_a_call_says_goes_before_its_answer_on_its_own_stream() {
    let harness = service();
    let mut call = talk(7, json!([{ "progress": 2 }, { "log": "warning" }]));
    call["params"]["_meta"]["progressToken"] = json!("t\"1");
    call["params"]["_meta"][LEVEL] = json!("info");
    let events = harness.events(&call).await;
    let methods: Vec<_> = events
        .iter()
        .map(|event| event["method"].as_str())
        .collect();
    let progress = Some("notifications/progress");
    assert_eq!(
        methods,
        [progress, progress, Some("notifications/message"), None]
    );
    assert_eq!(
        events[0]["params"],
        json!({ "progressToken": "t\"1", "progress": 1, "total": 2 })
    );
    assert_eq!(
        events[2]["params"],
        json!({ "level": "warning", "data": "said" })
    );
    assert_eq!(events[3]["id"], 7);
    assert_eq!(events[3]["result"]["resultType"], "complete");
}

#[tokio::test]
async fn a_client_hears_only_what_it_asked_for() {
    let harness = service();
    let steps = json!([{ "progress": 3 }, { "log": "debug" }, { "log": "error" }]);
    // Without token and level: plain JSON.
    let result = harness.result(&talk(1, steps.clone())).await;
    assert_eq!(result["resultType"], "complete");
    let mut call = talk(2, steps.clone());
    call["params"]["_meta"][LEVEL] = json!("warning");
    let events = harness.events(&call).await;
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0]["params"]["level"], "error");
    // A level above all messages.
    let mut call = talk(3, steps);
    call["params"]["_meta"][LEVEL] = json!("alert");
    harness.result(&call).await;
}

#[tokio::test]
async fn a_failure_after_the_first_event_ends_the_stream() {
    let harness = service();
    let ask = json!([{ "key": "k", "method": "sampling/createMessage" }]);
    let mut call = talk(4, json!([{ "progress": 1 }, { "ask": ask }]));
    call["params"]["_meta"]["progressToken"] = json!(9);
    call["params"]["_meta"][CAPS] = json!({});
    let events = harness.events(&call).await;
    assert_eq!(events[0]["params"]["progressToken"], 9);
    let last = events.last().expect("an answer");
    assert_eq!(last["id"], 4);
    let text = last["result"]["content"][0]["text"].as_str().expect("text");
    assert!(text.contains("missing_capability"), "{text}");
}

#[tokio::test]
async fn closing_the_stream_cancels_the_call() {
    let harness = service();
    let mut call = talk(7, json!([{ "progress": 1 }, { "hang": true }]));
    call["params"]["_meta"]["progressToken"] = json!(1);
    let mut reading = Reading::of(harness.send(&call).await);
    assert_eq!(
        reading.next().await.expect("progress")["method"],
        "notifications/progress"
    );
    assert_eq!(harness.backend.counts(), (1, 0, 0));
    drop(reading);
    until("the call is dropped", || {
        harness.backend.counts() == (1, 1, 0)
    })
    .await;
}

#[tokio::test]
async fn leaving_before_anything_was_said_cancels_the_call() {
    let harness = service();
    for call in [
        talk(7, json!([{ "hang": true }])),
        request(json!(8), "tools/call", json!({ "name": "hang" })),
    ] {
        let (started, dropped, _) = harness.backend.counts();
        let mut sending = Box::pin(harness.send(&call));
        assert!(futures_util::poll!(&mut sending).is_pending());
        assert_eq!(harness.backend.counts().0, started + 1);
        drop(sending);
        assert_eq!(harness.backend.counts().1, dropped + 1);
    }
}

#[tokio::test]
async fn a_function_is_told_who_calls() {
    let harness = service();
    let mut call = talk(1, json!([]));
    call["params"]["_meta"]["io.modelcontextprotocol/clientInfo"] =
        json!({ "name": "c", "version": "1" });
    call["params"]["_meta"]["progressToken"] = json!(1);
    call["params"]["inputResponses"] = json!({ "k": { "action": "accept" } });
    harness.result(&call).await;
    let callers = harness
        .backend
        .callers
        .lock()
        .expect("not poisoned")
        .clone();
    assert_eq!(callers[0]["era"], "modern");
    assert_eq!(callers[0]["capabilities"]["elicitation"], json!({}));
    assert_eq!(callers[0]["clientInfo"]["name"], "c");
    assert_eq!(callers[0]["progress"], true);
    assert_eq!(callers[0]["inputs"], json!({ "k": { "action": "accept" } }));
}
