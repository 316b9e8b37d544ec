//! Remote servers that other clients can use, with unusual answers: compressed, with a byte order mark, by a redirect
//! to the path with its slash, and without an answer to `server/discover`.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::support::Gateway;
use crate::support::backend::{header, read};
use crate::support::session::Session;

const CODINGS: [&str; 4] = ["gzip", "deflate", "br", "zstd"];
const MODES: [&str; 2] = ["client", "pass_through"];
const VERSION: &str = "2025-11-25";

/// A server with one kind of answers at each endpoint: `/CODING/json`, `/CODING/events`, `/odd/`, `/forgetful`.
struct Odd {
    address: SocketAddr,
    seen: Arc<Seen>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    /// Sessions that the server at `/forgetful` knows.
    sessions: Mutex<BTreeSet<String>>,
    opened: Mutex<usize>,
    /// Calls that ran, by tool.
    ran: Mutex<Vec<String>>,
}

impl Drop for Odd {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Odd {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::<Seen>::default();
        let served = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&served)));
            }
        });
        Self {
            address,
            seen,
            task,
        }
    }

    fn remote(&self, path: &str, mode: &str) -> Value {
        json!({"backends": [format!("http://{}{path}", self.address)], "mode": mode,
            "health": {"active": {"every": "1h"}}})
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Seen>) {
    while let Some((head, body)) = read(&mut stream).await {
        let message: Value = serde_json::from_str(&body).unwrap_or_default();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let answer = match path.strip_prefix('/').and_then(|it| it.split_once('/')) {
            _ if path == "/odd" => redirect("/odd/"),
            _ if path == "/elsewhere" => redirect("https://login.example/start?token=hunter2"),
            _ if path == "/forgetful" => forgetful(&seen, &head, &message),
            Some(("odd", "")) => odd(&message),
            Some((coding, form)) => coded(coding, form == "events", &message),
            None => Vec::new(),
        };
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

fn response(status: u16, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

fn redirect(location: &str) -> Vec<u8> {
    response(307, &format!("Location: {location}\r\n"), b"")
}

/// The result for a message; `None` for an unknown method.
fn result(message: &Value) -> Option<Value> {
    Some(match message["method"].as_str()? {
        "initialize" => json!({"protocolVersion": VERSION, "capabilities": {"tools": {}},
            "serverInfo": {"name": "odd", "version": "1"}}),
        "tools/list" => json!({"tools": [
            {"name": "say", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}},
            {"name": "act", "inputSchema": {"type": "object"}},
            {"name": "huge", "inputSchema": {"type": "object"}},
        ]}),
        "tools/call" => {
            let name = message["params"]["name"].as_str()?;
            let text = match name {
                "huge" => " ".repeat(20 * 1024 * 1024),
                name => format!("{name} größe"),
            };
            json!({"content": [{"type": "text", "text": text}]})
        }
        _ => return None,
    })
}

fn answered(message: &Value) -> Option<Vec<u8>> {
    let id = message.get("id")?;
    let answer = match result(message) {
        Some(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        None => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}})
        }
    };
    Some(answer.to_string().into_bytes())
}

/// An answer compressed with this coding, regardless of the request.
fn coded(coding: &str, events: bool, message: &Value) -> Vec<u8> {
    let Some(answer) = answered(message) else {
        return response(202, "", b"");
    };
    let (kind, plain) = match events {
        true => (
            "text/event-stream",
            [b"data: ", &answer[..], b"\n\n"].concat(),
        ),
        false => ("application/json", answer),
    };
    let body = match coding {
        "gzip" => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            encoder.write_all(&plain).expect("memory");
            encoder.finish().expect("memory")
        }
        "deflate" => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
            encoder.write_all(&plain).expect("memory");
            encoder.finish().expect("memory")
        }
        "br" => {
            let mut encoder = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 22);
            encoder.write_all(&plain).expect("memory");
            encoder.into_inner()
        }
        "zstd" => zstd::stream::encode_all(&plain[..], 3).expect("memory"),
        _ => plain,
    };
    let headers = format!("Content-Type: {kind}\r\nContent-Encoding: {coding}\r\n");
    response(200, &headers, &body)
}

/// An answer with a byte order mark. Unknown methods are answered with an empty object.
fn odd(message: &Value) -> Vec<u8> {
    let json = "Content-Type: application/json\r\n";
    match (message.get("id"), result(message)) {
        (None, _) => response(202, "", b""),
        (Some(_), None) => response(200, json, b"{}"),
        (Some(_), Some(_)) => {
            let answer = answered(message).expect("an id");
            response(200, json, &[b"\xef\xbb\xbf", &answer[..]].concat())
        }
    }
}

/// An answer in a session. Messages of unknown sessions are refused under their own id.
fn forgetful(seen: &Seen, head: &str, message: &Value) -> Vec<u8> {
    let json = "Content-Type: application/json\r\n";
    if message["method"] == "initialize" {
        let mut opened = seen.opened.lock().expect("fine");
        *opened += 1;
        let id = format!("s{opened}");
        seen.sessions.lock().expect("fine").insert(id.clone());
        let answer = answered(message).expect("an id");
        return response(200, &format!("{json}Mcp-Session-Id: {id}\r\n"), &answer);
    }
    let session = header(head, "mcp-session-id").unwrap_or_default();
    let known = seen.sessions.lock().expect("fine").contains(&session);
    if head.starts_with("GET") {
        return response(405, "", b"");
    }
    match answered(message) {
        _ if message["method"] == "server/discover" => response(400, "", b""),
        None => response(202, "", b""),
        Some(answer) if known => {
            if let Some(tool) = message["params"]["name"].as_str() {
                seen.ran.lock().expect("fine").push(tool.to_owned());
            }
            response(200, json, &answer)
        }
        Some(_) => {
            let error = json!({"jsonrpc": "2.0", "id": message["id"],
                "error": {"code": -32001, "message": "Session not found"}});
            response(404, json, error.to_string().as_bytes())
        }
    }
}

async fn said(session: &Session, id: u64, tool: &str) -> Value {
    let mut answering = session.call(id, tool, json!({})).await;
    match answering.is_events() {
        true => answering.message().await,
        false => answering.json().await,
    }
}

#[tokio::test]
async fn answers_that_come_compressed_are_decoded_in_every_mode() {
    let odd = Odd::start().await;
    let mut remote = serde_json::Map::new();
    for coding in CODINGS {
        for form in ["json", "events"] {
            for mode in MODES {
                let name = format!("{coding}_{form}_{mode}");
                remote.insert(name, odd.remote(&format!("/{coding}/{form}"), mode));
            }
        }
    }
    remote.insert("exotic_client".into(), odd.remote("/dcb/json", "client"));
    let namespaces: Vec<_> = remote.keys().cloned().collect();
    let gateway = Gateway::empty()
        .config(json!({"upstreams": {"remote": remote}}))
        .start()
        .await;
    for namespace in namespaces.iter().filter(|it| !it.starts_with("exotic")) {
        let session = Session::start(&gateway, namespace, VERSION).await;
        let answer = said(&session, 1, "say").await;
        let text = &answer["result"]["content"][0]["text"];
        assert_eq!(text, "say größe", "{namespace}: {answer}");
        if namespace.contains("_json_") {
            // A few KiB that decode to 20 MiB: bounded by `max_result`.
            let message = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "huge"}});
            let request = session.post_text(&message).into_bytes();
            let answer = crate::support::raw::exchange(gateway.address, &closing(request)).await;
            assert!(
                answer.len() < 16 * 1024 * 1024,
                "{namespace}: {}",
                answer.len()
            );
            if namespace.ends_with("_client") {
                assert!(answer.contains("result_too_large"), "{namespace}: {answer}");
            }
        }
    }
    // REST calls to a server in client mode are answered, too.
    let (status, answer) = gateway.call("br_json_client", "say", json!({})).await;
    assert_eq!(status, 200, "{answer}");
    // The error about an unknown coding says that the answer is compressed.
    let (status, answer) = gateway.call("exotic_client", "say", json!({})).await;
    assert_eq!(status, 503, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("compressed"), "{answer}");
}

/// The request with `Connection: close`.
fn closing(request: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8(request).expect("text");
    text.replacen("\r\n", "\r\nConnection: close\r\n", 1)
        .into_bytes()
}

#[tokio::test]
async fn a_client_that_accepts_the_coding_gets_a_short_answer_as_it_came() {
    let odd = Odd::start().await;
    let remote = json!({"packed": odd.remote("/gzip/json", "pass_through")});
    let gateway = Gateway::empty()
        .config(json!({"upstreams": {"remote": remote}}))
        .start()
        .await;
    let session = Session::start(&gateway, "packed", VERSION).await;
    for (accept, coded) in [
        ("gzip", true),
        ("br, gzip;q=0.5", true),
        ("br", false),
        ("gzip;q=0", false),
    ] {
        let answer = gateway
            .request("POST", "/mcp/packed")
            .header("Mcp-Session-Id", &session.id)
            .header("MCP-Protocol-Version", VERSION)
            .header("Accept", "application/json, text/event-stream")
            .header("Accept-Encoding", accept)
            .json(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "say"}}))
            .send()
            .await
            .expect("answered");
        assert_eq!(answer.status(), 200);
        let coding = answer.headers().get("content-encoding").cloned();
        let body = answer.bytes().await.expect("a body");
        assert_eq!(coding.is_some(), coded, "{accept}");
        let plain = match coded {
            true => {
                let mut decoder = flate2::write::GzDecoder::new(Vec::new());
                decoder.write_all(&body).expect("gzip");
                decoder.finish().expect("gzip")
            }
            false => body.to_vec(),
        };
        let answer: Value = serde_json::from_slice(&plain).expect("JSON");
        assert_eq!(answer["result"]["content"][0]["text"], "say größe");
    }
}

#[tokio::test]
async fn a_redirect_to_the_slash_a_byte_order_mark_and_an_odd_probe_do_not_matter() {
    let odd = Odd::start().await;
    let gateway = Gateway::empty()
        .config(json!({"upstreams": {"remote": {
            "odd_client": odd.remote("/odd", "client"),
            "odd_pass_through": odd.remote("/odd", "pass_through"),
            "elsewhere_client": odd.remote("/elsewhere", "client"),
            "elsewhere_pass_through": odd.remote("/elsewhere", "pass_through"),
        }}}))
        .start()
        .await;
    for mode in MODES {
        let session = Session::start(&gateway, &format!("odd_{mode}"), VERSION).await;
        let answer = said(&session, 1, "say").await;
        assert_eq!(
            answer["result"]["content"][0]["text"], "say größe",
            "{mode}: {answer}"
        );
        // A client's own message may begin with a byte order mark, too.
        let ping = format!(
            "\u{feff}{}",
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        );
        let answer = gateway
            .request("POST", &format!("/mcp/odd_{mode}"))
            .header("Mcp-Session-Id", &session.id)
            .header("MCP-Protocol-Version", VERSION)
            .header("Accept", "application/json, text/event-stream")
            .header("Content-Type", "application/json")
            .body(ping)
            .send()
            .await
            .expect("answered");
        assert_eq!(answer.status(), 200, "{mode}");
        let answer: Value = answer.json().await.expect("JSON");
        assert_eq!(
            answer["result"]["tools"][0]["name"], "say",
            "{mode}: {answer}"
        );
        let elsewhere = format!("elsewhere_{mode}");
        let refused = Session::try_start_as(
            &gateway,
            &elsewhere,
            VERSION,
            crate::support::TOKEN,
            json!({}),
        );
        let refused = match refused.await {
            Err(refused) => refused,
            Ok(session) => said(&session, 1, "say").await.to_string(),
        };
        assert!(
            refused.contains("https://login.example/start"),
            "{mode}: {refused}"
        );
        assert!(!refused.contains("hunter2"), "{mode}: {refused}");
    }
}

#[tokio::test]
async fn a_session_that_its_server_forgot_is_opened_again_though_the_refusal_has_the_requests_id() {
    for mode in MODES {
        let odd = Odd::start().await;
        let gateway = Gateway::empty()
            .config(json!({"upstreams": {"remote": {"forgetful": odd.remote("/forgetful", mode)}}}))
            .start()
            .await;
        let session = Session::start(&gateway, "forgetful", VERSION).await;
        session.request(1, "tools/list", json!({})).await;
        let first = said(&session, 2, "act").await;
        assert_eq!(
            first["result"]["content"][0]["text"], "act größe",
            "{mode}: {first}"
        );
        let opened = *odd.seen.opened.lock().expect("fine");
        odd.seen.sessions.lock().expect("fine").clear();
        // The call is not repeated, since it may have begun.
        let refused = said(&session, 3, "act").await;
        assert!(
            refused.to_string().contains("worker_unavailable"),
            "{mode}: {refused}"
        );
        let next = said(&session, 4, "act").await;
        assert_eq!(
            next["result"]["content"][0]["text"], "act größe",
            "{mode}: {next}"
        );
        odd.seen.sessions.lock().expect("fine").clear();
        let harmless = (5..10).map(async |id| match mode {
            // Only client mode reads the hints of tools, and so knows which tools are harmless.
            "client" => said(&session, id, "say").await["result"]["content"][0]["text"].take(),
            _ => {
                let list = session.request(id, "tools/list", json!({})).await;
                list["result"]["tools"][0]["name"].clone()
            }
        });
        for text in futures_util::future::join_all(harmless).await {
            let text = text.as_str().unwrap_or_default();
            assert!(text.starts_with("say"), "{mode}: {text}");
        }
        assert_eq!(*odd.seen.opened.lock().expect("fine"), opened + 2, "{mode}");
        let ran = odd.seen.ran.lock().expect("fine").clone();
        assert_eq!(
            ran.iter().filter(|it| *it == "act").count(),
            2,
            "{mode}: {ran:?}"
        );
    }
}
