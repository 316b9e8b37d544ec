//! Messages to a server when requests are given up, and requests that are never begun.

use futures_util::FutureExt as _;

use super::*;

/// Waits for work in the background.
async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let done = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, done).await.expect(what);
}

fn is_call(request: &tooldock_servers::http::port::BackendRequest) -> bool {
    memchr::memmem::find(&request.body, b"tools/call").is_some()
}

/// The cancellations that a server received.
fn cancelled(house: &House) -> Vec<String> {
    let told = house.pool.backends[0].messages("notifications/cancelled");
    let told = told.into_iter();
    told.map(|it| {
        assert_eq!(it.headers["mcp-session-id"], "backend-0-80/0");
        String::from_utf8(it.body.to_vec()).expect("text")
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_not_handed_over_is_ended_at_its_server() {
    let opening = initialize("2025-11-25");
    let answer = |version: &str| {
        let result = json!({ "protocolVersion": version, "capabilities": {} });
        json!({ "jsonrpc": "2.0", "id": "i", "result": result }).to_string()
    };
    for (body, then) in [
        // The cases: an unsupported version, no answer, an error, a cut answer, and an answer that never ends.
        (Ok(answer("1999-01-01")), Then::Ends),
        (Ok("{}".into()), Then::Ends),
        (Ok(r#"{"id":"i","error":{}}"#.to_owned()), Then::Ends),
        (Err(BodyError::Cut), Then::Ends),
        (Ok("{".into()), Then::Waits),
    ] {
        let house = house(1, |_| {});
        house.pool.backends[0].act(move |request| {
            let opens = memchr::memmem::find(&request.body, b"initialize").is_some();
            let headers = [JSON, ("mcp-session-id", "left")];
            let pieces = vec![body.clone().map(Bytes::from)];
            opens.then(|| Ok(in_pieces(200, &headers, pieces, then)))
        });
        house.reply(head(None, None), &opening).await;
        let backend = &house.pool.backends[0];
        eventually("the end", || backend.ended() == ["left"]).await;
    }
    // Nor is the session kept if the client does not wait for its answer.
    let house = house(1, |_| {});
    let reply = house.reply(head(None, None), &opening).await;
    drop(reply);
    let backend = &house.pool.backends[0];
    if !house.harness.service.core().events.is_stored() {
        eventually("the end", || backend.ended() == ["backend-0-80/0"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_moved_leaves_nothing_at_a_backend_that_lives() {
    let house = house(2, |_| {});
    let session = house.open().await;
    let left = &house.pool.backends[0];
    left.healthy.store(false, Ordering::Relaxed);
    assert_eq!(house.post(&session, CALL).await.0, StatusCode::OK);
    eventually("the end", || left.ended() == ["backend-0-80/0"]).await;
    assert_eq!(house.pool.backends[1].ended().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_hears_that_the_time_of_a_call_is_up_or_that_its_client_went_away() {
    for goes_away in [false, true] {
        let house = house(1, |_| {});
        let session = house.open().await;
        let backend = &house.pool.backends[0];
        backend.act(|request| {
            is_call(request).then(|| Ok(in_pieces(200, &[JSON], Vec::new(), Then::Waits)))
        });
        let call = house.post(&session, CALL);
        if goes_away {
            let limit = Duration::from_secs(1);
            let gone = tokio::time::timeout(limit, call).await;
            assert!(gone.is_err(), "{gone:?}");
        } else {
            assert_eq!(call.await.0, StatusCode::GATEWAY_TIMEOUT);
        }
        eventually("the word", || cancelled(&house).len() == 1).await;
        let told = cancelled(&house).remove(0);
        assert!(told.contains(r#""requestId":1e2,"#), "{told}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_answered_or_can_be_resumed_is_not_given_up() {
    let house = house(1, |_| {});
    let session = house.open().await;
    assert_eq!(house.post(&session, CALL).await.0, StatusCode::OK);
    house.pool.backends[0].act(|request| {
        let event = Bytes::from_static(b"id: 1\ndata:\n\n");
        is_call(request).then(|| Ok(in_pieces(200, &[EVENTS], vec![Ok(event)], Then::Waits)))
    });
    let reply = house.reply(head(Some(&session), None), CALL).await;
    let Reply::Body { mut body, .. } = reply else {
        panic!("{reply:?}");
    };
    body.next().await.expect("an event").expect("whole");
    drop(body);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(cancelled(&house), [""; 0]);
}

#[tokio::test]
async fn sessions_that_are_passed_on_know_no_tasks() {
    let house = house(1, |_| {});
    let backend = &house.pool.backends[0];
    backend.offers(json!({ "tools": {}, "tasks": { "list": {} } }));
    let reply = house
        .reply(head(None, None), &initialize("2025-11-25"))
        .await;
    let (_, answer) = parts(&reply);
    assert_eq!(answer["result"]["capabilities"], json!({ "tools": {} }));
    delivered(reply);
    let session = house.open().await;
    let before = backend.seen().len();
    for (method, params, code) in [
        ("tasks/get", json!({ "taskId": "1" }), "method_not_found"),
        ("tasks/list", json!({}), "method_not_found"),
        (
            "tools/call",
            json!({ "name": "echo", "task": {} }),
            "invalid_params",
        ),
    ] {
        let message = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        let (_, answer) = house.post(&session, &message.to_string()).await;
        assert_eq!(answer["error"]["data"]["code"], code, "{answer}");
        let said = answer["error"]["message"].as_str().expect("words");
        assert!(said.contains("no tasks"), "{said}");
    }
    assert_eq!(backend.seen().len(), before);
}

#[tokio::test]
async fn a_message_goes_to_as_many_further_backends_as_the_configuration_says() {
    // The cases: nothing was written; and messages that may run twice.
    for (kind, unsent, message, harmless) in [
        (SendErrorKind::Tls, true, CALL, true),
        (SendErrorKind::Closed, false, LIST, true),
        (SendErrorKind::Closed, false, CALL, false),
        (SendErrorKind::HeadTimeout, false, LIST, false),
    ] {
        for (max, expected) in [(0, 1), (1, 2), (5, 3)] {
            let tries = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            // Without sessions, any backend answers.
            let wanted = Wanted {
                connects: true,
                ..Wanted::default()
            };
            let house = house_with(3, |spec| spec.retry.max = max, wanted);
            for backend in &house.pool.backends {
                let tries = Arc::clone(&tries);
                backend.act(move |request| {
                    let text = String::from_utf8_lossy(&request.body);
                    if text.contains("initialize") {
                        let result = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
                        let answer = json!({ "jsonrpc": "2.0", "id": "i", "result": result });
                        return Some(Ok(response(200, &[JSON], answer.to_string())));
                    }
                    // Only the client's own requests: those of the gateway have other ids.
                    let own = text.contains(r#""id":2,"#) || text.contains(r#""id":1e2"#);
                    own.then(|| {
                        tries.fetch_add(1, Ordering::Relaxed);
                        Err(error(kind, unsent))
                    })
                });
            }
            let session = house.open().await;
            let (status, body) = house.post(&session, message).await;
            assert_ne!(status, StatusCode::OK, "{body}");
            let expected = if harmless { expected } else { 1 };
            let tries = tries.load(Ordering::Relaxed);
            assert_eq!(tries, expected, "{kind:?} {message} {max}");
        }
    }
}

#[tokio::test]
async fn a_connection_that_ends_under_initialize_or_a_notification_loses_neither() {
    let house = house(2, |_| {});
    let cut = Arc::new(std::sync::Mutex::new(Vec::new()));
    for backend in &house.pool.backends {
        let cut = Arc::clone(&cut);
        backend.act(move |request| {
            let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            let method = message["method"].as_str()?.to_owned();
            let mut cut = cut.lock().expect("fine");
            let is_first = !cut.contains(&method);
            is_first.then(|| {
                cut.push(method);
                Err(error(SendErrorKind::Closed, false))
            })
        });
    }
    let session = house.open().await;
    for method in [
        "notifications/initialized",
        "notifications/roots/list_changed",
    ] {
        let message = json!({ "jsonrpc": "2.0", "method": method });
        let (status, body) = house.post(&session, &message.to_string()).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{method}: {body}");
        assert_eq!(house.pool.sent(method), 2, "{method}");
    }
    let (status, _) = house.post(&session, CALL).await;
    assert_ne!(status, StatusCode::OK, "a call may have run");
    assert_eq!(house.pool.sent("tools/call"), 1);
}

/// A client that resumes after this event.
fn returning(id: &'static str) -> Caller {
    let mut caller = asker();
    let mut headers = HeaderMap::clone(caller.headers.as_deref().expect("headers"));
    headers.insert("last-event-id", HeaderValue::from_static(id));
    caller.headers = Some(Arc::new(headers));
    caller
}

#[tokio::test]
async fn what_a_client_comes_back_for_was_in_the_session_that_its_server_knows() {
    let house = house(2, |_| {});
    let session = house.open().await;
    let streams = |id: &'static str| {
        move |request: &tooldock_servers::http::port::BackendRequest| {
            let event = Bytes::from(format!("id: {id}\ndata: {{}}\n\n"));
            (request.method == http::Method::GET)
                .then(|| Ok(in_pieces(200, &[EVENTS], vec![Ok(event)], Then::Ends)))
        }
    };
    let [left, reached] = [0, 1].map(|at| Arc::clone(&house.pool.backends[at]));
    left.act(streams("old"));
    reached.act(streams("new"));
    let comes_back = async |id: &'static str| {
        let place = McpHead {
            last_event_id: Some(id.into()),
            ..head(Some(&session), None)
        };
        let reply = house.harness.service.get(returning(id), place).await;
        let Reply::Events { mut events, .. } = reply else {
            panic!("{reply:?}");
        };
        while events.next().await.is_some() {}
    };
    let asked_for = |backend: &crate::testing::remote::FakeRemote| {
        let seen = backend.seen().into_iter();
        let gets = seen.filter(|it| it.method == http::Method::GET);
        gets.map(|it| it.headers.get("last-event-id").cloned())
            .collect::<Vec<_>>()
    };
    let named = |id: &'static str| Some(HeaderValue::from_static(id));
    comes_back("old").await;
    assert_eq!(asked_for(&left), [named("old")]);
    left.healthy.store(false, Ordering::Relaxed);
    comes_back("old").await;
    comes_back("old").await;
    comes_back("new").await;
    assert_eq!(asked_for(&reached), [None, None, named("new")]);
    let opening = reached.messages("initialize").remove(0);
    assert!(!opening.headers.contains_key("last-event-id"));
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_it_waits_for_its_turn_never_goes_up() {
    let house = house(1, |_| {});
    let session = house.open().await;
    let registry = &house.harness.service.core().registry;
    let namespace = registry.namespace("search").expect("there");
    let mut taken = Vec::new();
    while let Some(permit) = namespace.gate.enter(&None).now_or_never() {
        taken.push(permit.expect("a place"));
    }
    let cancel = |id: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        )
    };
    let mut waits = std::pin::pin!(house.post(&session, CALL));
    assert!(futures_util::poll!(waits.as_mut()).is_pending());
    let (status, _) = house.post(&session, &cancel("1e2")).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let (_, answer) = waits.await;
    assert_eq!(answer["error"]["data"]["code"], "cancelled", "{answer}");
    drop(taken);
    assert_eq!(house.pool.sent("tools/call"), 0);
    assert_eq!(house.pool.sent("notifications/cancelled"), 0);
    // A message that went up is cancelled at its backend.
    house.post(&session, CALL).await;
    house.post(&session, &cancel("1e2")).await;
    assert_eq!(house.pool.sent("tools/call"), 1);
    assert_eq!(house.pool.sent("notifications/cancelled"), 1);
}
