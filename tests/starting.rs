//! The start of a gateway, as clients see it: namespaces that are on their way up are not unknown.

use std::fs;
use std::path::Path;
use std::time::Duration;

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tempfile::TempDir;
use tooldock_base::scope::ScopeTable;
use tooldock_credentials::keys::{KeyKind, KeyStore, NewKey};

use crate::relay::Connection;
use crate::support::gateway::MANAGER_TOKEN;
use crate::support::ports::free_address;
use crate::support::{Gateway, TOKEN, eventually, eventually_within};

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
    // Importing a file may take 10 s.
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
    let (core, web, metrics) = (free_address(), free_address(), free_address());
    // Importing a file may take 10 s.
    let files = [
        (
            "held-up",
            "a_first.py",
            &*held_up(&up).replace("greet", "first"),
        ),
        ("held-up", "greet.py", &held_up(&up)),
    ];
    let gateway = Gateway::with_tools(files)
        .listening(core, metrics)
        .config(json!({"listeners": [
            {"name": "core", "address": core.to_string(), "profile": "core"},
            {"name": "web", "address": web.to_string(), "profile": "v1-web"},
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
        ]}))
        .spawn();
    let listed = async || {
        let answer = gateway.request("GET", "/namespaces").send().await.ok()?;
        Some((
            answer.status().as_u16(),
            answer.json::<Value>().await.unwrap(),
        ))
    };
    let first = eventually("an answer", &listed);
    let others = async {
        let health = || async { gateway.request("GET", "/health").send().await.ok() };
        eventually("the gateway listens", health).await;
        let explain = gateway
            .request("POST", "/explain")
            .header("X-Manager-Token", MANAGER_TOKEN)
            .json(&json!({"as": "bearer"}));
        let pages = ["namespaces", "namespaces/held-up"].map(|path| {
            let url = format!("http://{web}/api/{path}");
            gateway.client.get(url).bearer_auth(TOKEN)
        });
        let mut asked = tokio::task::JoinSet::new();
        for request in pages.into_iter().chain([explain]) {
            asked.spawn(async move {
                let answer = request.send().await.unwrap();
                let status = answer.status().as_u16();
                let again = answer.headers().get("retry-after").cloned();
                let body: Value = answer.json().await.unwrap();
                let code = &body["error"]["code"];
                assert_eq!((status, code), (503, &json!("starting")), "{body}");
                assert_eq!(again.unwrap(), "2");
            });
        }
        asked.join_all().await;
    };
    let ((status, body), ()) = tokio::join!(first, others);
    assert_eq!((status, &body["error"]["code"]), (503, &json!("starting")));
    // The namespace that the first scan waits for is told of.
    let told = crate::conditions::ready(&gateway, "held-up").await;
    assert_eq!(told["state"], "starting", "{told}");
    let shown = gateway.metrics_text().await;
    assert!(
        shown.contains("tooldock_namespaces{state=\"starting\"} 1\n"),
        "{shown}"
    );
    let waits = eventually("a line of the log", async || {
        let log = gateway.log();
        let mut lines = log.lines();
        lines
            .find(|line| line.contains("the first scan waits for"))
            .map(str::to_owned)
    });
    assert!(waits.await.contains("held-up"));
    fs::write(&up, "").unwrap();
    let (status, body) = eventually("the list", || async {
        listed().await.filter(|(status, _)| *status == 200)
    })
    .await;
    assert_eq!((status, &body[0]["name"]), (200, &json!("held-up")));
}

/// A gateway without a package index is ready at once, and the example namespace comes up when its environment can be made.
#[tokio::test]
async fn the_example_namespace_holds_nobody_up_and_comes_up_when_its_environment_can_be_made() {
    let folder = TempDir::new().unwrap();
    let base = folder.path().join("base");
    let gateway = Gateway::empty()
        .config(json!({"workers": {"base_env": base}}))
        .env("PIP_NO_INDEX", "1")
        .env("UV_NO_INDEX", "1")
        .env("UV_OFFLINE", "1")
        .start()
        .await;
    let (status, said) = eventually("the reason", async || {
        let (status, said) = gateway
            .call("shared", "say_hello", json!({"name": "Ada"}))
            .await;
        (said["error"]["code"] != "starting").then_some((status, said))
    })
    .await;
    assert_eq!(
        (status, &said["error"]["code"]),
        (500, &json!("dependency_error")),
        "{said}"
    );
    let told = crate::conditions::ready(&gateway, "shared").await;
    assert_eq!(told["state"], "starting", "{told}");
    let metrics = gateway.metrics_text().await;
    assert!(
        metrics.contains("tooldock_namespaces{state=\"failed\"} 0\n"),
        "{metrics}"
    );
    let named = gateway.log().matches("has no environment yet").count();
    assert_eq!(named, 1, "{}", gateway.log());

    // A base environment that is put there meanwhile: the one of all tests, under another path.
    let other = Gateway::empty().start().await;
    let (status, said) = other
        .call("shared", "say_hello", json!({"name": "Ada"}))
        .await;
    assert_eq!(status, 200, "{said}");
    let made = folder.path().join("made");
    fs::create_dir(&made).unwrap();
    for entry in fs::read_dir(crate::support::gateway::shared_base_env()).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(path, made.join(entry.file_name())).unwrap();
    }
    fs::rename(&made, &base).unwrap();
    eventually_within(Duration::from_secs(60), "the tool", async || {
        let (status, _) = gateway
            .call("shared", "say_hello", json!({"name": "Ada"}))
            .await;
        (status == 200).then_some(())
    })
    .await;
    let told = crate::conditions::ready(&gateway, "shared").await;
    assert_eq!(told["state"], "ready", "{told}");
}

#[tokio::test]
async fn a_start_without_the_example_namespace_serves_what_is_configured_alone() {
    let config = json!({"namespaces": {"starter": false}});
    let gateway = Gateway::empty().config(config).start().await;
    let listed = gateway.request("GET", "/namespaces").send().await.unwrap();
    assert_eq!(listed.json::<Value>().await.unwrap(), json!([]));
    let unknown = surfaces(&gateway, "shared").remove(0).1.send().await;
    assert_eq!(unknown.unwrap().status(), 404);
}

#[tokio::test]
async fn the_gateway_is_ready_while_an_index_that_does_not_answer_keeps_one_namespace() {
    let index = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = index.local_addr().unwrap();
    let requirements = format!("--index-url http://{address}/simple\nsomething\n");
    // Waits until the gateway is ready.
    let gateway = Gateway::with_tools([
        ("plain", "plain.py", crate::support::tools::MATH),
        ("slow", "slow.py", crate::support::tools::MATH),
    ])
    .start_with(|data| fs::write(data.join("tools/slow/requirements.txt"), requirements).unwrap())
    .await;
    let (status, answer) = gateway.call("plain", "add", json!({"a": 1, "b": 2})).await;
    assert_eq!((status, answer), (200, json!(3.0)));
    let told = crate::conditions::ready(&gateway, "slow").await;
    assert_eq!(told["state"], "starting", "{told}");
    assert!(!gateway.log().contains("namespaces loaded"), "it installs");
    fs::remove_dir_all(gateway.tools_dir().join("slow")).unwrap();
    let report = gateway.reload().await;
    assert_eq!(report["failed"], json!([]), "{report}");
    let (status, _) = gateway.call("slow", "add", json!({"a": 1, "b": 2})).await;
    assert_eq!(status, 404);
}
