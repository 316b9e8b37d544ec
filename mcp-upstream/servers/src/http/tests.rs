//! Remote servers through their pools, over backends that the tests play.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::json;
use tooldock_base::error::CallErrorCode;
use tooldock_protocol::jsonrpc::ResponseOutcome;
use tooldock_protocol::version::Era;
use tooldock_workers::remote::Transport;

use super::port::{BodyError, SendError, SendErrorKind};
use super::testing::{Scene, Seen, Sent, event, events, json, open, text, whole};
use crate::breaker::BreakerState;
use crate::link::Link;
use crate::pool::{ConnectionKey, OpenAs, ProcessLease};

mod holding;
mod initialized;

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("in time")
}

/// Responds like a server of 2025-11-25 with sessions; to a call by `call`.
async fn legacy(seen: Seen, call: impl FnOnce(&Seen) -> Sent + Send) -> Sent {
    static SESSIONS: AtomicUsize = AtomicUsize::new(1);
    Ok(match &*seen.what() {
        "initialize" => {
            let result = json!({
                "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                "serverInfo": { "name": "played", "version": "1" },
            });
            let id = format!("session-{}", SESSIONS.fetch_add(1, Ordering::SeqCst));
            let headers = [
                ("content-type", "application/json"),
                ("mcp-session-id", &*id),
            ];
            whole(200, &headers, &seen.result(result).to_string())
        }
        // The TypeScript SDK refuses requests without a session like this.
        "server/discover" => whole(
            400,
            &[("content-type", "application/json")],
            r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: Server not initialized"},"id":null}"#,
        ),
        "GET" => text(405, ""),
        "DELETE" => text(200, ""),
        "tools/list" => json(&seen.result(json!({ "tools": [] }))),
        "tools/call" => return call(&seen),
        method if method.starts_with("notifications/") => text(202, ""),
        _ => json(&seen.result(json!({}))),
    })
}

/// Responds like a server of 2026-07-28.
async fn modern(seen: Seen) -> Sent {
    Ok(match &*seen.what() {
        "server/discover" => json(&seen.result(json!({
            "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {} }, "resultType": "complete",
        }))),
        "subscriptions/listen" => {
            let (response, pour) = events();
            tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(pour);
            });
            response
        }
        _ => json(&seen.result(json!({ "tools": [] }))),
    })
}

async fn session(scene: &Scene, tag: &str) -> ProcessLease {
    let key = ConnectionKey::Session(tag.into());
    let lease = scene
        .pools
        .lease(&scene.server, key, OpenAs::gateway(Era::Legacy));
    within(lease).await.expect("a session")
}

async fn shared(scene: &Scene, era: Era) -> ProcessLease {
    let lease = scene
        .pools
        .lease(&scene.server, ConnectionKey::Shared, OpenAs::gateway(era));
    within(lease).await.expect("a connection")
}

struct Called {
    outcome: Result<String, (CallErrorCode, String)>,
    /// The cause that logs have of a failure.
    cause: Option<String>,
    unsent: bool,
    session_gone: bool,
}

async fn call(link: &Link) -> Called {
    let params = json!({ "name": "größe", "arguments": {} }).to_string();
    let params = serde_json::from_str(&params).expect("JSON");
    let mut call = link
        .request("tools/call", Some(params), None)
        .expect("begun");
    let answer = within(call.answer()).await;
    let error = answer.as_ref().err();
    let cause = error.and_then(|error| Some(error.cause.as_ref()?.detail.clone()));
    Called {
        cause,
        unsent: call.is_unsent(),
        session_gone: call.is_session_gone(),
        outcome: answer
            .map(|answer| match answer.outcome() {
                ResponseOutcome::Result(part) | ResponseOutcome::Error(part) => {
                    String::from_utf8(part.to_vec()).expect("text")
                }
            })
            .map_err(|error| (error.code, error.message)),
    }
}

fn done(seen: &Seen) -> serde_json::Value {
    seen.result(json!({ "content": [] }))
}

const DONE: &str = r#"{"content":[]}"#;

#[tokio::test]
async fn a_session_is_opened_named_in_each_request_and_ended() {
    let scene = Scene::new(1, |seen| legacy(seen, |seen| Ok(json(&done(seen)))));
    let leased = session(&scene, "a").await;
    assert_eq!(call(&leased).await.outcome.as_deref(), Ok(DONE));
    let backend = &scene.backends[0];
    let opening = backend.last("initialize");
    assert_eq!(opening.header("mcp-session-id"), None);
    assert_eq!(
        opening.header("accept"),
        Some("application/json, text/event-stream")
    );
    let id = backend.last("notifications/initialized");
    let id = id.header("mcp-session-id").expect("the session");
    let called = backend.last("tools/call");
    assert_eq!(called.header("mcp-session-id"), Some(id));
    assert_eq!(called.header("mcp-protocol-version"), Some("2025-11-25"));
    assert_eq!(called.header("mcp-method"), None);
    drop(leased);
    scene.pools.session_closed("a");
    within(scene.pools.shutdown(Duration::from_secs(20))).await;
    assert_eq!(backend.last("DELETE").method, "DELETE");
}

#[tokio::test]
async fn whatever_a_server_answers_to_the_probe_initialize_is_tried() {
    type Odd = Box<dyn Fn(&Seen) -> Sent + Send + Sync>;
    let body = |status: u16, media: &'static str, text: &'static str| -> Odd {
        Box::new(move |_| Ok(whole(status, &[("content-type", media)], text)))
    };
    let broken_off = |kind| -> Odd {
        Box::new(move |_| {
            Err(SendError {
                kind,
                unsent: false,
                message: "said so".to_owned(),
            })
        })
    };
    let json_type = "application/json";
    let odd: Vec<(&str, Odd)> = vec![
        ("an empty object", body(200, json_type, "{}")),
        ("an empty list", body(200, json_type, "[]")),
        ("null", body(200, json_type, "null")),
        ("no JSON", body(200, json_type, "<html>")),
        ("no body", body(200, json_type, "")),
        (
            "an error of its own",
            body(200, json_type, r#"{"error":"unknown method"}"#),
        ),
        (
            "another id",
            body(
                200,
                json_type,
                r#"{"jsonrpc":"2.0","id":987654,"result":{}}"#,
            ),
        ),
        ("an empty stream", body(200, "text/event-stream", "")),
        (
            "a stream without an answer",
            body(200, "text/event-stream", "data: {}\n\n"),
        ),
        ("a page", body(200, "text/html", "<html>")),
        ("202", body(202, "text/plain", "")),
        ("404", body(404, "text/html", "<html>")),
        ("500", body(500, "text/plain", "Internal Server Error")),
        (
            "an empty result",
            Box::new(|seen| Ok(json(&seen.result(json!({}))))),
        ),
        (
            "a result of null",
            Box::new(|seen| Ok(json(&seen.result(json!(null))))),
        ),
        (
            "a cut answer",
            Box::new(|_| {
                let (response, pour) = open(200, &[("content-type", "application/json")]);
                let _ = pour.try_send(Ok(Bytes::from_static(b"{\"jsonrpc\"")));
                let _ = pour.try_send(Err(BodyError::Cut));
                Ok(response)
            }),
        ),
        (
            "a body announced as too large",
            Box::new(|_| {
                let kind = ("content-type", "application/json");
                let (response, _) = open(200, &[kind, ("content-length", "1073741824")]);
                Ok(response)
            }),
        ),
        (
            "a body that is too large",
            Box::new(|_| {
                let (response, pour) = open(200, &[("content-type", "application/json")]);
                tokio::spawn(async move {
                    let spaces = || Ok(Bytes::from(vec![b' '; 1 << 20]));
                    while pour.send(spaces()).await.is_ok() {}
                });
                Ok(response)
            }),
        ),
        ("a closed connection", broken_off(SendErrorKind::Closed)),
        ("no HTTP", broken_off(SendErrorKind::Malformed)),
    ];
    for (what, odd) in odd {
        let odd = Arc::new(odd);
        let scene = Scene::new(1, move |seen: Seen| {
            let odd = Arc::clone(&odd);
            async move {
                match &*seen.what() {
                    "server/discover" => odd(&seen),
                    _ => legacy(seen, |seen| Ok(json(&done(seen)))).await,
                }
            }
        });
        let leased = session(&scene, "a").await;
        assert_eq!(call(&leased).await.outcome.as_deref(), Ok(DONE), "{what}");
        assert_eq!(scene.backends[0].count("server/discover"), 1, "{what}");
    }
}

#[tokio::test]
async fn whatever_status_the_probe_is_refused_with_initialize_is_tried() {
    let statuses = [
        301, 302, 304, 403, 407, 408, 409, 410, 411, 413, 418, 421, 426, 451, 502, 503, 504, 505,
        520, 530,
    ];
    for status in statuses {
        for media in ["text/html", "application/json", "text/event-stream"] {
            let scene = Scene::new(1, move |seen: Seen| async move {
                match &*seen.what() {
                    "server/discover" => Ok(whole(status, &[("content-type", media)], "{}")),
                    _ => legacy(seen, |seen| Ok(json(&done(seen)))).await,
                }
            });
            let leased = session(&scene, "a").await;
            let outcome = call(&leased).await.outcome;
            assert_eq!(outcome.as_deref(), Ok(DONE), "{status} {media}");
        }
    }
}

#[tokio::test]
async fn where_initialize_fails_after_an_odd_answer_to_the_probe_its_failure_is_told() {
    let scene = Scene::new(1, |seen: Seen| async move {
        Ok(match &*seen.what() {
            "server/discover" => text(502, "no"),
            _ => text(410, "no"),
        })
    });
    let key = ConnectionKey::Session("a".into());
    let opening = OpenAs::gateway(Era::Legacy);
    let lease = scene.pools.lease(&scene.server, key, opening);
    let error = within(lease).await.expect_err("no server");
    assert!(error.message.contains("HTTP 410"), "{error}");
}

#[tokio::test]
async fn a_modern_server_gets_mirrored_headers_and_no_session() {
    let scene = Scene::new(1, modern);
    let leased = shared(&scene, Era::Modern).await;
    assert!(call(&leased).await.outcome.is_ok());
    let backend = &scene.backends[0];
    let called = backend.last("tools/call");
    assert_eq!(called.header("mcp-session-id"), None);
    assert_eq!(called.header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(called.header("mcp-method"), Some("tools/call"));
    assert_eq!(called.header("mcp-name"), Some("=?base64?Z3LDtsOfZQ==?="));
    assert_eq!(backend.count("initialize"), 0);
}

#[tokio::test]
async fn each_failure_of_a_backend_is_a_typed_error_and_only_what_never_ran_may_be_repeated() {
    use CallErrorCode::{ExecutionTimeout, RateLimited, ResultTooLarge, WorkerUnavailable};
    let send = |kind, unsent| {
        let message = "127.0.0.1:9000: said so".to_owned();
        Err(SendError {
            kind,
            unsent,
            message,
        })
    };
    type Failing = Box<dyn Fn(&Seen) -> Sent + Send + Sync>;
    let cut = |text: &'static str| -> Failing {
        Box::new(move |_| {
            let (response, pour) = events();
            let _ = pour.try_send(Ok(Bytes::from_static(text.as_bytes())));
            let _ = pour.try_send(Err(BodyError::Cut));
            Ok(response)
        })
    };
    let stream = |body: &'static str| -> Failing {
        Box::new(move |_| Ok(whole(200, &[("content-type", "text/event-stream")], body)))
    };
    let status = |status: u16| -> Failing { Box::new(move |_| Ok(text(status, "no"))) };
    let cases: Vec<(&str, Failing, CallErrorCode, bool, &str)> = vec![
        (
            "reset",
            Box::new(move |_| send(SendErrorKind::Closed, false)),
            WorkerUnavailable,
            false,
            "the connection ended",
        ),
        (
            "slow",
            Box::new(move |_| send(SendErrorKind::HeadTimeout, false)),
            ExecutionTimeout,
            false,
            "no answer came in time",
        ),
        (
            "no HTTP",
            Box::new(move |_| send(SendErrorKind::Malformed, false)),
            WorkerUnavailable,
            false,
            "is no HTTP",
        ),
        (
            "wrong type",
            Box::new(|_| Ok(text(200, "<html>"))),
            WorkerUnavailable,
            false,
            "media type text/plain",
        ),
        (
            "202",
            status(202),
            WorkerUnavailable,
            false,
            "without answering",
        ),
        ("302", status(302), WorkerUnavailable, false, "redirect"),
        ("401", status(401), WorkerUnavailable, false, "credentials"),
        ("403", status(403), WorkerUnavailable, false, "credentials"),
        ("429", status(429), RateLimited, false, "HTTP 429"),
        ("500", status(500), WorkerUnavailable, false, "HTTP 500"),
        ("503", status(503), WorkerUnavailable, false, "HTTP 503"),
        (
            "429 with an answer",
            Box::new(|seen| {
                let answer = json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": {"code": 1, "message": "own"}});
                let kind = [("content-type", "application/json")];
                Ok(whole(429, &kind, &answer.to_string()))
            }),
            RateLimited,
            false,
            "HTTP 429",
        ),
        (
            "empty stream",
            stream(""),
            WorkerUnavailable,
            false,
            "without answering",
        ),
        (
            "half an event",
            stream("data: {\"jsonrpc\""),
            WorkerUnavailable,
            false,
            "cut",
        ),
        (
            "cut",
            cut("data: {}\n\ndata: {\"js"),
            WorkerUnavailable,
            false,
            "cut",
        ),
        (
            "other's answer",
            Box::new(|_| Ok(json(&json!({ "jsonrpc": "2.0", "id": 7, "result": {} })))),
            WorkerUnavailable,
            false,
            "answered with the id 7, which is not that of the request",
        ),
        (
            "a huge body",
            Box::new(|_| {
                let (response, pour) = open(
                    200,
                    &[
                        ("content-type", "application/json"),
                        ("content-length", "1073741824"),
                    ],
                );
                drop(pour);
                Ok(response)
            }),
            ResultTooLarge,
            false,
            "1073741824",
        ),
        (
            "an endless body",
            Box::new(|_| {
                let (response, pour) = open(200, &[("content-type", "application/json")]);
                tokio::spawn(async move {
                    while pour
                        .send(Ok(Bytes::from(vec![b' '; 1 << 20])))
                        .await
                        .is_ok()
                    {}
                });
                Ok(response)
            }),
            ResultTooLarge,
            false,
            "bytes",
        ),
        (
            "an endless event",
            Box::new(|_| {
                let (response, pour) = events();
                tokio::spawn(async move {
                    let _ = pour.try_send(Ok(Bytes::from_static(b"data: ")));
                    while pour
                        .send(Ok(Bytes::from(vec![b'x'; 1 << 20])))
                        .await
                        .is_ok()
                    {}
                });
                Ok(response)
            }),
            WorkerUnavailable,
            false,
            "without an end",
        ),
    ];
    for (what, failing, code, unsent, said) in cases {
        let failing = Arc::new(failing);
        let scene = Scene::new(1, move |seen| {
            let failing = Arc::clone(&failing);
            legacy(seen, move |seen: &Seen| failing(seen))
        });
        let leased = session(&scene, "a").await;
        let called = call(&leased).await;
        let (found, message) = called.outcome.expect_err(what);
        assert_eq!((found, called.unsent), (code, unsent), "{what}: {message}");
        assert!(message.contains(said), "{what}: {message}");
        assert!(!message.contains("said so"), "{what}: {message}");
        assert!(!message.contains("127.0.0.1"), "{what}: {message}");
        let cause = called.cause.unwrap_or_default();
        assert!(
            code == ResultTooLarge || cause.contains("127.0.0.1:9000: "),
            "{what}: {cause}"
        );
        assert!(
            code == ResultTooLarge || message.contains("namespace ns"),
            "{what}: {message}"
        );
        assert_eq!(scene.backends[0].count("tools/call"), 1, "{what}");
    }
}

#[tokio::test]
async fn an_expired_session_is_opened_anew_once_for_all_its_calls() {
    let expired = Arc::new(Mutex::new(None::<String>));
    let known = Arc::clone(&expired);
    let scene = Scene::new(1, move |seen| {
        let known = Arc::clone(&known);
        legacy(seen, move |seen: &Seen| {
            let gone =
                known.lock().expect("not poisoned").as_deref() == seen.header("mcp-session-id");
            Ok(match gone {
                true => text(404, "Session not found"),
                false => json(&done(seen)),
            })
        })
    });
    let leased = session(&scene, "a").await;
    assert!(call(&leased).await.outcome.is_ok());
    let named = scene.backends[0].last("tools/call");
    *expired.lock().expect("not poisoned") = named.header("mcp-session-id").map(Into::into);
    let calls = join_all((0..8).map(|_| call(&leased))).await;
    for called in &calls {
        assert!(called.unsent, "{:?}", called.outcome);
        let (code, message) = called.outcome.as_ref().expect_err("expired");
        assert_eq!(*code, CallErrorCode::WorkerUnavailable, "{message}");
    }
    drop(leased);
    let again = join_all((0..8).map(|_| session(&scene, "a"))).await;
    assert!(call(&again[0]).await.outcome.is_ok());
    // The count includes the first session of the server, which probes for its eras.
    assert_eq!(scene.backends[0].count("initialize"), 3);
}

#[tokio::test]
async fn any_refusal_that_says_so_ends_a_session_for_all_its_calls() {
    for (status, media, body, repeated) in [
        (400, "text/plain", "Session not found", true),
        (400, "text/html", "<p>No such session</p>", true),
        (400, "", "Server not initialized", true),
        (
            400,
            "application/problem+json",
            r#"{"detail":"Session 123 does not exist"}"#,
            true,
        ),
        (400, "application/json", r#""invalid_session_id""#, true),
        (
            410,
            "application/json",
            r#"{"error":"SessionNotFound"}"#,
            true,
        ),
        (
            400,
            "application/json",
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Bad Request","data":"Mcp-Session-Id is not valid"}}"#,
            true,
        ),
        (
            200,
            "application/json",
            r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32001,"message":"Session not found"}}"#,
            false,
        ),
        (
            200,
            "application/json",
            r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"data":{"code":"not_initialized"},"message":"The session is not initialized: send notifications/initialized first"}}"#,
            false,
        ),
        (
            404,
            "application/json",
            r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"Session not found"}}"#,
            false,
        ),
    ] {
        let scene = Scene::new(1, move |seen| {
            legacy(seen, move |seen| {
                let body = body.replace("ID", &seen.body["id"].to_string());
                Ok(whole(
                    status,
                    &[("content-type", media)][..usize::from(!media.is_empty())],
                    &body,
                ))
            })
        });
        let leased = session(&scene, "a").await;
        for called in join_all((0..3).map(|_| call(&leased))).await {
            assert!(called.outcome.is_err(), "{status} {body}");
            assert_eq!(called.unsent, repeated, "{status} {body}");
            if repeated {
                assert!(called.session_gone, "{status} {body}");
            }
        }
    }
}

#[tokio::test]
async fn json_is_read_under_other_labels_and_other_types_are_named() {
    let answer = r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}"#;
    let marked = "\u{feff} {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[]}}";
    for (status, media, body, error) in [
        (200, "application/json-rpc", answer, None),
        (200, "application/json, application/json", answer, None),
        (200, "application/vnd.mcp+json", answer, None),
        (200, "application/json", marked, None),
        (200, "text/plain", marked, None),
        (200, "", answer, None),
        (
            200,
            "text/html; charset=utf-8",
            answer,
            Some("the media type text/html,"),
        ),
        (
            200,
            "text/plain",
            "Hello",
            Some("the media type text/plain,"),
        ),
        (200, "", "Hello", Some("without a media type")),
        (204, "application/json", "", Some("gave an empty answer")),
        (204, "", "", Some("gave an empty answer")),
    ] {
        let scene = Scene::new(1, move |seen| {
            legacy(seen, move |seen| {
                let body = body.replace("ID", &seen.body["id"].to_string());
                let kind = [("content-type", media)];
                let count = usize::from(!media.is_empty());
                Ok(whole(status, &kind[..count], &body))
            })
        });
        let leased = session(&scene, "a").await;
        match (call(&leased).await.outcome, error) {
            (Ok(found), None) => assert_eq!(found, DONE, "{media} {body}"),
            (Err((_, message)), Some(error)) => assert!(message.contains(error), "{message}"),
            (outcome, _) => panic!("{media} {body}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn an_error_without_an_id_answers_the_request_that_it_came_for() {
    let null = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32042,"message":"no such city"}}"#;
    let missing = r#"{"error":{"code":-32042,"message":"no such city"}}"#;
    for body in [null, missing] {
        let event = format!("data: {body}\n\n");
        for (status, media, body) in [
            (200, "application/json", body.to_owned()),
            (400, "application/json", body.to_owned()),
            (200, "text/event-stream", event),
        ] {
            let scene = Scene::new(1, move |seen| {
                let body = body.clone();
                legacy(seen, move |_| {
                    Ok(whole(status, &[("content-type", media)], &body))
                })
            });
            let leased = session(&scene, "a").await;
            let outcome = call(&leased).await.outcome;
            let error = r#"{"code":-32042,"message":"no such city"}"#;
            assert_eq!(outcome.as_deref(), Ok(error), "{status} {media}");
        }
    }
}

#[tokio::test]
async fn a_session_whose_backend_is_gone_is_opened_at_another() {
    let scene = Scene::new(3, |seen| legacy(seen, |seen| Ok(json(&done(seen)))));
    let leased = session(&scene, "a").await;
    assert!(call(&leased).await.outcome.is_ok());
    let home = scene.backends.iter().find(|it| it.count("tools/call") == 1);
    let home = home.expect("called once");
    home.down.store(true, Ordering::SeqCst);
    let called = call(&leased).await;
    assert!(called.unsent && called.session_gone && called.outcome.is_err());
    drop(leased);
    let leased = session(&scene, "a").await;
    assert!(call(&leased).await.outcome.is_ok());
    let calls: usize = scene.backends.iter().map(|it| it.count("tools/call")).sum();
    assert_eq!(calls, 2);
}

#[tokio::test]
async fn a_session_leaves_a_backend_that_is_not_healthy_for_one_that_is() {
    for (count, stateful, leaves) in [(2, false, true), (1, false, false), (2, true, false)] {
        let play = |seen| legacy(seen, |seen| Ok(json(&done(seen))));
        let scene = Scene::keeping(count, Transport::Auto, stateful, play);
        let leased = session(&scene, "a").await;
        assert!(call(&leased).await.outcome.is_ok());
        let home = scene.backends.iter().find(|it| it.count("tools/call") == 1);
        let home = home.expect("called once");
        home.ejected.store(true, Ordering::SeqCst);
        let called = call(&leased).await;
        assert_eq!(called.session_gone, leaves, "{count} {stateful}");
        assert_eq!(called.outcome.is_ok(), !leaves, "{:?}", called.outcome);
        assert_eq!(home.count("tools/call"), if leaves { 1 } else { 2 });
        drop(leased);
        let leased = session(&scene, "a").await;
        assert!(call(&leased).await.outcome.is_ok());
        assert_eq!(home.count("tools/call"), if leaves { 1 } else { 3 });
    }
}

#[tokio::test]
async fn a_session_whose_state_was_at_a_lost_backend_is_over() {
    let play = |seen| legacy(seen, |seen| Ok(json(&done(seen))));
    let scene = Scene::keeping(2, Transport::Auto, true, play);
    let leased = session(&scene, "a").await;
    assert!(call(&leased).await.outcome.is_ok());
    let home = scene.backends.iter().find(|it| it.count("tools/call") == 1);
    home.expect("called once")
        .down
        .store(true, Ordering::SeqCst);
    let called = call(&leased).await;
    assert!(called.outcome.is_err() && !called.session_gone);
    drop(leased);
    let key = ConnectionKey::Session("a".into());
    let lease = scene
        .pools
        .lease(&scene.server, key, OpenAs::gateway(Era::Legacy));
    let error = within(lease).await.expect_err("its state is lost");
    assert!(error.message.contains("Begin a new session"), "{error}");
    // Another session has lost no state.
    let leased = session(&scene, "b").await;
    assert!(call(&leased).await.outcome.is_ok());
}

#[tokio::test]
async fn what_everybody_subscribes_to_is_asked_for_at_every_backend() {
    let scene = Scene::new(2, modern);
    let (one, _other) = (
        shared(&scene, Era::Modern).await,
        shared(&scene, Era::Modern).await,
    );
    let asked = async |expected: serde_json::Value| {
        let is_asked = |it: &Arc<super::testing::Played>| {
            it.count("subscriptions/listen") > 0
                && it.last("subscriptions/listen").body["params"]["notifications"]["resourceSubscriptions"]
                    == expected
        };
        while !scene.backends.iter().all(is_asked) {
            tokio::task::yield_now().await;
        }
    };
    one.subscribe("test://a").await.expect("noted");
    within(asked(json!(["test://a"]))).await;
    let key = ConnectionKey::Shared;
    scene
        .pools
        .unsubscribe(&scene.server, &key, Era::Modern, "test://a");
    within(asked(json!([]))).await;
}

#[tokio::test]
async fn what_nobody_wants_to_hear_of_any_more_is_unsubscribed_at_every_backend() {
    let scene = Scene::new(3, |seen| legacy(seen, |seen| Ok(json(&done(seen)))));
    let (uri, key) = ("test://a", ConnectionKey::Shared);
    let mut leases = Vec::new();
    for first in [true, false, false] {
        let leased = shared(&scene, Era::Legacy).await;
        let asked = within(leased.subscribe(uri)).await.expect("asked");
        assert_eq!(asked.is_some(), first);
        leases.push(leased);
    }
    let told = || {
        let all = scene.backends.iter();
        all.map(|it| it.count("resources/unsubscribe"))
            .sum::<usize>()
    };
    for _ in &leases {
        assert_eq!(told(), 0);
        let (pools, server) = (&scene.pools, &scene.server);
        pools.unsubscribe(server, &key, Era::Legacy, uri);
    }
    within(async {
        let is_told = |it: &Arc<super::testing::Played>| it.count("resources/unsubscribe") == 1;
        while !scene.backends.iter().all(is_told) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn arguments_are_mirrored_where_the_tools_schema_says_so() {
    let scene = Scene::new(1, |seen: Seen| async move {
        if seen.what() != "tools/list" {
            return modern(seen).await;
        }
        let schema = json!({ "type": "object", "properties": {
            "region": { "type": "string", "x-mcp-header": "Region" },
            "deep": { "properties": { "n": { "type": "integer", "x-mcp-header": "N" } } },
            "plain": { "type": "string" },
        }});
        let tools = json!([{ "name": "t", "inputSchema": schema }]);
        Ok(json(&seen.result(
            json!({ "tools": tools, "resultType": "complete" }),
        )))
    });
    let leased = shared(&scene, Era::Modern).await;
    // The list is read beside the calls.
    let catalogue = scene.pools.catalogue(&scene.server).expect("a pool");
    while catalogue.known().is_none() {
        tokio::task::yield_now().await;
    }
    let arguments = r#"{"region":"größe","deep":{"n":7},"plain":"x"}"#;
    let params = format!(r#"{{"name":"t","arguments":{arguments}}}"#);
    let params = serde_json::from_str(&params).expect("JSON");
    let call = leased
        .request("tools/call", Some(params), None)
        .expect("begun");
    within(call).await.expect("answered");
    let called = scene.backends[0].last("tools/call");
    assert_eq!(
        called.header("mcp-param-region"),
        Some("=?base64?Z3LDtsOfZQ==?=")
    );
    assert_eq!(called.header("mcp-param-n"), Some("7"));
    assert_eq!(called.header("mcp-param-plain"), None);
}

#[tokio::test]
async fn what_everybody_shares_is_spread_over_backends_and_goes_round_one_that_is_gone() {
    let scene = Scene::new(3, modern);
    scene.backends[1].down.store(true, Ordering::SeqCst);
    for _ in 0..12 {
        let leased = shared(&scene, Era::Modern).await;
        assert!(call(&leased).await.outcome.is_ok());
    }
    for (number, least) in [(0, 4), (1, 0), (2, 4)] {
        let calls = scene.backends[number].count("tools/call");
        assert!(calls >= least, "backend {number}: {calls}");
    }
    let state = scene.pools.state(&scene.server.name).expect("a pool");
    assert_eq!(state.breaker, BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_cut_is_resumed_behind_the_last_event() {
    let asked = Arc::new(AtomicU64::new(0));
    let scene = Scene::new(1, move |seen: Seen| {
        let asked = Arc::clone(&asked);
        async move {
            if seen.header("last-event-id") == Some("3-1") {
                let (response, pour) = events();
                let id = asked.load(Ordering::SeqCst);
                let answer = json!({ "jsonrpc": "2.0", "id": id, "result": { "content": [] } });
                let _ = pour.try_send(event(&answer));
                return Ok(response);
            }
            legacy(seen, |seen: &Seen| {
                let (response, pour) = events();
                let priming = b"id: 3-1\nretry: 50\ndata:\n\n";
                let _ = pour.try_send(Ok(Bytes::from_static(priming)));
                let _ = pour.try_send(Err(BodyError::Cut));
                let id = seen.body["id"].as_u64().expect("a number");
                asked.store(id, Ordering::SeqCst);
                Ok(response)
            })
            .await
        }
    });
    let leased = session(&scene, "a").await;
    assert_eq!(call(&leased).await.outcome.as_deref(), Ok(DONE));
    let resumed = scene.backends[0].last("GET");
    assert_eq!(resumed.header("last-event-id"), Some("3-1"));
    assert!(resumed.header("mcp-session-id").is_some());
    assert_eq!(scene.backends[0].count("tools/call"), 1);
}

#[tokio::test]
async fn a_server_of_http_with_sse_is_found_and_spoken_to() {
    for transport in [Transport::Auto, Transport::Sse] {
        let pour = Arc::new(Mutex::new(None));
        let scene = Scene::with(1, transport, move |seen: Seen| {
            let pour = Arc::clone(&pour);
            async move {
                if seen.method == "GET" {
                    let (response, stream) = events();
                    let endpoint = b"event: endpoint\ndata: /messages?session_id=7\n\n";
                    let _ = stream.try_send(Ok(Bytes::from_static(endpoint)));
                    *pour.lock().expect("ok") = Some(stream);
                    return Ok(response);
                }
                if seen.target.as_deref() != Some("/messages?session_id=7") {
                    return Ok(text(405, ""));
                }
                let answer = match &*seen.what() {
                    "initialize" => Some(json!({
                        "protocolVersion": "2024-11-05", "capabilities": {},
                        "serverInfo": { "name": "old", "version": "1" },
                    })),
                    "tools/call" => Some(json!({ "content": [] })),
                    _ => None,
                };
                if let Some(answer) = answer
                    && let Some(stream) = &*pour.lock().expect("ok")
                {
                    let _ = stream.try_send(event(&seen.result(answer)));
                }
                Ok(text(202, "Accepted"))
            }
        });
        let leased = session(&scene, "a").await;
        assert_eq!(
            call(&leased).await.outcome.as_deref(),
            Ok(DONE),
            "{transport:?}"
        );
    }
}
