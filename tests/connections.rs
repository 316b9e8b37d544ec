//! The cost of a connection before its client is known: heads while they arrive, line ends, writes that no client
//! reads, and the number of connections.

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::raw::{answer, closes_within, exchange};
use crate::support::{DEADLINE, Gateway, TOKEN, eventually, tools};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// The head of a POST of a ping, without its last line.
fn ping(fields: &str) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: shared\r\n\
         Content-Type: application/json\r\n{fields}"
    )
}

fn whole_ping() -> String {
    ping(&format!("Content-Length: {}\r\n\r\n{PING}", PING.len()))
}

/// Sends a request in pieces that arrive one by one.
async fn in_pieces(stream: &mut TcpStream, request: &str, size: usize) {
    stream.set_nodelay(true).unwrap();
    for piece in request.as_bytes().chunks(size) {
        stream.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_head_is_refused_when_it_reaches_the_limit_and_not_when_it_is_complete() {
    let gateway = Gateway::empty().start().await;
    for (path, code) in [
        ("/mcp", r#""data":{"code":"headers_too_large"}"#),
        ("/x", r#""code":"headers_too_large""#),
    ] {
        let unfinished = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nX-Long: {}",
            "x".repeat(40_000)
        );
        let text = exchange(gateway.address, unfinished.as_bytes()).await;
        assert!(text.starts_with("HTTP/1.1 431"), "{text:?}");
        assert!(text.contains(code), "{text:?}");
        let lower = text.to_ascii_lowercase();
        assert!(
            lower.contains("connection: close") && lower.contains("x-request-id: "),
            "{text:?}"
        );
    }
    let metrics = gateway.metrics_text().await;
    assert!(metrics.contains(r#"tooldock_refusals_total{reason="headers_too_large"} 2"#));
}

#[tokio::test]
async fn a_request_is_the_same_however_it_is_cut() {
    let gateway = Gateway::empty().start().await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    for size in [1, 7, 100, 1000] {
        in_pieces(&mut stream, &whole_ping(), size).await;
        assert_eq!(answer(&mut stream).await.expect("an answer").status, 200);
        let chunked = ping(&format!(
            "Transfer-Encoding: chunked\r\n\r\n{:x};a=b\r\n{PING}\r\n0\r\nX-Trailer: x\r\n\r\n",
            PING.len()
        ));
        in_pieces(&mut stream, &chunked, size).await;
        assert_eq!(answer(&mut stream).await.expect("an answer").status, 200);
        // An empty line between two requests is passed over.
        stream.write_all(b"\r\n").await.unwrap();
    }
}

#[tokio::test]
async fn a_bare_line_feed_is_refused_in_heads_and_in_the_framing_of_bodies() {
    let gateway = Gateway::empty().start().await;
    let chunked = |body: &str| ping(&format!("Transfer-Encoding: chunked\r\n\r\n{body}"));
    let (size, rest) = (format!("{:x}", PING.len()), "0\r\n\r\n");
    let requests = [
        whole_ping().replace("\r\n", "\n"),
        whole_ping().replacen("\r\n", "\n", 1),
        ping("X-A: b\nX-C: d\r\n\r\n"),
        chunked(&format!("{size}\n{PING}\r\n{rest}")),
        chunked(&format!("{size};a\nb\r\n{PING}\r\n{rest}")),
        chunked(&format!("{size}\r\n{PING}\n{rest}")),
        chunked(&format!("{size}\r\n{PING}\r\n0\r\nX-Trailer: x\n\r\n")),
    ];
    for request in requests {
        let text = exchange(gateway.address, request.as_bytes()).await;
        assert!(text.starts_with("HTTP/1.1 400"), "{request:?}: {text:?}");
        assert_eq!(
            text.matches("HTTP/1.1 ").count(),
            1,
            "{request:?}: {text:?}"
        );
        // As above, with the body behind the head.
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        in_pieces(&mut stream, &request, 16).await;
        assert_eq!(
            answer(&mut stream).await.expect("an answer").status,
            400,
            "{request:?}"
        );
        assert!(closes_within(&mut stream, DEADLINE).await);
    }
}

#[tokio::test]
async fn what_is_no_http_at_all_is_told_so_at_once() {
    let gateway = Gateway::empty().start().await;
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"{\"jsonrpc\": ",
        b"GET /mcp\r\n",
    ] {
        let text = exchange(gateway.address, garbage).await;
        assert!(text.starts_with("HTTP/1.1 400"), "{text:?}");
        assert!(text.contains("plain HTTP/1.1"), "{text:?}");
    }
}

#[tokio::test]
async fn a_later_head_has_the_time_of_a_head_once_it_has_begun() {
    let gateway = Gateway::empty()
        .config(json!({"admission": {"timeouts": {"header": "500ms", "keepalive": "10m"}}}))
        .start()
        .await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(whole_ping().as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.unwrap().status, 200);
    stream.write_all(b"POST /mcp HTTP/1.1\r\n").await.unwrap();
    assert!(closes_within(&mut stream, DEADLINE).await);
    let metrics = gateway.metrics_text().await;
    assert!(
        metrics.contains(r#"tooldock_refusals_total{reason="header_timeout"} 1"#),
        "{metrics}"
    );
    assert!(!gateway.log().contains("ERROR"), "{}", gateway.log());
}

#[tokio::test]
async fn a_client_that_reads_nothing_holds_no_connection_and_no_stop() {
    let gateway = Gateway::empty()
        .config(json!({"admission": {"timeouts": {"write": "1s"}}}))
        .start()
        .await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    let mut stream = socket.connect(gateway.address).await.unwrap();
    // Both what invites the body and what answers it wait for this client, whichever finds the buffers full.
    let request = ping(&format!(
        "Expect: 100-continue\r\nContent-Length: {}\r\n\r\n{PING}",
        PING.len()
    ));
    let asking = async {
        // Until the gateway closes: it reads no request while an answer waits.
        while stream.write_all(request.as_bytes()).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, asking)
        .await
        .expect("the gateway gives the connection up");
    gateway.signal(rustix::process::Signal::TERM);
    assert_eq!(gateway.ended().await.code(), Some(0));
}

/// Connections that never say anything.
async fn strangers(gateway: &Gateway, count: usize) -> Vec<TcpStream> {
    let mut strangers = Vec::new();
    for _ in 0..count {
        strangers.push(TcpStream::connect(gateway.address).await.expect("accepted"));
    }
    strangers
}

#[tokio::test]
async fn idle_strangers_silence_nobody_under_a_low_limit_on_open_files() {
    const LIMIT: u64 = 256;
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .open_files(128, LIMIT)
        .start()
        .await;
    let log = gateway.log();
    assert!(
        log.contains("up to 128, by the limit on open files: 256, of which 128 are kept"),
        "the soft limit was raised: {log}"
    );
    let _strangers = strangers(&gateway, LIMIT as usize + 100).await;
    assert!(
        gateway
            .metrics_text()
            .await
            .contains("tooldock_connections")
    );
    assert_eq!(
        gateway.call("calc", "add", json!({"a": 1, "b": 2})).await.0,
        200
    );
    // A worker is started meanwhile.
    gateway.drop_tool("late", "hello.py", tools::HELLO);
    let report = gateway.reload().await;
    assert_eq!(report["failed"], json!([]), "{report}");
    let (status, answer) = gateway.call("late", "say_hello", json!({})).await;
    assert_eq!(status, 200, "{answer}");
    assert!(
        !gateway.log().contains("cannot be accepted"),
        "{}",
        gateway.log()
    );
}

#[tokio::test]
async fn at_the_cap_the_idle_give_way_and_who_is_served_stays() {
    let gateway = Gateway::with_tools([("faulty", "faulty.py", tools::FAULTY)])
        .config(json!({"admission": {"limits": {"connections": 2}}}))
        .start()
        .await;
    let call = async |seconds: f64| {
        gateway
            .call("faulty", "slow", json!({"seconds": seconds}))
            .await
            .0
    };
    let request = whole_ping().replace("shared", "faulty");
    let crowd = async {
        gateway.in_flight("faulty", 1).await;
        let mut strangers = strangers(&gateway, 20).await;
        let mut asking = TcpStream::connect(gateway.address).await.unwrap();
        asking.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(answer(&mut asking).await.expect("an answer").status, 200);
        assert!(closes_within(&mut strangers[0], DEADLINE).await);
    };
    let (status, ()) = tokio::join!(call(1.0), crowd);
    assert_eq!(status, 200);
    // Where all connections are served, none gives way.
    let one_more = async {
        gateway.in_flight("faulty", 2).await;
        let mut refused = TcpStream::connect(gateway.address).await.unwrap();
        assert!(closes_within(&mut refused, DEADLINE).await);
    };
    assert_eq!(tokio::join!(call(4.0), call(4.0), one_more), (200, 200, ()));
    let metrics = gateway.metrics_text().await;
    assert!(
        metrics.contains(r#"tooldock_refusals_total{reason="connections"}"#),
        "{metrics}"
    );
}

#[tokio::test]
async fn what_tools_run_in_has_the_limit_on_open_files_the_gateway_was_started_with() {
    const LIMITS: &str = "import resource\nfrom fastmcp.tools import tool\n\n\n@tool\ndef limits() -> list[int]:\n    \
        \"\"\"Says the limits on open files.\"\"\"\n    return list(resource.getrlimit(resource.RLIMIT_NOFILE))\n";
    let gateway = Gateway::with_tools([("limits", "limits.py", LIMITS)])
        .open_files(300, 600)
        .start()
        .await;
    let called = eventually("the worker is there", || async {
        let (status, answer) = gateway.call("limits", "limits", json!({})).await;
        (status == 200).then_some(answer)
    })
    .await;
    assert_eq!(called, json!([300, 600]));
}
