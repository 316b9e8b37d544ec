use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::response::IntoResponse;
use http::StatusCode;
use serde_json::{Value, json};

use super::head::{AcceptFlags, McpHead};

mod adopted;
mod streams;
mod talking;
pub(crate) mod wire;

use tooldock_sessions::caller::Caller;
use tooldock_sessions::profile::{AcceptRule, SessionRule};
use tooldock_sessions::testing::caller;

use crate::testing::{Harness, Refuses, Wanted, delivered, harness, head, parts};

const PING: &str = r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#;
const LIST: &str = r#"{"jsonrpc":"2.0","id":"l","method":"tools/list","params":{}}"#;

fn call(tool: &str, arguments: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
    )
}

fn initialize(version: &str) -> String {
    let params = json!({ "protocolVersion": version, "capabilities": {} });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params }).to_string()
}

fn accept(flags: &str) -> McpHead {
    McpHead {
        accept: AcceptFlags::parse([flags]),
        ..McpHead::default()
    }
}

#[tokio::test]
async fn initialize_negotiates_and_issues_a_session() {
    let harness = harness();
    for (asked, answered) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2099-01-01", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ] {
        let reply = harness
            .service
            .post(caller(), head(None, None), initialize(asked).into())
            .await;
        let (status, body) = parts(&reply);
        assert_eq!(status, StatusCode::OK);
        assert_eq!(
            body,
            json!({ "jsonrpc": "2.0", "id": 1, "result": {
                "protocolVersion": answered,
                "capabilities": { "logging": {}, "tools": { "listChanged": true } },
                "serverInfo": { "name": "tooldock/shared", "version": env!("CARGO_PKG_VERSION") },
                "instructions": "Tools of shared",
            }})
        );
        let (name, id) = reply.head().headers.last().expect("a session header");
        assert_eq!(name, "mcp-session-id");
        let id = id.to_str().expect("visible ASCII");
        let of = |principal| harness.service.session_version(id, principal);
        assert_eq!((of(Some("stranger")), of(None)), (None, None));
        let version = of(Some("tester")).expect("known");
        assert_eq!(version.as_str(), answered);
        delivered(reply);
    }
    assert_eq!(harness.metrics.sessions.get(), 5);
}

#[tokio::test]
async fn initialize_is_judged_by_its_body() {
    let harness = harness();
    let live = harness.open("2025-06-18", true).await;
    let ended = harness.open("2025-11-25", true).await;
    let delete = harness.service.delete(caller(), head(Some(&ended), None));
    assert_eq!(delete.await.head().status, StatusCode::NO_CONTENT);
    let elsewhere = Caller {
        namespace: Some("other".parse().expect("a name")),
        ..caller()
    };
    let stranger = Caller {
        principal: Some("stranger".into()),
        ..caller()
    };
    let zero = "00000000-0000-0000-0000-000000000000";
    let versions = [None, Some("2027-03-01"), Some("2024-11-05"), Some("latest")];
    for version in versions.into_iter().chain([Some("2026-07-28"), Some("")]) {
        for (caller, session) in [
            (caller(), None),
            (caller(), Some(zero)),
            (caller(), Some("")),
            (caller(), Some(&*ended)),
            (stranger.clone(), Some(&*live)),
            (elsewhere.clone(), Some(&*live)),
        ] {
            for (asked, answered) in [
                ("2025-03-26", "2025-03-26"),
                ("2025-11-25", "2025-11-25"),
                ("2027-03-01", "2025-11-25"),
            ] {
                let body = initialize(asked).into();
                let reply = harness
                    .service
                    .post(caller.clone(), head(session, version), body);
                let reply = reply.await;
                let (status, body) = parts(&reply);
                assert_eq!(status, StatusCode::OK, "{session:?} {version:?}: {body}");
                assert_eq!(body["result"]["protocolVersion"], answered);
                let (name, id) = reply.head().headers.last().expect("a session");
                assert_eq!(name, "mcp-session-id");
                assert_ne!(id.to_str().ok(), session);
                delivered(reply);
            }
        }
    }
    // An `initialize` in the client's own live session is refused, and the session stays open.
    let again = initialize("2025-06-18");
    let (status, _) = harness.post(head(Some(&live), None), &again).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let pong = harness.post(head(Some(&live), None), PING).await;
    assert_eq!(pong.0, StatusCode::OK);
    // For other messages an unknown session and an unknown version are still refused.
    let (status, _) = harness.post(head(Some(zero), None), PING).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _) = harness
        .post(head(Some(&live), Some("2027-03-01")), PING)
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_session_whose_client_did_not_get_its_answer_ends() {
    let harness = harness();
    let core = harness.service.core();
    let opened = || {
        let body = initialize("2025-11-25").into();
        harness.service.post(caller(), head(None, None), body)
    };
    let reply = opened().await;
    assert_eq!(core.sessions.count(), 1);
    drop(reply);
    tokio::task::yield_now().await;
    assert_eq!(core.sessions.count(), 0);
    assert_eq!(harness.metrics.sessions_deleted.get(), 1);
    delivered(opened().await);
    tokio::task::yield_now().await;
    assert_eq!(core.sessions.count(), 1);
    // An answer through the router counts as delivered: the router does not tell if it was written.
    drop(opened().await.into_response());
    tokio::task::yield_now().await;
    assert_eq!(core.sessions.count(), 2);
}

#[tokio::test]
async fn what_clients_say_about_themselves_takes_no_more_than_their_share() {
    let share = 2 << 20;
    let harness = Wanted {
        session_bytes_per_principal: bytesize::ByteSize::b(share),
        ..Wanted::default()
    }
    .build();
    let other = Caller {
        principal: Some("other".into()),
        ..caller()
    };
    let (_, theirs) = opened_as(&harness, other.clone(), "{}").await;
    let large = format!(r#"{{"experimental":{{"x":"{}"}}}}"#, "x".repeat(60_000));
    for _ in 0..90 {
        opened_as(&harness, caller(), &large).await;
    }
    let core = harness.service.core();
    assert!(core.sessions.bytes() <= share as usize + 4096);
    assert!((30..40).contains(&core.sessions.count()));
    let evicted = harness.metrics.sessions_evicted.get();
    assert_eq!(evicted as usize + core.sessions.count(), 91);
    harness.service.evict_expired().await;
    let gauge = harness.metrics.session_bytes.get();
    assert_eq!(usize::try_from(gauge), Ok(core.sessions.bytes()));
    let pong = harness
        .post_as(other, head(Some(&theirs), None), PING)
        .await;
    assert_eq!(pong.0, StatusCode::OK);
}

/// Opens a session for this caller, whose client has these capabilities.
async fn opened_as(harness: &Harness, caller: Caller, capabilities: &str) -> (StatusCode, String) {
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{capabilities}}}}}"#
    );
    let reply = harness.service.post(caller, head(None, None), body.into());
    let reply = reply.await;
    let (_, id) = reply.head().headers.last().expect("a session").clone();
    let id = id.to_str().expect("ASCII").to_owned();
    let status = reply.head().status;
    delivered(reply);
    (status, id)
}

#[tokio::test]
async fn the_body_of_initialize_decides_its_accept_rule() {
    let harness = harness();
    for (flags, version, status) in [
        ("application/json", "2025-03-26", StatusCode::OK),
        ("*/*", "2025-03-26", StatusCode::OK),
        ("text/html", "2025-03-26", StatusCode::NOT_ACCEPTABLE),
        ("application/json", "2025-11-25", StatusCode::NOT_ACCEPTABLE),
        ("*/*", "2025-06-18", StatusCode::NOT_ACCEPTABLE),
        ("application/json", "2099-01-01", StatusCode::NOT_ACCEPTABLE),
        (
            "application/json, text/event-stream",
            "2099-01-01",
            StatusCode::OK,
        ),
    ] {
        let (got, body) = harness.post(accept(flags), &initialize(version)).await;
        assert_eq!(got, status, "{flags} {version}");
        if status != StatusCode::OK {
            assert_eq!(body["error"]["code"], -32600);
            assert_eq!(body["id"], 1);
        }
    }
    // A static header, as users are told to set it, does not overrule the body.
    let (status, body) = harness
        .post(head(None, Some("2025-11-25")), &initialize("2025-03-26"))
        .await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body["result"]["protocolVersion"], "2025-03-26");
}

/// A caller on a listener with `accept: lenient`.
fn lenient() -> Caller {
    let mut caller = caller();
    Arc::make_mut(&mut caller.profile).accept = AcceptRule::Lenient;
    caller
}

#[tokio::test]
async fn a_lenient_listener_answers_in_the_form_that_its_client_accepts() {
    let harness = harness();
    let opened = initialize("2025-11-25");
    let (list, unknown) = (LIST, call("nope", "{}"));
    let wrong = r#"{"jsonrpc":"2.0","id":5,"method":"nope/x"}"#;
    for (flags, is_event) in [
        ("text/event-stream", true),
        ("text/*;q=0.3", true),
        ("text/event-stream, application/json;q=0", true),
        ("application/json", false),
        ("*/*", false),
        ("application/*, text/*", false),
        ("text/event-stream, */*;q=0.1", false),
        ("", false),
    ] {
        for body in [&opened, list, &unknown, wrong] {
            let post = harness
                .service
                .post(lenient(), accept(flags), body.to_owned().into());
            let reply = post.await;
            assert_eq!(reply.head().status, StatusCode::OK, "{flags} {body}");
            let text = String::from_utf8(crate::error::body_of(&reply).to_vec()).expect("text");
            let kind = &reply.head().headers[0].1;
            let json = match is_event {
                true => {
                    assert_eq!(kind, "text/event-stream");
                    let event = text.strip_prefix("event: message\ndata: ");
                    event
                        .and_then(|it| it.strip_suffix("\n\n"))
                        .expect("one event")
                }
                false => {
                    assert_eq!(kind, "application/json");
                    &text
                }
            };
            let answer: Value = serde_json::from_str(json).expect("JSON");
            assert_eq!(answer["jsonrpc"], "2.0");
            let opens = reply
                .head()
                .headers
                .iter()
                .any(|(name, _)| name == "mcp-session-id");
            assert_eq!(opens, body == opened);
            delivered(reply);
        }
    }
    for flags in ["text/html", "*/*;q=0"] {
        let (status, _) = harness.post_as(lenient(), accept(flags), &opened).await;
        assert_eq!(status, StatusCode::NOT_ACCEPTABLE);
    }
    let (_, refused) = harness.post(accept("application/json"), &opened).await;
    let message = refused["error"]["message"].as_str().expect("text");
    assert!(message.contains("`accept: lenient`"), "{message}");
}

#[tokio::test]
async fn a_listener_may_want_a_session_in_every_version() {
    let harness = harness();
    let mut caller = caller();
    Arc::make_mut(&mut caller.profile).session = SessionRule::Required;
    for version in [None, Some("2025-03-26"), Some("2025-11-25")] {
        let post = harness.post_as(caller.clone(), head(None, version), PING);
        let (status, answer) = post.await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{version:?}");
        assert_eq!(answer["error"]["data"]["code"], "session_required");
    }
    for version in ["2025-03-26", "2025-11-25"] {
        let opening = initialize(version);
        let post = harness.post_as(caller.clone(), head(None, None), &opening);
        assert_eq!(post.await.0, StatusCode::OK);
        let session = harness.open(version, true).await;
        let post = harness.post_as(caller.clone(), head(Some(&session), None), PING);
        assert_eq!(post.await.0, StatusCode::OK);
    }
}

#[tokio::test]
async fn single_faults_have_their_status_and_code() {
    let harness = harness();
    let session = harness.open("2025-11-25", true).await;
    let session = Some(session.as_str());
    let lenient = |flags| accept(flags);
    let strict = |flags| McpHead {
        version: Some("2025-11-25".into()),
        session: session.map(str::to_owned),
        ..accept(flags)
    };
    let plain = || head(None, None);
    let huge = format!("[{}]", vec![PING; 51].join(","));
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{}1{}}}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    let list = call("echo", "[1]");
    let again = initialize("2025-11-25");
    let rows: Vec<(&str, McpHead, &str, u16, i64, &str)> = vec![
        (
            "wrong version header",
            head(session, Some("1999-01-01")),
            PING,
            400,
            -32600,
            "unsupported_version",
        ),
        (
            "not the session's version",
            head(session, Some("2025-06-18")),
            PING,
            400,
            -32600,
            "version_mismatch",
        ),
        (
            "no session, header 2025-11-25",
            head(None, Some("2025-11-25")),
            LIST,
            400,
            -32600,
            "session_required",
        ),
        (
            "no session, header 2025-06-18",
            head(None, Some("2025-06-18")),
            PING,
            400,
            -32600,
            "session_required",
        ),
        (
            "unknown session",
            head(Some("nope"), None),
            PING,
            404,
            -32012,
            "session_not_found",
        ),
        (
            "JSON alone, strict",
            strict("application/json"),
            PING,
            406,
            -32600,
            "not_acceptable",
        ),
        (
            "wildcard, strict",
            strict("*/*"),
            PING,
            406,
            -32600,
            "not_acceptable",
        ),
        (
            "HTML, lenient",
            lenient("text/html"),
            PING,
            406,
            -32600,
            "not_acceptable",
        ),
        ("open brace", plain(), "{", 400, -32700, "parse_error"),
        ("empty", plain(), "", 400, -32700, "parse_error"),
        (
            "no method",
            plain(),
            r#"{"jsonrpc":"2.0","id":1}"#,
            400,
            -32600,
            "invalid_request",
        ),
        (
            "wrong jsonrpc",
            plain(),
            r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
            400,
            -32600,
            "invalid_request",
        ),
        (
            "null id",
            plain(),
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            400,
            -32600,
            "invalid_request",
        ),
        (
            "duplicate key",
            plain(),
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"x"}"#,
            400,
            -32600,
            "invalid_request",
        ),
        ("too deep", plain(), &deep, 400, -32600, "invalid_request"),
        (
            "unknown method",
            plain(),
            r#"{"jsonrpc":"2.0","id":5,"method":"nope/x"}"#,
            200,
            -32601,
            "method_not_found",
        ),
        (
            "array params",
            plain(),
            r#"{"jsonrpc":"2.0","id":5,"method":"ping","params":[]}"#,
            200,
            -32602,
            "invalid_params",
        ),
        (
            "cursor",
            plain(),
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/list","params":{"cursor":"x"}}"#,
            200,
            -32602,
            "invalid_params",
        ),
        (
            "no name",
            plain(),
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{}}"#,
            200,
            -32602,
            "invalid_params",
        ),
        (
            "name twice",
            plain(),
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"a","name":"b"}}"#,
            200,
            -32602,
            "invalid_params",
        ),
        (
            "arguments list",
            plain(),
            &list,
            200,
            -32602,
            "invalid_params",
        ),
        (
            "initialize without version",
            plain(),
            r#"{"jsonrpc":"2.0","id":5,"method":"initialize","params":{}}"#,
            200,
            -32602,
            "invalid_params",
        ),
        (
            "initialize as notification",
            plain(),
            r#"{"jsonrpc":"2.0","method":"initialize","params":{}}"#,
            400,
            -32600,
            "invalid_request",
        ),
        (
            "initialize again",
            head(session, None),
            &again,
            400,
            -32600,
            "invalid_request",
        ),
        ("empty batch", plain(), "[]", 400, -32600, "invalid_request"),
        ("huge batch", plain(), &huge, 400, -32600, "invalid_request"),
        (
            "batch in 2025-11-25",
            head(session, None),
            "[]",
            400,
            -32600,
            "invalid_request",
        ),
        (
            "initialize in a batch",
            plain(),
            r#"[{"jsonrpc":"2.0","id":1,"method":"initialize"}]"#,
            400,
            -32600,
            "invalid_request",
        ),
    ];
    for (fault, head, body, status, code, name) in rows {
        let (got, answer) = harness.post(head, body).await;
        assert_eq!(got.as_u16(), status, "{fault}: {answer}");
        assert_eq!(answer["jsonrpc"], "2.0", "{fault}");
        assert_eq!(answer["error"]["code"], code, "{fault}: {answer}");
        assert_eq!(answer["error"]["data"]["code"], name, "{fault}: {answer}");
    }
    assert_eq!(harness.backend.counts(), (0, 0, 0));
}

#[tokio::test]
async fn messages_are_worded_as_documented() {
    let harness = harness();
    let (_, answer) = harness.post(head(None, None), "{").await;
    assert_eq!(answer["id"], Value::Null);
    assert_eq!(answer["error"]["message"], "Parse error");
    let body = r#"{"jsonrpc":"2.0","id":5,"method":"nope/x"}"#;
    let (_, answer) = harness.post(head(None, None), body).await;
    assert_eq!(answer["id"], 5);
    assert_eq!(answer["error"]["message"], "Method not found: nope/x");
    let (_, answer) = harness.post(head(None, Some("1999-01-01")), PING).await;
    let message = answer["error"]["message"].as_str().expect("text");
    assert!(
        message.contains("2025-11-25, 2025-06-18, 2025-03-26"),
        "{message}"
    );
}

#[tokio::test]
async fn clients_without_handshake_are_served_as_the_oldest_version() {
    let harness = harness();
    let (status, answer) = harness.post(accept("*/*"), PING).await;
    assert_eq!(
        (status, answer),
        (StatusCode::OK, json!({"jsonrpc":"2.0","id":3,"result":{}}))
    );
    let (status, answer) = harness.post(accept("*/*"), LIST).await;
    assert_eq!(status, StatusCode::OK);
    let first = &answer["result"]["tools"][0];
    assert_eq!(first["name"], "say_hello");
    assert!(first.get("outputSchema").is_none());
    let (_, answer) = harness.post(accept("*/*"), &call("say_hello", "{}")).await;
    assert_eq!(
        answer["result"],
        json!({ "content": [{ "type": "text", "text": "Hello, Ada!" }], "isError": false })
    );
}

#[tokio::test]
async fn a_session_lists_the_allowed_tools_verbatim() {
    let harness = harness();
    let session = harness.open("2025-11-25", true).await;
    let (_, answer) = harness.post(head(Some(&session), None), LIST).await;
    let tools = answer["result"]["tools"].as_array().expect("a list");
    assert_eq!(
        tools[0],
        json!({
            "name": "say_hello", "title": "Say Hello", "description": "Greet \"someone\".",
            "inputSchema": { "type": "object", "properties": { "name": { "type": "string", "default": "World" } } },
            "outputSchema": { "type": "object" }, "annotations": { "readOnlyHint": true }, "_meta": { "n": 1 },
        })
    );
    assert!(tools.iter().all(|tool| tool["name"] != "secret_tool"));
    assert!(
        tools
            .iter()
            .all(|tool| tool["inputSchema"]["type"] == "object")
    );
}

#[tokio::test]
async fn a_namespace_that_failed_is_an_error_and_not_an_empty_list() {
    let harness = harness();
    let mut caller = caller();
    caller.namespace = Some("broken".parse().expect("a name"));
    let (status, answer) = harness
        .post_as(caller.clone(), head(None, None), LIST)
        .await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["error"]["code"], -32603);
    assert_eq!(answer["error"]["data"]["code"], "dependency_error");
    let (_, answer) = harness
        .post_as(caller, head(None, None), &call("x", "{}"))
        .await;
    assert_eq!(
        answer["result"]["content"][0]["text"],
        "dependency_error: no such package"
    );
}

#[tokio::test]
async fn failed_calls_are_results_a_model_can_read() {
    let harness = harness();
    let session = harness.open("2025-11-25", true).await;
    for (tool, code) in [
        ("nope", "tool_not_found"),
        ("secret_tool", "tool_not_found"),
        ("invalid_arguments", "invalid_arguments"),
        ("dependency_error", "dependency_error"),
        ("internal_error", "internal_error"),
        ("execution_timeout", "execution_timeout"),
        ("worker_unavailable", "worker_unavailable"),
    ] {
        let (status, answer) = harness
            .post(head(Some(&session), None), &call(tool, "{}"))
            .await;
        assert_eq!(status, StatusCode::OK);
        let result = &answer["result"];
        assert_eq!(result["isError"], true, "{answer}");
        assert_eq!(result["_meta"]["tooldock/error"]["code"], code);
        let text = result["content"][0]["text"].as_str().expect("text");
        assert!(text.starts_with(&format!("{code}: ")), "{text}");
        assert!(!answer.to_string().contains("Traceback"));
    }
}

#[tokio::test]
async fn arguments_and_results_keep_their_bytes() {
    let harness = harness();
    let session = harness.open("2025-11-25", true).await;
    let arguments = r#"{"n":9007199254740993,"f":1.0,"e":1E5,"s":"\u00e9\/"}"#;
    let reply = harness
        .service
        .post(
            caller(),
            head(Some(&session), None),
            call("echo", arguments).into(),
        )
        .await;
    let text = String::from_utf8(crate::error::body_of(&reply).to_vec()).expect("UTF-8");
    assert!(
        text.contains(&format!(r#""structuredContent":{arguments}"#)),
        "{text}"
    );
}

#[tokio::test]
async fn null_arguments_are_no_arguments() {
    let harness = harness();
    let session = harness.open("2025-11-25", true).await;
    let (_, with) = harness
        .post(head(Some(&session), None), &call("echo", "{}"))
        .await;
    let (_, without) = harness
        .post(head(Some(&session), None), &call("echo", "null"))
        .await;
    assert_eq!(without, with);
    assert_eq!(without["result"]["isError"], false, "{without}");
    let batch = format!("[{},{PING}]", call("echo", "null"));
    let (_, answers) = harness.post(head(None, None), &batch).await;
    let answered = answers.as_array().expect("a batch");
    let echo = answered.iter().find(|it| it["id"] == 7);
    assert_eq!(echo.expect("an answer")["result"]["isError"], false);
    // Other faults are still reported.
    let body = call("echo", "null");
    let (status, _) = harness.post(head(Some("nope"), None), &body).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_session_belongs_to_its_namespace_and_principal() {
    let harness = harness();
    let session = harness.open("2025-11-25", true).await;
    let mut elsewhere = caller();
    elsewhere.namespace = Some("other".parse().expect("a name"));
    let mut stranger = caller();
    stranger.principal = Some(Arc::from("stranger"));
    let mut anonymous = caller();
    anonymous.principal = None;
    for caller in [elsewhere, stranger, anonymous] {
        let (status, _) = harness
            .post_as(caller.clone(), head(Some(&session), None), PING)
            .await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        let reply = harness
            .service
            .delete(caller, head(Some(&session), None))
            .await;
        assert_eq!(reply.head().status, StatusCode::NOT_FOUND);
    }
    assert_eq!(
        harness.post(head(Some(&session), None), PING).await.0,
        StatusCode::OK
    );
    let mut gone = caller();
    gone.namespace = Some("gone".parse().expect("a name"));
    let (status, answer) = harness.post_as(gone, head(None, None), PING).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!(-32012))
    );
}

#[tokio::test]
async fn delete_ends_a_session_for_good() {
    let harness = harness();
    let session = harness.open("2025-11-25", true).await;
    let delete = |head| harness.service.delete(caller(), head);
    assert_eq!(
        delete(head(None, None)).await.head().status,
        StatusCode::BAD_REQUEST
    );
    let mismatch = delete(head(Some(&session), Some("2025-06-18"))).await;
    assert_eq!(mismatch.head().status, StatusCode::BAD_REQUEST);
    let ended = delete(head(Some(&session), Some("2025-11-25"))).await;
    assert_eq!(ended.head().status, StatusCode::NO_CONTENT);
    assert_eq!(
        delete(head(Some(&session), None)).await.head().status,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        harness.post(head(Some(&session), None), PING).await.0,
        StatusCode::NOT_FOUND
    );
    let version = harness.service.session_version(&session, Some("tester"));
    assert!(version.is_none());
    assert_eq!(harness.metrics.sessions.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn sessions_expire_after_their_last_use() {
    let mut wanted = Wanted::default();
    wanted.sessions.ttl = Duration::from_secs(10);
    let harness = wanted.build();
    let session = harness.open("2025-11-25", true).await;
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(9)).await;
        harness.service.evict_expired().await;
        assert_eq!(
            harness.post(head(Some(&session), None), PING).await.0,
            StatusCode::OK
        );
    }
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(
        harness.post(head(Some(&session), None), PING).await.0,
        StatusCode::NOT_FOUND
    );
    harness.service.evict_expired().await;
    assert_eq!(harness.metrics.sessions.get(), 0);
    assert_eq!(harness.metrics.sessions_expired.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn tools_wait_for_the_confirmation_and_then_say_what_is_missing() {
    let harness = harness();
    let session = harness.open("2025-11-25", false).await;
    let in_session = || head(Some(&session), None);
    assert_eq!(harness.post(in_session(), PING).await.0, StatusCode::OK);
    let start = tokio::time::Instant::now();
    let (status, answer) = harness.post(in_session(), LIST).await;
    assert_eq!(start.elapsed(), Duration::from_secs(1));
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::OK, &json!(-32600))
    );
    let message = answer["error"]["message"].as_str().expect("text");
    assert!(message.contains("notifications/initialized"), "{message}");
    // Methods that are never offered need no confirmation.
    let start = tokio::time::Instant::now();
    let unknown = r#"{"jsonrpc":"2.0","id":1,"method":"x/any"}"#;
    let (_, answer) = harness.post(in_session(), unknown).await;
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    assert_eq!(start.elapsed(), Duration::ZERO);
    // The old spelling, overtaken by a request on another connection.
    let overtaking = async { harness.post(in_session(), LIST).await };
    let confirming = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        harness
            .post(in_session(), r#"{"jsonrpc":"2.0","method":"initialized"}"#)
            .await
    };
    let (answer, confirmed) = tokio::join!(overtaking, confirming);
    assert_eq!(confirmed, (StatusCode::ACCEPTED, Value::Null));
    assert!(answer.1["result"]["tools"].is_array(), "{}", answer.1);
}

#[tokio::test(start_paused = true)]
async fn the_listener_says_how_long_a_request_waits_for_the_confirmation() {
    let harness = harness();
    for wait in [
        Duration::ZERO,
        Duration::from_millis(250),
        Duration::from_secs(5),
    ] {
        let mut caller = caller();
        Arc::make_mut(&mut caller.profile).initialized_wait = wait;
        for body in [LIST, &call("echo", "{}")] {
            let session = harness.open("2025-06-18", false).await;
            let start = tokio::time::Instant::now();
            let post = harness.post_as(caller.clone(), head(Some(&session), None), body);
            let (_, answer) = post.await;
            assert_eq!(
                answer["error"]["data"]["code"], "not_initialized",
                "{answer}"
            );
            assert_eq!(start.elapsed(), wait);
        }
    }
}

#[tokio::test]
async fn the_oldest_version_asks_for_no_confirmation() {
    let harness = harness();
    let session = harness.open("2025-03-26", false).await;
    let (_, answer) = harness.post(head(Some(&session), None), LIST).await;
    assert!(answer["result"]["tools"].is_array(), "{answer}");
}

#[tokio::test]
async fn batches_are_answered_in_the_oldest_version_only() {
    let harness = harness();
    let batch = format!(
        r#"[{PING}, {{"jsonrpc":"2.0","method":"notifications/initialized"}}, {LIST}, {}, 5, [{PING}],
            {{"jsonrpc":"2.0","id":"u","method":"nope"}}, {{"jsonrpc":"2.0","id":9,"result":{{}}}}]"#,
        call("echo", "{}")
    );
    for head in [head(None, None), head(None, Some("2025-03-26"))] {
        let (status, answer) = harness.post(head, &batch).await;
        assert_eq!(status, StatusCode::OK);
        let answers = answer.as_array().expect("an array");
        let of = |id: Value| answers.iter().filter(|answer| answer["id"] == id).count();
        assert_eq!(answers.len(), 6);
        assert_eq!(
            (
                of(json!(3)),
                of(json!("l")),
                of(json!(7)),
                of(json!("u")),
                of(Value::Null)
            ),
            (1, 1, 1, 1, 2)
        );
    }
    let silent = r#"[{"jsonrpc":"2.0","method":"x"},{"jsonrpc":"2.0","id":9,"result":{}}]"#;
    assert_eq!(
        harness.post(head(None, None), silent).await,
        (StatusCode::ACCEPTED, Value::Null)
    );
    let session = harness.open("2025-06-18", true).await;
    let (status, answer) = harness
        .post(head(Some(&session), None), &format!("[{PING}]"))
        .await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::BAD_REQUEST, &json!(-32600))
    );
}

#[tokio::test]
async fn batched_requests_run_at_the_same_time() {
    let harness = harness();
    harness.backend.release.add_permits(2);
    let batch = format!("[{},{}]", call("hang", "{}"), call("hang", "{}"));
    let (_, answer) = harness.post(head(None, None), &batch).await;
    assert_eq!(answer.as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn notifications_are_accepted_without_a_body() {
    let harness = harness();
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/whatever","params":{"a":1}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#,
    ] {
        assert_eq!(
            harness.post(head(None, None), body).await,
            (StatusCode::ACCEPTED, Value::Null)
        );
    }
}

/// Polls until the fake backend has started this many calls.
async fn started(harness: &crate::testing::Harness, calls: usize) {
    while harness.backend.counts().0 < calls {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_call_in_a_session_is_cancelled_by_its_id_and_by_no_other() {
    let harness = Arc::new(harness());
    let session = harness.open("2025-11-25", true).await;
    let running = tokio::spawn({
        let (harness, session) = (Arc::clone(&harness), session.clone());
        async move {
            harness
                .post(head(Some(&session), None), &call("hang", "{}"))
                .await
        }
    });
    started(&harness, 1).await;
    let cancel = |id: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        )
    };
    harness
        .post(head(Some(&session), None), &cancel("\"7\""))
        .await;
    let other = harness.open("2025-11-25", true).await;
    harness.post(head(Some(&other), None), &cancel("7")).await;
    assert_eq!(harness.backend.counts(), (1, 0, 0));
    harness.post(head(Some(&session), None), &cancel("7")).await;
    let (status, answer) = running.await.expect("not aborted");
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        answer["result"]["_meta"]["tooldock/error"]["code"],
        "cancelled"
    );
    assert_eq!(harness.backend.counts(), (1, 1, 0));
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_calls() {
    let harness = Arc::new(harness());
    let session = harness.open("2025-11-25", true).await;
    let running = tokio::spawn({
        let (harness, session) = (Arc::clone(&harness), session.clone());
        async move {
            harness
                .post(head(Some(&session), None), &call("hang", "{}"))
                .await
        }
    });
    started(&harness, 1).await;
    harness
        .service
        .delete(caller(), head(Some(&session), None))
        .await;
    running.await.expect("not aborted");
    assert_eq!(harness.backend.counts(), (1, 1, 0));
}

#[tokio::test]
async fn a_disconnect_cancels_calls_without_a_session_and_leaves_those_in_one() {
    let harness = Arc::new(harness());
    let session = harness.open("2025-11-25", true).await;
    let post = |head: McpHead| {
        let harness = Arc::clone(&harness);
        tokio::spawn(async move { harness.post(head, &call("hang", "{}")).await })
    };
    let sessionless = post(head(None, None));
    started(&harness, 1).await;
    sessionless.abort();
    assert!(sessionless.await.is_err());
    assert_eq!(harness.backend.counts(), (1, 1, 0));

    let in_session = post(head(Some(&session), None));
    started(&harness, 2).await;
    in_session.abort();
    assert!(in_session.await.is_err());
    assert_eq!(harness.backend.counts(), (2, 1, 0));
    harness.backend.release.add_permits(1);
    while harness.backend.counts().2 == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(harness.backend.counts(), (2, 1, 1));
}

#[tokio::test]
async fn ids_are_echoed_as_they_were_spelled() {
    let harness = harness();
    for id in [
        "9007199254740993",
        "1.50",
        "1e3",
        "-0",
        r#""""#,
        r#""\u0041🦀""#,
    ] {
        for (method, params) in [
            ("ping", "{}"),
            ("nope", "{}"),
            ("tools/list", "{}"),
            ("tools/call", r#"{"name":"echo"}"#),
            ("tools/call", r#"{"name":"nope"}"#),
            ("tools/call", "[]"),
        ] {
            let body =
                format!(r#"{{"params":{params},"method":"{method}","id": {id} ,"jsonrpc":"2.0"}}"#);
            let reply = harness
                .service
                .post(caller(), head(None, None), body.into())
                .await;
            let text = String::from_utf8(crate::error::body_of(&reply).to_vec()).expect("UTF-8");
            assert!(
                text.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"#)),
                "{text}"
            );
        }
    }
}

#[tokio::test]
async fn a_limit_on_calls_is_a_result_with_the_time_to_wait() {
    let harness = Wanted {
        limiter: Arc::new(Refuses("echo", Mutex::default())),
        ..Wanted::default()
    }
    .build();
    let session = harness.open("2025-06-18", true).await;
    let (status, answer) = harness
        .post(head(Some(&session), None), &call("echo", "{}"))
        .await;
    assert_eq!(status, StatusCode::OK);
    let error = &answer["result"]["_meta"]["tooldock/error"];
    assert_eq!(error["code"], "rate_limited");
    assert_eq!(
        error["details"],
        json!({ "retry_after": 2, "request_id": "r-1" })
    );
}

#[tokio::test]
async fn a_principal_beyond_its_sessions_loses_the_oldest_one() {
    let harness = harness();
    let first = harness.open("2025-11-25", true).await;
    for _ in 0..100 {
        harness.open("2025-11-25", true).await;
    }
    assert_eq!(
        harness.post(head(Some(&first), None), PING).await.0,
        StatusCode::NOT_FOUND
    );
    assert_eq!(harness.metrics.sessions.get(), 100);
    assert_eq!(harness.metrics.sessions_evicted.get(), 1);
}

#[tokio::test]
async fn single_faults_of_a_post_are_those_of_the_sessions_version() {
    let harness = harness();
    for version in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let session = harness.open(version, true).await;
        let session = Some(session.as_str());
        let strict = version != "2025-03-26";
        let other = if version == "2025-11-25" {
            "2025-06-18"
        } else {
            "2025-11-25"
        };
        let accepting = |flags| McpHead {
            session: session.map(str::to_owned),
            ..accept(flags)
        };
        let lenient = if strict { 406 } else { 200 };
        let without = if strict { 400 } else { 200 };
        for (fault, head, body, status) in [
            ("none", head(session, Some(version)), PING, 200),
            ("other version", head(session, Some(other)), PING, 400),
            (
                "unknown version",
                head(session, Some("1999-01-01")),
                PING,
                400,
            ),
            ("2024-11-05", head(session, Some("2024-11-05")), PING, 400),
            (
                "unknown session",
                head(Some("nope"), Some(version)),
                PING,
                404,
            ),
            ("no session", head(None, Some(version)), LIST, without),
            ("JSON alone", accepting("application/json"), PING, lenient),
            ("wildcard", accepting("*/*"), PING, lenient),
            ("no Accept", accepting(""), PING, lenient),
            ("HTML", accepting("text/html"), PING, 406),
            ("open brace", head(session, None), "{", 400),
            ("batch", head(session, None), &format!("[{PING}]"), without),
            (
                "never asked",
                head(session, None),
                r#"{"jsonrpc":"2.0","id":9007199254740991,"result":{}}"#,
                400,
            ),
            (
                "never asked, an error",
                head(session, None),
                r#"{"jsonrpc":"2.0","id":"x","error":{}}"#,
                400,
            ),
        ] {
            let (got, answer) = harness.post(head, body).await;
            assert_eq!(got.as_u16(), status, "{fault} {version}: {answer}");
        }
    }
}

// Without the facts about state of a single process: the number of its sessions, and their age.
crate::testing::shadow::again_adopting!(
    what_clients_say_about_themselves_takes_no_more_than_their_share,
    single_faults_have_their_status_and_code,
    a_session_lists_the_allowed_tools_verbatim,
    failed_calls_are_results_a_model_can_read,
    arguments_and_results_keep_their_bytes,
    a_session_belongs_to_its_namespace_and_principal,
    delete_ends_a_session_for_good,
    tools_wait_for_the_confirmation_and_then_say_what_is_missing,
    the_oldest_version_asks_for_no_confirmation,
    batches_are_answered_in_the_oldest_version_only,
    a_call_in_a_session_is_cancelled_by_its_id_and_by_no_other,
    the_end_of_a_session_ends_its_calls,
    a_disconnect_cancels_calls_without_a_session_and_leaves_those_in_one,
    a_limit_on_calls_is_a_result_with_the_time_to_wait,
    a_principal_beyond_its_sessions_loses_the_oldest_one,
    single_faults_of_a_post_are_those_of_the_sessions_version,
);
