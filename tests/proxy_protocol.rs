//! The PROXY protocol: trusted senders of headers, the uses of the address in one, and hostile bytes.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::support::ports::free_address;
use crate::support::raw::{closes_within, exchange};
use crate::support::{DEADLINE, Gateway, TOKEN, eventually};
use crate::tls::write_certificate;

/// A gateway whose listener `proxied` takes headers from loopback, and whose plain listener takes none.
struct Proxied {
    gateway: Gateway,
    address: SocketAddr,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

async fn proxied(listener: Value, admission: Value) -> Proxied {
    let folder = tempfile::TempDir::new().unwrap();
    let log = folder.path().join("access.log");
    let [plain, address, metrics] = [(); 3].map(|()| free_address());
    let mut proxied = json!({"name": "proxied", "address": address.to_string(), "profile": "core",
        "proxy_protocol": true});
    for (key, value) in listener.as_object().unwrap() {
        proxied[key] = value.clone();
    }
    let gateway = Gateway::empty()
        .listening(plain, metrics)
        .config(json!({"admission": {"trusted_proxies": ["127.0.0.1"]}}))
        .config(json!({"admission": admission, "listeners": [
            {"name": "core", "address": plain.to_string(), "profile": "core"},
            proxied,
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"}],
            "observability": {"access_log": {"path": log, "format": "{address} {status} {path}"}}}))
        .start()
        .await;
    Proxied {
        gateway,
        address,
        log,
        _folder: folder,
    }
}

fn request(path: &str, headers: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: shared\r\n\
         Connection: close\r\n{headers}\r\n"
    )
    .into_bytes()
}

/// A header of version 2 for a client of this address.
fn binary(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([command, family]);
    header.extend((addresses.len() as u16).to_be_bytes());
    header.extend(addresses);
    header
}

fn binary_v4(client: [u8; 4]) -> Vec<u8> {
    let mut addresses = client.to_vec();
    addresses.extend([10, 0, 0, 1, 0x30, 0x39, 0x01, 0xbb]);
    binary(0x21, 0x11, &addresses)
}

impl Proxied {
    async fn status(&self, header: &[u8], request: &[u8]) -> Option<u16> {
        let answer = exchange(self.address, &[header, request].concat()).await;
        answer.split(' ').nth(1)?.parse().ok()
    }

    async fn refused(&self, reason: &str) -> u64 {
        let metrics = self.gateway.metrics_text().await;
        let name = format!("tooldock_refusals_total{{reason=\"{reason}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |count| count.parse().unwrap())
    }

    async fn logs(&self, line: &str) {
        eventually(line, || async {
            let text = fs::read_to_string(&self.log).ok()?;
            text.lines().any(|it| it == line).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn the_address_in_the_header_is_the_clients() {
    let proxied = proxied(
        json!({}),
        json!({"cidrs": {"deny": ["192.0.2.0/24", "2001:db8::/32"]}}),
    )
    .await;
    for (number, (header, address, status)) in [
        (
            b"PROXY TCP4 192.0.2.7 10.0.0.1 5000 80\r\n".to_vec(),
            "192.0.2.7",
            403,
        ),
        (
            b"PROXY TCP4 198.51.100.7 10.0.0.1 5000 80\r\n".to_vec(),
            "198.51.100.7",
            200,
        ),
        (
            b"PROXY TCP6 2001:db8::1 ::1 5000 80\r\n".to_vec(),
            "2001:db8::1",
            403,
        ),
        (binary_v4([192, 0, 2, 7]), "192.0.2.7", 403),
        (binary_v4([198, 51, 100, 7]), "198.51.100.7", 200),
        // The proxy for itself, or for a client it does not know.
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1", 200),
        (binary(0x20, 0x00, &[]), "127.0.0.1", 200),
        (binary(0x21, 0x31, &[0; 216]), "127.0.0.1", 200),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/tools?{number}");
        let answered = proxied.status(&header, &request(&path, "")).await;
        assert_eq!(answered, Some(status), "{header:?}");
        proxied
            .logs(&format!("{address} {status} /tools?***MASKED***"))
            .await;
    }
}

#[tokio::test]
async fn a_header_may_come_in_pieces_and_several_requests_follow() {
    let proxied = proxied(json!({}), json!({})).await;
    let mut stream = TcpStream::connect(proxied.address).await.unwrap();
    for piece in ["PRO", "XY TCP4 198.51.", "100.9 10.0.0.1 5000 80\r", "\n"] {
        stream.write_all(piece.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        tokio::task::yield_now().await;
    }
    let kept = String::from_utf8(request("/tools", "")).unwrap();
    let kept = kept.replace("Connection: close\r\n", "");
    for _ in 0..2 {
        stream.write_all(kept.as_bytes()).await.unwrap();
        let answer = crate::support::raw::answer(&mut stream).await;
        assert_eq!(answer.map(|it| it.status), Some(200));
    }
    proxied.logs("198.51.100.9 200 /tools").await;
}

#[tokio::test]
async fn forwarded_for_counts_behind_a_trusted_address_in_the_header() {
    let trusted = json!({"trusted_proxies": ["127.0.0.1", "10.0.0.0/8"]});
    let proxied = proxied(json!({}), trusted).await;
    let forwarded = request("/tools", "X-Forwarded-For: 203.0.113.9\r\n");
    let through = b"PROXY TCP4 10.1.1.1 10.0.0.1 5000 80\r\n";
    assert_eq!(proxied.status(through, &forwarded).await, Some(200));
    proxied.logs("203.0.113.9 200 /tools").await;
    let forged = b"PROXY TCP4 198.51.100.3 10.0.0.1 5000 80\r\n";
    assert_eq!(proxied.status(forged, &forwarded).await, Some(200));
    proxied.logs("198.51.100.3 200 /tools").await;
}

#[tokio::test]
async fn forwarded_for_counts_for_nobody_whom_the_proxy_does_not_name() {
    let deny = json!({"cidrs": {"deny": ["203.0.113.0/24"]}});
    let proxied = proxied(json!({}), deny).await;
    for (number, header) in [
        b"PROXY UNKNOWN\r\n".to_vec(),
        binary(0x20, 0x00, &[]),
        binary(0x21, 0x31, &[0; 216]),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/tools?{number}");
        let own_word = request(&path, "X-Forwarded-For: 203.0.113.9\r\n");
        assert_eq!(proxied.status(&header, &own_word).await, Some(200));
        proxied.logs("127.0.0.1 200 /tools?***MASKED***").await;
    }
}

#[tokio::test]
async fn tls_works_behind_the_header() {
    let folder = tempfile::TempDir::new().unwrap();
    let certificate = write_certificate(folder.path());
    let tls = json!({"tls": {"cert": folder.path().join("cert.pem"), "key": folder.path().join("key.pem")}});
    let proxied = proxied(tls, json!({})).await;
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut stream = TcpStream::connect(proxied.address).await.unwrap();
    stream
        .write_all(b"PROXY TCP4 198.51.100.8 10.0.0.1 5000 443\r\n")
        .await
        .unwrap();
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from("localhost").unwrap(), stream)
        .await
        .unwrap();
    stream.write_all(&request("/tools", "")).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    proxied.logs("198.51.100.8 200 /tools").await;
}

#[tokio::test]
async fn nobody_but_a_trusted_proxy_is_served() {
    let proxied = proxied(json!({}), json!({"trusted_proxies": ["192.0.2.1"]})).await;
    let before = proxied.refused("proxy_protocol_untrusted").await;
    let header = b"PROXY TCP4 192.0.2.1 10.0.0.1 5000 80\r\n";
    let status = proxied.status(header, &request("/tools", "")).await;
    assert_eq!(status, None, "closed without an answer");
    eventually("it is counted", || async {
        (proxied.refused("proxy_protocol_untrusted").await == before + 1).then_some(())
    })
    .await;
    // A header on a listener that takes none is no request.
    let plain: SocketAddr = proxied.gateway.address;
    let answer = exchange(plain, &[&header[..], &request("/tools", "")].concat()).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn what_is_no_header_closes_the_connection_and_is_counted() {
    let proxied = proxied(json!({}), json!({"timeouts": {"header": "2s"}})).await;
    let before = proxied.refused("proxy_protocol_malformed").await;
    let giant = format!("PROXY TCP4 {}", "1".repeat(100_000));
    let mut huge = binary_v4([192, 0, 2, 7]);
    huge[14..16].copy_from_slice(&60_000_u16.to_be_bytes());
    huge.extend([0; 100_000]);
    let hostile: [&[u8]; 6] = [
        b"",
        giant.as_bytes(),
        &huge,
        b"PROXY TCP4 0.0.0.0 10.0.0.1 5000 80\r\n",
        b"PROXY TCP4 999.0.2.1 10.0.0.1 5000 80\r\n",
        &binary(0x21, 0x12, &[0; 12]),
    ];
    for header in hostile {
        let status = proxied.status(header, &request("/tools", "")).await;
        assert_eq!(status, None, "closed without an answer");
    }
    eventually("all of them are counted", || async {
        let counted = proxied.refused("proxy_protocol_malformed").await;
        (counted == before + hostile.len() as u64).then_some(())
    })
    .await;

    // A half header has the time of a head.
    let mut half = TcpStream::connect(proxied.address).await.unwrap();
    half.write_all(b"PROXY TCP4 192.0.2.7 10.").await.unwrap();
    assert!(closes_within(&mut half, DEADLINE).await);
    let log = proxied.gateway.log();
    assert!(!log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn a_listener_needs_proxies_that_are_trusted() {
    let gateway = Gateway::empty()
        .core(json!({"proxy_protocol": true}))
        .spawn();
    let status = gateway.ended().await;
    let log = gateway.log();
    assert_eq!(status.code(), Some(2), "{log}");
    let named = "listeners[0].proxy_protocol: needs admission.trusted_proxies";
    assert!(log.contains(named), "{log}");
}
