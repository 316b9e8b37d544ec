//! Real clients and validators against the gateway, each in its own process.
//!
//! The client scripts print their view; each goes through the same steps, in the given transport or era. The gateway
//! closes long POST streams of legacy sessions, so every long call there is also a resumption.

use serde_json::{Value, json};

use crate::support::programs::{node, python, root, run};
use crate::support::{Gateway, TOKEN, tools};

/// A script of `tests/clients`, and how it is run.
#[derive(Clone, Copy)]
pub struct Client {
    script: &'static str,
    /// `node`, or the name of a Python environment.
    environment: &'static str,
    /// Its transport, or the era it is to speak.
    mode: &'static [&'static str],
    /// Differences of its view from [`every_step`]; null for steps that it skips.
    more: fn() -> Value,
}

impl Client {
    const fn new(
        script: &'static str,
        environment: &'static str,
        mode: &'static [&'static str],
        more: fn() -> Value,
    ) -> Self {
        Self {
            script,
            environment,
            mode,
            more,
        }
    }

    /// Runs the script against a gateway and reads the JSON it prints.
    async fn run(self, gateway: &Gateway, namespace: &'static str) -> Value {
        let url = gateway.url("");
        let printed = tokio::task::spawn_blocking(move || {
            let mut command = if self.environment == "node" {
                let (mut node, packages) = node();
                // The scripts are reached through a link beside the packages; without these Node would follow it away.
                node.args(["--preserve-symlinks", "--preserve-symlinks-main"])
                    .arg(packages.join("clients").join(self.script));
                node
            } else {
                let mut python = python(self.environment);
                python.arg(root().join("tests/clients").join(self.script));
                python
            };
            run(command.args([&url, TOKEN, namespace]).args(self.mode))
        })
        .await
        .expect("not cancelled");
        serde_json::from_str(printed.trim()).unwrap_or_else(|_| panic!("no JSON: {printed}"))
    }

    /// Runs the script and looks at all it saw.
    pub async fn goes_through_every_step(self, gateway: &Gateway, namespace: &'static str) {
        let mut seen = whole_numbers(self.run(gateway, namespace).await);
        let mut expected = every_step();
        for (key, value) in (self.more)().as_object().expect("an object") {
            expected[key] = value.clone();
        }
        for object in [&mut seen, &mut expected] {
            object
                .as_object_mut()
                .expect("an object")
                .retain(|_, value| !value.is_null());
        }
        assert_eq!(
            seen, expected,
            "{} {:?}, {namespace}",
            self.script, self.mode
        );
    }
}

pub const PYTHON_1: Client = Client::new("python_mcp1.py", "clients-mcp1", &["streamable"], legacy);
pub const PYTHON_1_SSE: Client = Client::new("python_mcp1.py", "clients-mcp1", &["sse"], legacy);
pub const PYTHON_2_LEGACY: Client =
    Client::new("python_mcp2.py", "clients-mcp2", &["legacy"], legacy);
pub const PYTHON_2_AUTO: Client = Client::new("python_mcp2.py", "clients-mcp2", &["auto"], modern);
pub const PYTHON_2_PINNED: Client =
    Client::new("python_mcp2.py", "clients-mcp2", &["2026-07-28"], modern);
pub const TYPESCRIPT_1: Client = Client::new("typescript1.mjs", "node", &["streamable"], legacy);
/// This transport does not reveal the negotiated version.
pub const TYPESCRIPT_1_SSE: Client = Client::new(
    "typescript1.mjs",
    "node",
    &["sse"],
    || json!({"ended": 404}),
);
pub const TYPESCRIPT_2_LEGACY: Client = Client::new("typescript2.mjs", "node", &["legacy"], legacy);
pub const TYPESCRIPT_2_AUTO: Client = Client::new("typescript2.mjs", "node", &["auto"], modern);
pub const TYPESCRIPT_2_PINNED: Client =
    Client::new("typescript2.mjs", "node", &["2026-07-28"], modern);
pub const FASTMCP_LEGACY: Client =
    Client::new("python_fastmcp.py", "clients-fastmcp", &["legacy"], legacy);
/// It does not offer `subscriptions/listen`.
pub const FASTMCP_MODERN: Client = Client::new(
    "python_fastmcp.py",
    "clients-fastmcp",
    &["auto"],
    || json!({"version": "2026-07-28", "sessions": 0, "updated": null, "list_changed": null}),
);

/// A gateway whose worker offers everything the client scripts use.
pub async fn everything() -> Gateway {
    Gateway::empty()
        .fixture("everything", "conformance/everything")
        .fixture("everything", "clients")
        .config(json!({"sessions": {"poll_after": "200ms"}}))
        .start()
        .await
}

/// The view of every client between the handshake and the end.
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

fn legacy() -> Value {
    json!({"version": "2025-11-25", "ended": 404})
}

fn modern() -> Value {
    json!({"version": "2026-07-28", "sessions": 0})
}

async fn goes_through_every_step(client: Client) {
    let gateway = everything().await;
    client.goes_through_every_step(&gateway, "everything").await;
}

#[tokio::test]
async fn the_python_sdk_1_over_streamable_http() {
    goes_through_every_step(PYTHON_1).await;
}

#[tokio::test]
async fn the_python_sdk_1_over_http_and_sse() {
    goes_through_every_step(PYTHON_1_SSE).await;
}

#[tokio::test]
async fn the_python_sdk_2_in_the_legacy_era() {
    goes_through_every_step(PYTHON_2_LEGACY).await;
}

#[tokio::test]
async fn the_python_sdk_2_finds_the_modern_era_by_itself() {
    goes_through_every_step(PYTHON_2_AUTO).await;
}

#[tokio::test]
async fn the_python_sdk_2_pinned_to_the_modern_era() {
    goes_through_every_step(PYTHON_2_PINNED).await;
}

#[tokio::test]
async fn the_typescript_sdk_1_over_streamable_http() {
    goes_through_every_step(TYPESCRIPT_1).await;
}

#[tokio::test]
async fn the_typescript_sdk_1_over_http_and_sse() {
    goes_through_every_step(TYPESCRIPT_1_SSE).await;
}

#[tokio::test]
async fn the_typescript_client_2_in_the_legacy_era() {
    goes_through_every_step(TYPESCRIPT_2_LEGACY).await;
}

#[tokio::test]
async fn the_typescript_client_2_finds_the_modern_era_by_itself() {
    goes_through_every_step(TYPESCRIPT_2_AUTO).await;
}

#[tokio::test]
async fn the_typescript_client_2_pinned_to_the_modern_era() {
    goes_through_every_step(TYPESCRIPT_2_PINNED).await;
}

#[tokio::test]
async fn the_fastmcp_client_in_the_legacy_era() {
    goes_through_every_step(FASTMCP_LEGACY).await;
}

#[tokio::test]
async fn the_fastmcp_client_in_the_modern_era() {
    goes_through_every_step(FASTMCP_MODERN).await;
}

#[tokio::test]
async fn a_plain_requests_script_calls_without_a_handshake() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .start()
        .await;
    let script = Client::new("word_of_requests.py", "clients-mcp1", &[], || Value::Null);
    let result = script.run(&gateway, "calc").await;
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
