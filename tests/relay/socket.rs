//! The socket of the relay and what comes over it that is no frame; connections that end, and a relay that does.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use super::{Connection, Host, builder, place_example};
use crate::support::{Gateway, eventually};

#[tokio::test]
async fn what_is_no_frame_is_refused_and_the_connection_goes_on() {
    let host = Host::start().await;
    let key = host.key("droid", &["read"]).await;
    let key = key.text.expose();
    let mut connection = host.connect().await;
    connection.write(b"not JSON\n").await;
    let parse =
        json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "parse error"}});
    assert_eq!(connection.next().await, parse);
    connection.write(b"[]\n{\"jsonrpc\":\"2.0\"}\n\n").await;
    for _ in 0..2 {
        assert_eq!(connection.next().await["error"]["code"], -32600);
    }

    // A frame of 100 MB.
    let piece = vec![b'x'; 1 << 20];
    connection
        .write(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"")
        .await;
    for _ in 0..100 {
        connection.write(&piece).await;
    }
    connection.write(b"\"}\n").await;
    let refused = connection.next().await;
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!(7), &json!(-32600))
    );

    // Surplus members, on every level.
    let params = json!({"api_key": key, "tool": "project_list", "arguments": {}, "more": [1], "_meta": {"x": 1}});
    connection
        .send(json!({"jsonrpc": "2.0", "id": 8, "method": "oubliette_call_tool", "params": params, "x": {}}))
        .await;
    let answer = connection.next().await;
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    let params = json!({"api_key": key});
    connection.ask(9, "oubliette_call_tool", params).await;
    assert_eq!(connection.next().await["error"]["code"], -32602);

    // Cut, as by a client that was killed in the middle of writing; one that only stops writing is answered.
    connection.write(b"{\"jsonrpc\":\"2.0\",\"id\":").await;
    drop(connection.writer.take());
    assert_eq!(connection.next().await, parse);
    assert_eq!(connection.line().await, "");
    let metrics = host.gateway.metrics_text().await;
    assert!(metrics.contains("tooldock_relay_connections "), "{metrics}");
}

#[tokio::test]
async fn whoever_has_no_key_keeps_nobody_with_one_out() {
    let host = Host::start().await;
    let key = host.key("droid", &["read"]).await;
    let key = key.text.expose();
    let mut known = host.connect().await;
    assert!(known.tools(key).await["result"].is_object());
    // Each in the middle of a frame that is too long to be read without memory of its own.
    let half = vec![b'x'; 256 * 1024];
    let mut strangers = Vec::new();
    for _ in 0..256 {
        let mut stranger = host.connect().await;
        stranger.write(b"{\"id\":\"").await;
        if let Some(writer) = &stranger.writer {
            // Bytes that do not fit into the socket are not waited for.
            let _ = writer.try_write(&half);
        }
        strangers.push(stranger);
    }
    let mut late = host.connect().await;
    let answer = late.call(key, "project_list", json!({})).await;
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    assert!(known.tools(key).await["result"].is_object());
    // The first connections made room.
    let told = strangers[0].next().await;
    assert_eq!(told["error"]["code"], -32000, "{told}");
    // It may have been told before that its memory was needed.
    loop {
        let line = strangers[0].line().await;
        if line.is_empty() {
            break;
        }
        assert!(line.contains("-32000"), "{line}");
    }
    // A long frame of a client with a key finds memory, too.
    let arguments = json!({"x": "y".repeat(1 << 20)});
    let answer = late.call(key, "project_list", arguments).await;
    assert!(answer["id"] == 2, "{answer}");
}

#[tokio::test]
async fn calls_run_side_by_side_and_end_with_their_cancellation_or_their_connection() {
    let host = Host::start().await;
    let key = host.key("droid", &["write"]).await;
    let key = key.text.expose();
    let mut connection = host.connect().await;
    let note = |name: &str| host.folder.path().join(name);
    let says = async |name: &str, what: &str| {
        let path = note(name);
        eventually(what, || async {
            (fs::read_to_string(&path).ok()? == what).then_some(())
        })
        .await;
    };
    for (id, name) in [(1, "one"), (2, "two")] {
        let arguments = json!({"begun": note(name)});
        connection.begin(id, key, "session_wait", arguments).await;
    }
    says("one", "begun").await;
    says("two", "begun").await;
    let answer = connection.call(key, "project_list", json!({})).await;
    assert_eq!(answer["result"]["isError"], false);

    let cancelled = json!({"requestId": 1});
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled});
    connection.send(cancelled).await;
    says("one", "cancelled").await;
    assert_eq!(fs::read_to_string(note("two")).unwrap(), "begun");
    drop(connection);
    says("two", "cancelled").await;

    let mut connection = host.connect().await;
    let params = json!({"api_key": key, "tool": "session_steps", "_meta": {"progressToken": "t"}});
    connection.ask(5, "oubliette_call_tool", params).await;
    for step in 1..=3 {
        let progress = connection.next().await;
        assert_eq!(progress["method"], "notifications/progress", "{progress}");
        assert_eq!(progress["params"]["progressToken"], "t");
        assert_eq!(
            progress["params"]["progress"].as_f64(),
            Some(f64::from(step))
        );
    }
    assert_eq!(connection.next().await["id"], 5);
}

#[tokio::test]
async fn a_relay_that_ends_answers_what_runs_and_its_successor_takes_the_socket() {
    let host = Host::start().await;
    let key = host.key("droid", &["write"]).await;
    let mode = fs::metadata(host.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let mut connection = host.connect().await;
    let (begun, end) = (
        host.folder.path().join("begun"),
        host.folder.path().join("end"),
    );
    let arguments = json!({"begun": begun, "end": end});
    connection
        .begin(1, key.text.expose(), "session_until", arguments)
        .await;
    eventually("the call runs", || async { begun.exists().then_some(()) }).await;
    host.gateway.signal(Signal::TERM);
    eventually("no more connections", || async {
        std::os::unix::net::UnixStream::connect(host.socket())
            .is_err()
            .then_some(())
    })
    .await;
    fs::write(&end, "").unwrap();
    let answer = connection.next().await;
    assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
    assert_eq!(connection.line().await, "");
    assert!(host.gateway.ended().await.success());

    // Its file is still there, and no process listens: the next gateway replaces it.
    assert!(host.socket().exists());
    let next = builder(host.folder.path()).start_with(place_example).await;
    let mut connection = Connection::to(&host.socket()).await;
    assert_eq!(connection.tools("oub_x").await["error"]["code"], -32001);
    // The log names a path that a reload cannot change, and the socket at the old path goes on.
    next.reconfigure(json!({"relay": {"socket": host.folder.path().join("other.sock")}}));
    next.signal(Signal::HUP);
    eventually("the log names the key", || async {
        next.log().contains("relay.socket").then_some(())
    })
    .await;
    assert_eq!(connection.tools("oub_x").await["error"]["code"], -32001);
}

/// The error of a gateway that does not start.
fn refused(gateway: &Gateway) -> String {
    gateway.log()
}

#[tokio::test]
async fn a_socket_that_cannot_be_had_ends_the_start_with_one_line() {
    let folder = tempfile::TempDir::new().unwrap();
    let taken = folder.path().join("relay.sock");
    let _listener = UnixListener::bind(&taken).unwrap();
    let gateway = builder(folder.path()).spawn();
    assert!(!gateway.ended().await.success());
    let log = refused(&gateway);
    assert!(
        log.contains("relay.socket: cannot bind") && log.contains("another process listens there"),
        "{log}"
    );

    let missing = builder(&folder.path().join("missing")).spawn();
    assert!(!missing.ended().await.success());
    assert!(refused(&missing).contains("make the folder first"));

    let long = format!("/tmp/{}", "s".repeat(100));
    for (socket, named) in [
        (long.as_str(), "relay.socket: the path has 105 bytes"),
        (
            "relay.sock",
            "relay.socket: the path of a Unix socket is absolute",
        ),
    ] {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(
            file.path(),
            json!({"relay": {"socket": socket}}).to_string(),
        )
        .unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_tooldock"))
            .args(["check", "-c"])
            .arg(file.path())
            .env("BEARER_TOKEN", "test-token-0123456789abcdef")
            .env("MANAGER_INTERNAL_TOKEN", "test-manager-0123456789abcdef")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2));
        assert!(told.contains(named), "{told}");
    }
}
