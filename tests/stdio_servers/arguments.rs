//! Blame for failed REST calls: arguments are checked against the schema here, and refusals by servers themselves are
//! understood, for servers of all languages.

use serde_json::{Value, json};

use super::{everything, serving};
use crate::support::{eventually, programs};

/// Servers written with each SDK. Their tool `half` takes an even number, which most of their schemas cannot say, or
/// not where the gateway reads it;
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

#[tokio::test]
async fn arguments_are_held_against_the_schema_of_the_tool() {
    let gateway =
        serving(json!({"legacy": everything("legacy"), "modern": everything("modern")})).await;
    for namespace in ["legacy", "modern"] {
        let tool = "json_schema_2020_12_tool";
        let fits = json!({"contactMethod": "phone", "phone": "1"});
        let (status, answer) = gateway.call(namespace, tool, fits).await;
        assert_eq!(status, 200, "{answer}");
        let wrong = json!({"contactMethod": "phone", "email": "secret", "address": {"street": 5}, "more": 1});
        let (status, answer) = gateway.call(namespace, tool, wrong).await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (422, &json!("invalid_arguments")),
            "{answer}"
        );
        assert!(!answer.to_string().contains("secret"), "{answer}");
        let mut places: Vec<_> = answer["error"]["details"]["errors"]
            .as_array()
            .expect("problems")
            .iter()
            .map(|problem| format!("{} {}", problem["loc"], problem["type"]))
            .collect();
        places.sort();
        assert_eq!(
            places,
            [
                r#"["address","street"] "type""#,
                r#"["more"] "additionalProperties""#,
                r#"["phone"] "required""#
            ]
        );
    }
}

#[tokio::test]
async fn arguments_that_are_json_in_strings_are_read_where_the_operator_says_so() {
    let servers = || json!({"legacy": everything("legacy"), "modern": everything("modern")});
    let said = |address: &str| json!({"contactMethod": "phone", "phone": "1", "address": address});
    let tool = "json_schema_2020_12_tool";
    let strict = serving(servers()).await;
    let builder = super::with_servers(servers()).config(json!({
        "namespaces": {"defaults": {"coerce_arguments": true}},
    }));
    let lenient = super::start(builder).await;
    for namespace in ["legacy", "modern"] {
        let spelled = said(r#"{"street":"Main"}"#);
        let (status, answer) = strict.call(namespace, tool, spelled.clone()).await;
        assert_eq!(status, 422, "{answer}");
        let (status, answer) = lenient.call(namespace, tool, spelled).await;
        assert_eq!(status, 200, "{answer}");
        let (status, answer) = lenient.call(namespace, tool, said("[]")).await;
        assert_eq!(status, 422, "{answer}");
    }
    let marks = eventually("the calls are in the audit log", || async {
        let lines = crate::observability::audit(&lenient);
        let lines: Vec<_> = lines.iter().filter(|it| it["tool"] == tool).collect();
        let marks: Vec<_> = lines.iter().map(|it| it["coerced"].clone()).collect();
        (marks.len() == 4).then_some(marks)
    })
    .await;
    let coerced = marks.iter().filter(|mark| **mark == json!(true)).count();
    assert_eq!(coerced, 2, "{marks:?}");
}
