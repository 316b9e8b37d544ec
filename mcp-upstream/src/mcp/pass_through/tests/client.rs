//! The gateway's own client of remote servers, end to end: from a message to the requests at its backend.

use tooldock_servers::http::port::BackendRequest;
use tooldock_workers::remote::Balance;
use tooldock_workers::server_settings::Isolation;

use super::*;

/// A service whose client mode reaches the backends.
fn house(backends: usize, change: impl FnOnce(&mut RemoteSpec)) -> House {
    let wanted = Wanted {
        connects: true,
        ..Wanted::default()
    };
    let change = |spec: &mut RemoteSpec| {
        spec.mode = Mode::Client;
        change(spec);
    };
    house_with(backends, change, wanted)
}

/// Opens and confirms a session.
async fn open(house: &House) -> String {
    let session = house.open().await;
    let confirmed = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let (status, _) = house.post(&session, confirmed).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    session
}

fn header<'a>(request: &'a BackendRequest, name: &str) -> Option<&'a str> {
    request.headers.get(name)?.to_str().ok()
}

#[tokio::test]
async fn a_clients_headers_go_up_with_its_own_requests_alone_where_the_session_is_shared() {
    let house = house(1, |spec| {
        spec.isolation = Isolation::Shared;
        spec.headers.pass = vec!["authorization".into(), "x-tenant".into()];
    });
    let session = open(&house).await;
    let (status, body) = house.post(&session, CALL).await;
    assert_eq!(
        (status, &body["result"]["n"]),
        (StatusCode::OK, &json!(1.5)),
        "{body}"
    );
    let backend = &house.pool.backends[0];
    for request in backend.seen() {
        let is_the_call = memchr::memmem::find(&request.body, b"echo").is_some();
        let token = header(&request, "authorization");
        assert_eq!(
            token,
            is_the_call.then_some("Bearer hunter2"),
            "{request:?}"
        );
        assert_eq!(header(&request, "cookie"), None);
        assert!(!format!("{request:?}").contains("hunter2"), "{request:?}");
    }
    let call = backend.messages("tools/call").pop().expect("the call");
    assert_eq!(header(&call, "x-tenant"), Some("acme"));
}

#[tokio::test]
async fn the_trace_always_goes_up_as_header_and_in_the_message() {
    let house = house(1, |_| {});
    let session = open(&house).await;
    let (status, body) = house.post(&session, CALL).await;
    assert_eq!(
        (status, &body["result"]["n"]),
        (StatusCode::OK, &json!(1.5)),
        "{body}"
    );
    let call = house.pool.backends[0].messages("tools/call").pop();
    let call = call.expect("the call");
    assert_eq!(header(&call, "traceparent"), Some("00-1-2-01"));
    assert_eq!(header(&call, "authorization"), None);
    let message: Value = serde_json::from_slice(&call.body).expect("JSON");
    assert_eq!(message["params"]["_meta"]["traceparent"], "00-1-2-01");
    assert!(String::from_utf8_lossy(&call.body).contains(r#""n":1.50},"x":[1]"#));
}

#[tokio::test]
async fn a_session_of_its_own_is_opened_kept_and_ended_with_its_clients_headers() {
    for isolation in [Isolation::Session, Isolation::Principal] {
        let house = house(1, |spec| {
            spec.isolation = isolation;
            spec.headers.pass = vec!["authorization".into()];
        });
        let backend = &house.pool.backends[0];
        // Requests without the client's token are refused.
        backend.act(|request| {
            let known = header(request, "authorization") == Some("Bearer hunter2");
            (!known).then(|| Ok(response(401, &[JSON], "{}")))
        });
        let session = open(&house).await;
        let (status, body) = house.post(&session, CALL).await;
        assert_eq!(
            (status, &body["result"]["n"]),
            (StatusCode::OK, &json!(1.5)),
            "{body}"
        );
        let accepted = |request: &BackendRequest| header(request, "authorization").is_some();
        let opened = backend.messages("initialize").into_iter();
        for request in opened.filter(accepted) {
            assert_eq!(header(&request, "traceparent"), None);
        }
        assert!(
            backend
                .messages("notifications/initialized")
                .iter()
                .all(accepted)
        );
    }
}

#[tokio::test]
async fn a_session_whose_state_is_lost_is_over_for_its_client() {
    for forgets in [true, false] {
        let house = house(2, |spec| {
            spec.isolation = Isolation::Session;
            spec.stateful = true;
        });
        let session = open(&house).await;
        assert_eq!(house.post(&session, CALL).await.0, StatusCode::OK);
        for backend in &house.pool.backends {
            match forgets {
                true => backend.forgets(),
                false => backend.dies(),
            }
        }
        for _ in 0..2 {
            let (status, body) = house.post(&session, CALL).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{body}");
            assert_eq!(body["error"]["data"]["code"], "session_not_found");
        }
        assert_eq!(house.pool.sent("tools/call"), 1 + usize::from(forgets));
    }
}

#[tokio::test]
async fn a_session_that_is_refused_under_the_requests_own_id_is_reopened_and_harmless_requests_are_repeated()
 {
    for isolation in [Isolation::Auto, Isolation::Session] {
        for (status, code, words) in [
            (404, -32001, "Session not found"),
            (404, -32600, "Not found"),
            (400, -32000, "Bad Request: No valid session ID provided"),
        ] {
            let house = house(1, |spec| spec.isolation = isolation);
            let session = open(&house).await;
            assert_eq!(house.post(&session, CALL).await.0, StatusCode::OK);
            let opened = house.pool.sent("initialize");
            forgets(&house, status, code, words);
            let (_, body) = house.post(&session, CALL).await;
            let told = &body["result"];
            assert_eq!(told["isError"], true, "{words}: {body}");
            assert_eq!(
                told["_meta"]["tooldock/error"]["code"], "worker_unavailable",
                "{body}"
            );
            assert_eq!(house.pool.sent("tools/call"), 2, "{words}");
            let (_, body) = house.post(&session, CALL).await;
            assert_eq!(body["result"]["n"], 1.5, "{words}: {body}");
            assert_eq!(house.pool.sent("initialize"), opened + 1, "{words}");

            forgets(&house, status, code, words);
            let prompts = r#"{"jsonrpc":"2.0","id":3,"method":"prompts/list"}"#;
            let lists = (0..5).map(|_| house.post(&session, prompts));
            for (_, body) in futures_util::future::join_all(lists).await {
                assert_eq!(body["result"]["n"], 1.5, "{words}: {body}");
            }
            assert_eq!(house.pool.sent("initialize"), opened + 2, "{words}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_comes_again_in_a_new_session_is_the_answer() {
    let house = house(1, |_| {});
    let session = open(&house).await;
    house.pool.backends[0].act(|request| {
        let message: Value = serde_json::from_slice(&request.body).ok()?;
        let asks = message["method"] == "prompts/get";
        let error = json!({ "code": -32002, "message": "no such prompt" });
        let body = json!({ "jsonrpc": "2.0", "id": message["id"], "error": error });
        asks.then(|| Ok(response(404, &[JSON], body.to_string())))
    });
    let get = r#"{"jsonrpc":"2.0","id":3,"method":"prompts/get","params":{"name":"x"}}"#;
    for _ in 0..2 {
        let (_, body) = house.post(&session, get).await;
        assert_eq!(body["error"]["code"], -32002, "{body}");
    }
}

/// Makes the backend refuse every message of its present sessions, with an error that has the message's own id.
fn forgets(house: &House, status: u16, code: i64, words: &'static str) {
    let backend = &house.pool.backends[0];
    let known = backend.messages("initialize").len();
    backend.act(move |request| {
        let session = header(request, "mcp-session-id")?;
        let message: Value = serde_json::from_slice(&request.body).ok()?;
        let number: usize = session.rsplit('/').next()?.parse().ok()?;
        let id = message.get("id").filter(|_| number < known)?;
        let error = json!({ "code": code, "message": words });
        let body = json!({ "jsonrpc": "2.0", "id": id, "error": error });
        Some(Ok(response(status, &[JSON], body.to_string())))
    });
}

#[tokio::test]
async fn a_shared_call_goes_to_as_many_further_backends_as_the_configuration_says() {
    for (kind, unsent, method, harmless) in [
        (SendErrorKind::Tls, true, "tools/call", true),
        (SendErrorKind::Closed, false, "prompts/list", true),
        (SendErrorKind::Closed, false, "tools/call", false),
    ] {
        for (max, expected) in [(0, 1), (1, 2), (5, 3)] {
            let house = house(3, |spec| {
                spec.isolation = Isolation::Shared;
                spec.retry.max = max;
            });
            let session = open(&house).await;
            // Opens a connection at each backend.
            for _ in 0..3 {
                assert_eq!(house.post(&session, CALL).await.0, StatusCode::OK);
            }
            let tries = Arc::new(std::sync::Mutex::new(Vec::new()));
            for (number, backend) in house.pool.backends.iter().enumerate() {
                let tries = Arc::clone(&tries);
                backend.act(move |request| {
                    let is_it = memchr::memmem::find(&request.body, method.as_bytes()).is_some();
                    is_it.then(|| {
                        tries.lock().expect("fine").push(number);
                        Err(error(kind, unsent))
                    })
                });
            }
            let params = json!({ "name": "echo", "arguments": {} });
            let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
            let (_, body) = house.post(&session, &message.to_string()).await;
            let failed = body["error"].is_object() || body["result"]["isError"] == true;
            assert!(failed, "{body}");
            let mut tries = tries.lock().expect("fine").clone();
            let expected = if harmless { expected } else { 1 };
            assert_eq!(tries.len(), expected, "{kind:?} {method} {max}: {tries:?}");
            tries.sort_unstable();
            tries.dedup();
            assert_eq!(tries.len(), expected, "each at another backend");
        }
    }
}

#[tokio::test]
async fn what_lasts_is_asked_for_at_every_backend() {
    let house = house(2, |spec| spec.isolation = Isolation::Shared);
    for backend in &house.pool.backends {
        backend.offers(json!({ "resources": { "subscribe": true }, "logging": {} }));
    }
    let session = open(&house).await;
    for _ in 0..2 {
        assert_eq!(house.post(&session, CALL).await.0, StatusCode::OK);
    }
    for (method, params) in [
        ("resources/subscribe", json!({ "uri": "test://a" })),
        ("logging/setLevel", json!({ "level": "debug" })),
    ] {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let (status, body) = house.post(&session, &message.to_string()).await;
        assert_eq!((status, &body["error"]), (StatusCode::OK, &Value::Null));
        for backend in &house.pool.backends {
            assert_eq!(backend.messages(method).len(), 1, "{method}");
        }
    }
}

#[tokio::test]
async fn shared_calls_are_spread_by_the_session_they_are_of() {
    let house = house(1, |spec| {
        spec.isolation = Isolation::Shared;
        spec.balance = Balance::Hash;
    });
    let picked = async |session: &str| {
        house.pool.hashes.lock().expect("fine").clear();
        assert_eq!(house.post(session, CALL).await.0, StatusCode::OK);
        let hashes = house.pool.hashes.lock().expect("fine").clone();
        hashes.into_iter().find(|hash| *hash != 0).expect("a hash")
    };
    let (one, other) = (open(&house).await, open(&house).await);
    let first = picked(&one).await;
    assert_eq!(picked(&one).await, first);
    assert_ne!(picked(&other).await, first);
}

#[tokio::test]
async fn what_is_about_a_task_goes_to_the_backend_that_runs_it() {
    let house = house(3, |spec| spec.isolation = Isolation::Shared);
    for backend in &house.pool.backends {
        backend.act(|request| {
            let message: Value = serde_json::from_slice(&request.body).ok()?;
            let task = json!({
                "taskId": "t", "status": "working", "ttl": 60_000,
                "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z",
            });
            let result = match message["method"].as_str()? {
                "tools/call" => json!({ "task": task }),
                "tasks/get" => task,
                _ => return None,
            };
            let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
            Some(Ok(response(200, &[JSON], answer.to_string())))
        });
    }
    let session = open(&house).await;
    let request = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
    };
    let call = request("tools/call", json!({ "name": "echo", "task": {} }));
    let (_, body) = house.post(&session, &call).await;
    assert_eq!(body["result"]["task"]["taskId"], "t", "{body}");
    for _ in 0..4 {
        let asked = request("tasks/get", json!({ "taskId": "t" }));
        let (_, body) = house.post(&session, &asked).await;
        assert_eq!(body["result"]["status"], "working", "{body}");
    }
    for backend in &house.pool.backends {
        let runs = backend.messages("tools/call").len();
        assert_eq!(backend.messages("tasks/get").len(), 4 * runs);
    }
}
