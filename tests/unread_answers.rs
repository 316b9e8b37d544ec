//! Answers that their clients do not read share one bound, and cost other principals nothing.

use std::fs;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use crate::support::raw::post;
use crate::support::{Gateway, TOKEN, eventually, sha256};
use crate::tls;

const OTHER: &str = "other-token-0123456789abcdef";

const MIB: usize = 1024 * 1024;
/// The bound, in bytes.
const TOTAL: usize = 16 * MIB;
/// Size of an answer that is not read, in bytes.
const UNREAD: usize = 3 * MIB;
/// Answers that are asked for and not read: several times the bound.
const READERS: usize = 24;

const BIG: &str = r#"
from fastmcp.tools import tool

@tool
def big(size: int) -> str:
    return "x" * size
"#;

const BIG_SERVER: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params", {})
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        answer["result"] = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                            "serverInfo": {"name": "big", "version": "1"}}
    elif method == "tools/list":
        answer["result"] = {"tools": [{"name": "big", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        answer["result"] = {"content": [{"type": "text", "text": "x" * params["arguments"]["size"]}]}
    else:
        answer["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(answer), flush=True)
"#;

fn admission() -> Value {
    json!({"limits": {"answers_total": TOTAL.to_string()},
        "tokens": [{"name": "other", "sha256": sha256(OTHER), "namespaces": ["*"]}]})
}

async fn metric(gateway: &Gateway, name: &str) -> usize {
    let metrics = gateway.metrics_text().await;
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.expect("the metric").parse().expect("a number")
}

async fn held(gateway: &Gateway) -> usize {
    let held = metric(gateway, "tooldock_answer_bytes").await;
    assert!(held <= 2 * TOTAL, "{held} bytes are held");
    held
}

/// A request whose answer does not fit into the buffers of its connection, and is not read.
async fn ask_and_do_not_read(gateway: &Gateway, namespace: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(gateway.address).await.unwrap();
    let arguments = json!({"size": UNREAD}).to_string();
    let request = post("/tools/big", namespace, &arguments);
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// The status of a call by the other principal, and the length of its answer.
async fn call_of_other(gateway: &Gateway, namespace: &str, size: usize) -> (u16, usize) {
    let response = gateway
        .client
        .post(gateway.url("/tools/big"))
        .bearer_auth(OTHER)
        .header("X-Namespace", namespace)
        .json(&json!({"size": size}))
        .send()
        .await
        .unwrap();
    let status = response.status().as_u16();
    (status, response.bytes().await.unwrap().len())
}

/// Another principal is served beside answers that take all the room.
async fn other_is_served(gateway: &Gateway, namespace: &str) {
    for size in [10, 2 * MIB, 10, 2 * MIB] {
        eventually("the other principal is answered", || async {
            held(gateway).await;
            let (status, length) = call_of_other(gateway, namespace, size).await;
            assert!([200, 503].contains(&status), "{status}");
            (status == 200 && length >= size).then_some(())
        })
        .await;
    }
}

async fn unread_answers_are_bounded(gateway: &Gateway, namespace: &str) {
    let mut readers = Vec::new();
    for _ in 0..READERS {
        readers.push(ask_and_do_not_read(gateway, namespace).await);
    }
    eventually("unread answers take the room", || async {
        let refused = metric(gateway, "tooldock_answers_refused_total").await;
        (held(gateway).await >= TOTAL / 2 && refused > 0).then_some(())
    })
    .await;
    other_is_served(gateway, namespace).await;
    // An unread answer is closed for the other principal only if no room is left beside the unread answers.
    for _ in 0..READERS {
        if metric(gateway, "tooldock_answers_closed_total").await > 0 {
            break;
        }
        readers.push(ask_and_do_not_read(gateway, namespace).await);
        other_is_served(gateway, namespace).await;
    }
    assert!(metric(gateway, "tooldock_answers_closed_total").await > 0);
    drop(readers);
    eventually("nothing is held any more", || async {
        (held(gateway).await == 0).then_some(())
    })
    .await;
    let (status, answer) = gateway.call(namespace, "big", json!({"size": MIB})).await;
    assert_eq!(status, 200, "{}", answer["error"]);
}

#[tokio::test]
async fn unread_answers_of_functions_are_bounded_and_cost_other_principals_nothing() {
    let gateway = Gateway::with_tools([("big", "big.py", BIG)])
        .config(json!({"admission": admission()}))
        .start()
        .await;
    unread_answers_are_bounded(&gateway, "big").await;
}

#[tokio::test]
async fn unread_answers_of_stdio_servers_are_bounded_and_cost_other_principals_nothing() {
    let folder = tempfile::TempDir::new().unwrap();
    let script = folder.path().join("big.py");
    fs::write(&script, BIG_SERVER).unwrap();
    let server = json!({"command": "python3", "args": [script]});
    let gateway = Gateway::empty()
        .config(json!({"admission": admission(), "upstreams": {"stdio": {"big": server}}}))
        .start()
        .await;
    unread_answers_are_bounded(&gateway, "big").await;
}

#[tokio::test]
async fn unread_answers_over_http2_are_bounded_and_cost_other_principals_nothing() {
    let secure = tls::secure_with(admission()).await;
    let gateway = &secure.gateway;
    gateway.drop_tool("shared", "big.py", BIG);
    gateway.reload().await;
    let certificate = reqwest::Certificate::from_der(&secure.certificate).unwrap();
    let client = reqwest::Client::builder()
        .tls_certs_only([certificate])
        .http2_initial_stream_window_size(1)
        .build()
        .unwrap();
    let url = format!("https://localhost:{}/tools/big", secure.port);
    // A window of one byte: heads arrive, bodies do not.
    let asked = (0..READERS).map(|_| {
        let request = client.post(&url).bearer_auth(TOKEN);
        let request = request.header("X-Namespace", "shared");
        request.json(&json!({"size": UNREAD})).send()
    });
    let answers = futures_util::future::join_all(asked).await;
    let refused = answers.iter().flatten().filter(|it| it.status() == 503);
    assert!(refused.count() > 0, "the bound is reached");
    assert!(held(gateway).await >= TOTAL / 2);
    other_is_served(gateway, "shared").await;
    drop((answers, client));
    eventually("nothing is held any more", || async {
        (held(gateway).await == 0).then_some(())
    })
    .await;
}
