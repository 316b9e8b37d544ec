//! Work whose size a client or the author of a tool decides keeps no message thread from its other connections. Each gateway
//! of these tests is looked at when it ends ([`crate::support::Gateway`]): a request that computed too long on a message
//! thread fails its test.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, programs, tools};

fn server(kind: &str) -> (String, [String; 2]) {
    let script = programs::root().join("tests/fixtures/servers/large.py");
    let script = std::path::absolute(script).expect("a path");
    (
        "python3".to_owned(),
        [script.display().to_string(), kind.to_owned()],
    )
}

#[tokio::test]
async fn a_document_of_a_schema_that_refers_to_itself_everywhere_is_made_elsewhere() {
    let (command, args) = server("schema");
    let gateway = Gateway::with_tools([("basic", "hello.py", tools::HELLO)])
        .config(json!({"upstreams": {"stdio": {"large": {"command": command, "args": args}}}}))
        .start()
        .await;
    let document = |path: &'static str| {
        let request = gateway.request("GET", path);
        async move {
            let response = request.send().await.expect("answered");
            assert_eq!(response.status(), 200, "{path}");
            response.json::<Value>().await.expect("JSON")
        }
    };
    let first = document("/namespaces/large/openapi.json").await;
    assert!(first["paths"]["/tools/large"]["post"].is_object());
    assert_eq!(document("/namespaces/large/openapi.json").await, first);
}

#[tokio::test]
async fn names_that_are_not_there_are_looked_for_among_ten_thousand() {
    let folder = TempDir::new().expect("a temporary directory");
    let (command, args) = server("names");
    let file = format!(
        "toolman_search = true\n[[servers]]\nnamespace = \"m\"\ncommand = \"exec {command} '{}' {}\"\n",
        args[0], args[1]
    );
    let path = folder.path().join("tools.toml");
    fs::write(&path, file).expect("written");
    let gateway = Gateway::with_tools([("basic", "hello.py", tools::HELLO)])
        .config(json!({"toolman": {"many": {"config": path}}}))
        .start()
        .await;
    let session = Session::start_as(&gateway, "many", "2025-11-25", TOKEN, json!({})).await;
    let unknown: Vec<String> = (0..10)
        .map(|n| format!("m_tool_{n:05}_{}x", "abcdefghij".repeat(9)))
        .collect();
    let call = |name: &'static str, arguments: Value| {
        session.request(
            7,
            "tools/call",
            json!({"name": name, "arguments": arguments}),
        )
    };
    let lists = json!({
        "tools_on": unknown, "tools_off": [], "resources_on": [], "resources_off": [],
    });
    let refused = call("toolman_activate", lists).await.to_string();
    assert!(refused.contains("did you mean m_tool_"), "{refused}");
    let found = call(
        "toolman_search",
        json!({"query": "tool_09999 abcdefghik wodrs"}),
    )
    .await;
    assert!(found.to_string().contains("m_tool_09999"), "{found}");
}
