//! The cost of sessions, and the end of unused ones.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::ports::free_address;
use crate::support::{Gateway, TOKEN, compiled, eventually};
use crate::tls;

fn initialize(capabilities: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        {"protocolVersion": "2025-11-25", "capabilities": capabilities}})
}

fn post(client: &reqwest::Client, url: &str, namespace: &str) -> reqwest::RequestBuilder {
    client
        .post(url)
        .bearer_auth(TOKEN)
        .header("X-Namespace", namespace)
        .header("Accept", "application/json, text/event-stream")
}

async fn metric(gateway: &Gateway, name: &str) -> u64 {
    let text = gateway.metrics_text().await;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.expect(name).parse().expect("a count")
}

/// Without the examples, whose worker would take its time.
fn no_examples(data: &Path) {
    fs::create_dir_all(data.join("tools/empty")).expect("a folder");
}

/// Opens a session, and gives its id.
async fn opened(gateway: &Gateway, capabilities: &Value) -> String {
    let answer = post(&gateway.client, &gateway.url("/mcp"), "empty")
        .json(&initialize(capabilities))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    answer.headers()["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn a_client_that_leaves_before_its_answer_leaves_no_session_behind() {
    let folder = tempfile::TempDir::new().unwrap();
    let certificate = tls::write_certificate(folder.path());
    let (plain, secure, metrics) = (free_address(), free_address(), free_address());
    let silent = json!({"command": compiled::stray(), "args": ["--never-start"],
        "connect_timeout": "5m", "probe_timeout": "1s"});
    let gateway = Gateway::empty()
        .listening(plain, metrics)
        .config(json!({"upstreams": {"stdio": {"silent": silent}}, "listeners": [
            {"name": "core", "address": plain.to_string(), "profile": "core"},
            {"name": "secure", "address": secure.to_string(), "profile": "core",
                "tls": {"cert": folder.path().join("cert.pem"), "key": folder.path().join("key.pem")}},
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"}]}))
        .start_with(no_examples)
        .await;
    let over_tls = || {
        reqwest::Client::builder()
            .tls_certs_only([reqwest::Certificate::from_der(&certificate).unwrap()])
    };
    let secure = format!("https://localhost:{}/mcp", secure.port());
    for (number, (client, url)) in [
        (reqwest::Client::new(), gateway.url("/mcp")),
        (over_tls().http1_only().build().unwrap(), secure.clone()),
        (over_tls().build().unwrap(), secure),
    ]
    .into_iter()
    .enumerate()
    {
        let request = post(&client, &url, "silent").json(&initialize(&json!({})));
        let waiting = tokio::spawn(request.send());
        eventually("the session is there", || async {
            let created = metric(&gateway, "tooldock_sessions_created_total").await;
            (created == number as u64 + 1).then_some(())
        })
        .await;
        assert!(!waiting.is_finished(), "its server does not answer");
        waiting.abort();
        drop(client);
        eventually("the session is gone", || async {
            let alive = metric(&gateway, "tooldock_sessions").await;
            let deleted = metric(&gateway, "tooldock_sessions_deleted_total").await;
            (alive == 0 && deleted == number as u64 + 1).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_session_that_is_not_used_after_initialize_ends_soon_and_one_that_is_stays() {
    let gateway = Gateway::empty()
        .config(json!({"sessions": {"unused_ttl": "2s"}}))
        .start_with(no_examples)
        .await;
    let ping = |session: String| {
        let request = post(&gateway.client, &gateway.url("/mcp"), "empty");
        let message = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"});
        request
            .header("Mcp-Session-Id", session)
            .json(&message)
            .send()
    };
    // Never confirmed, but used. On a machine that stands still the first one may come too late.
    let used = eventually("a session is used in time", || async {
        let session = opened(&gateway, &json!({})).await;
        let answer = ping(session.clone()).await.unwrap();
        (answer.status() == 200).then_some(session)
    })
    .await;
    let before = metric(&gateway, "tooldock_sessions_expired_total").await;
    let unused = opened(&gateway, &json!({})).await;
    eventually("the unused one is gone", || async {
        let expired = metric(&gateway, "tooldock_sessions_expired_total").await;
        (expired > before).then_some(())
    })
    .await;
    assert_eq!(ping(unused).await.unwrap().status(), 404);
    assert_eq!(ping(used).await.unwrap().status(), 200);
}

#[tokio::test]
async fn sessions_hold_no_more_bytes_than_their_principal_may() {
    let gateway = Gateway::empty()
        .config(json!({"admission": {"limits": {"session_bytes_per_principal": "1MiB"}}}))
        .start_with(no_examples)
        .await;
    let capabilities = json!({"experimental": {"x": "x".repeat(60_000)}});
    for _ in 0..50 {
        opened(&gateway, &capabilities).await;
    }
    let held = eventually("the sweep has counted", || async {
        let held = metric(&gateway, "tooldock_session_bytes").await;
        (held > 900_000).then_some(held)
    })
    .await;
    assert!(held <= 1 << 20, "{held}");
    let alive = metric(&gateway, "tooldock_sessions").await;
    let evicted = metric(&gateway, "tooldock_sessions_evicted_total").await;
    assert_eq!(alive + evicted, 50);
    assert!((10..=17).contains(&alive), "{alive}");
    // The default of everything else: nothing has run out of time yet.
    assert_eq!(metric(&gateway, "tooldock_sessions_expired_total").await, 0);
}
