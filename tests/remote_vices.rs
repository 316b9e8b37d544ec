//! Remote servers with every fault that a network and a server can have, in both modes and both eras: clients get a
//! readable error, nothing runs twice, nothing of the backend or of the gateway's credentials is revealed, and the
//! gateway stays small and well.
//!
//! A single gateway has a namespace for each vice and mode, and all calls run at once. A name that changes its address is
//! tested beside the code (`proxy/src/remote/names.rs`): loopback has no names that could.

mod hostile;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::session::Session;
use crate::support::sse::{Answering, End};
use crate::support::{Gateway, TOKEN, eventually};
use hostile::{FLOOD, Hostile, OWN_WORDS, Vice};

const LEGACY: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";
const CREDENTIAL: &str = "hunter2-0123456789abcdef";
/// The largest result of these namespaces, in bytes.
const MAX_RESULT: u64 = 256 * 1024;
/// Bytes that sockets may hold beyond the bytes read: the buffers of both sides, which grow as far as the system lets
/// them.
const IN_SOCKETS: u64 = 128 * 1024 * 1024;
/// Memory limit of the gateway's process at the end, in bytes.
const MEMORY: u64 = 160 * 1024 * 1024;

/// How a client is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// By a result.
    Done,
    /// By a typed error: the HTTP status and the code.
    Failed(u16, String),
    /// By an answer that ends with its connection.
    BrokenOff,
    /// By something that no client should read.
    Wrong(String),
}

/// The expected outcome of a vice: in client mode this code, in pass-through this status and this code.
struct Row {
    name: &'static str,
    vice: Vice,
    client: &'static str,
    passed: (u16, &'static str),
}

impl Row {
    /// How a call in this mode is answered.
    fn expected(&self, mode: &str) -> Outcome {
        let (status, code) = match mode {
            "client" => (200, self.client),
            _ => self.passed,
        };
        match code {
            DONE => Outcome::Done,
            BROKEN_OFF => Outcome::BrokenOff,
            code => Outcome::Failed(status, code.to_owned()),
        }
    }

    /// Whether this is the answer of a call that came after another had found that no session can be opened.
    fn is_expected_later(&self, mode: &str, found: &Outcome) -> bool {
        let status = if mode == "client" { 200 } else { 503 };
        self.vice == Vice::Mute && *found == Outcome::Failed(status, UNAVAILABLE.to_owned())
    }
}

const DONE: &str = "done";
const BROKEN_OFF: &str = "broken off";
const UNAVAILABLE: &str = "worker_unavailable";
const LATE: &str = "execution_timeout";
const UPSTREAM: &str = "upstream_error";
const TOO_LARGE: &str = "result_too_large";
const LIMITED: &str = "rate_limited";

fn row(
    name: &'static str,
    vice: Vice,
    client: &'static str,
    status: u16,
    passed: &'static str,
) -> Row {
    Row {
        name,
        vice,
        client,
        passed: (status, passed),
    }
}

/// The list. `elsewhere` is where a redirect leads.
fn rows(elsewhere: SocketAddr) -> Vec<Row> {
    vec![
        row("none", Vice::None, DONE, 200, DONE),
        row("refused", Vice::Refused, UNAVAILABLE, 503, UNAVAILABLE),
        row("mute", Vice::Mute, LATE, 504, LATE),
        row("silent", Vice::Silent, LATE, 504, LATE),
        row("slow-head", Vice::SlowHead, LATE, 504, LATE),
        row("cut-event", Vice::CutEvent, UNAVAILABLE, 200, UPSTREAM),
        row(
            "cut-event-with-id",
            Vice::CutEventWithId,
            UNAVAILABLE,
            200,
            BROKEN_OFF,
        ),
        row("cut-body", Vice::CutBody, UNAVAILABLE, 502, UPSTREAM),
        row("page", Vice::Page, UNAVAILABLE, 502, UPSTREAM),
        row("no-json", Vice::NoJson, UPSTREAM, 502, UPSTREAM),
        row("no-http", Vice::NoHttp, UNAVAILABLE, 502, UPSTREAM),
        row(
            "giant-announced",
            Vice::GiantAnnounced,
            TOO_LARGE,
            502,
            TOO_LARGE,
        ),
        row(
            "giant-chunked",
            Vice::GiantChunked,
            TOO_LARGE,
            200,
            BROKEN_OFF,
        ),
        row(
            "endless-event",
            Vice::EndlessEvent,
            UNAVAILABLE,
            200,
            BROKEN_OFF,
        ),
        row(
            "redirect",
            Vice::Redirect(elsewhere),
            UNAVAILABLE,
            502,
            UPSTREAM,
        ),
        row("status-401", Vice::Status(401), UNAVAILABLE, 502, UPSTREAM),
        row("status-403", Vice::Status(403), UNAVAILABLE, 502, UPSTREAM),
        row("status-429", Vice::Later(429), LIMITED, 429, LIMITED),
        row("status-500", Vice::Status(500), UNAVAILABLE, 502, UPSTREAM),
        row(
            "status-503",
            Vice::Later(503),
            UNAVAILABLE,
            503,
            UNAVAILABLE,
        ),
        row(
            "half-closed",
            Vice::HalfClosed,
            UNAVAILABLE,
            502,
            UNAVAILABLE,
        ),
        row("half-closed-after", Vice::HalfClosedAfter, DONE, 200, DONE),
    ]
}

/// Encrypted backends: name, the name in the certificate, the year it expires, and whether it is a good one.
const ENCRYPTED: [(&str, &str, i32, bool); 3] = [
    ("tls", "backend.example", 2099, true),
    ("tls-wrong-name", "other.example", 2099, false),
    ("tls-expired", "backend.example", 2021, false),
];

fn encrypted_rows() -> impl Iterator<Item = Row> {
    ENCRYPTED.into_iter().map(|(name, _, _, good)| match good {
        true => row(name, Vice::None, DONE, 200, DONE),
        false => row(name, Vice::None, UNAVAILABLE, 503, UNAVAILABLE),
    })
}

/// A certificate that vouches for itself, and what serves with it.
fn certificate(folder: &Path, file: &str, name: &str, until: i32) -> TlsAcceptor {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    fs::write(folder.join(file), &pem).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()))
}

const MODES: [&str; 2] = ["client", "pass_through"];

fn namespace(name: &str, mode: &str) -> String {
    format!("{name}-{}", mode.split('_').next().unwrap())
}

/// The keys of a namespace in front of one backend. Only where time is the question it is short.
fn keys(vice: Vice, url: String, mode: &str) -> Value {
    let head = match vice {
        Vice::Mute | Vice::Silent | Vice::SlowHead => "1s",
        _ => "20s",
    };
    let max_result = match vice {
        Vice::Long => 2 * FLOOD,
        _ => MAX_RESULT,
    };
    json!({
        "backends": [url], "mode": mode, "credentials": "Bearer ${FAR_TOKEN}",
        "timeouts": {"connect": "10s", "head": head, "call": "60s", "idle": "20s"},
        "health": {"active": {"every": "1h", "timeout": "10m"}, "passive": {"failures": 1000}},
        "limits": {"timeout": if head == "1s" { "25s" } else { "120s" }, "max_result": max_result},
    })
}

/// A call in an era, without a session.
fn request(namespace: &str, version: &str, mark: &str) -> String {
    let mut message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "act", "arguments": {"mark": mark}}});
    let mut lines = String::new();
    if version == MODERN {
        message["params"]["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        lines = format!(
            "MCP-Protocol-Version: {MODERN}\r\nMcp-Method: tools/call\r\nMcp-Name: act\r\n"
        );
    }
    let body = message.to_string();
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: {namespace}\r\n\
         Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n{lines}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Reads the answer to a call. Any answer must be free of texts that clients must not see.
async fn outcome(mut answering: Answering, namespace: &str) -> Outcome {
    let status = answering.status;
    let mut wrong = Vec::new();
    if matches!(status, 301..=308 | 401 | 403) {
        wrong.push("the status is the server's".to_owned());
    }
    for header in ["www-authenticate", "location"] {
        if answering.header(header).is_some() {
            wrong.push(format!("{header} is the server's"));
        }
    }
    let retry_after = answering.header("retry-after").map(str::to_owned);
    let mut answer = Value::Null;
    if answering.is_events() {
        while let Some(event) = answering.event().await {
            let message = event.json();
            if message["id"] == 7 {
                answer = message;
            }
        }
        if answer.is_null() {
            return match answering.end().await {
                End::Cut => Outcome::BrokenOff,
                End::Whole => Outcome::Wrong("a stream that is complete without its answer".into()),
            };
        }
    } else if answering.end().await == End::Cut {
        return Outcome::BrokenOff;
    } else {
        answer = answering.json().await;
    }
    let text = answer.to_string();
    if text.contains(CREDENTIAL) || text.contains(OWN_WORDS) {
        wrong.push("words that are not for clients".to_owned());
    }
    let failed = &answer["result"]["_meta"]["tooldock/error"];
    let code = answer["error"]["data"]["code"].as_str();
    let code = code.or(failed["code"].as_str());
    let is_done = answer["result"]["content"][0]["text"] == "done";
    let is_named = text.contains(namespace) || code == Some("result_too_large");
    if answer["id"] != 7 || is_done == code.is_some() || !(is_done || is_named) {
        wrong.push("neither a result nor an error that names the namespace".to_owned());
    }
    if namespace.starts_with("status-429") || namespace.starts_with("status-503") {
        let told = failed["details"]["retry_after"].as_u64();
        let told = told.or(retry_after.and_then(|it| it.parse().ok()));
        if told != Some(7) {
            wrong.push("not the server's time to wait".to_owned());
        }
    }
    match code {
        _ if !wrong.is_empty() => Outcome::Wrong(format!("{wrong:?}: {answer}")),
        None => Outcome::Done,
        Some(code) => Outcome::Failed(status, code.to_owned()),
    }
}

/// Makes a call, and returns the faults of its answer.
async fn judged(
    address: SocketAddr,
    row: &Row,
    mode: &str,
    version: &str,
    backend: &Hostile,
) -> Option<String> {
    let namespace = namespace(row.name, mode);
    let request = request(&namespace, version, version);
    let answering = Answering::open(address, &request).await;
    let found = outcome(answering, &namespace).await;
    let expected = row.expected(mode);
    let is_right = found == expected || row.is_expected_later(mode, &found);
    let runs = backend.seen.runs(version);
    (!is_right || runs > 1)
        .then(|| format!("{namespace} {version}: {found:?} instead of {expected:?}, runs: {runs}"))
}

/// Memory of the gateway's process in bytes, without pages shared with the file of its program.
fn resident(gateway: &Gateway) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.unwrap().trim().trim_end_matches(" kB").trim();
    kilobytes.parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_failure_of_a_network_is_an_error_that_clients_can_read() {
    let folder = tempfile::TempDir::new().unwrap();
    let elsewhere = Hostile::start(Vice::None).await;
    let rows = rows(elsewhere.address);
    let mut backends = Vec::new();
    let mut configured = serde_json::Map::new();
    for row in &rows {
        for mode in MODES {
            let backend = Hostile::start(row.vice).await;
            let url = format!("http://{}/mcp", backend.address);
            configured.insert(namespace(row.name, mode), keys(row.vice, url, mode));
            backends.push(backend);
        }
    }
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    for (name, host, until, _) in ENCRYPTED {
        let file = format!("{name}.pem");
        let tls = certificate(folder.path(), &file, host, until);
        let tls_keys = json!({"ca": folder.path().join(&file), "server_name": "backend.example"});
        for mode in MODES {
            let backend = Hostile::start_with(Vice::None, Some(tls.clone())).await;
            let mut keys = keys(Vice::None, format!("https://{}/mcp", backend.address), mode);
            keys["tls"] = tls_keys.clone();
            configured.insert(namespace(name, mode), keys);
            backends.push(backend);
        }
    }
    // Clients that do not read, and a server that forgets sessions.
    let mut apart = Vec::new();
    for (name, vice, mode) in [
        ("flood", Vice::Flood, "client"),
        ("flood", Vice::Flood, "pass_through"),
        ("long", Vice::Long, "pass_through"),
        ("forgets", Vice::Forgets, "client"),
        ("forgets", Vice::Forgets, "pass_through"),
        ("stateful", Vice::Forgets, "pass_through"),
    ] {
        let backend = Hostile::start(vice).await;
        let mut keys = keys(vice, format!("http://{}/mcp", backend.address), mode);
        keys["stateful"] = json!(name == "stateful");
        if mode == "client" && vice == Vice::Forgets {
            keys["isolation"] = json!("session");
        }
        configured.insert(namespace(name, mode), keys);
        apart.push((name, mode, backend));
    }
    let gateway = Gateway::empty()
        .config(json!({"upstreams": {"remote": configured}}))
        .env("FAR_TOKEN", CREDENTIAL)
        .start()
        .await;

    // Clients that do not read hold their answers open meanwhile.
    let mut unread = Vec::new();
    for (name, mode, _) in &apart[..3] {
        let namespace = namespace(name, mode);
        let request = request(&namespace, LEGACY, "unread");
        unread.push(Answering::open(gateway.address, &request).await);
    }

    let address = gateway.address;
    let rows: Vec<_> = rows.into_iter().chain(encrypted_rows()).collect();
    let mut calls = Vec::new();
    for (row, backends) in rows.iter().zip(backends.chunks(MODES.len())) {
        for (mode, backend) in MODES.iter().zip(backends) {
            for version in [LEGACY, MODERN] {
                calls.push(judged(address, row, mode, version, backend));
            }
        }
    }
    let wrong: Vec<_> = join_all(calls).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        elsewhere.seen.connections.load(Ordering::SeqCst),
        0,
        "a redirect was followed"
    );
    for backend in &backends {
        let written = backend.seen.written.load(Ordering::SeqCst);
        assert!(
            written < MAX_RESULT + IN_SOCKETS,
            "{written} bytes were taken"
        );
    }

    forgotten_sessions(&gateway, &apart[3..]).await;

    // Unread bytes are not taken from the backend, or not held.
    for (name, mode, backend) in &apart[..3] {
        let settled = || async {
            let seen = &backend.seen;
            let all = seen.written.load(Ordering::SeqCst) >= FLOOD;
            (seen.stalled.load(Ordering::SeqCst) || all).then_some(())
        };
        eventually(&format!("{name} {mode} is read no more"), settled).await;
    }
    let is_small = || async { (resident(&gateway) < MEMORY).then_some(()) };
    eventually("memory of what was not read is given back", is_small).await;
    drop(unread);

    for (what, address) in [("core", gateway.address), ("metrics", gateway.metrics)] {
        for path in ["/health", "/ready"] {
            let asked = gateway.client.get(format!("http://{address}{path}"));
            let answer = asked.timeout(Duration::from_secs(60)).send().await.unwrap();
            assert_eq!(answer.status(), 200, "{what} {path}");
        }
    }
    assert!(!gateway.log().contains("panicked"));
    assert!(!gateway.log().contains(CREDENTIAL));
}

/// A session that its server has forgotten is opened again, and its call is run once; or it ends where the server says
/// that its state is gone.
async fn forgotten_sessions(gateway: &Gateway, backends: &[(&str, &str, Hostile)]) {
    for (name, mode, backend) in backends {
        let namespace = namespace(name, mode);
        let session = Session::start(gateway, &namespace, LEGACY).await;
        let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": {"name": "act", "arguments": {"mark": "again"}}});
        let answering = session.post(&call).await;
        if *name == "stateful" {
            // In client mode the call is told why, and what follows gets 404.
            let first = answering.status;
            let second = session.post(&call).await.status;
            assert!(
                first == 404 || second == 404,
                "{namespace}: {first}, {second}"
            );
            assert_eq!(backend.seen.runs("again"), 0, "{namespace}");
            continue;
        }
        assert_eq!(
            outcome(answering, &namespace).await,
            Outcome::Done,
            "{namespace}"
        );
        assert_eq!(backend.seen.runs("again"), 1, "{namespace}");
    }
}
