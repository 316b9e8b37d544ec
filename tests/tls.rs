//! TLS listeners: HTTP/1.1 and HTTP/2 by ALPN, certificates swapped on reload, bad ones refused.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use reqwest::Version;
use rustix::process::Signal;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::support::ports::free_address;
use crate::support::raw::{closes_within, exchange, post};
use crate::support::{DEADLINE, Gateway, TOKEN, eventually};

/// Writes a new self-signed certificate for localhost and its key.
pub fn write_certificate(folder: &Path) -> CertificateDer<'static> {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    fs::write(folder.join("cert.pem"), certified.cert.pem()).unwrap();
    fs::write(
        folder.join("key.pem"),
        certified.signing_key.serialize_pem(),
    )
    .unwrap();
    certified.cert.der().clone()
}

/// A client that trusts this certificate alone.
pub fn trusting(certificate: &CertificateDer<'_>) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_der(certificate).unwrap()])
}

pub fn client(certificate: &CertificateDer<'_>) -> reqwest::Client {
    trusting(certificate).build().unwrap()
}

/// A gateway with a TLS listener beside the plain one.
pub struct Secure {
    pub gateway: Gateway,
    pub folder: tempfile::TempDir,
    pub certificate: CertificateDer<'static>,
    pub port: u16,
}

async fn secure() -> Secure {
    secure_with(json!({})).await
}

pub async fn secure_with(admission: serde_json::Value) -> Secure {
    let folder = tempfile::TempDir::new().unwrap();
    let certificate = write_certificate(folder.path());
    let (plain, secure, metrics) = (free_address(), free_address(), free_address());
    let gateway = Gateway::empty()
        .listening(plain, metrics)
        .config(json!({"admission": admission, "listeners": [
            {"name": "core", "address": plain.to_string(), "profile": "core"},
            {"name": "secure", "address": secure.to_string(), "profile": "core",
                "tls": {"cert": folder.path().join("cert.pem"), "key": folder.path().join("key.pem")}},
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"}]}))
        .start()
        .await;
    Secure {
        gateway,
        folder,
        certificate,
        port: secure.port(),
    }
}

/// A new connection that speaks HTTP/1.1.
pub async fn connect(
    port: u16,
    trusted: &[CertificateDer<'static>],
) -> Option<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for certificate in trusted {
        roots.add(certificate.clone()).unwrap();
    }
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from("localhost").unwrap(), stream)
        .await
        .ok()
}

/// How many connections the gateway counts.
async fn connections(gateway: &Gateway) -> usize {
    let metrics = gateway.metrics_text().await;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("tooldock_connections "));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_connection_counts_from_the_first_byte_of_its_handshake_which_has_the_time_of_a_head() {
    let secure = secure_with(json!({"timeouts": {"header": "2s"}})).await;
    let before = connections(&secure.gateway).await;
    let mut silent = TcpStream::connect(("127.0.0.1", secure.port))
        .await
        .unwrap();
    eventually("it is counted before its handshake", || async {
        (connections(&secure.gateway).await > before).then_some(())
    })
    .await;
    assert!(closes_within(&mut silent, DEADLINE).await);
    let log = secure.gateway.log();
    assert!(!log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn a_handshake_that_is_none_is_no_error_of_ours() {
    let secure = secure().await;
    let mut plain = TcpStream::connect(("127.0.0.1", secure.port))
        .await
        .unwrap();
    plain
        .write_all(b"GET /health HTTP/1.1\r\n\r\n")
        .await
        .unwrap();
    assert!(closes_within(&mut plain, DEADLINE).await);
    drop(
        TcpStream::connect(("127.0.0.1", secure.port))
            .await
            .unwrap(),
    );
    assert!(
        connect(secure.port, std::slice::from_ref(&secure.certificate))
            .await
            .is_some()
    );
    let log = secure.gateway.log();
    assert!(!log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn plain_http_at_a_tls_address_is_told_that_it_speaks_https() {
    let secure = secure().await;
    let address = SocketAddr::from(([127, 0, 0, 1], secure.port));
    let get = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned();
    for request in [get, post("/mcp", "shared", "{}")] {
        let answer = exchange(address, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer:?}");
        assert!(answer.contains("this address speaks HTTPS"), "{answer:?}");
        assert!(!answer.contains(TOKEN), "{answer:?}");
    }
    // Bytes that are no HTTP either are a failed handshake.
    assert_eq!(exchange(address, b"SSH-2.0-x\r\n").await, "");
    let metrics = secure.gateway.metrics_text().await;
    for (reason, times) in [("bad_request", 2), ("tls_handshake", 1)] {
        let line = format!("tooldock_refusals_total{{reason=\"{reason}\"}} {times}\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
    let trusted = std::slice::from_ref(&secure.certificate);
    assert!(connect(secure.port, trusted).await.is_some());
}

/// The certificate a new connection is shown.
pub async fn shown(
    port: u16,
    trusted: &[CertificateDer<'static>],
) -> Option<CertificateDer<'static>> {
    let stream = connect(port, trusted).await?;
    stream
        .get_ref()
        .1
        .peer_certificates()
        .map(|chain| chain[0].clone().into_owned())
}

#[tokio::test]
async fn both_http_versions_are_served_over_tls() {
    let secure = secure().await;
    let client = client(&secure.certificate);
    let url = format!("https://localhost:{}/mcp", secure.port);
    for version in [Version::HTTP_2, Version::HTTP_11] {
        let client = if version == Version::HTTP_11 {
            reqwest::Client::builder()
                .tls_certs_only([reqwest::Certificate::from_der(&secure.certificate).unwrap()])
                .http1_only()
                .build()
                .unwrap()
        } else {
            client.clone()
        };
        let answer = client
            .post(&url)
            .bearer_auth(TOKEN)
            .header("X-Namespace", "shared")
            .json(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": {"name": "say_hello", "arguments": {"name": "TLS"}}}))
            .send()
            .await
            .unwrap();
        assert_eq!((answer.status().as_u16(), answer.version()), (200, version));
        assert!(answer.text().await.unwrap().contains("Hello, TLS!"));
        let refused = client.get(&url).send().await.unwrap();
        assert_eq!(
            (refused.status().as_u16(), refused.version()),
            (401, version)
        );
    }
}

#[tokio::test]
async fn a_new_certificate_is_shown_after_a_reload_and_a_bad_one_keeps_the_old() {
    let secure = secure().await;
    let first = secure.certificate.clone();
    assert_eq!(
        shown(secure.port, std::slice::from_ref(&first)).await,
        Some(first.clone())
    );
    let second = write_certificate(secure.folder.path());
    secure.gateway.signal(Signal::HUP);
    let both = [first, second.clone()];
    eventually("the second certificate is shown", || async {
        (shown(secure.port, &both).await? == second).then_some(())
    })
    .await;
    fs::write(secure.folder.path().join("key.pem"), "no key").unwrap();
    secure.gateway.signal(Signal::HUP);
    eventually("the bad key is in the log", || async {
        secure.gateway.log().contains("key.pem").then_some(())
    })
    .await;
    assert_eq!(shown(secure.port, &both).await, Some(second));
}

#[tokio::test]
async fn certificate_and_key_are_checked_before_anything_starts() {
    let folder = tempfile::TempDir::new().unwrap();
    write_certificate(folder.path());
    let other = tempfile::TempDir::new().unwrap();
    write_certificate(other.path());
    for (cert, key, named) in [
        (
            folder.path().join("missing.pem"),
            folder.path().join("key.pem"),
            "missing.pem",
        ),
        (
            folder.path().join("cert.pem"),
            other.path().join("key.pem"),
            "key.pem",
        ),
    ] {
        let gateway = Gateway::empty()
            .config(
                json!({"listeners": [{"name": "secure", "address": free_address().to_string(),
                "profile": "core", "tls": {"cert": cert, "key": key}}]}),
            )
            .spawn();
        let status = gateway.ended().await;
        assert_eq!(status.code(), Some(2), "{}", gateway.log());
        let log = gateway.log();
        assert!(
            log.contains("listeners[0].tls") && log.contains(named),
            "{log}"
        );
    }
}

#[tokio::test]
async fn an_http2_connection_without_a_request_is_cut_off() {
    let secure = secure_with(json!({"timeouts": {"header": "500ms"}})).await;
    let mut roots = RootCertStore::empty();
    roots.add(secure.certificate.clone()).unwrap();
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(("127.0.0.1", secure.port))
        .await
        .unwrap();
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from("localhost").unwrap(), stream)
        .await
        .unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(
        crate::support::DEADLINE,
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest),
    )
    .await;
    assert!(ended.is_ok(), "a silent client keeps its connection");
}
