//! Listeners on Unix sockets: requests, streams, who their clients are, and the file of the socket.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::support::ports::free_address;
use crate::support::{DEADLINE, Gateway, TOKEN, eventually};

struct Local {
    gateway: Gateway,
    folder: tempfile::TempDir,
}

impl Local {
    async fn start(listener: Value, keys: Value) -> Self {
        let folder = tempfile::TempDir::new().unwrap();
        let gateway = builder(folder.path(), listener, keys).start().await;
        Self { gateway, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("mcp.sock")
    }
}

/// A gateway that listens on `mcp.sock` of the folder, beside a port.
fn builder(folder: &Path, listener: Value, keys: Value) -> crate::support::gateway::Builder {
    let [plain, metrics] = [(); 2].map(|()| free_address());
    let address = format!("unix:{}", folder.join("mcp.sock").display());
    let mut local = json!({"name": "local", "address": address, "profile": "core"});
    for (key, value) in listener.as_object().unwrap() {
        local[key] = value.clone();
    }
    Gateway::empty()
        .listening(plain, metrics)
        .config(json!({"listeners": [
            {"name": "core", "address": plain.to_string(), "profile": "core"},
            local,
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"}],
            "observability": {"access_log":
                {"path": folder.join("access.log"), "format": "{address} {status} {path}"}}}))
        .config(keys)
}

/// Sends bytes by a socket and gives back everything until its end.
async fn exchange(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(path: &str, headers: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: gw.example\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: shared\r\n\
         Connection: close\r\n{headers}\r\n"
    )
}

fn status(answer: &str) -> Option<u16> {
    answer.split(' ').nth(1)?.parse().ok()
}

#[tokio::test]
async fn tools_are_called_by_a_unix_socket_and_the_logs_say_so() {
    let local = Local::start(json!({"mode": "0640"}), json!({})).await;
    let socket = local.socket();
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);

    let body = r#"{"name": "Ada"}"#;
    let call = format!(
        "POST /tools/say_hello HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: shared\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(&socket, &call).await;
    assert!(answer.contains("Hello, Ada!"), "{answer}");
    let access = local.folder.path().join("access.log");
    eventually("the access log says unix", || async {
        let text = fs::read_to_string(&access).ok()?;
        text.contains("unix 200 /tools/say_hello").then_some(())
    })
    .await;
    eventually("the audit log says unix", || async {
        let mut files = fs::read_dir(local.gateway.data_dir().join("logs")).ok()?;
        let text = fs::read_to_string(files.next()?.ok()?.path()).ok()?;
        text.contains("\"client\":\"unix\"").then_some(())
    })
    .await;
}

#[tokio::test]
async fn long_streams_are_carried_and_end_with_their_client() {
    let local = Local::start(json!({}), json!({})).await;
    let mut stream = UnixStream::connect(local.socket()).await.unwrap();
    let request = format!(
        "GET /sse HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nX-Namespace: shared\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut seen = String::new();
    let mut chunk = [0; 1024];
    while !seen.contains("event: endpoint") {
        let read = tokio::time::timeout(DEADLINE, stream.read(&mut chunk));
        let read = read.await.expect("in time").expect("open");
        assert!(read > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&chunk[..read]));
    }
    let open = "tooldock_stream_connections{transport=\"direct\"} ";
    let streams = || async {
        let metrics = local.gateway.metrics_text().await;
        let line = metrics.lines().find_map(|line| line.strip_prefix(open));
        line.map(str::to_owned)
    };
    assert_eq!(streams().await.as_deref(), Some("1"));
    drop(stream);
    eventually("the stream has ended", || async {
        (streams().await.as_deref() == Some("0")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn clients_of_a_unix_socket_are_in_no_network_that_does_not_name_them() {
    for (admission, allowed) in [
        (json!({"cidrs": {"allow": ["127.0.0.0/8"]}}), false),
        (json!({"cidrs": {"allow": ["127.0.0.0/8", "unix"]}}), true),
        (json!({"cidrs": {"deny": ["unix"]}}), false),
    ] {
        let local = Local::start(json!({}), json!({"admission": admission})).await;
        let answer = exchange(&local.socket(), &get("/tools", "")).await;
        let expected = if allowed { 200 } else { 403 };
        assert_eq!(status(&answer), Some(expected), "{admission}: {answer}");
    }
}

#[tokio::test]
async fn a_web_server_at_the_socket_names_its_clients_where_it_is_trusted() {
    let forwarded = get("/tools", "X-Forwarded-For: 192.0.2.7\r\n");
    for (trusted, expected) in [(json!(["unix"]), 403), (json!([]), 200)] {
        let admission = json!({"trusted_proxies": trusted, "cidrs": {"deny": ["192.0.2.7"]}});
        let local = Local::start(json!({}), json!({"admission": admission})).await;
        let answer = exchange(&local.socket(), &forwarded).await;
        assert_eq!(status(&answer), Some(expected), "{trusted}");
    }
}

#[tokio::test]
async fn the_proxy_protocol_is_spoken_on_a_unix_socket_of_a_trusted_proxy() {
    let admission = json!({"trusted_proxies": ["unix"], "cidrs": {"deny": ["192.0.2.7"]}});
    let listener = json!({"proxy_protocol": true});
    let local = Local::start(listener, json!({"admission": admission})).await;
    for (client, expected) in [("192.0.2.7", 403), ("192.0.2.8", 200)] {
        let header = format!("PROXY TCP4 {client} 10.0.0.1 5000 80\r\n");
        let answer = exchange(&local.socket(), &(header + &get("/tools", ""))).await;
        assert_eq!(status(&answer), Some(expected), "{client}");
    }
}

#[tokio::test]
async fn a_socket_left_behind_is_replaced_and_one_in_use_is_not() {
    let folder = tempfile::TempDir::new().unwrap();
    let socket = folder.path().join("mcp.sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists(), "left behind");
    let first = builder(folder.path(), json!({}), json!({})).start().await;
    assert_eq!(
        status(&exchange(&socket, &get("/tools", "")).await),
        Some(200)
    );

    let second = builder(folder.path(), json!({}), json!({})).spawn();
    let ended = second.ended().await;
    assert_eq!(ended.code(), Some(1), "{}", second.log());
    let log = second.log();
    assert!(
        log.contains("listener local: cannot bind unix:")
            && log.contains("another process listens"),
        "{log}"
    );
    drop(first);
}

#[tokio::test]
async fn what_is_wrong_with_an_address_is_said_in_one_line() {
    let folder = tempfile::TempDir::new().unwrap();
    for (listener, named) in [
        (
            json!({"address": "unix:mcp.sock"}),
            "listeners[1].address: ",
        ),
        (json!({"address": "localhost:1"}), "listeners[1].address: "),
        (json!({"mode": "rw"}), "listeners[1].mode: "),
        (
            json!({"address": "127.0.0.1:1", "mode": "0660"}),
            "listeners[1].mode: is about a Unix socket",
        ),
    ] {
        let gateway = builder(folder.path(), listener, json!({})).spawn();
        let status = gateway.ended().await;
        let log = gateway.log();
        assert_eq!(status.code(), Some(2), "{log}");
        assert!(log.contains(named), "{named}: {log}");
    }
}
