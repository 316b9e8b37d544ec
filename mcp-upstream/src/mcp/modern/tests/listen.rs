//! `subscriptions/listen`.

use super::*;

fn listen(id: Value, notifications: Value) -> Value {
    request(
        id,
        "subscriptions/listen",
        json!({ "notifications": notifications }),
    )
}

async fn listening(harness: &Harness, id: Value, notifications: Value) -> Reading {
    let mut reading = Reading::of(
        harness
            .send(&listen(id.clone(), notifications.clone()))
            .await,
    );
    let first = reading.next().await.expect("an acknowledgement");
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(first["params"]["_meta"][SUBSCRIPTION], id);
    assert_eq!(first["params"]["notifications"], notifications);
    reading
}

async fn announce(harness: &Harness, steps: Value) {
    harness.result(&talk(99, steps)).await;
}

#[tokio::test]
async fn a_listener_hears_what_it_asked_for_and_nothing_else() {
    let harness = service();
    let mut tools = listening(&harness, json!(1), json!({ "toolsListChanged": true })).await;
    let mut prompts = listening(
        &harness,
        json!("p-🦀"),
        json!({ "promptsListChanged": true }),
    )
    .await;
    let wish = json!({ "resourcesListChanged": true, "resourceSubscriptions": ["a://b"] });
    let mut resources = listening(&harness, json!(1.5), wish).await;
    announce(&harness, json!([{ "updated": "a://c" }, { "updated": "a://b" }, { "notice": "tools" }, { "notice": "prompts" }, { "notice": "resources" }])).await;
    for (reading, method, id) in [
        (&mut tools, "notifications/tools/list_changed", json!(1)),
        (
            &mut prompts,
            "notifications/prompts/list_changed",
            json!("p-🦀"),
        ),
        (
            &mut resources,
            "notifications/resources/list_changed",
            json!(1.5),
        ),
    ] {
        let event = reading.next().await.expect("a change");
        assert_eq!(event["method"], method);
        assert_eq!(event["params"]["_meta"][SUBSCRIPTION], id);
        assert!(event.get("id").is_none());
    }
    let event = resources.next().await.expect("a change");
    assert_eq!(event["method"], "notifications/resources/updated");
    assert_eq!(event["params"]["uri"], "a://b");
    // No other message came in between: the next message is the next change.
    announce(
        &harness,
        json!([{ "notice": "prompts" }, { "notice": "tools" }]),
    )
    .await;
    let event = tools.next().await.expect("a change");
    assert_eq!(event["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn the_subscription_id_is_the_request_s_own_to_the_byte() {
    let harness = service();
    let message = listen(Value::Null, json!({ "toolsListChanged": true }));
    let text = message
        .to_string()
        .replace(r#""id":null"#, r#""id":9007199254740993.0"#);
    let reply = harness
        .service
        .post(caller(), head_of(&message), text.into())
        .await;
    let mut body = reply.into_response().into_body().into_data_stream();
    let tag = format!(r#""{SUBSCRIPTION}":9007199254740993.0"#);
    for method in ["acknowledged", "tools/list_changed"] {
        let chunk = body.next().await.expect("an event").expect("no error");
        let text = std::str::from_utf8(&chunk).expect("UTF-8");
        assert!(text.contains(&tag) && text.contains(method), "{text}");
        if method == "acknowledged" {
            announce(&harness, json!([{ "notice": "tools" }])).await;
        }
    }
}

#[tokio::test]
async fn other_namespaces_do_not_hear_of_it() {
    let harness = service();
    let mut there = caller();
    there.namespace = Some("other".parse().expect("a name"));
    let wish = json!({ "toolsListChanged": true, "promptsListChanged": true });
    let message = listen(json!(1), wish);
    let mut other = Reading::of(
        harness
            .send_as(there.clone(), head_of(&message), &message)
            .await,
    );
    other.next().await.expect("an acknowledgement");
    let mut own = listening(&harness, json!(1), json!({ "toolsListChanged": true })).await;
    announce(&harness, json!([{ "notice": "tools" }])).await;
    own.next().await.expect("a change");
    let call = talk(2, json!([{ "notice": "prompts" }]));
    harness.send_as(there, head_of(&call), &call).await;
    let event = other.next().await.expect("a change");
    assert_eq!(event["method"], "notifications/prompts/list_changed");
}

#[tokio::test]
async fn only_what_the_namespace_has_is_granted() {
    let harness = Wanted::default().build();
    let wish = json!({ "toolsListChanged": true, "promptsListChanged": true,
        "resourcesListChanged": true, "resourceSubscriptions": ["a://b"], "novelty": { "x": 1 } });
    let mut reading = Reading::of(harness.send(&listen(json!(1), wish)).await);
    let first = reading.next().await.expect("an acknowledgement");
    assert_eq!(
        first["params"]["notifications"],
        json!({ "toolsListChanged": true })
    );
}

#[tokio::test]
async fn a_filter_must_be_one() {
    let harness = service();
    let too_many: Vec<_> = (0..1001).map(|n| format!("a://{n}")).collect();
    for bad in [
        json!(null),
        json!([]),
        json!({ "toolsListChanged": 1 }),
        json!({ "resourceSubscriptions": "a://b" }),
        json!({ "resourceSubscriptions": [1] }),
        json!({ "resourceSubscriptions": too_many }),
    ] {
        let (status, code, _) = harness.refusal(&listen(json!(1), bad)).await;
        assert_eq!((status, code), (200, -32602));
    }
}

#[tokio::test]
async fn a_shutdown_ends_a_subscription_with_a_result() {
    let harness = service();
    let mut reading = listening(&harness, json!("s"), json!({ "toolsListChanged": true })).await;
    harness.service.end_streams();
    let last = reading.next().await.expect("a result");
    assert_eq!(last["id"], "s");
    assert_eq!(last["result"]["resultType"], "complete");
    assert_eq!(last["result"]["_meta"][SUBSCRIPTION], "s");
    assert_eq!(reading.next().await, None);
}

#[tokio::test]
async fn a_principal_holds_only_so_many_streams() {
    let harness = Wanted {
        namespaces: vec![full("shared")],
        streams_per_principal: 2,
        ..Wanted::default()
    }
    .build();
    let wish = || json!({ "toolsListChanged": true });
    let one = listening(&harness, json!(1), wish()).await;
    let _two = listening(&harness, json!(2), wish()).await;
    let (status, code, _) = harness.refusal(&listen(json!(3), wish())).await;
    assert_eq!((status, code), (429, -32013));
    drop(one);
    listening(&harness, json!(4), wish()).await;
}
