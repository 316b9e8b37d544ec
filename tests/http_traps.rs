//! Checks that Pingora does not make by itself, and HTTP/1 by hostile or careless clients (PINGORA §2–§5): framing
//! tricks, slow heads, announced bodies, connections that must or must not live on.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::raw::{answer, closes_within, exchange, post};
use crate::support::{DEADLINE, Gateway, TOKEN, eventually, tools};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// A POST of a ping with further header lines, each ending in CRLF.
fn ping(headers: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: shared\r\n\
         Content-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n{PING}",
        PING.len()
    )
}

#[tokio::test]
async fn a_connection_serves_many_requests_refusals_included() {
    let gateway = Gateway::empty().start().await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let refused = ping("").replace(TOKEN, "wrong");
    for (request, status) in [(ping(""), 200), (refused, 401), (ping(""), 200)] {
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = answer(&mut stream).await.expect("an answer");
        assert_eq!(answer.status, status);
    }
}

#[tokio::test]
async fn content_length_with_transfer_encoding_closes_and_smuggles_nothing() {
    let gateway = Gateway::empty().start().await;
    let body = format!("{:x}\r\n{PING}\r\n0\r\n\r\n", PING.len());
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: shared\r\n\
         Content-Type: application/json\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n{body}{}",
        ping("")
    );
    let text = exchange(gateway.address, request.as_bytes()).await;
    assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{text}");
}

#[tokio::test]
async fn connection_close_is_honoured() {
    let gateway = Gateway::empty().start().await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream
        .write_all(ping("Connection: close\r\n").as_bytes())
        .await
        .unwrap();
    assert_eq!(answer(&mut stream).await.unwrap().status, 200);
    assert!(closes_within(&mut stream, DEADLINE).await);
}

#[tokio::test]
async fn malformed_framing_gets_400_and_a_closed_connection() {
    let gateway = Gateway::empty().start().await;
    for line in [
        "Transfer-Encoding: xchunked\r\n",
        "Content-Length: +8\r\n",
        "Content-Length: 8\r\nContent-Length: 9\r\n",
        "Host: other\r\n",
        "X-Folded: a\r\n b\r\n",
        "Space : before-colon\r\n",
    ] {
        let request = format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{line}\r\n");
        let text = exchange(gateway.address, request.as_bytes()).await;
        assert!(text.starts_with("HTTP/1.1 400"), "{line:?} got {text:?}");
    }
    let text = exchange(gateway.address, b"GET /health HTTP/1.1\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 400"), "no Host: {text:?}");
}

#[tokio::test]
async fn a_head_above_the_limits_gets_431() {
    let gateway = Gateway::empty().start().await;
    let long = format!(
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n",
        "x".repeat(40_000)
    );
    let many = format!(
        "GET /health HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        "X-Many: 1\r\n".repeat(120)
    );
    for request in [long, many] {
        let text = exchange(gateway.address, request.as_bytes()).await;
        assert!(text.starts_with("HTTP/1.1 431"), "{text:?}");
    }
}

#[tokio::test]
async fn a_head_sent_byte_by_byte_is_cut_off_at_the_deadline() {
    let gateway = Gateway::empty()
        .config(json!({"admission": {"timeouts": {"header": "500ms"}}}))
        .start()
        .await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let begun = Instant::now();
    let trickle = async {
        loop {
            if stream.write_all(b"G").await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, trickle)
        .await
        .expect("the connection is cut while bytes keep coming");
    assert!(
        begun.elapsed() >= Duration::from_millis(400),
        "cut too early"
    );
    assert!(
        gateway
            .metrics_text()
            .await
            .contains(r#"tooldock_refusals_total{reason="header_timeout"}"#)
    );
}

#[tokio::test]
async fn a_later_head_has_the_idle_time_and_the_head_time() {
    let gateway = Gateway::empty()
        .config(json!({"admission": {"timeouts": {"header": "300ms", "keepalive": "1s"}}}))
        .start()
        .await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(ping("").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.unwrap().status, 200);
    // Longer than a first head may take, within the idle time of a kept connection.
    tokio::time::sleep(Duration::from_millis(600)).await;
    stream.write_all(ping("").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.unwrap().status, 200);
    assert!(closes_within(&mut stream, DEADLINE).await);
}

#[tokio::test]
async fn a_plaintext_http2_preface_is_no_way_in_and_hangs_nothing() {
    let gateway = Gateway::empty()
        .config(json!({"admission": {"timeouts": {"header": "500ms"}}}))
        .start()
        .await;
    let text = exchange(gateway.address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(!text.contains("200"), "{text:?}");
    // Shorter than a preface: must not wait for the rest of one.
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(b"PRI").await.unwrap();
    assert!(closes_within(&mut stream, DEADLINE).await);
}

#[tokio::test]
async fn a_client_that_asks_gets_100_continue_before_it_sends_its_body() {
    let gateway = Gateway::empty().start().await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let request = ping("Expect: 100-continue\r\n");
    let (head, body) = request.split_at(request.len() - PING.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    let interim = answer(&mut stream).await.expect("an interim answer");
    assert_eq!(interim.status, 100);
    stream.write_all(body.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.unwrap().status, 200);
}

#[tokio::test]
async fn refusals_answer_without_reading_an_announced_gigabyte() {
    let gateway = Gateway::empty().start().await;
    let announce = |change: &dyn Fn(String) -> String| {
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: shared\r\n\
             Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 1073741824\r\n\r\n"
        );
        change(head)
    };
    let cases: [(&dyn Fn(String) -> String, u16); 5] = [
        (&|head| head.replace(TOKEN, "wrong"), 401),
        (
            &|head| head.replace("Host: localhost", "Host: evil.example"),
            403,
        ),
        (&|head| head.replace("X-Namespace: shared\r\n", ""), 400),
        (
            &|head| head.replace("X-Namespace: shared", "X-Namespace: nope"),
            404,
        ),
        (&|head| head, 413),
    ];
    for (change, status) in cases {
        let text = exchange(gateway.address, announce(change).as_bytes()).await;
        assert!(
            text.starts_with(&format!("HTTP/1.1 {status}")),
            "{status}: {text:?}"
        );
        assert!(!text.contains("100 Continue"), "{text:?}");
    }
    let metrics = gateway.metrics_text().await;
    assert!(
        !metrics.contains("tooldock_tool_calls_total{"),
        "nothing reached the service"
    );
}

#[tokio::test]
async fn a_body_larger_than_the_limit_is_413_even_when_it_is_not_announced() {
    let gateway = Gateway::empty()
        .config(json!({"admission": {"limits": {"body": "64KiB"}}}))
        .start()
        .await;
    let chunk = "x".repeat(16 * 1024);
    let mut request = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: shared\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    for _ in 0..8 {
        request.push_str(&format!("{:x}\r\n{chunk}\r\n", chunk.len()));
    }
    request.push_str("0\r\n\r\n");
    let text = exchange(gateway.address, request.as_bytes()).await;
    assert!(text.starts_with("HTTP/1.1 413"), "{text:?}");
    assert!(text.contains("body_too_large"), "{text:?}");
}

/// The head of a request to a route that takes no body, which announces one all the same.
fn bodiless(method: &str, path: &str, announced: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: shared\r\n\
         Content-Length: {announced}\r\n\r\n"
    )
}

#[tokio::test]
async fn a_route_without_a_body_is_answered_before_any_of_one_arrives() {
    let gateway = Gateway::empty().start().await;
    for (address, method, path, status) in [
        (gateway.address, "GET", "/health", 200),
        (gateway.address, "GET", "/ready", 200),
        (gateway.address, "GET", "/tools", 200),
        (gateway.address, "GET", "/namespaces", 200),
        (gateway.address, "OPTIONS", "/mcp", 204),
        (gateway.address, "DELETE", "/mcp", 400),
        (gateway.metrics, "GET", "/metrics", 200),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = bodiless(method, path, 4 * 1024 * 1024);
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = answer(&mut stream).await.expect(path);
        assert_eq!(answer.status, status, "{method} {path}");
        if path == "/health" {
            assert!(closes_within(&mut stream, DEADLINE).await);
        }
    }
}

#[tokio::test]
async fn a_small_body_where_none_belongs_is_read_past_and_the_connection_kept() {
    let gateway = Gateway::empty().start().await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    for _ in 0..2 {
        let request = bodiless("GET", "/health", 5) + "GET /x";
        stream
            .write_all(&request.as_bytes()[..request.len() - 1])
            .await
            .unwrap();
        assert_eq!(answer(&mut stream).await.unwrap().status, 200);
    }
    stream.write_all(ping("").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.unwrap().status, 200);
}

#[tokio::test]
async fn bodies_that_are_being_read_share_one_bound() {
    let gateway = Gateway::empty()
        .config(json!({"admission": {"limits": {"body": "1MiB", "bodies_total": "1MiB"}}}))
        .start()
        .await;
    let filler = " ".repeat(700_000);
    let request = post("/mcp", "shared", &format!("{filler}{PING}"));
    let (most, last) = request.as_bytes().split_at(request.len() - 1);
    let mut first = TcpStream::connect(gateway.address).await.unwrap();
    first.write_all(most).await.unwrap();
    let all_but_one = filler.len() + PING.len() - 1;
    eventually("the first body is held", || async {
        let metrics = gateway.metrics_text().await;
        metrics
            .contains(&format!("tooldock_body_bytes {all_but_one}"))
            .then_some(())
    })
    .await;
    let text = exchange(gateway.address, most).await;
    assert!(text.starts_with("HTTP/1.1 503"), "{text:?}");
    assert!(text.contains("overloaded"), "{text:?}");
    assert!(
        text.to_ascii_lowercase().contains("retry-after: 1"),
        "{text:?}"
    );
    // Small ones have room beside it, and it is let finish.
    let mut small = TcpStream::connect(gateway.address).await.unwrap();
    small.write_all(ping("").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut small).await.unwrap().status, 200);
    first.write_all(last).await.unwrap();
    assert_eq!(answer(&mut first).await.unwrap().status, 200);
    eventually("nothing is held any more", || async {
        let metrics = gateway.metrics_text().await;
        metrics.contains("tooldock_body_bytes 0").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_body_that_stops_coming_is_408() {
    let gateway = Gateway::empty()
        .config(json!({"admission": {"timeouts": {"body": "300ms"}}}))
        .start()
        .await;
    let request = ping("");
    let text = exchange(gateway.address, &request.as_bytes()[..request.len() - 5]).await;
    assert!(text.starts_with("HTTP/1.1 408"), "{text:?}");
}

#[tokio::test]
async fn a_broken_chunk_is_400_and_not_500() {
    let gateway = Gateway::empty().start().await;
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: shared\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{PING}\r\n0\r\n\r\n"
    );
    let text = exchange(gateway.address, request.as_bytes()).await;
    assert!(text.starts_with("HTTP/1.1 400"), "{text:?}");
}

#[tokio::test]
async fn connect_and_upgrade_open_no_tunnel() {
    let gateway = Gateway::empty().start().await;
    let text = exchange(
        gateway.address,
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
    )
    .await;
    assert!(text.starts_with("HTTP/1.1 405"), "{text:?}");
    let upgrade =
        ping("Connection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n");
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(upgrade.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_rest_call() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .start()
        .await;
    let marker = gateway.scratch().join("marker");
    let body = json!({"seconds": 1.5, "file": marker}).to_string();
    let request = post("/tools/mark_after", "faulty", &body);
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    gateway.in_flight("faulty", 1).await;
    drop(stream);
    gateway.in_flight("faulty", 0).await;
    // The loop runs this call after the cancelled one would have written its marker.
    let (status, _) = gateway
        .call("faulty", "slow", json!({"seconds": 2.0}))
        .await;
    assert_eq!(status, 200);
    assert!(!marker.exists(), "the cancelled call went on");
}

#[tokio::test]
async fn bytes_ahead_of_an_answer_never_become_another_request() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .start()
        .await;
    let body = json!({"seconds": 0.5}).to_string();
    let request = post("/tools/slow", "faulty", &body);
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    gateway.in_flight("faulty", 1).await;
    stream.write_all(ping("").as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.unwrap().status, 200);
    assert!(
        closes_within(&mut stream, DEADLINE).await,
        "the next request lost its first byte to the watch: it must not be parsed"
    );
}

#[tokio::test]
async fn a_client_that_leaves_is_no_error_of_ours() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .start()
        .await;
    let body = json!({"seconds": 20}).to_string();
    let request = post("/tools/slow", "faulty", &body);
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    gateway.in_flight("faulty", 1).await;
    drop(stream);
    eventually("the request is counted as left by its client", || async {
        gateway
            .metrics_text()
            .await
            .contains(r#"tooldock_requests_total{route="/tools/{name}",status="499"} 1"#)
            .then_some(())
    })
    .await;
    assert!(!gateway.log().contains("ERROR"), "{}", gateway.log());
}
