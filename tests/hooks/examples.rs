//! The examples of `conf/examples/hooks`, as an operator runs them.

use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{call, session, text};
use crate::support::ports::free_address;
use crate::support::{Gateway, eventually, programs};

/// Tools of a small customer database.
const CRM: &str = r#"
from fastmcp.tools import tool


@tool
def find(query: str) -> dict:
    """Finds a customer."""
    return {"query": query, "mail": "ada@example.org", "cards": ["4111 1111 1111 1111", "4111 1111 1111 1112"]}


@tool
def delete_customer(name: str) -> str:
    """Deletes a customer."""
    return "deleted"
"#;

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn the_masking_service_hides_addresses_and_card_numbers() {
    let address = free_address();
    let script = programs::root().join("conf/examples/hooks/masking.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(address.to_string());
    let _service = Running(command.stdin(Stdio::null()).spawn().unwrap());
    let connects = || async { tokio::net::TcpStream::connect(address).await.ok() };
    eventually("the service listens", connects).await;
    let gateway = Gateway::with_tools([("crm", "crm.py", CRM)])
        .config(json!({"hooks": [
            {"on": ["call", "result"], "namespaces": ["crm"], "url": format!("http://{address}/")},
        ]}))
        .start()
        .await;
    let session = session(&gateway, "crm").await;
    let query = json!({"query": "bob.b@mail.example.org, order 1234567890123"});
    let result = call(&session, "find", query).await;
    let expected = json!({"query": "[email], order 1234567890123", "mail": "[email]",
        "cards": ["[card]", "4111 1111 1111 1112"]});
    assert_eq!(result["structuredContent"], expected);
    let shown: Value = serde_json::from_str(text(&result)).unwrap();
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn the_guard_refuses_and_hides_tools_that_delete() {
    let guard = std::fs::read_to_string(programs::root().join("conf/examples/hooks/guard.py"));
    let guard = guard.unwrap();
    let gateway = Gateway::with_tools([("crm", "crm.py", CRM), ("guard", "guard.py", &guard)])
        .config(json!({"hooks": [
            {"on": ["call", "list"], "namespaces": ["crm"], "tool": "guard.check", "timeout": "20s"},
        ]}))
        .start()
        .await;
    let session = session(&gateway, "crm").await;
    let list = session.request(3, "tools/list", json!({})).await;
    let tools = list["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 1, "{list}");
    let result = call(&session, "delete_customer", json!({"name": "Ada"})).await;
    assert_eq!(
        text(&result),
        "hook_refused: delete_customer deletes data, which needs a person: ask the operator of crm"
    );
    let result = call(&session, "find", json!({"query": "Ada"})).await;
    assert_eq!(result["structuredContent"]["query"], "Ada");
}
