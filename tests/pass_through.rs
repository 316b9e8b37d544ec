//! Remote servers whose messages are passed on: real backends on sockets, three copies behind one namespace.

use serde_json::{Value, json};

use crate::support::backend::Backend;
use crate::support::raw::exchange;
use crate::support::session::{Session, call};
use crate::support::sse::{Answering, End};
use crate::support::{Gateway, TOKEN, eventually};

const VERSION: &str = "2025-11-25";

async fn backends() -> Vec<Backend> {
    let mut backends = Vec::new();
    for name in ["a", "b", "c"] {
        backends.push(Backend::start(name).await);
    }
    backends
}

async fn in_front_of(backends: &[Backend], balance: &str) -> Gateway {
    let urls: Vec<_> = backends.iter().map(Backend::url).collect();
    let search = json!({"backends": urls, "mode": "pass_through", "balance": balance,
        "health": {"active": {"every": "1h"}}});
    Gateway::empty()
        .config(json!({"upstreams": {"remote": {"search": search}}}))
        .start()
        .await
}

async fn who(session: &Session, id: u64) -> String {
    let mut answer = session.call(id, "echo", json!({})).await;
    let answer: Value = answer.json().await;
    let who = answer["result"]["who"].as_str();
    who.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn messages_keep_their_bytes_and_sessions_are_the_gateways() {
    let backends = vec![Backend::start("a").await];
    let gateway = in_front_of(&backends, "round_robin").await;
    let session = Session::start(&gateway, "search", VERSION).await;
    let body = r#"{"jsonrpc":"2.0", "id":1e2,"method":"tools/call","params":{"name":"echo","n":1.50},"z":1}"#;
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: search\r\n\
         Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nCookie: hunter2\r\n\
         Mcp-Session-Id: {}\r\nMCP-Protocol-Version: {VERSION}\r\ntraceparent: 00-1-2-01\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        session.id,
        body.len()
    );
    let answer = exchange(gateway.address, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let expected = r#"{"jsonrpc":"2.0","id":1e2,"result":{"who":"a","n":1.50,"x":{}}}"#;
    assert!(answer.ends_with(expected), "{answer}");
    assert!(!answer.to_ascii_lowercase().contains("set-cookie"));
    let (head, sent) = backends[0].requests("tools/call").remove(0);
    assert_eq!(sent, body);
    let head = head.to_ascii_lowercase();
    assert!(head.contains("traceparent: 00-1-2-01"), "{head}");
    assert!(head.contains("mcp-session-id: a-"), "{head}");
    for hidden in [TOKEN, "hunter2", &session.id, "x-namespace"] {
        assert!(!head.contains(&hidden.to_ascii_lowercase()), "{head}");
    }
    let metrics = gateway.metrics_text().await;
    let counted = r#"tooldock_tool_calls_total{namespace="search",outcome="ok"} 1"#;
    assert!(metrics.contains(counted));
    assert!(metrics.contains(r#"mode="pass_through""#));
}

#[tokio::test]
async fn events_that_are_over_at_once_leave_as_one_body_of_known_length() {
    let backends = vec![Backend::start("a").await];
    let gateway = in_front_of(&backends, "round_robin").await;
    let session = Session::start(&gateway, "search", VERSION).await;
    let body = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"events"}}"#;
    let request = format!(
        "POST /mcp/search HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         Mcp-Session-Id: {}\r\nMCP-Protocol-Version: {VERSION}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        session.id,
        body.len()
    );
    let answer = exchange(gateway.address, request.as_bytes()).await;
    let (head, events) = answer.split_once("\r\n\r\n").expect("a whole head");
    let head = head.to_ascii_lowercase();
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    assert!(
        head.contains(&format!("content-length: {}", events.len())),
        "{head}"
    );
    assert!(!head.contains("transfer-encoding"), "{head}");
    assert_eq!(events.matches("data: ").count(), 2, "{events}");
    assert!(
        events.ends_with("\"result\":{\"who\":\"a\"}}\n\n"),
        "{events}"
    );
}

#[tokio::test]
async fn sessions_hold_under_each_policy_and_survive_a_backend_that_is_killed() {
    for balance in ["round_robin", "least_busy", "random", "hash"] {
        let mut backends = backends().await;
        let gateway = in_front_of(&backends, balance).await;
        let mut sessions = Vec::new();
        for _ in 0..20 {
            let session = Session::start(&gateway, "search", VERSION).await;
            let first = who(&session, 1).await;
            sessions.push((session, first));
        }
        for id in 2..4 {
            for (session, first) in &sessions {
                assert_eq!(who(session, id).await, *first, "{balance}");
            }
        }
        // The copy of the first session, whichever it is.
        let killed = sessions[0].1.clone();
        let at = ["a", "b", "c"].iter().position(|name| **name == *killed);
        backends.remove(at.expect("one of them")).end().await;
        for (session, first) in &sessions {
            let now = who(session, 4).await;
            assert_ne!(now, killed, "{balance}");
            assert!(*first == killed || now == *first, "{balance}");
            assert_eq!(who(session, 5).await, now, "{balance}");
        }
    }
}

#[tokio::test]
async fn streams_come_through_break_off_with_their_server_and_end_with_their_client() {
    let mut backends = backends().await;
    let gateway = in_front_of(&backends, "round_robin").await;
    let session = Session::start(&gateway, "search", VERSION).await;
    let first = who(&session, 1).await;
    let at = ["a", "b", "c"].iter().position(|name| **name == *first);
    let at = at.expect("one of them");

    // Its client leaves: the server's request is given up.
    let waiting = call(2, "wait", json!({}));
    let answering = session.post(&waiting).await;
    assert!(answering.is_events());
    assert_eq!(backends[at].open_streams(), 1);
    drop(answering);
    let closed = || async { (backends[at].open_streams() == 0).then_some(()) };
    eventually("the request is given up", closed).await;

    // Its server dies: a call is told so, a stream is broken off, and another copy has the session.
    let mut call = session.post(&waiting).await;
    let mut stream: Answering = session.get(None).await;
    assert_eq!((stream.status, stream.is_events()), (200, true));
    backends.remove(at).end().await;
    let told = call.message().await;
    assert_eq!(told["id"], 2);
    assert_eq!(told["error"]["data"]["code"], "upstream_error");
    assert_ne!(stream.end().await, End::Whole);
    assert_ne!(who(&session, 3).await, first);
    let again = session.get(None).await;
    assert_eq!(again.status, 200);
    assert_eq!(session.delete().await, 204);
}
