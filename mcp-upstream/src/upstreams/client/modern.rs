//! Clients of 2026-07-28.

use super::*;

#[tokio::test(start_paused = true)]
async fn discover_is_the_servers_own_with_the_versions_of_the_listener() {
    for speaks in ERAS {
        let house = house(speaks);
        let result = body(&house.modern("server/discover", json!({})).await)["result"].clone();
        let versions = ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"];
        assert_eq!(result["supportedVersions"], json!(versions));
        assert_eq!(result["_meta"][SERVER]["name"], "fake");
        assert_eq!(result["capabilities"]["x/unknown"], json!({ "n": 1 }));
        assert_eq!(result["resultType"], "complete");
        assert!(result["ttlMs"].is_u64() && result["cacheScope"].is_string());
        assert!(result.get("protocolVersion").is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_ask_a_legacy_server_has_a_process_for_itself() {
    let legacy = house(EraSupport::Legacy);
    legacy.modern("tools/list", json!({})).await;
    legacy
        .modern("resources/read", json!({ "uri": "a://b" }))
        .await;
    let silent = json!({ "uri": "a://b", "_meta": { CAPS: {} } });
    legacy.modern("resources/read", silent).await;
    let requests = legacy.requests("tools/list").into_iter();
    let requests = requests.chain(legacy.requests("resources/read"));
    let keys: Vec<_> = requests.rev().map(|it| (it.key, it.told)).take(3).collect();
    assert_eq!(
        keys,
        [
            (ConnectionKey::Shared, "{}".to_owned()),
            (ConnectionKey::Exclusive, r#"{"elicitation":{}}"#.to_owned()),
            (ConnectionKey::Shared, "{}".to_owned()),
        ]
    );
    let dual = house(EraSupport::Dual);
    dual.modern("resources/read", json!({ "uri": "a://b" }))
        .await;
    let requests = dual.requests("resources/read");
    assert!(matches!(
        &requests[..],
        [SeenRequest {
            key: ConnectionKey::Shared,
            era: Era::Modern,
            ..
        }]
    ));
}

#[tokio::test(start_paused = true)]
async fn results_say_what_a_legacy_server_does_not_and_keep_their_bytes() {
    let legacy = denying(EraSupport::Legacy);
    let params =
        json!({ "name": "echo", "arguments": {}, "_meta": { "z/z": 1, "progressToken": 7 } });
    let text = text(&legacy.modern("tools/call", params).await);
    assert!(
        text.contains(r#""x":1.50"#) && text.contains(r#""resultType":"complete""#),
        "{text}"
    );
    assert!(text.contains(SERVER), "{text}");
    let got: Value = serde_json::from_str(&legacy.request("tools/call")).expect("JSON");
    let sent = legacy.requests("tools/call").pop().expect("a call");
    let id: Value = serde_json::from_str(&sent.id).expect("JSON");
    assert_eq!(got["_meta"]["z/z"], 1);
    assert_eq!(got["_meta"]["progressToken"], id);
    let list = body(&legacy.modern("tools/list", json!({})).await)["result"].clone();
    // The policy hides a tool from all clients, so the list must not be shared.
    assert_eq!(
        (&list["ttlMs"], &list["cacheScope"]),
        (&json!(300_000), &json!("private"))
    );
    assert_eq!(list["tools"].as_array().map(Vec::len), Some(2));
}

#[tokio::test(start_paused = true)]
async fn between_equals_nothing_is_added() {
    let house = house(EraSupport::Modern);
    let params = json!({ "name": "echo", "arguments": { "n": 1 } });
    let text = text(&house.modern("tools/call", params).await);
    assert!(
        text.ends_with(&format!(r#""x":1.50}}{}}}"#, fake::BEHIND)),
        "{text}"
    );
    let got: Value = serde_json::from_str(&house.request("tools/call")).expect("JSON");
    assert_eq!(got["_meta"][V], "2026-07-28");
}

#[tokio::test(start_paused = true)]
async fn a_legacy_servers_question_suspends_the_call_and_the_retry_resumes_it() {
    let house = house(EraSupport::Legacy);
    let asked = body(&house.modern("tools/call", json!({ "name": "ask" })).await)["result"].clone();
    assert_eq!(asked["resultType"], "input_required");
    let question = &asked["inputRequests"]["elicitation-1"];
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["params"], json!({ "message": "who?", "n": 1.50 }));
    let retry = json!({ "name": "ask", "requestState": asked["requestState"],
        "inputResponses": { "elicitation-1": { "action": "accept", "n": 2.0 } } });
    let result = body(&house.modern("tools/call", retry.clone()).await)["result"].clone();
    assert_eq!(result["got"], json!({ "action": "accept", "n": 2.0 }));
    assert_eq!(result["resultType"], "complete");
    // The tool does not run a second time.
    assert_eq!(house.calls(), 1);
    let again = body(&house.modern("tools/call", retry).await);
    assert_eq!(again["error"]["code"], -32602, "{again}");
    assert_eq!(house.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_legacy_server_asks_in_one_moment_is_asked_together() {
    let house = house(EraSupport::Legacy);
    let call = json!({ "name": "ask_two" });
    let asked = body(&house.modern("tools/call", call).await)["result"].clone();
    let questions = &asked["inputRequests"];
    assert_eq!(
        questions["elicitation-1"]["params"],
        json!({ "message": "first" })
    );
    assert_eq!(
        questions["elicitation-2"]["params"],
        json!({ "message": "second" })
    );
    // A client that answers one of the questions is asked the other again.
    let retry = json!({ "name": "ask_two", "requestState": asked["requestState"],
        "inputResponses": { "elicitation-2": { "action": "accept" } } });
    let asked = body(&house.modern("tools/call", retry).await)["result"].clone();
    let questions = asked["inputRequests"].as_object().expect("questions");
    assert_eq!(questions.keys().collect::<Vec<_>>(), ["elicitation-1"]);
    let retry = json!({ "name": "ask_two", "requestState": asked["requestState"],
        "inputResponses": { "elicitation-1": { "action": "decline" } } });
    let result = body(&house.modern("tools/call", retry).await)["result"].clone();
    let got = json!([{ "action": "decline" }, { "action": "accept" }]);
    assert_eq!(result["got"], got);
    assert_eq!(house.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn answers_that_come_along_are_given_at_once() {
    let house = house(EraSupport::Legacy);
    let params =
        json!({ "name": "ask", "inputResponses": { "elicitation-1": { "action": "decline" } } });
    let result = body(&house.modern("tools/call", params).await)["result"].clone();
    assert_eq!(result["got"], json!({ "action": "decline" }));
}

#[tokio::test(start_paused = true)]
async fn a_modern_servers_question_and_its_retry_pass() {
    let house = house(EraSupport::Modern);
    let asked = body(&house.modern("tools/call", json!({ "name": "ask" })).await)["result"].clone();
    assert_eq!(asked["requestState"], "theirs");
    let retry = json!({ "name": "ask", "requestState": "theirs",
        "inputResponses": { "who": { "action": "accept" } } });
    let result = body(&house.modern("tools/call", retry).await)["result"].clone();
    assert_eq!(result["got"], json!({ "who": { "action": "accept" } }));
    assert_eq!(result["state"], "theirs");
}

#[tokio::test(start_paused = true)]
async fn log_messages_come_from_the_level_a_request_names() {
    let house = house(EraSupport::Legacy);
    for (level, heard) in [(Some("debug"), 2), (Some("error"), 1), (None, 0)] {
        let mut meta = json!({ "progressToken": 1, CAPS: {} });
        if let Some(level) = level {
            meta[LEVEL] = level.into();
        }
        let params = json!({ "name": "speak", "_meta": meta });
        let mut wire = Wire::of(house.modern("tools/call", params).await);
        let all = wire.rest().await;
        let logs = all
            .iter()
            .filter(|it| it["method"] == "notifications/message");
        assert_eq!(logs.count(), heard, "{level:?}");
        assert!(
            all.iter()
                .any(|it| it["method"] == "notifications/progress")
        );
    }
    // The process logs at the most verbose level that its clients have requested, so only `debug` was sent to it.
    let levels = house.requests("logging/setLevel");
    let levels: Vec<_> = levels.iter().map(|it| &*it.params).collect();
    assert_eq!(levels, [r#"{"level":"debug"}"#]);
}

#[tokio::test(start_paused = true)]
async fn what_the_era_does_not_have_is_not_found_and_what_the_server_has_besides_passes() {
    for speaks in ERAS {
        let house = house(speaks);
        for method in [
            "ping",
            "initialize",
            "logging/setLevel",
            "resources/subscribe",
            "no/such",
        ] {
            let reply = house.modern(method, json!({})).await;
            let (status, body) = parts(&reply);
            assert_eq!(
                (status, &body["error"]["code"]),
                (StatusCode::NOT_FOUND, &json!(-32601)),
                "{method}"
            );
        }
        let custom = body(&house.modern("custom/echo", json!({ "a": 1.0 })).await);
        assert_eq!(custom["result"]["params"]["a"], 1.0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_is_not_there_has_the_code_of_the_era() {
    for speaks in ERAS {
        let house = house(speaks);
        let reply = house
            .modern("resources/read", json!({ "uri": "a://b" }))
            .await;
        assert_eq!(body(&reply)["error"]["code"], -32602, "{speaks:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn closing_cancels_at_the_server() {
    for speaks in ERAS {
        let house = house(speaks);
        let call = house.modern("tools/call", json!({ "name": "hang" }));
        assert!(timeout(Duration::from_millis(5), call).await.is_err());
        assert_eq!(house.cancelled(), 1, "{speaks:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn listening_subscribes_at_the_server_for_as_long_as_it_lasts() {
    for speaks in ERAS {
        let house = house(speaks);
        let wish = json!({ "notifications": { "toolsListChanged": true, "promptsListChanged": true,
            "resourceSubscriptions": ["test://a"] } });
        let mut wire = Wire::of(house.modern("subscriptions/listen", wish).await);
        let first = wire.message().await.expect("an acknowledgement");
        // The server declares nothing about prompts.
        assert_eq!(
            first["params"]["notifications"],
            json!({ "toolsListChanged": true, "resourceSubscriptions": ["test://a"] })
        );
        house.settle().await;
        assert_eq!(
            *house.seen.subscriptions.lock().expect("not poisoned"),
            ["test://a"]
        );
        let audience = &house.harness.service.core().audience;
        let name = "shared".parse().expect("a name");
        audience.announce(
            &name,
            tooldock_sessions::broadcast::Change::Updated("test://a".into()),
        );
        let news = wire.message().await.expect("news");
        assert_eq!(news["params"]["uri"], "test://a");
        assert_eq!(
            news["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"],
            "m"
        );
        drop(wire);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(
            house
                .seen
                .subscriptions
                .lock()
                .expect("not poisoned")
                .is_empty()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_call_changes_on_its_own_process_is_told_to_all_who_listen() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({})).await;
    let service = &house.harness.service;
    let mut stream = Wire::of(service.get(caller(), head(Some(&session), None)).await);
    let wish = json!({ "notifications": { "toolsListChanged": true,
        "resourceSubscriptions": ["test://a"] } });
    let mut listener = Wire::of(house.modern("subscriptions/listen", wish).await);
    listener.message().await.expect("an acknowledgement");
    let call = house.modern("tools/call", json!({ "name": "hang" }));
    tokio::pin!(call);
    let moment = Duration::from_millis(10);
    assert!(timeout(moment, &mut call).await.is_err());
    let called = house.requests("tools/call");
    assert_eq!(called.last().expect("called").key, ConnectionKey::Exclusive);
    // Only the fact of a change is passed on: the server's message may be about the call.
    let list = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    let said = list.replace('}', r#","params":{"n":"of the call"}}"#);
    house.seen.own().say(&said);
    assert_eq!(stream.line().await.as_deref(), Some(list));
    let news = listener.message().await.expect("news");
    assert_eq!(news["method"], "notifications/tools/list_changed");
    let updated = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"test://a"}}"#;
    house.seen.own().say(updated);
    let news = listener.message().await.expect("news");
    assert_eq!(news["params"]["uri"], "test://a");
}

#[tokio::test(start_paused = true)]
async fn mirrored_parameters_are_checked_against_the_servers_schema() {
    let house = house(EraSupport::Modern);
    let message = modern(
        "tools/call",
        json!({ "name": "headed", "arguments": { "region": "eu" } }),
    );
    let refused = house.post(modern_head(&message), &message).await;
    assert_eq!(body(&refused)["error"]["code"], -32020);
    let mut head = modern_head(&message);
    if let Some(mirrored) = &mut head.mirrored {
        mirrored.params.push(("region".into(), "eu".into()));
    }
    let fine = house.post(head, &message).await;
    assert!(body(&fine)["result"].is_object());
}

#[tokio::test(start_paused = true)]
async fn mirrored_parameters_that_cannot_be_compared_are_refused_whatever_the_reason() {
    let house = house(EraSupport::Modern);
    house.seen.silent.store(2, Ordering::SeqCst);
    let message = modern("tools/call", json!({ "name": "echo", "arguments": {} }));
    let mut head = modern_head(&message);
    if let Some(mirrored) = &mut head.mirrored {
        mirrored.params.push(("region".into(), "eu".into()));
    }
    let refused = body(&house.post(head, &message).await);
    let text = refused["error"].to_string();
    assert!(text.contains("does not list its tools"), "{refused}");
    // A call without mirrored parameters needs no schema.
    let fine = house.post(modern_head(&message), &message).await;
    assert!(body(&fine)["result"].is_object());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_list_its_tools_is_waited_for_once_by_all_calls() {
    let house = house(EraSupport::Modern);
    house.seen.silent.store(1, Ordering::SeqCst);
    let message = modern("tools/call", json!({ "name": "echo", "arguments": {} }));
    let begun = tokio::time::Instant::now();
    let calls = (0..10).map(|_| house.post(modern_head(&message), &message));
    for reply in futures_util::future::join_all(calls).await {
        assert!(body(&reply)["result"].is_object(), "{}", body(&reply));
    }
    assert_eq!(begun.elapsed().as_secs(), 3);
    house.post(modern_head(&message), &message).await;
    // Parameters mirrored into headers are checked against the tool's schema. While the schema is unknown, a call that has such
    // parameters is refused.
    let mut head = modern_head(&message);
    if let Some(mirrored) = &mut head.mirrored {
        mirrored.params.push(("region".into(), "eu".into()));
    }
    let refused = house.post(head, &message).await;
    let text = body(&refused)["error"].to_string();
    assert!(text.contains("did not list its tools in time"), "{text}");
    assert_eq!(begun.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn other_isolations_do_as_they_say() {
    for (isolation, key) in [
        (Isolation::Shared, ConnectionKey::Shared),
        (
            Isolation::Principal,
            ConnectionKey::Principal("tester".into()),
        ),
        (Isolation::Session, ConnectionKey::Exclusive),
    ] {
        let mut fake = Fake::new(EraSupport::Legacy);
        fake.isolation = isolation;
        let house = house_of(fake);
        house
            .modern("resources/read", json!({ "uri": "a://b" }))
            .await;
        assert_eq!(house.requests("resources/read")[0].key, key);
    }
}

#[tokio::test(start_paused = true)]
async fn a_legacy_servers_own_state_is_sealed_and_no_other_runs_anything() {
    let house = house(EraSupport::Legacy);
    let call =
        |state: Value| json!({ "name": "relays", "inputResponses": {}, "requestState": state });
    let asked = body(
        &house
            .modern("tools/call", json!({ "name": "relays" }))
            .await,
    )["result"]
        .clone();
    let state = asked["requestState"].as_str().expect("a state");
    assert!(!state.contains("theirs"));
    let result = body(&house.modern("tools/call", call(state.into())).await)["result"].clone();
    assert_eq!(result["state"], "theirs");
    let runs = house.calls();
    for wrong in ["theirs", &state[1..]] {
        let refused = body(&house.modern("tools/call", call(wrong.into())).await);
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    assert_eq!(house.calls(), runs);
}

#[tokio::test(start_paused = true)]
async fn a_modern_servers_hints_pass_but_a_list_that_is_not_everybodys_says_so() {
    let house = denying(EraSupport::Modern);
    let list = body(&house.modern("tools/list", json!({})).await)["result"].clone();
    assert_eq!(
        (&list["ttlMs"], &list["cacheScope"]),
        (&json!(5), &json!("private"))
    );
}

#[tokio::test(start_paused = true)]
async fn completion_and_pages_pass() {
    for speaks in ERAS {
        let house = house(speaks);
        for (method, key, value) in [
            ("completion/complete", "ref", json!({ "x": 1.50 })),
            ("resources/templates/list", "cursor", json!("c")),
        ] {
            let answer = body(&house.modern(method, json!({ key: value })).await);
            assert_eq!(answer["result"]["params"][key], value, "{method}: {answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_principals_list_is_nobody_elses() {
    for (isolation, kept) in [(Isolation::Principal, false), (Isolation::Shared, true)] {
        for speaks in ERAS {
            let mut fake = Fake::new(speaks);
            fake.isolation = isolation;
            let house = house_of(fake);
            let message = modern("tools/list", json!({}));
            let list = async |name: &str| {
                let mut client = caller();
                client.principal = Some(name.into());
                body(&house.post_as(client, modern_head(&message), &message).await)
            };
            assert!(list("ada").await["result"].is_object());
            house.seen.go_down();
            let of_bob = list("bob").await;
            assert_eq!(of_bob["result"].is_object(), kept, "{of_bob}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_is_kept_as_no_other_page_than_it_is() {
    for params in [
        json!({ "cursor": "c" }).to_string(),
        r#"{"curs\u006fr":"c"}"#.to_owned(),
        r#"{"x":1,"x":2,"cursor":"c"}"#.to_owned(),
    ] {
        let house = house(EraSupport::Legacy);
        let (session, _) = house.open(json!({})).await;
        let message =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{params}}}"#);
        let reply = house.raw(Some(&session), &message).await;
        assert!(body(&reply)["result"].is_object(), "{params}");
        let first = PageKey::of(Era::Legacy, "tools/list", None).expect("a list");
        let kept = house.catalogue().recall(&first).expect("read by the pool");
        assert!(kept.starts_with(br#"{"tools":[{"name":"echo""#), "{params}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_state_in_another_spelling_is_none_of_ours() {
    let house = house(EraSupport::Legacy);
    let message = modern("tools/call", json!({ "name": "relays" })).to_string();
    let message = message.replacen(
        r#""name":"relays""#,
        r#""name":"relays","request\u0053tate":"theirs""#,
        1,
    );
    assert!(message.contains("u0053"), "{message}");
    let like = modern("tools/call", json!({ "name": "relays" }));
    let service = &house.harness.service;
    let reply = service
        .post(caller(), modern_head(&like), message.into())
        .await;
    assert_eq!(body(&reply)["error"]["code"], -32602);
    assert_eq!(house.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_message_without_a_level_is_for_those_that_want_any() {
    let house = house(EraSupport::Legacy);
    let call = |level: Option<&str>| {
        let mut params = json!({ "name": "mumble", "_meta": { "progressToken": 1, CAPS: {} } });
        if let Some(level) = level {
            params["_meta"][LEVEL] = level.into();
        }
        house.modern("tools/call", params)
    };
    let mut wire = Wire::of(call(Some("emergency")).await);
    let all = wire.rest().await;
    let heard = all
        .iter()
        .filter(|it| it["method"] == "notifications/message");
    assert_eq!(heard.count(), 3);
    // A client without events gets only the response.
    assert!(body(&call(None).await)["result"].is_object());
}
