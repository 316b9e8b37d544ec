//! What a listener's own keys and the variables of policies change of its profile.

use serde_json::{Value, json};

use crate::support::{Gateway, tools};

fn tools() -> crate::support::gateway::Builder {
    Gateway::with_tools([
        ("shared", "hello.py", tools::HELLO),
        ("calc", "math_tools.py", tools::MATH),
    ])
}

/// What a message to a path is answered: status and body.
async fn posted(
    gateway: &Gateway,
    path: &str,
    headers: &[(&str, &str)],
    message: Value,
) -> (u16, Value) {
    let mut request = gateway.request("POST", path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.json(&message).send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

fn list() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
}

fn initialize(version: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}})
}

#[tokio::test]
async fn a_listener_with_a_namespace_of_its_own_serves_that_one_on_every_path() {
    let gateway = tools().core(json!({"namespace": "calc"})).start().await;
    for (path, headers) in [
        ("/mcp", &[][..]),
        ("/mcp", &[("X-Namespace", "calc")]),
        ("/mcp/calc", &[]),
    ] {
        let (status, answer) = posted(&gateway, path, headers, list()).await;
        assert_eq!(status, 200, "{path} {headers:?}: {answer}");
        assert_eq!(answer["result"]["tools"][0]["name"], "add");
    }
    for path in ["/tools", "/namespaces/calc/tools"] {
        let listed = gateway.request("GET", path).send().await.unwrap();
        let listed: Value = listed.json().await.unwrap();
        assert_eq!(listed[0]["name"], "add", "{path}");
    }
    let namespaces = gateway.request("GET", "/namespaces").send().await.unwrap();
    let namespaces: Value = namespaces.json().await.unwrap();
    assert_eq!(namespaces.as_array().unwrap().len(), 1, "{namespaces}");
    let document = gateway
        .request("GET", "/openapi.json")
        .send()
        .await
        .unwrap();
    let document: Value = document.json().await.unwrap();
    let call = &document["paths"]["/tools/add"]["post"];
    assert_eq!(call["parameters"], json!([]), "no header is needed");
    for (path, headers) in [
        ("/mcp", &[("X-Namespace", "shared")][..]),
        ("/mcp/shared", &[]),
        ("/tools/say_hello", &[("X-Namespace", "shared")]),
        ("/namespaces/shared/tools/say_hello", &[]),
    ] {
        let (status, answer) = posted(&gateway, path, headers, json!({})).await;
        assert_eq!(status, 400, "{path}: {answer}");
        assert!(
            answer.to_string().contains("namespace_ambiguous"),
            "{answer}"
        );
    }
    let stream = gateway
        .request("GET", "/sse")
        .header("Accept", "text/event-stream")
        .send()
        .await
        .unwrap();
    assert_eq!(stream.status(), 200);
}

#[tokio::test]
async fn a_listener_may_ask_less_and_serve_fewer_versions_than_its_profile() {
    let usual = tools().start().await;
    let keys = json!({"accept": "lenient", "session": "optional", "versions": ["2025-06-18"]});
    let changed = tools().core(keys).start().await;
    let headers = [
        ("Accept", "application/json"),
        ("MCP-Protocol-Version", "2025-06-18"),
    ];
    let path = "/mcp/calc";
    assert_eq!(posted(&usual, path, &headers, list()).await.0, 406);
    let named = [
        ("Accept", "application/json, text/event-stream"),
        ("MCP-Protocol-Version", "2025-06-18"),
    ];
    assert_eq!(posted(&usual, path, &named, list()).await.0, 400);
    let (status, answer) = posted(&changed, path, &headers, list()).await;
    assert_eq!(status, 200, "{answer}");
    let (_, answer) = posted(&changed, path, &headers, initialize("2025-11-25")).await;
    assert_eq!(
        answer["result"]["protocolVersion"], "2025-06-18",
        "{answer}"
    );
}
