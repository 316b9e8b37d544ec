//! Values of secrets in what clients are told of failures: none, over MCP and over REST, from functions, stdio servers and
//! remote servers. The result of a call that succeeded is the tool's own.

use std::fs;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, eventually, programs};

const CANARY: &str = "canary-7f3a9b-value";
const VERSION: &str = "2025-11-25";

const FUNCTIONS: &str = r#"
import os
from fastmcp import Context
from fastmcp.exceptions import ToolError
from fastmcp.tools import tool

SECRET = os.environ["API_TOKEN"]

@tool
def says_error() -> str:
    """Raises for the model."""
    raise ToolError(f"the server refused {SECRET}")

@tool
def fails() -> str:
    """Raises something."""
    raise RuntimeError(f"the server refused {SECRET}")

@tool
async def reports(ctx: Context) -> str:
    """Tells before it answers."""
    await ctx.error(f"the server refused {SECRET}")
    await ctx.report_progress(1, 2, f"the server refused {SECRET}")
    return f"the server refused {SECRET}"
"#;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A remote server that quotes the header it gets, and its address.
async fn remote(folder: &TempDir) -> (Server, String) {
    let file = folder.path().join("address");
    let mut command = programs::python("base");
    command.arg(script()).arg("http").arg(&file);
    let server = command.stdin(Stdio::null()).spawn().expect("started");
    let address = eventually("the server listens", || async {
        fs::read_to_string(&file).ok()
    });
    let address = address.await;
    (Server(server), address)
}

fn script() -> String {
    let script = programs::root().join("tests/fixtures/servers/leaky.py");
    let script = std::path::absolute(script).expect("a path");
    script.display().to_string()
}

/// All that a call with a progress token is answered.
async fn said(session: &Session, tool: &str) -> Vec<Value> {
    let params = json!({"name": tool, "arguments": {}, "_meta": {"progressToken": 7}});
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let mut answer = session.post(&call).await;
    match answer.is_events() {
        true => answer.messages().await,
        false => vec![answer.json().await],
    }
}

#[tokio::test]
async fn values_of_secrets_are_in_nothing_that_tells_of_a_failure() {
    let folder = TempDir::new().expect("a temporary directory");
    let (_server, url) = remote(&folder).await;
    let headers = json!({"set": {"Authorization": "Bearer ${API_TOKEN}"}});
    let remote = |mode: &str| json!({"backends": [url], "mode": mode, "headers": headers});
    let stdio = json!({
        "command": "python3", "args": [script(), "stdio"], "env": {"API_TOKEN": "${API_TOKEN}"},
    });
    let mut per_session = stdio.clone();
    per_session["isolation"] = json!("session");
    let gateway = Gateway::with_tools([
        ("functions", "tools.py", FUNCTIONS),
        (
            "functions",
            "tooldock.yaml",
            "env: { API_TOKEN: '${API_TOKEN}' }",
        ),
    ])
    .config(
        json!({"namespaces": {"env_allowed": ["API_TOKEN"]}, "upstreams": {
            "stdio": {"stdio": stdio, "own": per_session},
            "remote": {"passed": remote("pass_through"), "client": remote("client")},
        }}),
    )
    .env("API_TOKEN", CANARY)
    .start()
    .await;
    for namespace in ["functions", "stdio", "own", "passed", "client"] {
        let capabilities = json!({});
        let session = Session::start_as(&gateway, namespace, VERSION, TOKEN, capabilities).await;
        let level = json!({"level": "debug"});
        session.request(2, "logging/setLevel", level).await;
        for tool in ["says_error", "fails"] {
            let said = said(&session, tool).await;
            let text = json!(said).to_string();
            assert!(
                text.contains("refused [redacted]"),
                "{namespace} {tool}: {text}"
            );
            assert!(!text.contains(CANARY), "{namespace} {tool}: {text}");
            let (status, answer) = gateway.call(namespace, tool, json!({})).await;
            let text = answer.to_string();
            assert!(status >= 400, "{namespace} {tool}: {text}");
            assert!(
                text.contains("refused [redacted]"),
                "{namespace} {tool}: {text}"
            );
            assert!(!text.contains(CANARY), "{namespace} {tool}: {text}");
        }
        let said = said(&session, "reports").await;
        let (answer, before) = said.split_last().expect("an answer");
        assert_eq!(before.len(), 2, "{namespace}: {before:?}");
        for message in before {
            let text = message.to_string();
            assert!(text.contains("refused [redacted]"), "{namespace}: {text}");
            assert!(!text.contains(CANARY), "{namespace}: {text}");
        }
        let answer = answer["result"].to_string();
        assert!(answer.contains(CANARY), "{namespace}: {answer}");
    }
}
