//! Long work of the management tools that is cancelled: its child processes end, and nothing of it is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::support::manager::{Manager, with_manager};
use crate::support::{DEADLINE, Gateway, TOKEN, eventually};

/// A server that takes requests and never answers, neither by HTTP nor by TLS.
struct Mute {
    address: SocketAddr,
    /// Clients that have asked something and are still there.
    waiting: Arc<AtomicUsize>,
}

impl Mute {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let waiting = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&waiting);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let count = Arc::clone(&count);
                thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    if matches!(stream.read(&mut bytes), Ok(1..)) {
                        count.fetch_add(1, Ordering::Relaxed);
                        while matches!(stream.read(&mut bytes), Ok(1..)) {}
                        count.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Self { address, waiting }
    }

    async fn is_asked(&self) {
        eventually("somebody asks", || async {
            (self.waiting.load(Ordering::Relaxed) > 0).then_some(())
        })
        .await;
    }

    async fn is_left_alone(&self) {
        eventually("whoever asked is gone", || async {
            (self.waiting.load(Ordering::Relaxed) == 0).then_some(())
        })
        .await;
    }
}

/// The processes below the gateway that work for a management tool.
fn at_work(gateway: i32) -> BTreeMap<i32, String> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // `pid (name) state parent …`, where the name may hold anything.
        let parent = stat.rsplit(')').next().unwrap_or_default();
        let parent = parent.split_whitespace().nth(1);
        if let Some(parent) = parent.and_then(|it| it.parse::<i32>().ok()) {
            parents.insert(pid, parent);
        }
    }
    let is_below = |pid: i32| {
        let chain = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
        chain.skip(1).take(64).any(|pid| pid == gateway)
    };
    let below = parents.keys().copied().filter(|pid| is_below(*pid));
    let command = |pid: i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        (pid, String::from_utf8_lossy(&words).replace('\0', " "))
    };
    let works = |command: &str| {
        ["__builder", " pip ", "/uv ", "git"]
            .iter()
            .any(|word| command.contains(word))
    };
    below
        .map(command)
        .filter(|(_, command)| works(command) && !command.contains("worker_main"))
        .collect()
}

/// Names below a folder that is there or not.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    // Locks stay where they are.
    names.filter(|name| !name.ends_with("lock")).collect()
}

/// The state that the tools would have changed.
fn state(gateway: &Gateway) -> [BTreeSet<String>; 4] {
    let data = gateway.data_dir();
    ["tools/ns", "repos", "venvs", "venvs/.builds"].map(|folder| names(&data.join(folder)))
}

fn call(id: u64, tool: &str, arguments: &Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "p"}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

#[tokio::test]
async fn cancelled_installs_and_clones_end_their_processes_and_leave_nothing() {
    let (index, forge) = (Mute::start(), Mute::start());
    let (builder, address) = with_manager(Gateway::empty());
    let url = format!("http://{}/simple", index.address);
    let gateway = builder
        .env("PIP_INDEX_URL", &url)
        .env("UV_INDEX_URL", &url)
        .env("UV_DEFAULT_INDEX", &url)
        .env("NO_PROXY", "127.0.0.1")
        .env("no_proxy", "127.0.0.1")
        .env("GIT_PRIVATE_HOSTS", "127.0.0.1")
        .start()
        .await;
    let manager = Manager::open(address).await;
    let tool = "from fastmcp.tools import tool\n\n\n@tool\ndef f() -> int:\n    \"\"\"One.\"\"\"\n    return 1\n";
    let ns = json!({"namespace": "ns"});
    manager
        .call("create_namespace", json!({"name": "ns"}))
        .await
        .value();
    let code = json!({"namespace": "ns", "filename": "a.py", "code": tool});
    manager.call("write_tool", code).await.value();
    manager.call("reload_core", json!({})).await.value();
    let before = state(&gateway);

    let requirement = json!({"namespace": "ns", "package": "never-answered"});
    let packages = json!({"packages": ["never-answered"]});
    let repository = json!({"repo_url": format!("https://{}/o/r", forge.address)});
    let for_ns = json!({"repo_url": repository["repo_url"], "namespace": "ns"});
    for (id, (tool, arguments, server)) in [
        ("add_requirement", &requirement, &index),
        ("install_pip_packages", &packages, &index),
        ("analyze_repo", &repository, &forge),
        ("install_from_repo", &for_ns, &forge),
    ]
    .into_iter()
    .enumerate()
    {
        let id = 100 + id as u64;
        let message = call(id, tool, arguments);
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
            "params": {"requestId": id, "reason": "enough"}});
        let cancelling = async {
            server.is_asked().await;
            assert!(
                !at_work(gateway.pid()).is_empty(),
                "{tool}: a child is at work"
            );
            assert_eq!(manager.post(&cancel).await.status(), 202);
        };
        let (answer, ()) = tokio::join!(manager.post(&message), cancelling);
        let answer = answer.text().await.unwrap();
        assert!(answer.contains("cancelled"), "{tool}: {answer}");
        assert!(
            answer.contains("notifications/progress"),
            "{tool}: {answer}"
        );
        server.is_left_alone().await;
        eventually("no process is left", || async {
            at_work(gateway.pid()).is_empty().then_some(())
        })
        .await;
    }

    // A client of 2026-07-28 that hangs up has cancelled, too.
    let mut message = call(1, "analyze_repo", &repository);
    let meta = &mut message["params"]["_meta"];
    meta["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    meta["io.modelcontextprotocol/clientInfo"] = json!({"name": "t", "version": "1"});
    meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
    let body = message.to_string();
    let text = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: tools/call\r\nMcp-Name: analyze_repo\r\nAccept: application/json, text/event-stream\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = TcpStream::connect(address).await.unwrap();
    let sent = tokio::io::AsyncWriteExt::write_all(&mut client, text.as_bytes());
    tokio::time::timeout(DEADLINE, sent).await.unwrap().unwrap();
    forge.is_asked().await;
    drop(client);
    forge.is_left_alone().await;
    eventually("no process is left", || async {
        at_work(gateway.pid()).is_empty().then_some(())
    })
    .await;

    // An environment that was begun goes with the next reload. Nothing else was begun in its final place.
    manager.call("reload_core", json!({})).await.value();
    eventually("everything is as before", || async {
        (state(&gateway) == before).then_some(())
    })
    .await;
    let listed = manager.call("list_requirements", ns.clone()).await.value();
    assert_eq!(listed["packages"], json!([]));
    assert_eq!(gateway.call("ns", "f", json!({})).await, (200, json!(1)));
}
