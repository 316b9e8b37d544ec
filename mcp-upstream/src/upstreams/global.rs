use std::sync::Arc;

use serde_json::{Value, json};
use tooldock_base::names::NamespaceName;
use tooldock_sessions::caller::{Caller, Visibility};
use tooldock_sessions::testing::{broken, caller, namespace, tool};
use tooldock_workers::registry::Namespace;

use crate::testing::{Harness, Wanted, head};

/// A namespace with tools of these names.
fn having(name: &str, tools: &[&str]) -> Namespace {
    let tools = tools.iter();
    Namespace {
        tools: tools
            .map(|tool_name| tool(json!({ "name": tool_name, "inputSchema": {} })))
            .collect(),
        ..namespace(name)
    }
}

fn everywhere() -> Caller {
    Caller {
        namespace: Some(NamespaceName::global()),
        ..caller()
    }
}

fn serving(namespaces: Vec<Namespace>) -> Harness {
    Wanted {
        namespaces,
        ..Wanted::default()
    }
    .build()
}

async fn ask(harness: &Harness, caller: Caller, method: &str, params: Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let head = head(None, Some("2025-03-26"));
    harness.post_as(caller, head, &body.to_string()).await.1
}

async fn listed(harness: &Harness, caller: Caller) -> Vec<String> {
    let answer = ask(harness, caller, "tools/list", json!({})).await;
    let tools = answer["result"]["tools"].as_array().expect("a list");
    let name = |tool: &Value| tool["name"].as_str().expect("a name").to_owned();
    tools.iter().map(name).collect()
}

#[tokio::test]
async fn a_bare_name_is_the_first_namespaces_and_later_ones_have_a_prefix() {
    let harness = serving(vec![
        having("a", &["add", "b_c", "own"]),
        having("a_b", &["c", "own"]),
        having("shared", &["own", "c"]),
        broken("broken"),
    ]);
    assert_eq!(
        listed(&harness, everywhere()).await,
        ["own", "c", "add", "b_c", "a_own", "a_b_own"],
        "a_b_c is the tool b_c of a, so the c of a_b has no name here"
    );
}

#[tokio::test]
async fn a_caller_sees_no_trace_of_namespaces_that_are_closed_to_it() {
    let harness = serving(vec![having("a", &["add"]), having("b", &["add"])]);
    let scoped = Caller {
        visibility: Visibility::Only(Arc::new(|name| name.as_str() == "b")),
        ..everywhere()
    };
    assert_eq!(listed(&harness, scoped.clone()).await, ["add"]);
    let params = json!({ "name": "a_add", "arguments": {} });
    let refused = ask(&harness, scoped, "tools/call", params).await;
    assert_eq!(refused["result"]["isError"], true, "{refused}");
}

#[tokio::test]
async fn there_are_tools_and_nothing_else() {
    let harness = serving(vec![having("a", &["add"])]);
    for method in ["resources/list", "prompts/list", "nope"] {
        let refused = ask(&harness, everywhere(), method, json!({})).await;
        assert_eq!(refused["error"]["code"], -32601, "{method}");
    }
    let answer = ask(
        &harness,
        everywhere(),
        "tools/list",
        json!({ "cursor": "x" }),
    )
    .await;
    assert_eq!(answer["error"]["code"], -32602);
}
