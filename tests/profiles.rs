//! Changes to a profile by a listener's own keys and by the variables of policies.

use serde_json::{Value, json};

use crate::support::{Gateway, tools};

fn tools() -> crate::support::gateway::Builder {
    Gateway::with_tools([
        ("shared", "hello.py", tools::HELLO),
        ("calc", "math_tools.py", tools::MATH),
    ])
}

/// The answer to a message at a path: status and body.
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

#[tokio::test]
async fn variables_set_the_policies_of_all_listeners_that_speak_mcp() {
    let usual = tools().start().await;
    let changed = tools()
        .env("MCP_BATCH", "reject")
        .env("MCP_ACCEPT_POLICY", "lenient")
        .env("SESSION_POLICY", "optional")
        .env("REQUIRE_INITIALIZED", "off")
        .start()
        .await;
    let path = "/mcp/calc";
    let batch = json!([list()]);
    assert_eq!(posted(&usual, path, &[], batch.clone()).await.0, 200);
    assert_eq!(posted(&changed, path, &[], batch).await.0, 400);
    let headers = [
        ("Accept", "application/json"),
        ("MCP-Protocol-Version", "2025-11-25"),
    ];
    assert_eq!(posted(&usual, path, &headers, list()).await.0, 406);
    assert_eq!(posted(&changed, path, &headers, list()).await.0, 200);

    // A session whose client never says that it is initialized.
    for (gateway, listed) in [(&usual, false), (&changed, true)] {
        let both = ("Accept", "application/json, text/event-stream");
        let opened = gateway
            .request("POST", path)
            .header(both.0, both.1)
            .json(&initialize("2025-11-25"))
            .send()
            .await
            .unwrap();
        let session = opened.headers()["mcp-session-id"]
            .to_str()
            .unwrap()
            .to_owned();
        let headers = [both, ("Mcp-Session-Id", &*session)];
        let (_, answer) = posted(gateway, path, &headers, list()).await;
        assert_eq!(answer["result"]["tools"].is_array(), listed, "{answer}");
    }
}

#[tokio::test]
async fn a_variable_without_effect_is_named_at_the_start() {
    let gateway = tools()
        .env("OUBLIETTE_CALLER_WAIT_MS", "100")
        .env("TOOLDOCK_SERVICE_HOST", "10.0.0.1")
        .env("TOOLDOCK_CORE_PROT", "8000")
        .start()
        .await;
    let log = gateway.log();
    let warning =
        "OUBLIETTE_CALLER_WAIT_MS, TOOLDOCK_CORE_PROT are set, and have no effect in the gateway";
    assert!(log.contains(warning), "{log}");
    assert!(!log.contains("TOOLDOCK_SERVICE_HOST"), "{log}");
}

#[tokio::test]
async fn the_start_says_where_mcp_is_spoken() {
    let gateway = Gateway::empty().start().await;
    let expected = format!("MCP at http://{}/mcp/<namespace>", gateway.address);
    let log = gateway.log();
    assert!(log.contains(&expected), "{log}");
}

#[tokio::test]
async fn a_required_session_is_required_in_every_version() {
    let gateway = tools().env("SESSION_POLICY", "required").start().await;
    let headers = [("Accept", "application/json, text/event-stream")];
    let (status, answer) = posted(&gateway, "/mcp/shared", &headers, list()).await;
    assert_eq!(
        (status, &answer["error"]["data"]["code"]),
        (400, &json!("session_required")),
        "{answer}"
    );
}
