//! Real clients and validators against the gateway, each in its own process.
//!
//! The client scripts print what they saw; each goes through the same steps, in the transport or era it is told. The
//! gateway closes long POST streams of legacy sessions, so every one of their long calls is also a resumption.

use serde_json::{Value, json};

use crate::support::programs::{node, python, root, run};
use crate::support::{Gateway, TOKEN, tools};

/// Runs a script of `tests/clients` against a gateway and reads the JSON it prints.
async fn client(
    script: &'static str,
    environment: &'static str,
    gateway: &Gateway,
    namespace: &'static str,
    mode: &'static [&'static str],
) -> Value {
    let url = gateway.url("");
    let printed = tokio::task::spawn_blocking(move || {
        let mut command = if environment == "node" {
            let (mut node, packages) = node();
            // The scripts are reached through a link beside the packages; without these Node would follow it away.
            node.args(["--preserve-symlinks", "--preserve-symlinks-main"])
                .arg(packages.join("clients").join(script));
            node
        } else {
            let mut python = python(environment);
            python.arg(root().join("tests/clients").join(script));
            python
        };
        run(command.args([&url, TOKEN, namespace]).args(mode))
    })
    .await
    .expect("not cancelled");
    serde_json::from_str(printed.trim()).unwrap_or_else(|_| panic!("no JSON: {printed}"))
}

/// A gateway with everything the client scripts use.
pub async fn everything() -> Gateway {
    Gateway::empty()
        .fixture("everything", "conformance/everything")
        .fixture("everything", "clients")
        .config(json!({"sessions": {"poll_after": "200ms"}}))
        .start()
        .await
}

/// What every client sees between the handshake and the end.
pub fn every_step() -> Value {
    json!({
        "listed": true,
        "text": "This is a simple text response for testing.",
        "failed": true,
        "progress": [0, 50, 100],
        "logs": ["Tool execution started", "Tool processing data", "Tool execution completed"],
        "elicited": true,
        "sampled": true,
        "roots": true,
        "completed": ["paris", "park", "party"],
        "resource": "This is the content of the static text resource.",
        "template": "7",
        "prompt": "Prompt with arguments: arg1='one', arg2='two'",
        "updated": true,
        "list_changed": true,
        "resumed": [0, 100, 200, 300, 400, 500, 600, 700, 800, 900],
        "cancelled": true,
    })
}

/// Python prints the progress as 50.0, JavaScript as 50.
fn whole_numbers(mut seen: Value) -> Value {
    for key in ["progress", "resumed"] {
        if let Some(steps) = seen[key].as_array() {
            seen[key] = steps
                .iter()
                .map(|step| json!(step.as_f64().expect("a number") as i64))
                .collect();
        }
    }
    seen
}

async fn goes_through_every_step(
    script: &'static str,
    environment: &'static str,
    mode: &'static [&'static str],
    more: Value,
) {
    let gateway = everything().await;
    let seen = client(script, environment, &gateway, "everything", mode).await;
    let mut expected = every_step();
    for (key, value) in more.as_object().expect("an object") {
        expected[key] = value.clone();
    }
    let (mut seen, mut expected) = (whole_numbers(seen), expected);
    for object in [&mut seen, &mut expected] {
        object
            .as_object_mut()
            .expect("an object")
            .retain(|_, value| !value.is_null());
    }
    assert_eq!(seen, expected);
}

fn legacy() -> Value {
    json!({"version": "2025-11-25", "ended": 404})
}

fn modern() -> Value {
    json!({"version": "2026-07-28", "sessions": 0})
}

#[tokio::test]
async fn the_python_sdk_1_over_streamable_http() {
    goes_through_every_step("python_mcp1.py", "clients-mcp1", &["streamable"], legacy()).await;
}

#[tokio::test]
async fn the_python_sdk_1_over_http_and_sse() {
    goes_through_every_step("python_mcp1.py", "clients-mcp1", &["sse"], legacy()).await;
}

#[tokio::test]
async fn the_python_sdk_2_in_the_legacy_era() {
    goes_through_every_step("python_mcp2.py", "clients-mcp2", &["legacy"], legacy()).await;
}

#[tokio::test]
async fn the_python_sdk_2_finds_the_modern_era_by_itself() {
    goes_through_every_step("python_mcp2.py", "clients-mcp2", &["auto"], modern()).await;
}

#[tokio::test]
async fn the_python_sdk_2_pinned_to_the_modern_era() {
    goes_through_every_step("python_mcp2.py", "clients-mcp2", &["2026-07-28"], modern()).await;
}

#[tokio::test]
async fn the_typescript_sdk_1_over_streamable_http() {
    goes_through_every_step("typescript1.mjs", "node", &["streamable"], legacy()).await;
}

#[tokio::test]
async fn the_typescript_sdk_1_over_http_and_sse() {
    // This transport does not say what it negotiated.
    goes_through_every_step("typescript1.mjs", "node", &["sse"], json!({"ended": 404})).await;
}

#[tokio::test]
async fn the_typescript_client_2_in_the_legacy_era() {
    goes_through_every_step("typescript2.mjs", "node", &["legacy"], legacy()).await;
}

#[tokio::test]
async fn the_typescript_client_2_finds_the_modern_era_by_itself() {
    goes_through_every_step("typescript2.mjs", "node", &["auto"], modern()).await;
}

#[tokio::test]
async fn the_typescript_client_2_pinned_to_the_modern_era() {
    goes_through_every_step("typescript2.mjs", "node", &["2026-07-28"], modern()).await;
}

#[tokio::test]
async fn the_fastmcp_client_in_the_legacy_era() {
    goes_through_every_step(
        "python_fastmcp.py",
        "clients-fastmcp",
        &["legacy"],
        legacy(),
    )
    .await;
}

#[tokio::test]
async fn the_fastmcp_client_in_the_modern_era() {
    // It does not offer `subscriptions/listen`.
    let more =
        json!({"version": "2026-07-28", "sessions": 0, "updated": null, "list_changed": null});
    goes_through_every_step("python_fastmcp.py", "clients-fastmcp", &["auto"], more).await;
}

#[tokio::test]
async fn a_plain_requests_script_calls_without_a_handshake() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .start()
        .await;
    let result = client("word_of_requests.py", "clients-mcp1", &gateway, "calc", &[]).await;
    assert_eq!(result["content"][0]["text"], "5.0");
    assert!(
        result.get("structuredContent").is_none(),
        "2025-03-26 has none: {result}"
    );
}

/// Checks a document with a real validator.
pub async fn validate_openapi(document: &Value) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), document.to_string()).expect("the document");
    tokio::task::spawn_blocking(move || {
        run(python("clients-mcp1")
            .args(["-m", "openapi_spec_validator"])
            .arg(file.path()));
    })
    .await
    .expect("not cancelled");
}
