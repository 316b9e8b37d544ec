//! `admission.limits.concurrency`: requests that run at once, per principal and per address.

use std::fs;
use std::path::PathBuf;

use reqwest::Response;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, eventually, sha256, tools};

const OTHER: &str = "other-token-0123456789abcdef";

struct Busy {
    gateway: Gateway,
    folder: tempfile::TempDir,
}

impl Busy {
    async fn start(concurrency: Value) -> Self {
        let gateway = Gateway::with_tools([("talk", "talk.py", tools::TALKING)])
            .config(json!({"admission": {"limits": {"concurrency": concurrency},
                "trusted_proxies": ["127.0.0.1"],
                "tokens": [{"name": "other", "sha256": sha256(OTHER), "namespaces": ["*"]}]}}))
            .start()
            .await;
        let folder = tempfile::TempDir::new().unwrap();
        Self { gateway, folder }
    }

    fn gate(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A call that runs until its gate opens.
    async fn call(&self, gate: &str, running: usize) -> JoinHandle<Response> {
        let arguments = json!({"gate": self.gate(gate)});
        let request = self
            .gateway
            .request("POST", "/tools/quiet")
            .header("X-Namespace", "talk")
            .json(&arguments);
        let call = tokio::spawn(async move { request.send().await.unwrap() });
        self.gateway.in_flight("talk", running).await;
        call
    }

    fn open(&self, gate: &str) {
        fs::write(self.gate(gate), "").unwrap();
    }

    async fn list(&self, token: &str, client: &str) -> Response {
        self.gateway
            .client
            .get(self.gateway.url("/tools"))
            .bearer_auth(token)
            .header("X-Namespace", "talk")
            .header("X-Forwarded-For", client)
            .send()
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn a_principal_with_as_many_requests_as_it_may_have_waits_for_one_to_end() {
    let busy = Busy::start(json!({"per_principal": 2})).await;
    let first = busy.call("first", 1).await;
    let second = busy.call("second", 2).await;
    let refused = busy.list(TOKEN, "192.0.2.1").await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
    let body: Value = refused.json().await.unwrap();
    assert_eq!(body["error"]["code"], "rate_limited");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("2 at once per principal"), "{message}");

    // A reload keeps the counts of running requests.
    busy.gateway.signal(rustix::process::Signal::HUP);
    eventually("a reload", || async {
        let log = busy.gateway.log();
        log.contains("configuration read again").then_some(())
    })
    .await;
    assert_eq!(busy.list(TOKEN, "192.0.2.1").await.status(), 429);

    // Another principal, and paths without credentials, are not concerned.
    assert_eq!(busy.list(OTHER, "192.0.2.1").await.status(), 200);
    let health = busy.gateway.url("/health");
    let health = busy.gateway.client.get(health).send().await.unwrap();
    assert_eq!(health.status(), 200);

    busy.open("first");
    assert_eq!(first.await.unwrap().status(), 200);
    assert_eq!(busy.list(TOKEN, "192.0.2.1").await.status(), 200);

    // A client that leaves gives its place back as well.
    let third = busy.call("third", 2).await;
    assert_eq!(busy.list(TOKEN, "192.0.2.1").await.status(), 429);
    third.abort();
    eventually("the place is free", || async {
        (busy.list(TOKEN, "192.0.2.1").await.status() == 200).then_some(())
    })
    .await;
    busy.open("second");
    assert_eq!(second.await.unwrap().status(), 200);
}

#[tokio::test]
async fn an_address_is_limited_whoever_comes_from_it_and_mcp_reads_why() {
    let busy = Busy::start(json!({"per_address": 1})).await;
    let call = busy.call("gate", 1).await;
    assert_eq!(busy.list(OTHER, "127.0.0.1").await.status(), 429);
    assert_eq!(busy.list(OTHER, "192.0.2.1").await.status(), 200);
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let (status, body) = busy.gateway.mcp("talk", list).await;
    assert_eq!(status, 429);
    assert_eq!(body["error"]["code"], -32013);
    assert_eq!(body["error"]["data"]["code"], "rate_limited");
    busy.open("gate");
    assert_eq!(call.await.unwrap().status(), 200);
}

#[tokio::test]
async fn messages_that_running_calls_wait_for_take_no_place() {
    let busy = Busy::start(json!({"per_principal": 1})).await;
    let session = Session::start(&busy.gateway, "talk", "2025-11-25").await;
    let call = busy.call("gate", 1).await;
    assert_eq!(busy.list(TOKEN, "192.0.2.1").await.status(), 429);
    for (message, status) in [
        (
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
            429,
        ),
        (json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}), 200),
        // An answer that nothing waits for any more: the session says so, not the limit.
        (
            json!({"jsonrpc": "2.0", "id": 3, "result": {"action": "decline"}}),
            400,
        ),
        (
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}),
            202,
        ),
    ] {
        let answered = session.post(&message).await;
        assert_eq!(answered.status, status, "{message}");
    }
    assert!(matches!(session.delete().await, 200 | 204));
    busy.open("gate");
    assert_eq!(call.await.unwrap().status(), 200);
}

#[tokio::test]
async fn long_streams_take_no_place() {
    let busy = Busy::start(json!({"per_principal": 1})).await;
    let open = || async {
        let mut stream = busy
            .gateway
            .request("GET", "/sse")
            .header("X-Namespace", "talk")
            .send()
            .await
            .unwrap();
        assert_eq!(stream.status(), 200);
        let first = stream.chunk().await.unwrap().unwrap();
        assert!(first.starts_with(b"event: endpoint"));
        stream
    };
    let _streams = [open().await, open().await];
    assert_eq!(busy.list(TOKEN, "192.0.2.1").await.status(), 200);
}
