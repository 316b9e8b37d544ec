//! Many streams that stay open: what one costs, that all get their keepalives, and that nothing is left of them.
//!
//! The figures printed are of a debug build; `load-tests/` has those that count.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::support::session::Session;
use crate::support::sse::Answering;
use crate::support::{Gateway, TOKEN, eventually};
use crate::tls;

const LATEST: &str = "2025-11-25";

/// Bytes of memory the gateway's process holds.
fn resident(gateway: &Gateway) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let kilobytes = line.trim().trim_end_matches(" kB");
    kilobytes.trim().parse::<u64>().unwrap() * 1024
}

async fn open_streams(gateway: &Gateway) -> u64 {
    gateway
        .metrics_text()
        .await
        .lines()
        .filter(|line| line.starts_with("tooldock_streams{"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum::<f64>() as u64
}

/// Waits until as many descriptors are open as before, with a few more for the tests' own connections.
async fn descriptors_return(gateway: &Gateway, before: usize) {
    eventually("the descriptors are closed", || async {
        (gateway.descriptors() <= before + 4).then_some(())
    })
    .await;
}

#[tokio::test]
async fn hundreds_of_idle_streams_cost_little_and_leave_nothing() {
    const STREAMS: usize = 300;
    let gateway = Gateway::empty()
        .config(json!({"sessions": {"keepalive": "1s"}}))
        .start()
        .await;
    let mut sessions = Vec::new();
    for _ in 0..STREAMS {
        sessions.push(Session::start(&gateway, "shared", LATEST).await);
    }
    let ids: HashSet<_> = sessions.iter().map(|session| &session.id).collect();
    assert_eq!(ids.len(), STREAMS);
    // A few first, so that resources which are made once are not counted.
    drop(sessions[0].listen().await);
    eventually("the first is gone", || async {
        (open_streams(&gateway).await == 0).then_some(())
    })
    .await;
    let (before, memory) = (gateway.descriptors(), resident(&gateway));
    let mut streams = Vec::new();
    for session in &sessions {
        streams.push(session.listen().await);
    }
    for stream in &mut streams {
        assert!(stream.next().await.unwrap().comment);
    }
    assert_eq!(open_streams(&gateway).await, STREAMS as u64);
    let grown = resident(&gateway).saturating_sub(memory);
    let each = grown / STREAMS as u64;
    println!("{each} bytes per idle stream, plain HTTP/1, debug build");
    assert!(each < 64 * 1024, "{each} bytes per stream");
    let ping = sessions[0].request(1, "ping", json!({})).await;
    assert_eq!(ping["result"], json!({}));
    drop(streams);
    eventually("all are gone", || async {
        (open_streams(&gateway).await == 0).then_some(())
    })
    .await;
    descriptors_return(&gateway, before).await;
}

#[tokio::test]
async fn streams_over_tls_get_their_keepalives_and_leave_nothing() {
    let secure = tls::secure_with(json!({})).await;
    let gateway = &secure.gateway;
    let before = gateway.descriptors();
    let mut streams = Vec::new();
    for _ in 0..40 {
        let session = Session::start(gateway, "shared", LATEST).await;
        let connection = tls::connect(secure.port, std::slice::from_ref(&secure.certificate))
            .await
            .expect("connects");
        let head = session.head("GET", "Accept: text/event-stream\r\n\r\n");
        let mut stream = Answering::on(connection, &head).await;
        assert_eq!(stream.status, 200);
        assert_eq!(stream.next().await.unwrap().data, "", "the priming event");
        streams.push(stream);
    }
    assert_eq!(open_streams(gateway).await, 40);
    drop(streams);
    eventually("all are gone", || async {
        (open_streams(gateway).await == 0).then_some(())
    })
    .await;
    descriptors_return(gateway, before).await;
}

#[tokio::test]
async fn streams_share_an_http2_connection_with_calls() {
    let secure = tls::secure_with(json!({})).await;
    let gateway = &secure.gateway;
    let client = tls::client(&secure.certificate);
    let url = format!("https://localhost:{}/mcp", secure.port);
    let mut streams = Vec::new();
    for _ in 0..20 {
        let session = Session::start(gateway, "shared", LATEST).await;
        let mut response = client
            .get(&url)
            .bearer_auth(TOKEN)
            .header("X-Namespace", "shared")
            .header("Accept", "text/event-stream")
            .header("Mcp-Session-Id", &session.id)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.version(), reqwest::Version::HTTP_2);
        let first = response.chunk().await.unwrap().expect("the priming event");
        assert!(first.starts_with(b"id: "), "{first:?}");
        streams.push(response);
    }
    assert_eq!(open_streams(gateway).await, 20);
    let ping: Value = client
        .post(&url)
        .bearer_auth(TOKEN)
        .header("X-Namespace", "shared")
        .json(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(ping["result"], json!({}));
    // A single stream is reset, the others of its connection live on.
    streams.truncate(10);
    eventually("half are gone", || async {
        (open_streams(gateway).await == 10).then_some(())
    })
    .await;
    gateway.signal(rustix::process::Signal::TERM);
    for mut response in streams {
        let mut rest = Vec::new();
        while let Some(chunk) = response.chunk().await.expect("a clean end") {
            rest.extend_from_slice(&chunk);
        }
        let rest = String::from_utf8(rest).unwrap();
        assert!(rest.contains("retry:"), "{rest:?}");
    }
    assert_eq!(gateway.ended().await.code(), Some(0));
}
