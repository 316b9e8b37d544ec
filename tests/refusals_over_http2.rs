//! Refusals over HTTP/2 of requests with an unread body: the status arrives, and the stream ends without a reset.

use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{Request, StatusCode};
use reqwest::{RequestBuilder, Version};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::support::{TOKEN, tools};
use crate::tls::{Secure, client, secure_with};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// How often each refusal is asked for.
const TRIES: usize = 30;

/// A request head of HTTP/2, without its body.
fn head(port: u16, path: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::post(format!("https://localhost:{port}{path}"));
    if headers.iter().all(|(name, _)| *name != "content-type") {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

/// A new connection that speaks HTTP/2.
async fn connect(port: u16, certificate: &CertificateDer<'static>) -> SendRequest<Bytes> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender.ready().await.unwrap()
}

/// The status and the whole body of an answer.
async fn whole(response: ResponseFuture) -> (StatusCode, Vec<u8>) {
    let (head, mut body) = response.await.expect("an answer").into_parts();
    (head.status, read(&mut body).await)
}

async fn read(body: &mut RecvStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        bytes.extend(piece.expect("the body is not cut"));
    }
    bytes
}

/// Sends a request without its body and takes its answer. The stream is then still open towards the gateway, which has
/// answered another request meanwhile: a reset of the first would have arrived.
async fn answered_first(
    sender: &mut SendRequest<Bytes>,
    request: Request<()>,
    port: u16,
) -> (StatusCode, SendStream<Bytes>) {
    let (response, body) = sender.send_request(request, false).unwrap();
    let (status, text) = whole(response).await;
    assert!(!text.is_empty(), "{status} without a body");
    let health = Request::get(format!("https://localhost:{port}/health"));
    let (response, _) = sender.send_request(health.body(()).unwrap(), true).unwrap();
    assert_eq!(whole(response).await.0, 200);
    (status, body)
}

async fn refusing() -> Secure {
    let limits = json!([{"key": "namespace", "namespace": "limited", "rate": 1, "burst": 1, "unit": "request"}]);
    let secure = secure_with(json!({
        "origins": ["https://page.example"],
        "rate_limits": limits,
    }))
    .await;
    secure
        .gateway
        .drop_tool("limited", "math_tools.py", tools::MATH);
    secure.gateway.reload().await;
    secure
}

#[tokio::test]
async fn small_refused_posts_are_all_answered() {
    let secure = refusing().await;
    let url = |path: &str| format!("https://localhost:{}{path}", secure.port);
    let kept = client(&secure.certificate);
    let post = |client: &reqwest::Client, path: &str, kind: &str| {
        let mut request = client.post(url(path));
        if !path.starts_with("/mcp/") {
            request = request.header("X-Namespace", "shared");
        }
        request.header("Content-Type", kind).body(PING)
    };
    type Change = fn(RequestBuilder) -> RequestBuilder;
    let right: Change = |it| it.bearer_auth(TOKEN);
    let refusals: [(u16, &str, Change); 7] = [
        (401, "/mcp", |it| it.bearer_auth("wrong")),
        (403, "/mcp", |it| {
            it.bearer_auth(TOKEN)
                .header("Origin", "https://evil.example")
        }),
        (404, "/mcp/unknown", right),
        (405, "/health", right),
        (405, "/tools", right),
        (406, "/mcp", |it| {
            it.bearer_auth(TOKEN).header("Accept", "text/html")
        }),
        (415, "/mcp", right),
    ];
    for (status, path, change) in refusals {
        let kind = match status {
            415 => "text/plain",
            _ => "application/json",
        };
        for turn in 0..TRIES {
            // Old connections and new ones.
            let new = (turn % 3 == 0).then(|| client(&secure.certificate));
            let client = new.as_ref().unwrap_or(&kept);
            let answer = change(post(client, path, kind)).send().await;
            let answer = answer.unwrap_or_else(|error| panic!("{status} {path}: {error:?}"));
            assert_eq!(
                (answer.status().as_u16(), answer.version()),
                (status, Version::HTTP_2),
                "{path}"
            );
            let text = answer.text().await.expect("the body is not cut");
            assert!(text.contains("error"), "{text}");
        }
    }
    let mut limited = 0;
    for _ in 0..TRIES {
        let answer = post(&kept, "/mcp/limited", "application/json")
            .bearer_auth(TOKEN)
            .send()
            .await;
        let answer = answer.expect("an answer");
        limited += usize::from(answer.status() == 429);
        answer.text().await.expect("the body is not cut");
    }
    assert!(limited > 0, "the limit is reached");
}

#[tokio::test]
async fn a_refusal_waits_for_the_rest_of_a_small_body_and_resets_nothing() {
    let secure = refusing().await;
    let right = format!("Bearer {TOKEN}");
    let right = ("authorization", &*right);
    let length = PING.len().to_string();
    for announced in [Some(("content-length", &*length)), None] {
        for (status, path, headers) in [
            (401, "/mcp", vec![]),
            (403, "/mcp", vec![right, ("origin", "https://evil.example")]),
            (404, "/mcp/unknown", vec![right]),
            (405, "/health", vec![right]),
            (406, "/mcp/shared", vec![right, ("accept", "text/html")]),
            (
                413,
                "/mcp/shared",
                vec![right, ("content-length", "1000000000")],
            ),
            (
                415,
                "/mcp/shared",
                vec![right, ("content-type", "text/plain")],
            ),
        ] {
            let mut headers = headers;
            if status != 413 {
                headers.extend(announced);
            }
            let mut sender = connect(secure.port, &secure.certificate).await;
            let request = head(secure.port, path, &headers);
            let (found, mut body) = answered_first(&mut sender, request, secure.port).await;
            assert_eq!(found, status, "{path}");
            body.send_data(Bytes::from_static(PING.as_bytes()), status != 413)
                .unwrap_or_else(|error| panic!("{status} {path}: {error}"));
        }
    }
}

#[tokio::test]
async fn a_refused_body_that_does_not_end_is_given_up_with_no_error() {
    let secure = refusing().await;
    let mut sender = connect(secure.port, &secure.certificate).await;
    // The gateway takes a bounded part of an endless body, whether it comes or not.
    for sends in [true, false] {
        let request = head(secure.port, "/mcp", &[]);
        let (status, mut body) = answered_first(&mut sender, request, secure.port).await;
        assert_eq!(status, 401);
        let mut sent = 0;
        let reason = loop {
            if !sends {
                break std::future::poll_fn(|cx| body.poll_reset(cx)).await;
            }
            body.reserve_capacity(16 * 1024);
            let next = std::future::poll_fn(|cx| match body.poll_reset(cx) {
                Poll::Ready(reason) => Poll::Ready(Err(reason)),
                Poll::Pending => body.poll_capacity(cx).map(Ok),
            });
            let capacity = match next.await {
                Err(reason) => break reason,
                Ok(Some(Ok(capacity))) => capacity,
                Ok(_) => break std::future::poll_fn(|cx| body.poll_reset(cx)).await,
            };
            sent += capacity;
            if body.send_data(vec![b'x'; capacity].into(), false).is_err() {
                break std::future::poll_fn(|cx| body.poll_reset(cx)).await;
            }
        };
        assert_eq!(reason.expect("a reset"), h2::Reason::NO_ERROR);
        assert!(sent <= 8 * 1024 * 1024, "{sent} bytes were taken");
    }
}
