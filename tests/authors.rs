//! What an author of tools learns from answers and the log.

use serde_json::json;

use crate::support::{Gateway, eventually};

const RAISES: &str = r#"
import os
from fastmcp.exceptions import ToolError
from fastmcp.tools import tool

@tool
def leak() -> str:
    """Raise an exception with a secret in its message."""
    raise RuntimeError("cannot log in with " + os.environ["API_KEY"])

@tool
def advise() -> str:
    """Raise a text for the model."""
    raise ToolError("Ask for a city in Europe.")

@tool
def region() -> str:
    """Tell a variable."""
    return os.environ.get("REGION", "unset")
"#;

const MANIFEST: &str = "env: { API_KEY: '${CANARY_KEY}', REGION: 'eu', HIDDEN: '${NOT_ALLOWED}', UNSET: '${ALLOWED_UNSET}' }\n";

async fn gateway(masked: bool) -> Gateway {
    Gateway::with_tools([
        ("author", "raises.py", RAISES),
        ("author", "tooldock.yaml", MANIFEST),
    ])
    .config(json!({ "namespaces": {
        "env_allowed": ["CANARY_KEY", "ALLOWED_UNSET"],
        "defaults": { "mask_errors": masked },
    } }))
    .env("CANARY_KEY", "canary-7f3a9c")
    .env("NOT_ALLOWED", "not for tools")
    .start()
    .await
}

#[tokio::test]
async fn a_traceback_is_logged_with_its_address_and_without_secrets() {
    let gateway = gateway(false).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "leak", "arguments": {}}});
    let (_, answer) = gateway.mcp("author", call).await;
    let error = &answer["result"]["_meta"]["tooldock/error"];
    assert_eq!(error["code"], "internal_error", "{answer}");
    assert!(error["details"].get("traceback").is_none(), "{answer}");
    let id = error["details"]["request_id"].as_str().unwrap();
    let logged = eventually("the traceback in the log", async || {
        let log = gateway.log();
        log.contains("RuntimeError: cannot").then_some(log)
    })
    .await;
    let line = logged
        .lines()
        .find(|line| line.contains("raised an exception"));
    let line = line.unwrap();
    for part in ["WARN", "author", "leak", id] {
        assert!(line.contains(part), "{part} in {line}");
    }
    assert!(
        logged.contains("RuntimeError: cannot log in with [redacted]"),
        "{logged}"
    );
    assert!(!logged.contains("canary-7f3a9c"), "{logged}");
}

#[tokio::test]
async fn masked_errors_name_the_request_and_a_tool_error_stays() {
    let gateway = gateway(true).await;
    let (status, error) = gateway.call("author", "leak", json!({})).await;
    assert_eq!(
        (status, &error["error"]["code"]),
        (500, &json!("internal_error"))
    );
    let text = error.to_string();
    assert!(
        !text.contains("canary-7f3a9c") && !text.contains("log in"),
        "{text}"
    );
    let id = error["error"]["details"]["request_id"].as_str().unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains(id));
    let (status, error) = gateway.call("author", "advise", json!({})).await;
    assert_eq!(
        (status, &error["error"]["code"]),
        (500, &json!("tool_error"))
    );
    assert_eq!(error["detail"], "Ask for a city in Europe.");
    // The holder of the manager token reads the whole.
    let whole = gateway
        .request("POST", "/tools/leak")
        .header("X-Namespace", "author")
        .header("X-Manager-Token", crate::support::gateway::MANAGER_TOKEN)
        .json(&json!({}))
        .send()
        .await
        .unwrap();
    let whole: serde_json::Value = whole.json().await.unwrap();
    assert!(
        whole["detail"].as_str().unwrap().contains("cannot log in"),
        "{whole}"
    );
    assert!(
        whole["error"]["details"]["traceback"]
            .as_str()
            .unwrap()
            .contains("raises.py")
    );
}

#[tokio::test]
async fn a_variable_without_a_value_is_named_and_the_namespace_serves() {
    let gateway = gateway(false).await;
    assert_eq!(
        gateway.call("author", "region", json!({})).await,
        (200, json!("eu"))
    );
    let report = gateway.reload().await;
    let issues = report["issues"].as_array().unwrap();
    let issue = |variable: &str| {
        let subject = format!("tooldock.yaml: env.{variable}");
        let found = issues.iter().find(|issue| issue["subject"] == *subject);
        found.unwrap_or_else(|| panic!("{variable}: {report}"))
    };
    let message = |variable: &str| issue(variable)["message"].as_str().unwrap().to_owned();
    assert!(
        message("UNSET").contains("${ALLOWED_UNSET} is set neither"),
        "{report}"
    );
    assert!(
        message("HIDDEN").contains("namespaces.env_allowed"),
        "{report}"
    );
    assert_eq!(issue("UNSET")["code"], "missing_variable");
    let log = gateway.log();
    assert!(log.contains("${ALLOWED_UNSET} is set neither"), "{log}");
    assert!(!log.contains("not for tools"), "{log}");
}

const SAYS: &str = r#"
import logging
from fastmcp.tools import tool

@tool
def say(what: str) -> str:
    """Print and log."""
    print("printed " + what)
    logging.getLogger("mine").info("logged " + what)
    logging.getLogger("mine").error("broken " + what)
    return what
"#;

#[tokio::test]
async fn what_a_tool_prints_and_logs_has_namespace_level_and_request_in_the_log() {
    let gateway = Gateway::with_tools([("author", "says.py", SAYS)])
        .start()
        .await;
    for (id, what) in [("request-1", "one"), ("request-2", "two")] {
        let answered = gateway
            .request("POST", "/tools/say")
            .header("X-Namespace", "author")
            .header("X-Request-ID", id)
            .json(&json!({ "what": what }))
            .send()
            .await
            .unwrap();
        assert_eq!(answered.status(), 200);
        let id = answered.headers()["x-request-id"].to_str().unwrap();
        let logged = eventually("the last line in the log", async || {
            let log = gateway.log();
            log.contains(&format!("broken {what}")).then_some(log)
        })
        .await;
        for (text, level) in [
            (format!("printed {what}"), "INFO"),
            (format!("mine: logged {what}"), "INFO"),
            (format!("mine: broken {what}"), "ERROR"),
        ] {
            let line = logged.lines().find(|line| line.contains(&text)).unwrap();
            for part in [level, "author", id] {
                assert!(line.contains(part), "{part} in {line}");
            }
        }
    }
}
