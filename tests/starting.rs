//! The start of a gateway, as clients see it: namespaces that are on their way up are not unknown.

use std::fs;
use std::path::Path;

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tempfile::TempDir;
use tooldock_workers::keys::{KeyKind, KeyStore, NewKey};
use tooldock_workers::scope::ScopeTable;

use crate::relay::Connection;
use crate::support::{Gateway, eventually};

/// A tool file that is imported once a file is there.
fn held_up(until: &Path) -> String {
    format!(
        r#"
import time
from pathlib import Path

from fastmcp.tools import tool

while not Path({until:?}).exists():
    time.sleep(0.01)


@tool
def greet() -> str:
    """Greets."""
    return "hello"
"#
    )
}

fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }})
}

/// A request for a namespace on each surface, with the integer code of its refusals where it speaks MCP.
fn surfaces(
    gateway: &Gateway,
    namespace: &str,
) -> Vec<(&'static str, RequestBuilder, Option<i32>)> {
    let named = |method: &str, path: &str| {
        gateway
            .request(method, path)
            .header("X-Namespace", namespace)
    };
    let mcp = |request: RequestBuilder| {
        request
            .header("Accept", "application/json, text/event-stream")
            .json(&initialize())
    };
    vec![
        (
            "MCP by path",
            mcp(gateway.request("POST", &format!("/mcp/{namespace}"))),
            Some(-32014),
        ),
        ("MCP by header", mcp(named("POST", "/mcp")), Some(-32014)),
        ("HTTP+SSE", named("GET", "/sse"), Some(-32014)),
        ("a REST list", named("GET", "/tools"), None),
        (
            "a REST call",
            named("POST", "/tools/greet").json(&json!({})),
            None,
        ),
        (
            "a REST call by path",
            gateway
                .request("POST", &format!("/namespaces/{namespace}/tools/greet"))
                .json(&json!({})),
            None,
        ),
        (
            "OpenAPI",
            gateway.request("GET", &format!("/openapi.json?namespace={namespace}")),
            None,
        ),
    ]
}

fn key_for(data: &Path, namespace: &str) -> String {
    fs::create_dir_all(data).unwrap();
    let keys = KeyStore::open(data.join("keys.json"), ScopeTable::default()).unwrap();
    let key = keys.create(NewKey {
        name: "starting".into(),
        made_by: None,
        scopes: vec!["admin".into()],
        namespaces: vec![namespace.into()],
        networks: Vec::new(),
        limits: Vec::new(),
        lifetime: None,
        kind: KeyKind::Relay,
    });
    key.unwrap().text.expose().to_owned()
}

#[tokio::test]
async fn what_is_on_its_way_up_is_waited_for_or_answered_503_on_every_surface_and_the_rest_is_404()
{
    let folder = TempDir::new().unwrap();
    let (up, socket) = (folder.path().join("up"), folder.path().join("relay.sock"));
    // One file may take 10 s to be imported.
    let files = [
        (
            "held-up",
            "a_first.py",
            &*held_up(&up).replace("greet", "first"),
        ),
        ("held-up", "greet.py", &held_up(&up)),
    ];
    let builder = Gateway::with_tools(files).config(json!({
        "relay": {"socket": socket, "namespace": "held-up"},
        "upstreams": {"remote": {"configured": {"backends": ["http://127.0.0.1:9/mcp"]}}},
        // Each request counts once, however often it is judged.
        "admission": {"rate_limits": [{"key": "principal", "rate": 1, "burst": 40}]},
    }));
    let mut key = String::new();
    let gateway = builder.spawn_with(|data| key = key_for(data, "held-up"));
    let health = || async {
        let answer = gateway.request("GET", "/health").send().await.ok()?;
        (answer.status() == 200).then_some(())
    };
    eventually("the gateway listens", health).await;

    let mut refusals = Vec::new();
    for (surface, request, code) in surfaces(&gateway, "held-up") {
        refusals.push(tokio::spawn(async move {
            let answer = request.send().await.unwrap();
            let (status, again) = (
                answer.status(),
                answer.headers().get("retry-after").cloned(),
            );
            let body: Value = answer.json().await.unwrap();
            assert_eq!(status, 503, "{surface}: {body}");
            assert_eq!(again.unwrap(), "2", "{surface}");
            let stable = match code {
                Some(code) => {
                    assert_eq!(body["error"]["code"], code, "{surface}");
                    &body["error"]["data"]["code"]
                }
                None => &body["error"]["code"],
            };
            assert_eq!(*stable, "starting", "{surface}: {body}");
        }));
    }
    let mut relay = Connection::to(&socket).await;
    let relayed = {
        let key = key.clone();
        tokio::spawn(async move { relay.tools(&key).await })
    };
    for (surface, request, _) in surfaces(&gateway, "nope") {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 404, "{surface}");
    }
    let ready = gateway.request("GET", "/ready").send().await.unwrap();
    assert_eq!(ready.status(), 503);
    let ready: Value = ready.json().await.unwrap();
    assert_eq!(ready["status"], "starting", "{ready}");
    for refusal in refusals {
        refusal.await.unwrap();
    }
    let relayed = relayed.await.unwrap();
    assert_eq!(relayed["error"]["code"], -32000, "{relayed}");
    assert_eq!(relayed["error"]["data"]["code"], "starting", "{relayed}");
    // Servers of the configuration do not wait for folders.
    let configured = surfaces(&gateway, "configured").remove(0).1.send();
    assert_ne!(configured.await.unwrap().status(), 404);

    let mut waiting = Vec::new();
    for (surface, request, _) in surfaces(&gateway, "held-up") {
        waiting.push(tokio::spawn(async move {
            assert_eq!(request.send().await.unwrap().status(), 200, "{surface}");
        }));
    }
    fs::write(&up, "").unwrap();
    for answered in waiting {
        answered.await.unwrap();
    }
    let mut relay = Connection::to(&socket).await;
    let listed = relay.tools(&key).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    assert!(tools.iter().any(|it| it["name"] == "greet"), "{listed}");
}

#[tokio::test]
async fn a_list_of_all_namespaces_is_not_empty_while_the_gateway_starts() {
    let folder = TempDir::new().unwrap();
    let up = folder.path().join("up");
    let gateway = Gateway::with_tools([("held-up", "greet.py", &held_up(&up))]).spawn();
    let listed = async || {
        let answer = gateway.request("GET", "/namespaces").send().await.ok()?;
        Some((
            answer.status().as_u16(),
            answer.json::<Value>().await.unwrap(),
        ))
    };
    let (status, body) = eventually("an answer", &listed).await;
    assert_eq!((status, &body["error"]["code"]), (503, &json!("starting")));
    fs::write(&up, "").unwrap();
    let (status, body) = eventually("the list", || async {
        listed().await.filter(|(status, _)| *status == 200)
    })
    .await;
    assert_eq!((status, &body[0]["name"]), (200, &json!("held-up")));
}
