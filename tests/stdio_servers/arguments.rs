//! Whose fault a failed REST call was, read from what servers say of it, whatever they were written with.

use serde_json::{Value, json};

use super::serving;
use crate::support::programs;

/// Servers written with each SDK. Their tool `half` takes an even number, which most of their schemas cannot say;
/// `broken` fails by itself.
fn of_all_sdks() -> Value {
    let script =
        |name: &str| std::path::absolute(programs::root().join("tests/clients").join(name));
    let python = |environment: &str, sdk: &str| {
        let python = programs::python(environment);
        let script = script("server_sdks.py").expect("a path");
        json!({"command": python.get_program().to_str(), "args": [script, sdk]})
    };
    let (node, packages) = programs::node();
    let script = packages.join("clients/server_typescript1.mjs");
    let typescript = json!({
        "command": node.get_program().to_str(),
        "args": ["--preserve-symlinks", "--preserve-symlinks-main", script],
    });
    json!({
        "mcp1": python("clients-mcp1", "mcp1"),
        "mcp1-low-level": python("clients-mcp1", "mcp1-low-level"),
        "mcp2": python("clients-mcp2", "mcp2"),
        "fastmcp": python("clients-fastmcp", "fastmcp"),
        "typescript1": typescript,
    })
}

#[tokio::test]
async fn wrong_arguments_are_the_callers_fault_and_failures_are_not_with_every_sdk() {
    let servers = of_all_sdks();
    let gateway = serving(servers.clone()).await;
    for namespace in servers.as_object().expect("servers").keys() {
        let call = async |tool: &str, number: Value| {
            let (status, answer) = gateway
                .call(namespace, tool, json!({"number": number}))
                .await;
            let code = answer["error"]["code"].as_str().map(str::to_owned);
            (status, code.unwrap_or_default(), answer)
        };
        let (status, _, answer) = call("half", json!(4)).await;
        assert_eq!(status, 200, "{namespace}: {answer}");
        let (status, code, answer) = call("half", json!(3)).await;
        assert_eq!(
            (status, &*code),
            (422, "invalid_arguments"),
            "{namespace}: {answer}"
        );
        let (status, code, answer) = call("broken", json!(3)).await;
        assert_eq!(
            (status, &*code),
            (500, "internal_error"),
            "{namespace}: {answer}"
        );
        // A server of the low level decides itself what to make of a tool that it does not list.
        if namespace != "mcp1-low-level" {
            let (status, code, answer) = call("missing", json!(3)).await;
            assert_eq!(
                (status, &*code),
                (404, "tool_not_found"),
                "{namespace}: {answer}"
            );
        }
    }
}
