//! Sockets that a service manager keeps open while the gateway stops and starts (`LISTEN_FDS`).

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use crate::support::gateway::Builder;
use crate::support::ports::free_address;
use crate::support::{Gateway, TOKEN};

/// A program that passes inherited descriptors on as systemd does, and becomes the gateway.
fn manager(folder: &TempDir, descriptors: &[i32]) -> PathBuf {
    let program = folder.path().join("manager");
    let duplicated: String = descriptors
        .iter()
        .enumerate()
        .map(|(index, from)| format!("os.dup2({from}, {}, inheritable=True)\n", index + 100))
        .collect();
    let placed: String = (0..descriptors.len())
        .map(|index| {
            format!(
                "os.dup2({}, {}, inheritable=True)\n",
                index + 100,
                index + 3
            )
        })
        .collect();
    let text = format!(
        "#!/usr/bin/env python3\nimport os, sys\n{duplicated}{placed}\
         os.environ['LISTEN_FDS'] = '{}'\nos.environ['LISTEN_PID'] = str(os.getpid())\n\
         os.execv({:?}, sys.argv)\n",
        descriptors.len(),
        env!("CARGO_BIN_EXE_tooldock"),
    );
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    program
}

/// The longest wait for an answer.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

/// Lets children have a descriptor.
fn inherited(socket: &impl AsFd) {
    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty()).unwrap();
}

fn ping(stream: &mut (impl Read + Write)) -> String {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let request = format!(
        "POST /mcp/shared HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

async fn answered<S: Read + Write + Send + 'static>(mut stream: S) -> String {
    tokio::task::spawn_blocking(move || ping(&mut stream))
        .await
        .unwrap()
}

fn connected(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(PATIENCE).unwrap();
    stream
}

fn gateway(listening: SocketAddr) -> Builder {
    Gateway::with_tools([("shared", "empty.py", "")]).listening(listening, free_address())
}

#[tokio::test]
async fn a_passed_socket_is_served_and_a_client_that_came_before_the_start_is_answered() {
    let folder = TempDir::new().unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let path = folder.path().join("mcp.sock");
    let unix = UnixListener::bind(&path).unwrap();
    inherited(&tcp);
    inherited(&unused);
    inherited(&unix);
    let address = tcp.local_addr().unwrap();
    let early = connected(address);
    let program = manager(
        &folder,
        &[tcp.as_raw_fd(), unused.as_raw_fd(), unix.as_raw_fd()],
    );
    let metrics = free_address();
    let start = || {
        Gateway::with_tools([("shared", "empty.py", "")])
            .listening(address, metrics)
            .config(json!({"listeners": [
                {"name": "core", "address": address.to_string(), "profile": "core"},
                {"name": "local", "address": format!("unix:{}", path.display()), "profile": "core"},
                {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
            ]}))
            .binary(&program)
            .start()
    };
    let mut first = start().await;
    assert!(answered(early).await.starts_with("HTTP/1.1 200 "));
    let local = UnixStream::connect(&path).unwrap();
    local.set_read_timeout(PATIENCE).unwrap();
    assert!(answered(local).await.starts_with("HTTP/1.1 200 "));
    let log = first.log();
    let closed = format!(
        "LISTEN_FDS has a socket at {}",
        unused.local_addr().unwrap()
    );
    assert!(log.contains(&closed), "{log}");

    // While no gateway runs, a client waits and is not refused.
    first.kill();
    let meanwhile = connected(address);
    let _second = start().await;
    assert!(answered(meanwhile).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_listener_without_a_passed_socket_is_bound_as_ever() {
    let folder = TempDir::new().unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    inherited(&other);
    let address = free_address();
    let program = manager(&folder, &[other.as_raw_fd()]);
    let _gateway = gateway(address).binary(&program).start().await;
    assert!(
        answered(connected(address))
            .await
            .starts_with("HTTP/1.1 200 ")
    );
}
