//! Questions to the client over several requests (MRTR).

use super::*;
use crate::testing::parts;

fn elicit(key: &str) -> Value {
    json!({ "key": key, "method": "elicitation/create", "params": { "message": key } })
}

fn asking(keys: &[&str]) -> Value {
    let questions: Vec<_> = keys.iter().map(|key| elicit(key)).collect();
    json!([{ "ask": questions }])
}

fn accept(name: &str) -> Value {
    json!({ "action": "accept", "content": { "name": name } })
}

/// The retry of a call, with another id.
fn retry(call: &Value, id: i64, state: &Value, responses: Value) -> Value {
    let mut retry = call.clone();
    retry["id"] = id.into();
    retry["params"]["requestState"] = state.clone();
    retry["params"]["inputResponses"] = responses;
    retry
}

/// The state of an answer that asks for input with exactly these keys.
fn wanted(result: &Value, keys: &[&str]) -> Value {
    assert_eq!(result["resultType"], "input_required", "{result}");
    let requests = result["inputRequests"].as_object().expect("an object");
    let found: Vec<_> = requests.keys().map(String::as_str).collect();
    assert_eq!(found, keys);
    assert!(result["requestState"].is_string());
    assert_eq!(result["_meta"][SERVER]["name"], "tooldock/shared");
    result["requestState"].clone()
}

/// The result of the script.
fn answers(result: &Value) -> Value {
    assert_eq!(result["resultType"], "complete", "{result}");
    result["structuredContent"].clone()
}

#[tokio::test]
async fn a_question_is_answered_by_the_retry() {
    let harness = service();
    let call = talk(1, asking(&["user_name"]));
    let result = harness.result(&call).await;
    let state = wanted(&result, &["user_name"]);
    assert_eq!(
        result["inputRequests"]["user_name"],
        json!({ "method": "elicitation/create", "params": { "message": "user_name" } })
    );
    let result = harness
        .result(&retry(
            &call,
            2,
            &state,
            json!({ "user_name": accept("Ada") }),
        ))
        .await;
    assert_eq!(answers(&result), json!({ "user_name": accept("Ada") }));
    assert_eq!(harness.backend.counts(), (1, 0, 1), "it ran once");
}

#[tokio::test]
async fn several_questions_are_asked_and_answered_at_once() {
    let harness = service();
    let questions = json!([{ "ask": [
        elicit("a"),
        { "key": "b", "method": "sampling/createMessage", "params": { "maxTokens": 50 } },
        { "key": "c", "method": "roots/list" },
    ] }]);
    let call = talk(1, questions);
    let result = harness.result(&call).await;
    let state = wanted(&result, &["a", "b", "c"]);
    assert_eq!(
        result["inputRequests"]["b"]["method"],
        "sampling/createMessage"
    );
    assert_eq!(result["inputRequests"]["c"]["params"], json!({}));
    let given = json!({ "a": accept("x"), "b": { "role": "assistant" }, "c": { "roots": [] } });
    let result = harness
        .result(&retry(&call, 2, &state, given.clone()))
        .await;
    assert_eq!(answers(&result), given);
}

#[tokio::test]
async fn rounds_have_states_of_their_own() {
    let harness = service();
    let call = talk(
        1,
        json!([{ "ask": [elicit("step1")] }, { "ask": [elicit("step2")] }]),
    );
    let first = wanted(&harness.result(&call).await, &["step1"]);
    let result = harness
        .result(&retry(&call, 2, &first, json!({ "step1": accept("Ada") })))
        .await;
    let second = wanted(&result, &["step2"]);
    assert_ne!(first, second);
    let result = harness
        .result(&retry(
            &call,
            3,
            &second,
            json!({ "step2": accept("blue") }),
        ))
        .await;
    assert_eq!(
        answers(&result),
        json!({ "step1": accept("Ada"), "step2": accept("blue") })
    );
}

#[tokio::test]
async fn missing_answers_are_asked_for_again_and_others_ignored() {
    let harness = service();
    let call = talk(1, asking(&["a", "b"]));
    let state = wanted(&harness.result(&call).await, &["a", "b"]);
    let result = harness
        .result(&retry(&call, 2, &state, json!({ "wrong": accept("x") })))
        .await;
    let state = wanted(&result, &["a", "b"]);
    let mut bare = retry(&call, 3, &state, json!({}));
    bare["params"]
        .as_object_mut()
        .expect("an object")
        .remove("inputResponses");
    let state = wanted(&harness.result(&bare).await, &["a", "b"]);
    let result = harness
        .result(&retry(&call, 4, &state, json!({ "b": accept("2") })))
        .await;
    let state = wanted(&result, &["a"]);
    // A second answer to the same question changes nothing.
    let given = json!({ "a": accept("1"), "b": accept("3"), "extra": accept("x") });
    let result = harness.result(&retry(&call, 5, &state, given)).await;
    assert_eq!(
        answers(&result),
        json!({ "a": accept("1"), "b": accept("2") })
    );
}

#[tokio::test]
async fn answers_that_wait_for_others_do_not_keep_the_body_they_came_in() {
    struct Body(Vec<u8>, std::sync::Arc<std::sync::atomic::AtomicBool>);
    impl AsRef<[u8]> for Body {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Body {
        fn drop(&mut self) {
            self.1.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let harness = service();
    let call = talk(1, asking(&["a", "b"]));
    let state = wanted(&harness.result(&call).await, &["a", "b"]);
    let given = json!({ "a": accept("1"), "ignored": { "x": "x".repeat(10_000) } });
    let retried = retry(&call, 2, &state, given);
    let gone = std::sync::Arc::default();
    let body = Body(
        retried.to_string().into_bytes(),
        std::sync::Arc::clone(&gone),
    );
    let service = &harness.service;
    let reply = service.post(caller(), head_of(&retried), bytes::Bytes::from_owner(body));
    let reply = reply.await;
    wanted(&parts(&reply).1["result"], &["b"]);
    assert!(gone.load(std::sync::atomic::Ordering::SeqCst));
}

#[tokio::test]
async fn answers_that_wait_for_others_are_bounded() {
    let harness = service();
    let large = || json!({ "text": "x".repeat(4 * 1024 * 1024) });
    let call = talk(1, asking(&["a", "b"]));
    let state = wanted(&harness.result(&call).await, &["a", "b"]);
    let half = retry(&call, 2, &state, json!({ "a": large() }));
    let (status, code, text) = harness.refusal(&half).await;
    assert_eq!((status, code), (200, -32602), "{text}");
    assert_eq!(harness.backend.counts(), (1, 1, 0), "the call has ended");
    let state = wanted(&harness.result(&call).await, &["a", "b"]);
    let whole = retry(&call, 3, &state, json!({ "a": large(), "b": accept("2") }));
    answers(&harness.result(&whole).await);
}

#[tokio::test]
async fn answers_may_come_along_with_the_first_request() {
    let harness = service();
    let mut call = talk(1, asking(&["k"]));
    call["params"]["inputResponses"] = json!({ "k": accept("Ada"), "extra": accept("x") });
    assert_eq!(
        answers(&harness.result(&call).await),
        json!({ "k": accept("Ada") })
    );
    call["params"]["inputResponses"] = json!({ "wrong": accept("x") });
    wanted(&harness.result(&call).await, &["k"]);
}

#[tokio::test]
async fn answers_are_an_object_of_objects() {
    let harness = service();
    let call = talk(1, asking(&["k"]));
    let state = wanted(&harness.result(&call).await, &["k"]);
    for bad in [
        json!(null),
        json!([]),
        json!(3),
        json!({ "k": 12345 }),
        json!({ "k": null }),
    ] {
        for state in [Some(&state), None] {
            let mut message = retry(&call, 2, &json!("s"), bad.clone());
            match state {
                Some(state) => message["params"]["requestState"] = state.clone(),
                None => drop(
                    message["params"]
                        .as_object_mut()
                        .expect("an object")
                        .remove("requestState"),
                ),
            }
            let (status, code, _) = harness.refusal(&message).await;
            assert_eq!((status, code), (200, -32602), "{bad}");
        }
    }
    // None of these took the call out.
    let result = harness
        .result(&retry(&call, 3, &state, json!({ "k": accept("x") })))
        .await;
    answers(&result);
}

#[tokio::test]
async fn a_state_is_refused_unless_it_is_this_request_s_own() {
    let harness = service();
    let call = talk(1, asking(&["k"]));
    let state = wanted(&harness.result(&call).await, &["k"]);
    let text = state.as_str().expect("text").to_owned();
    let given = json!({ "k": accept("x") });
    let good = retry(&call, 2, &state, given.clone());

    let tampered = retry(&call, 3, &json!(format!("{text}-TAMPERED")), given.clone());
    let number = retry(&call, 3, &json!(5), given.clone());
    let mut another_tool = good.clone();
    another_tool["params"]["name"] = json!("echo");
    let mut another_method = good.clone();
    another_method["method"] = json!("prompts/get");
    for message in [tampered, number, another_tool, another_method] {
        let (status, code, _) = harness.refusal(&message).await;
        assert_eq!((status, code), (200, -32602), "{message}");
    }
    let mut foreign = caller();
    foreign.principal = Some(Arc::from("eve"));
    let mut elsewhere = caller();
    elsewhere.namespace = Some("other".parse().expect("a name"));
    for caller in [foreign, elsewhere] {
        let reply = harness.send_as(caller, head_of(&good), &good).await;
        assert_eq!(refusal(&reply, &json!(2)).1, -32602);
    }
    assert_eq!(
        harness.backend.counts(),
        (1, 0, 0),
        "nothing ran, nothing ended"
    );
    answers(&harness.result(&good).await);
    // The state was used.
    let (status, code, text) = harness.refusal(&retry(&call, 9, &state, given)).await;
    assert_eq!((status, code), (200, -32602));
    assert!(text.contains("requestState"), "{text}");
    assert_eq!(harness.backend.counts(), (1, 0, 1), "never a second run");
}

#[tokio::test]
async fn of_two_retries_at_once_one_goes_on() {
    let harness = service();
    let call = talk(1, asking(&["k"]));
    let state = wanted(&harness.result(&call).await, &["k"]);
    let given = json!({ "k": accept("x") });
    let (one, two) = (
        retry(&call, 2, &state, given.clone()),
        retry(&call, 3, &state, given),
    );
    let (one, two) = tokio::join!(harness.ask(&one), harness.ask(&two));
    let mut won = 0;
    for (_, body) in [one, two] {
        match body.get("result") {
            Some(_) => won += 1,
            None => assert_eq!(body["error"]["code"], -32602),
        }
    }
    assert_eq!((won, harness.backend.counts()), (1, (1, 0, 1)));
}

#[tokio::test]
async fn prompts_and_resources_ask_too() {
    let harness = service();
    for (method, params, key) in [
        ("prompts/get", json!({ "name": "talk" }), "messages"),
        (
            "resources/read",
            json!({ "uri": "test://talk" }),
            "contents",
        ),
    ] {
        let call = request(json!(1), method, params);
        let state = wanted(&harness.result(&call).await, &["k"]);
        let result = harness
            .result(&retry(&call, 2, &state, json!({ "k": accept("x") })))
            .await;
        assert_eq!(result["resultType"], "complete");
        assert!(result[key].is_array(), "{result}");
    }
}

#[tokio::test]
async fn a_question_the_client_cannot_be_asked_fails_in_the_function() {
    let harness = service();
    let mut call = talk(
        1,
        json!([{ "ask": [elicit("a"), { "key": "b", "method": "sampling/createMessage" }] }]),
    );
    call["params"]["_meta"][CAPS] = json!({ "sampling": {} });
    let state = wanted(&harness.result(&call).await, &["b"]);
    let mut retried = retry(&call, 2, &state, json!({ "b": { "role": "assistant" } }));
    retried["params"]["_meta"][CAPS] = json!({ "sampling": {} });
    let result = answers(&harness.result(&retried).await);
    assert_eq!(result["b"], json!({ "role": "assistant" }));
    let failed = result["a"]["failed"].as_str().expect("text");
    assert!(failed.starts_with("missing_capability"), "{failed}");
}

#[tokio::test]
async fn a_stream_may_end_with_a_question_and_the_retry_may_be_one() {
    let harness = service();
    let mut call = talk(
        1,
        json!([{ "progress": 1 }, { "ask": [elicit("k")] }, { "progress": 1 }]),
    );
    call["params"]["_meta"]["progressToken"] = json!("one");
    let events = harness.events(&call).await;
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0]["params"]["progressToken"], "one");
    let state = wanted(&events[1]["result"], &["k"]);
    let mut retried = retry(&call, 2, &state, json!({ "k": accept("x") }));
    retried["params"]["_meta"]["progressToken"] = json!("two");
    let events = harness.events(&retried).await;
    assert_eq!(events[0]["params"]["progressToken"], "two");
    assert_eq!(events[1]["id"], 2);
    answers(&events[1]["result"]);
}

#[tokio::test]
async fn a_suspended_call_outlives_its_request_but_not_its_retry() {
    let harness = service();
    let call = talk(1, json!([{ "ask": [elicit("k")] }, { "hang": true }]));
    let reply = harness.send(&call).await;
    let state = parts(&reply).1["result"]["requestState"].clone();
    drop(reply);
    tokio::task::yield_now().await;
    assert_eq!(harness.backend.counts(), (1, 0, 0));
    let retried = retry(&call, 2, &state, json!({ "k": accept("x") }));
    {
        let mut sending = Box::pin(harness.send(&retried));
        for _ in 0..10 {
            assert!(futures_util::poll!(&mut sending).is_pending());
            tokio::task::yield_now().await;
        }
    }
    until("the call is dropped", || {
        harness.backend.counts() == (1, 1, 0)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_question_nobody_answers_ends_its_call() {
    let harness = service();
    let call = talk(1, json!([{ "ask": [elicit("k")] }, { "hang": true }]));
    let state = wanted(&harness.result(&call).await, &["k"]);
    let limit = full("shared").limits.ask_timeout;
    tokio::time::sleep(limit + Duration::from_secs(1)).await;
    assert_eq!(harness.backend.counts(), (1, 1, 0));
    let late = retry(&call, 2, &state, json!({ "k": accept("x") }));
    let (status, code, text) = harness.refusal(&late).await;
    assert_eq!((status, code), (200, -32602));
    assert!(text.contains("without it"), "{text}");
    assert_eq!(harness.backend.counts().0, 1, "never a second run");
}

#[tokio::test]
async fn a_full_parking_fails_the_question_not_the_others() {
    let mut shared = full("shared");
    shared.limits.max_parked = 1;
    shared.parked = Arc::new(tooldock_base::parking::Parking::new(1));
    let harness = Wanted {
        namespaces: vec![shared],
        ..Wanted::default()
    }
    .build();
    let call = talk(1, asking(&["k"]));
    let state = wanted(&harness.result(&call).await, &["k"]);
    let second = answers(&harness.result(&talk(2, asking(&["k"]))).await);
    let failed = second["k"]["failed"].as_str().expect("text");
    assert!(failed.starts_with("ask_failed"), "{failed}");
    answers(
        &harness
            .result(&retry(&call, 3, &state, json!({ "k": accept("x") })))
            .await,
    );
}
