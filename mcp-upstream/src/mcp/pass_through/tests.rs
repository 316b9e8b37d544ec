use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::{Value, json};
use tooldock_base::config::PinMode;
use tooldock_servers::http::port::{BodyError, SendErrorKind};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::testing::caller;
use tooldock_workers::remote::{Mode, RemoteSpec};

use crate::error::body_of;
use crate::mcp::head::{McpHead, MirroredHeaders};
use crate::reply::Reply;
use crate::testing::remote::{
    EVENTS, FakeClient, FakePool, JSON, Then, coded, error, in_pieces, remote, response,
};
use crate::testing::{Harness, Refuses, Wanted, delivered, head, parts};

mod answers;
mod client;
mod cost;
mod ends;

const LIST: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
const CALL: &str = r#"{"jsonrpc":"2.0","id":1e2,"method":"tools/call","params":{"name":"echo","arguments":{"n":1.50},"x":[1]},"y":2}"#;

/// A service with backends in memory.
struct House {
    harness: Harness,
    pool: Arc<FakePool>,
}

fn house(backends: usize, change: impl FnOnce(&mut RemoteSpec)) -> House {
    house_with(backends, change, Wanted::default())
}

fn house_with(backends: usize, change: impl FnOnce(&mut RemoteSpec), wanted: Wanted) -> House {
    let pool = FakePool::new(backends);
    let harness = Wanted {
        namespaces: vec![remote("search", change)],
        http_client: Some(Arc::new(FakeClient(Arc::clone(&pool)))),
        ..wanted
    }
    .build();
    House { harness, pool }
}

fn asker() -> Caller {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("authorization", "Bearer hunter2"),
        ("cookie", "hunter2"),
        ("x-tenant", "acme"),
        ("accept", "application/json, text/event-stream"),
        ("traceparent", "00-1-2-01"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Caller {
        namespace: Some("search".parse().expect("a name")),
        headers: Some(Arc::new(headers)),
        ..caller()
    }
}

impl House {
    async fn reply(&self, head: McpHead, body: &str) -> Reply {
        let body = Bytes::copy_from_slice(body.as_bytes());
        self.harness.service.post(asker(), head, body).await
    }

    async fn post(&self, session: &str, body: &str) -> (StatusCode, Value) {
        parts(&self.reply(head(Some(session), None), body).await)
    }

    async fn open(&self) -> String {
        let reply = self
            .reply(head(None, None), &initialize("2025-11-25"))
            .await;
        let (name, id) = reply.head().headers.last().expect("a session").clone();
        assert_eq!(name, "mcp-session-id", "{}", parts(&reply).1);
        let id = id.to_str().expect("ASCII").to_owned();
        delivered(reply);
        id
    }

    async fn get(&self, session: &str) -> Reply {
        self.harness
            .service
            .get(asker(), head(Some(session), None))
            .await
    }
}

fn initialize(version: &str) -> String {
    let params = json!({
        "protocolVersion": version, "capabilities": { "roots": {} },
        "clientInfo": { "name": "t", "version": "1" },
    });
    json!({ "jsonrpc": "2.0", "id": "i", "method": "initialize", "params": params }).to_string()
}

fn modern_call() -> String {
    let meta = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {} });
    let params = json!({ "name": "echo", "arguments": {}, "_meta": meta });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string()
}

fn modern_head() -> McpHead {
    McpHead {
        mirrored: Some(Box::new(MirroredHeaders {
            method: Some("tools/call".into()),
            name: Some("echo".into()),
            ..MirroredHeaders::default()
        })),
        ..head(None, Some("2026-07-28"))
    }
}

fn modern_asker() -> Caller {
    let mut headers = (*asker().headers.expect("some")).clone();
    let version = HeaderValue::from_static("2026-07-28");
    headers.insert("mcp-protocol-version", version);
    Caller {
        headers: Some(Arc::new(headers)),
        ..asker()
    }
}

/// The texts of a streamed answer, and true if it broke off.
async fn streamed(reply: Reply) -> (Vec<String>, bool) {
    let Reply::Body { mut body, .. } = reply else {
        panic!("{reply:?}");
    };
    let mut texts = Vec::new();
    while let Some(piece) = body.next().await {
        match piece {
            Ok(piece) => texts.push(String::from_utf8(piece.to_vec()).expect("text")),
            Err(_) => return (texts, true),
        }
    }
    (texts, false)
}

#[tokio::test]
async fn a_server_is_sent_no_null_arguments() {
    let house = house(1, |_| {});
    let session = house.open().await;
    let call = CALL.replace(r#"{"n":1.50}"#, "null");
    let reply = house.reply(head(Some(&session), None), &call).await;
    assert_eq!(reply.head().status, StatusCode::OK);
    let seen = house.pool.backends[0].seen();
    let sent = &seen.last().expect("the call").body;
    assert_eq!(*sent, CALL.replace(r#"{"n":1.50}"#, "{}"));
}

#[tokio::test]
async fn the_headers_of_initialize_open_no_way_to_another_session_or_version() {
    let house = house(1, |_| {});
    let opening = initialize("2025-11-25");
    for (session, version) in [
        (Some("of-before-a-restart"), None),
        (None, Some("2027-03-01")),
        (Some("of-before-a-restart"), Some("2027-03-01")),
    ] {
        let mut caller = asker();
        let mut headers = HeaderMap::clone(caller.headers.as_deref().expect("headers"));
        for (name, value) in [
            ("mcp-session-id", session),
            ("mcp-protocol-version", version),
        ] {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_static(value));
            }
        }
        caller.headers = Some(Arc::new(headers));
        let body = Bytes::copy_from_slice(opening.as_bytes());
        let post = house
            .harness
            .service
            .post(caller, head(session, version), body);
        let reply = post.await;
        let (status, body) = parts(&reply);
        assert_eq!(status, StatusCode::OK, "{session:?} {version:?}: {body}");
        delivered(reply);
    }
    for sent in house.pool.backends[0].messages("initialize") {
        assert!(
            !sent.headers.contains_key("mcp-protocol-version"),
            "{sent:?}"
        );
        assert!(!sent.headers.contains_key("mcp-session-id"), "{sent:?}");
    }
    let session = house.open().await;
    let (status, body) = house.post(&session, &opening).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
    assert_eq!(house.pool.sent("initialize"), 4);
}

#[tokio::test]
async fn messages_go_both_ways_byte_for_byte_and_the_session_is_ours() {
    let house = house(1, |_| {});
    let opening = initialize("2025-11-25");
    let reply = house.reply(head(None, None), &opening).await;
    assert!(String::from_utf8_lossy(&body_of(&reply)).contains(r#""x":1.5"#));
    delivered(reply);
    let session = house.open().await;
    let reply = house.reply(head(Some(&session), None), CALL).await;
    assert_eq!(
        body_of(&reply),
        r#"{"jsonrpc":"2.0","id":100.0,"result":{"n":1.50}}"#
    );
    let seen = house.pool.backends[0].seen();
    assert_eq!(seen[0].body, opening);
    let call = seen.last().expect("the call");
    assert_eq!(call.body, CALL);
    assert_eq!(call.headers["mcp-session-id"], "backend-0-80/1");
    assert_eq!(call.headers["traceparent"], "00-1-2-01");
    assert!(!format!("{:?}", call.headers).contains("hunter2"));
    assert!(!call.headers.contains_key("x-tenant"));
    assert_eq!(house.harness.metrics.calls_of("search", "ok"), 1);
    let modes = &house.harness.metrics;
    assert_eq!(modes.remote_requests_of("search", "pass_through"), 3);
    assert_eq!(modes.remote_requests_of("search", "client"), 0);
}

#[tokio::test]
async fn only_headers_that_are_named_go_up() {
    let house = house(1, |spec| {
        spec.headers.pass = vec!["authorization".into(), "x-tenant".into()];
    });
    house.open().await;
    let seen = house.pool.backends[0].seen();
    assert_eq!(seen[0].headers["authorization"], "Bearer hunter2");
    assert_eq!(seen[0].headers["x-tenant"], "acme");
    assert!(!seen[0].headers.contains_key("cookie"));
}

#[tokio::test]
async fn every_message_of_a_session_goes_to_its_backend() {
    let house = house(3, |_| {});
    let mut sessions = Vec::new();
    for _ in 0..20 {
        sessions.push(house.open().await);
    }
    for _ in 0..3 {
        for session in &sessions {
            assert_eq!(house.post(session, CALL).await.0, StatusCode::OK);
        }
    }
    for backend in &house.pool.backends {
        assert!(backend.messages("initialize").len() >= 6);
        let calls = backend.messages("tools/call").len();
        assert_eq!(calls, 3 * backend.messages("initialize").len());
    }
    assert_eq!(house.pool.sent("initialize"), 20);
}

#[tokio::test]
async fn a_session_whose_backend_died_is_reopened_once_and_its_calls_are_answered() {
    let house = house(3, |_| {});
    let session = house.open().await;
    let lost = &house.pool.backends[0];
    assert_eq!(lost.messages("initialize").len(), 1);
    lost.dies();
    let calls = (0..5).map(|_| house.post(&session, CALL));
    for (status, body) in futures_util::future::join_all(calls).await {
        assert_eq!(status, StatusCode::OK, "{body}");
    }
    assert_eq!(house.pool.sent("initialize"), 2);
    assert_eq!(house.pool.sent("notifications/initialized"), 1);
    let again = house.pool.backends[1].messages("initialize");
    let again: Value = serde_json::from_slice(&again[0].body).expect("JSON");
    assert_eq!(
        again["params"],
        json!({ "protocolVersion": "2025-11-25", "capabilities": { "roots": {} },
            "clientInfo": { "name": "t", "version": "1" } })
    );
    assert_eq!(house.pool.backends[1].messages("tools/call").len(), 5);
}

#[tokio::test]
async fn a_session_that_its_server_forgot_is_reopened() {
    let house = house(1, |_| {});
    let session = house.open().await;
    house.pool.backends[0].forgets();
    assert_eq!(house.post(&session, CALL).await.0, StatusCode::OK);
    assert_eq!(house.pool.sent("initialize"), 2);
}

/// Makes a backend refuse every message of its first session, with an error that has the message's own id.
fn forgets_its_first_session(house: &House, status: u16, code: i64, words: &'static str) {
    house.pool.backends[0].act(move |request| {
        let session = request.headers.get("mcp-session-id")?.to_str().ok()?;
        let message: Value = serde_json::from_slice(&request.body).ok()?;
        let id = message.get("id").filter(|_| session.ends_with("/0"))?;
        let error = json!({ "code": code, "message": words });
        let body = json!({ "jsonrpc": "2.0", "id": id, "error": error });
        Some(Ok(response(status, &[JSON], body.to_string())))
    });
}

#[tokio::test]
async fn a_session_that_is_refused_under_the_messages_own_id_is_reopened_and_only_harmless_messages_are_repeated()
 {
    for (status, code, words) in [
        (404, -32001, "Session not found"),
        (404, -32600, "Not found"),
        (400, -32000, "Bad Request: No valid session ID provided"),
    ] {
        let house = house(1, |_| {});
        let session = house.open().await;
        forgets_its_first_session(&house, status, code, words);
        let (found, body) = house.post(&session, CALL).await;
        assert_eq!(found, StatusCode::SERVICE_UNAVAILABLE, "{words}: {body}");
        assert_eq!(body["error"]["data"]["code"], "worker_unavailable");
        assert_eq!(body["id"], 100.0);
        assert_eq!(house.pool.sent("tools/call"), 1, "{words}");
        assert_eq!(
            house.post(&session, CALL).await.0,
            StatusCode::OK,
            "{words}"
        );
        assert_eq!(house.pool.sent("initialize"), 2, "{words}");

        let wanted = Wanted {
            connects: true,
            ..Wanted::default()
        };
        let house = house_with(1, |_| {}, wanted);
        let session = house.open().await;
        forgets_its_first_session(&house, status, code, words);
        let lists = (0..5).map(|_| house.post(&session, LIST));
        for (found, body) in futures_util::future::join_all(lists).await {
            assert_eq!(found, StatusCode::OK, "{words}: {body}");
            assert_eq!(body["result"]["n"], 1.5, "{words}: {body}");
        }
        // Only the client's sessions are counted: the gateway's own client opens one, too.
        let mut opened = house.pool.backends[0].messages("initialize");
        opened.retain(|it| memchr::memmem::find(&it.body, br#""name":"t""#).is_some());
        assert_eq!(opened.len(), 2, "{words}");
    }
}

#[tokio::test]
async fn an_error_about_the_message_is_its_answer_whatever_its_status() {
    for code in [-32601, -32602] {
        let house = house(1, |_| {});
        let session = house.open().await;
        forgets_its_first_session(&house, 404, code, "no such tool");
        let (status, body) = house.post(&session, CALL).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        assert_eq!(body["error"]["code"], code);
        assert_eq!(house.pool.sent("initialize"), 1);
    }
}

#[tokio::test]
async fn a_session_that_is_not_known_is_reopened_where_its_server_says_so_in_words_and_other_words_are_passed_on()
 {
    let house = house(1, |_| {});
    let session = house.open().await;
    let refusing = |words: &'static str| {
        let asked = AtomicUsize::new(0);
        house.pool.backends[0].act(move |request| {
            let call = memchr::memmem::find(&request.body, b"tools/call").is_some();
            let first = call && asked.fetch_add(1, Ordering::Relaxed) == 0;
            let error = json!({ "code": -32000, "message": words });
            let body = json!({ "jsonrpc": "2.0", "id": null, "error": error });
            first.then(|| Ok(response(400, &[JSON], body.to_string())))
        });
    };
    refusing("Bad Request: No valid session ID provided");
    assert_eq!(house.post(&session, CALL).await.0, StatusCode::OK);
    assert_eq!(house.pool.sent("initialize"), 2);
    refusing("Bad Request: no");
    let (status, body) = house.post(&session, CALL).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(body["error"]["message"], "Bad Request: no");
    assert_eq!(house.pool.sent("initialize"), 2);
}

#[tokio::test]
async fn a_session_leaves_a_backend_that_is_not_healthy() {
    let house = house(2, |_| {});
    let session = house.open().await;
    house.pool.backends[0]
        .healthy
        .store(false, Ordering::Relaxed);
    assert_eq!(house.post(&session, CALL).await.0, StatusCode::OK);
    assert_eq!(house.pool.backends[1].messages("tools/call").len(), 1);
    assert_eq!(house.pool.backends[0].messages("tools/call").len(), 0);
}

#[tokio::test]
async fn a_session_leaves_a_backend_that_was_removed_though_that_still_finishes_something() {
    for (stateful, stays) in [(false, 0), (true, 1)] {
        let house = house(2, |spec| spec.stateful = stateful);
        let session = house.open().await;
        let left = |spec: &mut RemoteSpec| {
            spec.stateful = stateful;
            spec.backends.remove(0);
        };
        house.harness.publish(vec![remote("search", left)]);
        assert_eq!(house.post(&session, CALL).await.0, StatusCode::OK);
        let calls = |at: usize| house.pool.backends[at].messages("tools/call").len();
        assert_eq!([calls(0), calls(1)], [stays, 1 - stays], "{stateful}");
    }
}

#[tokio::test]
async fn a_session_ends_for_messages_and_batches_when_a_reload_ends_pass_through_mode() {
    let house = house(1, |_| {});
    let session = house.open().await;
    let mut pinned = remote("search", |_| {});
    pinned.limits.pins = PinMode::Enforce;
    house.harness.publish(vec![pinned]);
    for body in [CALL.to_owned(), format!("[{CALL}]")] {
        let (status, refused) = house.post(&session, &body).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{refused}");
    }
    assert_eq!(house.pool.sent("tools/call"), 0);
}

#[tokio::test]
async fn a_call_that_may_have_been_seen_is_not_sent_again() {
    let house = house(2, |_| {});
    let session = house.open().await;
    house.pool.backends[0].act(|request| {
        let call = memchr::memmem::find(&request.body, b"tools/call").is_some();
        call.then(|| Err(error(SendErrorKind::Closed, false)))
    });
    let (status, body) = house.post(&session, CALL).await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert_eq!(body["error"]["data"]["code"], "worker_unavailable");
    assert_eq!(house.pool.sent("tools/call"), 1);
    assert_eq!(house.pool.sent("initialize"), 1);
    assert_eq!(
        house
            .harness
            .metrics
            .calls_of("search", "worker_unavailable"),
        1
    );
}

#[tokio::test]
async fn a_session_whose_state_is_gone_ends_where_the_server_says_so() {
    for forgets in [true, false] {
        let house = house(2, |spec| spec.stateful = true);
        let session = house.open().await;
        match forgets {
            true => house.pool.backends[0].forgets(),
            false => house.pool.backends[0].dies(),
        }
        for _ in 0..2 {
            let (status, body) = house.post(&session, CALL).await;
            assert_eq!(status, StatusCode::NOT_FOUND);
            assert_eq!(body["error"]["data"]["code"], "session_not_found");
        }
        assert_eq!(house.pool.sent("initialize"), 1);
    }
}

#[tokio::test]
async fn a_pool_without_a_healthy_backend_is_a_typed_error_and_the_session_stays() {
    let house = house(1, |_| {});
    let session = house.open().await;
    house.pool.backends[0]
        .healthy
        .store(false, Ordering::Relaxed);
    let reply = house.reply(head(Some(&session), None), LIST).await;
    let (status, body) = parts(&reply);
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body["error"]["data"]["code"], "worker_unavailable");
    house.pool.backends[0]
        .healthy
        .store(true, Ordering::Relaxed);
    assert_eq!(house.post(&session, LIST).await.0, StatusCode::OK);
}

#[tokio::test]
async fn the_end_of_a_session_is_the_end_of_the_servers() {
    let house = house(1, |_| {});
    let session = house.open().await;
    let service = &house.harness.service;
    let reply = service.delete(asker(), head(Some(&session), None)).await;
    assert_eq!(reply.head().status, StatusCode::NO_CONTENT);
    let backend = &house.pool.backends[0];
    while !backend
        .seen()
        .iter()
        .any(|it| it.method == http::Method::DELETE)
    {
        tokio::task::yield_now().await;
    }
    let ended = backend.seen().pop().expect("the end");
    assert_eq!(ended.headers["mcp-session-id"], "backend-0-80/0");
    assert_eq!(house.post(&session, LIST).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn nobody_else_reaches_a_session() {
    let house = house(1, |_| {});
    let session = house.open().await;
    let other = Caller {
        principal: Some("other".into()),
        ..asker()
    };
    let before = house.pool.backends[0].seen().len();
    let head = head(Some(&session), None);
    let (status, _) = house.harness.post_as(other, head, CALL).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(house.pool.backends[0].seen().len(), before);
}

#[tokio::test]
async fn limits_are_counted_in_tool_calls_and_ambiguous_messages_refused() {
    let limiter = Arc::new(Refuses("echo", std::sync::Mutex::default()));
    let wanted = Wanted {
        limiter: Arc::clone(&limiter) as _,
        ..Wanted::default()
    };
    let house = house_with(1, |_| {}, wanted);
    let session = house.open().await;
    let (status, body) = house.post(&session, CALL).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body["result"]["isError"], true);
    assert_eq!(house.pool.sent("tools/call"), 0);
    assert_eq!(house.harness.metrics.calls_of("search", "rate_limited"), 1);
    let twice = CALL.replace(r#""x":[1]"#, r#""Name":"other""#);
    let (_, body) = house.post(&session, &twice).await;
    assert_eq!(body["error"]["data"]["code"], "invalid_params");
    assert_eq!(house.post(&session, LIST).await.0, StatusCode::OK);
    assert_eq!(*limiter.1.lock().expect("fine"), ["tester/search/echo"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_with_its_time_and_gives_its_place_back() {
    let house = house(1, |_| {});
    let session = house.open().await;
    house.pool.backends[0].act(|request| {
        let call = memchr::memmem::find(&request.body, b"tools/call").is_some();
        call.then(|| Ok(in_pieces(200, &[JSON], Vec::new(), Then::Waits)))
    });
    let (status, body) = house.post(&session, CALL).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(body["error"]["data"]["code"], "execution_timeout");
    let registry = &house.harness.service.core().registry;
    let namespace = registry.namespace("search").expect("there");
    assert_eq!(namespace.gate.in_flight(), 0);
}

#[tokio::test]
async fn a_server_whose_era_is_not_known_takes_client_mode_in_auto() {
    for (mode, passes) in [
        (Mode::Auto, false),
        (Mode::Client, false),
        (Mode::PassThrough, true),
    ] {
        let house = house(1, |spec| spec.mode = mode);
        house
            .reply(head(None, None), &initialize("2025-11-25"))
            .await;
        assert_eq!(house.pool.sent("initialize") == 1, passes, "{mode:?}");
        let metrics = &house.harness.metrics;
        assert_eq!(metrics.remote_requests_of("search", "client") == 1, !passes);
    }
}

#[tokio::test]
async fn modern_requests_go_to_any_backend_without_a_session() {
    let house = house(2, |_| {});
    let call = modern_call();
    for _ in 0..4 {
        let posted = house.harness.post_as(modern_asker(), modern_head(), &call);
        let (status, body) = posted.await;
        assert_eq!(status, StatusCode::OK, "{body}");
    }
    for backend in &house.pool.backends {
        let calls = backend.messages("tools/call");
        assert_eq!(calls.len(), 2);
        assert!(!calls[0].headers.contains_key("mcp-session-id"));
    }
}

#[tokio::test]
async fn a_session_goes_on_in_another_process() {
    let house = house(2, |_| {});
    let session = house.open().await;
    let core = house.harness.service.core();
    let live = core.sessions.live(&session).expect("alive");
    let taken_up = live.as_adopted();
    assert_eq!(taken_up.affinity(), live.affinity());
    assert!(taken_up.affinity().is_some());
}

#[tokio::test]
async fn a_servers_stream_is_read_to_its_end_and_broken_off_with_its_server() {
    let house = house(1, |_| {});
    let session = house.open().await;
    assert_eq!(
        house.get(&session).await.head().status,
        StatusCode::METHOD_NOT_ALLOWED
    );
    // The cases: surely cut; perhaps cut, since no length was announced; and complete, where half an event is dropped.
    for (broken, error, then) in [
        (true, true, Then::Ends),
        (true, false, Then::Closes),
        (false, false, Then::Ends),
    ] {
        house.pool.backends[0].act(move |request| {
            let event = |text: &'static [u8]| Ok(Bytes::from_static(text));
            let mut pieces = vec![event(b"id: 1\ndata: {}\n"), event(b"\ndata: half")];
            if error {
                pieces.push(Err(BodyError::Cut));
            }
            (request.method == http::Method::GET)
                .then(|| Ok(in_pieces(200, &[EVENTS], pieces, then)))
        });
        let Reply::Events {
            mut events,
            head,
            guards,
        } = house.get(&session).await
        else {
            panic!("a stream");
        };
        assert_eq!(head.status, StatusCode::OK);
        assert_eq!(
            events.next().await.as_deref(),
            Some(&b"id: 1\ndata: {}\n\n"[..])
        );
        assert_eq!(events.next().await, None);
        assert_eq!(events.is_broken(), broken);
        drop(guards);
    }
}

#[tokio::test]
async fn a_stream_is_broken_off_when_its_session_moves_to_another_backend() {
    let house = house(2, |_| {});
    let session = house.open().await;
    for backend in &house.pool.backends {
        backend.act(|request| {
            (request.method == http::Method::GET)
                .then(|| Ok(in_pieces(200, &[EVENTS], Vec::new(), Then::Waits)))
        });
    }
    let stream = async || match house.get(&session).await {
        Reply::Events { events, .. } => events,
        _ => panic!("a stream"),
    };
    let mut events = stream().await;
    // The old stream leads nowhere: the backend may go on sending keepalives, for example.
    house.pool.backends[0]
        .healthy
        .store(false, Ordering::Relaxed);
    assert_eq!(house.post(&session, CALL).await.0, StatusCode::OK);
    assert_eq!(events.next().await, None);
    assert!(events.is_broken(), "its client comes back");
    // The stream that the client comes back to stays while the session stays.
    let mut events = stream().await;
    assert_eq!(house.post(&session, CALL).await.0, StatusCode::OK);
    assert!(events.next().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_session_and_its_reader_ends_the_servers() {
    let house = house(1, |_| {});
    let session = house.open().await;
    house.pool.backends[0].act(|request| {
        (request.method == http::Method::GET)
            .then(|| Ok(in_pieces(200, &[EVENTS], Vec::new(), Then::Waits)))
    });
    let Reply::Events { mut events, .. } = house.get(&session).await else {
        panic!("a stream");
    };
    let core = house.harness.service.core();
    let live = core.sessions.live(&session).expect("alive");
    let later = tokio::time::Instant::now() + Duration::from_secs(100_000);
    assert!(!live.idle_for(Duration::from_secs(1), later));
    live.close();
    assert_eq!(events.next().await, None);
    assert!(!events.is_broken());
}
