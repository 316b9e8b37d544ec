//! Many clients on the relay's socket: clients without a key, with revoked keys, and with frames that they never finish.

use std::collections::VecDeque;
use std::io::Write as _;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;
use tokio::net::UnixStream;

use super::{Connection, Host};
use crate::support::eventually;

/// The longest frame of these gateways.
const FRAME: usize = 1 << 20;

/// A host whose frames share little memory.
async fn host() -> Host {
    Host::with(json!({"admission": {"limits": {"body": "1MiB", "bodies_total": "8MiB"}}})).await
}

/// A client that connects and writes halves of frames, until this is dropped.
struct Flood {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Flood {
    fn of(threads: usize, socket: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let run = |_| {
            let (stop, socket) = (Arc::clone(&stop), socket.clone());
            thread::spawn(move || {
                let mut open = VecDeque::new();
                while !stop.load(Ordering::Relaxed) {
                    let Ok(mut stream) = StdStream::connect(&socket) else {
                        continue;
                    };
                    let _ = stream.set_nonblocking(true);
                    if open.len() % 2 == 0 {
                        let _ = stream.write(b"{\"jsonrpc\":");
                    }
                    open.push_back(stream);
                    if open.len() > 200 {
                        open.pop_front();
                    }
                }
            })
        };
        let threads = (0..threads).map(run).collect();
        Self { stop, threads }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Connects as most clients do: a queue that is full is waited for.
async fn connect(host: &Host) -> Connection {
    let socket = host.socket();
    let connected = tokio::task::spawn_blocking(move || StdStream::connect(socket)).await;
    let stream = connected.unwrap().unwrap();
    stream.set_nonblocking(true).unwrap();
    Connection::accepted(UnixStream::from_std(stream).unwrap())
}

#[tokio::test]
async fn a_client_with_a_key_gets_in_under_two_that_only_connect_and_stays() {
    let host = host().await;
    let key = host.key("droid", &["read"]).await;
    let key = key.text.expose();
    let mut known = connect(&host).await;
    assert!(known.tools(key).await["result"].is_object());
    let flood = Flood::of(2, host.socket());
    eventually("the flood takes all places", || async {
        let metrics = host.gateway.metrics_text().await;
        let lines = metrics.lines();
        let open = lines.filter_map(|it| it.strip_prefix("tooldock_relay_connections "));
        let open = open.filter_map(|it| it.parse().ok()).next();
        open.is_some_and(|open: f64| open >= 256.0).then_some(())
    })
    .await;
    for attempt in 0..20 {
        let mut late = connect(&host).await;
        let answer = late.tools(key).await;
        assert!(answer["result"].is_object(), "{attempt}: {answer}");
    }
    assert!(known.tools(key).await["result"].is_object());
    drop(flood);
}

#[tokio::test]
async fn connections_of_a_revoked_key_keep_no_place_from_clients_whose_keys_count() {
    let host = Host::start().await;
    let mut keys = Vec::new();
    for name in ["one", "two", "three", "four", "five"] {
        keys.push(host.key(name, &["read"]).await);
    }
    let (lost, fresh) = (&keys[0], &keys[4]);
    let mut open = Vec::new();
    for key in &keys[..4] {
        for _ in 0..64 {
            let mut connection = host.connect().await;
            let answer = connection.tools(key.text.expose()).await;
            assert!(answer["result"].is_object(), "{answer}");
            open.push(connection);
        }
    }
    host.keys.revoke(lost.record.id).unwrap();
    eventually("the revoked key is refused", || async {
        let mut other = host.connect().await;
        let answer = other.tools(lost.text.expose()).await;
        (answer["error"]["code"] == -32001).then_some(())
    })
    .await;
    let mut late = Vec::new();
    for _ in 0..64 {
        let mut connection = host.connect().await;
        let answer = connection.tools(fresh.text.expose()).await;
        assert!(answer["result"].is_object(), "{answer}");
        late.push(connection);
    }
    // The keys that count have lost no connection.
    for (at, connection) in open[64..].iter_mut().enumerate() {
        let key = &keys[1 + at / 64];
        let answer = connection.tools(key.text.expose()).await;
        assert!(answer["result"].is_object(), "{at}: {answer}");
    }
}

/// Half of a frame, written as far as it is read.
fn write_half(mut connection: Connection) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let mut half = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"".to_vec();
        half.resize(FRAME - 1024, b'x');
        if let Some(writer) = &mut connection.writer {
            let _ = tokio::io::AsyncWriteExt::write_all(writer, &half).await;
        }
        // The frame is never finished. The answer comes if it is given up.
        let mut line = String::new();
        let _ = tokio::io::AsyncBufReadExt::read_line(&mut connection.reader, &mut line).await;
    })
}

#[tokio::test]
async fn frames_that_are_never_finished_hold_up_neither_another_key_nor_a_client_that_comes_later()
{
    let host = host().await;
    let (one, other) = (
        host.key("one", &["read"]).await,
        host.key("other", &["read"]).await,
    );
    let (mut halves, mut strangers) = (Vec::new(), Vec::new());
    // More than there is memory for, of one key and of strangers.
    for _ in 0..12 {
        let mut connection = host.connect().await;
        let answer = connection.tools(one.text.expose()).await;
        assert!(answer["result"].is_object(), "{answer}");
        halves.push(write_half(connection));
        strangers.push(write_half(host.connect().await));
    }
    eventually("all strangers are given up but those that fit", || async {
        let given_up = strangers.iter().filter(|it| it.is_finished()).count();
        (given_up >= 10).then_some(())
    })
    .await;
    // A client whose first frame is a long one is a stranger until it is whole.
    let arguments = json!({"x": "y".repeat(FRAME - 4096)});
    let mut late = host.connect().await;
    let answer = late
        .call(other.text.expose(), "project_list", arguments.clone())
        .await;
    assert_eq!(answer["id"], 2, "{answer}");
    let answer = late
        .call(other.text.expose(), "project_list", arguments)
        .await;
    assert_eq!(answer["id"], 2, "{answer}");
    for half in halves.into_iter().chain(strangers) {
        half.abort();
    }
}
