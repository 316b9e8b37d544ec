//! Clients that begin with `initialize`.

use tooldock_base::heavy_work;

use super::*;

#[tokio::test(start_paused = true)]
async fn initialize_is_the_servers_own_in_the_version_of_the_client() {
    for speaks in ERAS {
        let house = house(speaks);
        let (_, result) = house.open(json!({})).await;
        assert_eq!(result["protocolVersion"], "2025-11-25");
        assert_eq!(result["serverInfo"]["name"], "fake");
        assert_eq!(result["instructions"], "Do it.");
        assert_eq!(result["capabilities"]["x/unknown"], json!({ "n": 1 }));
        assert!(result.get("supportedVersions").is_none() && result.get("ttlMs").is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_can_be_asked_has_a_process_of_its_own_that_ends_with_it() {
    let house = house(EraSupport::Dual);
    let (silent, _) = house.open(json!({ "experimental": {} })).await;
    let opened = house.requests("initialize");
    assert!(matches!(
        &opened[..],
        [SeenRequest { key: ConnectionKey::Shared, era: Era::Legacy, told, .. }] if told == "{}"
    ));
    let (asked, _) = house.open(json!({ "elicitation": { "x": 1 } })).await;
    let opened = house.requests("initialize");
    assert_eq!(opened.len(), 2);
    let own = &opened[1].key;
    assert!(matches!(own, ConnectionKey::Session(_)), "{opened:?}");
    assert_eq!(opened[1].told, r#"{"elicitation":{"x":1}}"#);
    for session in [&silent, &asked] {
        let reply = house
            .harness
            .service
            .delete(caller(), head(Some(session), None))
            .await;
        assert_eq!(reply.head().status, StatusCode::NO_CONTENT);
    }
    house.settle().await;
    assert_eq!(
        *house.seen.ended.lock().expect("not poisoned"),
        std::slice::from_ref(own)
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_clients_cannot_read_becomes_an_error_that_they_can() {
    for speaks in ERAS {
        let house = house(speaks);
        let (session, _) = house.open(json!({})).await;
        let call = |answer: Value| json!({ "name": "answers", "arguments": answer });
        let boom = call(json!({ "error": "boom" }));
        let legacy = house.in_session(&session, "tools/call", boom.clone());
        for reply in [legacy.await, house.modern("tools/call", boom).await] {
            let body = body(&reply);
            assert_eq!(body["error"]["code"], -32603, "{body}");
            assert_eq!(body["error"]["message"], "boom", "{body}");
        }
        for (odd, found) in [
            (json!(null), "null"),
            (json!("hello"), "a string"),
            (json!([1]), "a list"),
        ] {
            let call = call(json!({ "result": odd }));
            let legacy = house.in_session(&session, "tools/call", call.clone());
            for reply in [legacy.await, house.modern("tools/call", call).await] {
                let body = body(&reply);
                assert_eq!(body["result"]["isError"], true, "{body}");
                let fault = format!("a result that is no object, but {found}");
                assert!(body.to_string().contains(&fault), "{body}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_pass_untouched_and_modern_servers_hear_who_asks() {
    for speaks in ERAS {
        let house = house(speaks);
        let (session, _) = house.open(json!({})).await;
        let body = r#"{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"echo","arguments":{"n":1.50},"zz":{"k":1e3}}}"#;
        let service = &house.harness.service;
        let reply = service
            .post(caller(), head(Some(&session), None), body.into())
            .await;
        let text = text(&reply);
        assert!(
            text.contains(r#""jsonrpc":"2.0","id":9007199254740993,"result":{"content":[]"#),
            "{text}"
        );
        assert!(
            text.contains(r#""arguments":{"n":1.50},"zz":{"k":1e3}"#),
            "{text}"
        );
        assert!(text.contains(r#""x":1.50}"#), "{text}");
        let meta: Value = serde_json::from_str(&house.request("tools/call")).expect("JSON");
        match speaks {
            EraSupport::Modern => {
                assert_eq!(meta["_meta"][V], "2026-07-28");
                assert_eq!(
                    meta["_meta"]["io.modelcontextprotocol/clientInfo"]["name"],
                    "c"
                );
            }
            _ => assert!(meta.get("_meta").is_none()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_holds_what_the_policy_allows_with_its_bytes() {
    for speaks in ERAS {
        let house = denying(speaks);
        let (session, _) = house.open(json!({})).await;
        let text = text(&house.in_session(&session, "tools/list", json!({})).await);
        assert!(
            text.contains(r#"{"name":"echo","inputSchema":{"type":"object","n":1.50},"x":2.0}"#),
            "{text}"
        );
        assert!(!text.contains("secret_tool"), "{text}");
        let denied = house
            .in_session(&session, "tools/call", json!({ "name": "secret_tool" }))
            .await;
        assert_eq!(body(&denied)["result"]["isError"], true);
        assert_eq!(house.calls(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_becomes_a_request_on_the_stream_and_its_answer_reaches_the_server() {
    for speaks in ERAS {
        let house = house(speaks);
        let (session, _) = house.open(json!({ "elicitation": {} })).await;
        let call = house.in_session(&session, "tools/call", json!({ "name": "ask" }));
        let mut wire = Wire::of(call.await);
        let question = wire.message().await.expect("a question");
        assert_eq!(question["method"], "elicitation/create");
        assert_eq!(question["params"], json!({ "message": "who?", "n": 1.50 }));
        let outcome = json!({ "result": { "action": "accept", "content": { "name": "ada" } } });
        house
            .answer(&session, &question["id"], outcome.clone())
            .await;
        let answer = wire.message().await.expect("the answer");
        let result = &answer["result"];
        match speaks {
            EraSupport::Modern => {
                assert_eq!(result["got"]["who"], outcome["result"]);
                assert_eq!(result["state"], "theirs");
                assert!(result.get("resultType").is_none());
                assert_eq!(house.calls(), 2);
            }
            _ => assert_eq!(result["response"]["result"], outcome["result"]),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_clients_own_error_reaches_a_legacy_server() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({ "elicitation": {} })).await;
    let call = house.in_session(&session, "tools/call", json!({ "name": "ask" }));
    let mut wire = Wire::of(call.await);
    let question = wire.message().await.expect("a question");
    let error = json!({ "code": -1, "message": "User rejected", "data": { "n": 1.5 } });
    house
        .answer(&session, &question["id"], json!({ "error": error }))
        .await;
    let answer = wire.message().await.expect("the answer");
    assert_eq!(answer["result"]["response"]["error"], error);
}

#[tokio::test(start_paused = true)]
async fn who_declares_nothing_is_not_asked() {
    let house = house(EraSupport::Modern);
    let (session, _) = house.open(json!({})).await;
    let answer = body(
        &house
            .in_session(&session, "tools/call", json!({ "name": "ask" }))
            .await,
    );
    assert_eq!(answer["result"]["isError"], true, "{answer}");
}

#[tokio::test(start_paused = true)]
async fn progress_and_messages_come_before_the_answer() {
    // With a shared process, the session's level filters; with its own, the server has filtered.
    for (capabilities, levels) in [
        (json!({}), vec!["error"]),
        (json!({ "roots": {} }), vec!["debug", "error"]),
    ] {
        let house = house(EraSupport::Legacy);
        let (session, _) = house.open(capabilities).await;
        let params = json!({ "name": "speak", "_meta": { "progressToken": "t" } });
        let mut wire = Wire::of(house.in_session(&session, "tools/call", params).await);
        let all = wire.rest().await;
        let of = |method: &str| {
            all.iter()
                .filter(|it| it["method"] == method)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of("notifications/progress")[0]["params"],
            json!({ "progressToken": "t", "progress": 1.0 })
        );
        // Whole messages, unknown members included.
        assert_eq!(of("x/unknown")[0]["x"], 1.5);
        let logged: Vec<_> = of("notifications/message")
            .iter()
            .map(|it| it["params"]["level"].clone())
            .collect();
        assert_eq!(logged, levels);
        assert!(all.last().expect("an answer")["result"].is_object());
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_the_server_does_not_answer_ends_with_the_time_of_a_call() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({})).await;
    for _ in 0..2 {
        let ask = json!({ "jsonrpc": "2.0", "id": 1, "method": "resources/subscribe",
            "params": { "uri": "test://never" } });
        let service = &house.harness.service;
        let reply = service.post(caller(), head(Some(&session), None), ask.to_string().into());
        // A failed subscription does not exist the second time either.
        let reply = timeout(Duration::from_secs(3600), reply)
            .await
            .expect("in time");
        let text = body(&reply)["error"].to_string();
        assert!(
            text.contains("did not answer resources/subscribe in time"),
            "{text}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_is_told_of_a_resource_from_before_its_server_confirms_that() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({})).await;
    let wants = || {
        let core = house.harness.service.core();
        let session = core.sessions.live(&session).expect("it is alive");
        session.subscriptions().contains("test://never")
    };
    let ask = json!({ "jsonrpc": "2.0", "id": 1, "method": "resources/subscribe",
        "params": { "uri": "test://never" } });
    let service = &house.harness.service;
    let reply = service.post(caller(), head(Some(&session), None), ask.to_string().into());
    tokio::pin!(reply);
    // An update may come right after the server's response.
    let early = timeout(Duration::from_millis(1), &mut reply).await;
    assert!(early.is_err() && wants());
    assert!(body(&reply.await)["error"].is_object());
    assert!(!wants());
}

#[tokio::test(start_paused = true)]
async fn log_levels_and_subscriptions_are_kept_here_where_the_process_is_shared() {
    for speaks in ERAS {
        let house = house(speaks);
        let (session, _) = house.open(json!({})).await;
        let level = house
            .in_session(&session, "logging/setLevel", json!({ "level": "debug" }))
            .await;
        assert_eq!(body(&level)["result"], json!({}));
        let told = house.requests("logging/setLevel").len();
        assert_eq!(told, usize::from(speaks == EraSupport::Legacy));
        for _ in 0..2 {
            let params = json!({ "uri": "test://a" });
            let reply = house
                .in_session(&session, "resources/subscribe", params)
                .await;
            assert_eq!(body(&reply)["result"], json!({}));
        }
        house.settle().await;
        assert_eq!(
            *house.seen.subscriptions.lock().expect("not poisoned"),
            ["test://a"]
        );
        // A modern server has one subscription for all resources, and does not refuse one of them.
        if speaks == EraSupport::Legacy {
            let params = json!({ "uri": "test://no" });
            let refused = house.in_session(&session, "resources/subscribe", params);
            assert_eq!(body(&refused.await)["error"]["code"], -32000);
        }
        let params = json!({ "uri": "test://a" });
        house
            .in_session(&session, "resources/unsubscribe", params)
            .await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(
            house
                .seen
                .subscriptions
                .lock()
                .expect("not poisoned")
                .is_empty()
        );
        // The level goes with each request to a modern server.
        house
            .in_session(&session, "tools/call", json!({ "name": "speak" }))
            .await;
        if speaks == EraSupport::Modern {
            let params: Value = serde_json::from_str(&house.request("tools/call")).expect("JSON");
            assert_eq!(params["_meta"][LEVEL], "debug");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn log_levels_and_subscriptions_pass_where_the_process_is_the_sessions() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({ "roots": {} })).await;
    for (method, params) in [
        ("logging/setLevel", json!({ "level": "debug", "z": 1 })),
        ("resources/subscribe", json!({ "uri": "test://a", "z": 1 })),
    ] {
        let reply = house.in_session(&session, method, params.clone()).await;
        assert_eq!(body(&reply)["result"], json!({}));
        let got: Value = serde_json::from_str(&house.request(method)).expect("JSON");
        assert_eq!(got, params);
    }
    // A process that replaces this one gets them again.
    house.seen.own().hang_up();
    tokio::time::sleep(Duration::from_secs(1)).await;
    for (method, params) in [
        ("logging/setLevel", json!({ "level": "debug" })),
        ("resources/subscribe", json!({ "uri": "test://a" })),
    ] {
        assert_eq!(house.requests(method).len(), 2, "{method}");
        let again: Value = serde_json::from_str(&house.request(method)).expect("JSON");
        assert_eq!(again, params);
    }
}

#[tokio::test(start_paused = true)]
async fn ping_is_answered_here_and_unknown_methods_pass() {
    for speaks in ERAS {
        let house = house(speaks);
        let (session, _) = house.open(json!({})).await;
        let ping = house.in_session(&session, "ping", json!({})).await;
        assert_eq!(body(&ping)["result"], json!({}));
        let custom = house
            .in_session(&session, "custom/echo", json!({ "a": 1.0 }))
            .await;
        assert_eq!(body(&custom)["result"]["params"]["a"], 1.0);
        let unknown = house.in_session(&session, "no/such", json!({})).await;
        let (status, unknown) = parts(&unknown);
        assert_eq!((status, &unknown["id"]), (StatusCode::OK, &json!("q")));
        let error = json!({ "code": -32601, "message": "Method not found" });
        assert_eq!(unknown["error"], error);
    }
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_is_not_there_has_the_clients_code() {
    for speaks in ERAS {
        let house = house(speaks);
        let (session, _) = house.open(json!({})).await;
        let reply = house
            .in_session(&session, "resources/read", json!({ "uri": "a://b" }))
            .await;
        assert_eq!(body(&reply)["error"]["code"], -32002, "{speaks:?}");
        assert_eq!(body(&reply)["error"]["data"]["uri"], "a://b");
    }
}

#[tokio::test(start_paused = true)]
async fn cancelling_reaches_the_server_and_leaving_does_not() {
    for speaks in ERAS {
        let house = house(speaks);
        let (session, _) = house.open(json!({})).await;
        let call = house.in_session(&session, "tools/call", json!({ "name": "hang" }));
        let mut call = Box::pin(call);
        let short = Duration::from_millis(5);
        assert!(timeout(short, &mut call).await.is_err());
        drop(call);
        assert_eq!(house.cancelled(), 0);
        let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": "q" } });
        house.post(head(Some(&session), None), &cancelled).await;
        tokio::time::sleep(short).await;
        assert_eq!(house.cancelled(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn notifications_reach_a_sessions_own_server_but_not_a_shared_one_where_they_are_one_clients()
{
    let house = house(EraSupport::Legacy);
    let (own, _) = house.open(json!({ "roots": {} })).await;
    let (shared, _) = house.open(json!({})).await;
    for session in [&own, &shared] {
        for method in ["notifications/roots/list_changed", "x/news"] {
            let body = format!(r#"{{"z":1e400,"jsonrpc":"2.0", "method":"{method}"}}"#);
            let reply = house.raw(Some(session), &body).await;
            assert_eq!(reply.head().status, StatusCode::ACCEPTED);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let told = house.seen.notifications.lock().expect("not poisoned");
    let news = |method: &str| format!(r#"{{"z":1e400,"jsonrpc":"2.0", "method":"{method}"}}"#);
    let roots = news("notifications/roots/list_changed");
    assert_eq!(*told, [roots, news("x/news"), news("x/news")]);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_repeated_only_where_that_is_safe() {
    const LISTED: &str =
        r#"{"tools":[{"name":"unsafe"},{"name":"safe","annotations":{"idempotentHint":true}}]}"#;
    for (tool, calls, failed) in [("safe", 2, false), ("unsafe", 1, true)] {
        let house = house_of(Fake::with_tools(EraSupport::Legacy, LISTED));
        let (session, _) = house.open(json!({})).await;
        house.settle().await;
        house.seen.gone.store(1, Ordering::SeqCst);
        let reply = house
            .in_session(&session, "tools/call", json!({ "name": tool }))
            .await;
        assert_eq!(body(&reply)["result"]["isError"] == true, failed, "{tool}");
        assert_eq!(house.calls(), calls);
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_good_list_is_served_while_the_server_is_down() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({})).await;
    let before = house.in_session(&session, "tools/list", json!({})).await;
    let before = body(&before)["result"].clone();
    house.seen.go_down();
    assert_eq!(
        body(&house.in_session(&session, "tools/list", json!({})).await)["result"],
        before
    );
    let call = body(
        &house
            .in_session(&session, "tools/call", json!({ "name": "echo" }))
            .await,
    );
    assert_eq!(call["result"]["isError"], true, "{call}");
    let other = body(&house.in_session(&session, "prompts/list", json!({})).await);
    assert_eq!(other["error"]["data"]["code"], "worker_unavailable");
}

// The paused clock stands still while threads for heavy work are taken, so the pool does not read the list again by itself.
#[tokio::test(start_paused = true)]
async fn a_long_list_is_mended_apart_and_kept_unless_the_tools_changed_meanwhile() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({})).await;
    house.seen.silent.store(3, Ordering::SeqCst);
    let page = PageKey::of(Era::Legacy, "tools/list", None).expect("a list");
    let catalogue = house.catalogue();
    let keeps_long = || {
        let kept = catalogue.recall(&page).expect("read by the pool");
        kept.starts_with(br#"{"tools":[{"name":"tool0"#)
    };
    let given = || heavy_work::GIVEN.get();
    let until = async |count: usize| {
        for _ in 0..100_000 {
            if given() >= count {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("{} times, not {count}, work was given away", given());
    };
    // All threads for heavy work are taken.
    let places = heavy_work::places();
    let before = given();
    let mut holds = Vec::new();
    for _ in 0..places {
        let (hold, held) = tokio::sync::oneshot::channel::<()>();
        holds.push(hold);
        tokio::spawn(async move {
            let _ = heavy_work::run(&None, move || held.blocking_recv()).await;
        });
    }
    until(before + places).await;
    let list = house.in_session(&session, "tools/list", json!({}));
    let changed = async {
        until(before + places + 1).await;
        catalogue.changed();
        drop(holds);
    };
    let (reply, ()) = tokio::join!(list, changed);
    let listed = body(&reply);
    let tools = listed["result"]["tools"].as_array().expect("tools");
    assert_eq!(tools.len(), fake::MANY_TOOLS);
    let is_mended = |tool: &Value| tool["inputSchema"] == json!({ "type": "object" });
    assert!(tools.iter().all(is_mended));
    assert!(!keeps_long());
    let again = house.in_session(&session, "tools/list", json!({})).await;
    assert_eq!(body(&again)["result"], listed["result"]);
    assert!(keeps_long());
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_server_does_not_start_is_not_opened() {
    let house = house(EraSupport::Legacy);
    house.seen.go_down();
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {} } });
    let reply = house.post(head(None, None), &body).await;
    assert!(
        reply
            .head()
            .headers
            .iter()
            .all(|(name, _)| name != "mcp-session-id")
    );
    assert_eq!(
        parts(&reply).1["error"]["data"]["code"],
        "worker_unavailable"
    );
}

const CHANGED: &str = r#"{"x":1.50,"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
const ROOTS: &str = r#"{"x":1.50,"jsonrpc":"2.0","id":7,"method":"roots/list"}"#;

/// Messages and questions of the newest process that a client has alone, outside of calls.
async fn say(house: &House, ask: bool) -> Option<Asked> {
    let own = house.seen.own();
    own.say(CHANGED);
    let asked = ask.then(|| own.ask(ROOTS));
    house.settle().await;
    asked
}

type Asked = tokio::sync::oneshot::Receiver<String>;

#[tokio::test(start_paused = true)]
async fn what_a_server_says_before_its_session_has_a_stream_waits_for_one() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({ "roots": {} })).await;
    let answer = say(&house, true).await;
    let service = &house.harness.service;
    let mut wire = Wire::of(service.get(caller(), head(Some(&session), None)).await);
    assert_eq!(wire.line().await.as_deref(), Some(CHANGED));
    let question = wire.message().await.expect("a question");
    assert_eq!(question["method"], "roots/list");
    house
        .answer(
            &session,
            &question["id"],
            json!({ "result": { "roots": [] } }),
        )
        .await;
    let told = answer.expect("asked").await.expect("an answer");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(
        (&told["id"], &told["result"]),
        (&json!(7), &json!({ "roots": [] }))
    );
    // Later messages come at once, in order.
    say(&house, false).await;
    assert_eq!(
        wire.message().await.expect("news")["method"],
        "notifications/tools/list_changed"
    );
}

#[tokio::test(start_paused = true)]
async fn a_question_outside_of_calls_that_nobody_answers_fails_in_time() {
    let house = house(EraSupport::Legacy);
    house.open(json!({ "roots": {} })).await;
    let answer = say(&house, true).await;
    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    let told = answer.expect("asked").await.expect("an answer");
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["error"]["code"], -32603);
}

#[tokio::test(start_paused = true)]
async fn a_question_outside_of_calls_can_be_taken_back() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({ "roots": {} })).await;
    let service = &house.harness.service;
    let mut wire = Wire::of(service.get(caller(), head(Some(&session), None)).await);
    let _answer = say(&house, true).await;
    wire.message().await.expect("news");
    let question = wire.message().await.expect("a question");
    let back = r#"{"z":1.0,"jsonrpc":"2.0","params":{"reason":"no","requestId": 7 },"method":"notifications/cancelled"}"#;
    house.seen.own().say(back);
    let id = question["id"].to_string();
    assert_eq!(
        wire.line().await,
        Some(back.replace(" 7 ", &format!(" {id} ")))
    );
}

#[tokio::test(start_paused = true)]
async fn http_sse_reaches_the_server_too() {
    let house = house(EraSupport::Legacy);
    let service = &house.harness.service;
    let mut wire = Wire::of(service.open_sse(caller()).await);
    let endpoint = wire
        .frame()
        .await
        .expect("an endpoint")
        .data
        .expect("an address");
    let id = endpoint
        .split_once("session_id=")
        .expect("an id")
        .1
        .to_owned();
    let send = |body: Value| {
        let service = house.harness.service.clone();
        let id = Some(id.clone());
        async move {
            let body = body.to_string().into();
            let reply = service
                .post_message(caller(), id, McpHead::default(), body)
                .await;
            assert_eq!(reply.head().status, StatusCode::ACCEPTED);
        }
    };
    send(
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2024-11-05", "capabilities": { "elicitation": {} } } }),
    )
    .await;
    let opened = wire.message().await.expect("an answer");
    assert_eq!(opened["result"]["protocolVersion"], "2024-11-05");
    assert_eq!(opened["result"]["serverInfo"]["name"], "fake");
    send(json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": "ask" } }))
        .await;
    let question = wire.message().await.expect("a question");
    send(json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "cancel" } })).await;
    let answer = wire.message().await.expect("the answer");
    assert_eq!(
        (&answer["id"], &answer["result"]["response"]["result"]),
        (&json!(2), &json!({ "action": "cancel" }))
    );
    say(&house, false).await;
    assert_eq!(
        wire.message().await.expect("news")["method"],
        "notifications/tools/list_changed"
    );
    // The process ends with its session's stream.
    drop(wire);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(house.seen.ended.lock().expect("not poisoned").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_modern_servers_hints_are_taken_out() {
    let house = house(EraSupport::Modern);
    let (session, _) = house.open(json!({})).await;
    let list = body(&house.in_session(&session, "tools/list", json!({})).await)["result"].clone();
    for gone in ["resultType", "ttlMs", "cacheScope"] {
        assert!(list.get(gone).is_none(), "{gone}");
    }
    assert_eq!(list["y"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn completion_and_pages_pass() {
    for speaks in ERAS {
        let house = house(speaks);
        let (session, _) = house.open(json!({})).await;
        for (method, params) in [
            ("completion/complete", json!({ "ref": { "x": 1.50 } })),
            ("resources/templates/list", json!({ "cursor": "c" })),
        ] {
            let answer = body(&house.in_session(&session, method, params.clone()).await);
            for (key, value) in params.as_object().expect("an object") {
                assert_eq!(&answer["result"]["params"][key], value, "{method}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_is_not_told_of_roots() {
    let house = house(EraSupport::Modern);
    let (session, _) = house.open(json!({ "roots": {} })).await;
    for method in ["notifications/roots/list_changed", "x/news"] {
        let body = json!({ "jsonrpc": "2.0", "method": method });
        house.post(head(Some(&session), None), &body).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let told = house.seen.notifications.lock().expect("not poisoned");
    assert!(told.len() == 1 && told[0].contains("x/news"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_legacy_server_that_requires_input_all_the_same_is_not_translated() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({})).await;
    let params = json!({ "name": "relays" });
    let result = body(&house.in_session(&session, "tools/call", params).await)["result"].clone();
    assert_eq!(
        result,
        json!({ "resultType": "input_required", "inputRequests": {}, "requestState": "theirs" })
    );
}

#[tokio::test(start_paused = true)]
async fn a_notification_starts_no_process_for_itself() {
    let mut fake = Fake::new(EraSupport::Legacy);
    fake.isolation = Isolation::Session;
    let house = house_of(fake);
    let bare = || McpHead {
        version: Some("2025-03-26".into()),
        ..head(None, None)
    };
    let news = json!({ "jsonrpc": "2.0", "method": "x/news" });
    let reply = house.post(bare(), &news).await;
    assert_eq!(reply.head().status, StatusCode::ACCEPTED);
    tokio::time::sleep(Duration::from_millis(1)).await;
    let opened = house.requests("initialize");
    assert!(opened.iter().all(|it| it.key == ConnectionKey::Shared));
    // A process of the session's own gets the notification.
    let (session, _) = house.open(json!({})).await;
    house.post(head(Some(&session), None), &news).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(
        house.seen.notifications.lock().expect("not poisoned").len(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_progress_token_that_is_too_long_does_not_go_up() {
    for speaks in ERAS {
        let house = house(speaks);
        let (session, _) = house.open(json!({})).await;
        let call = async |length: usize| {
            let meta = json!({ "progressToken": "p".repeat(length - 2) });
            let params = json!({ "name": "echo", "_meta": meta });
            body(&house.in_session(&session, "tools/call", params).await)
        };
        let longest = crate::jsonrpc::ID_MAX;
        let refused = call(longest + 1).await;
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
        assert_eq!(house.calls(), 0);
        assert!(call(longest).await["result"].is_object());
    }
}
