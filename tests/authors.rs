//! Messages for an author of tools, in answers and in the log.

use std::fs;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::support::manager::{Manager, with_manager};
use crate::support::ports::free_address;
use crate::support::{Gateway, eventually, tools};

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

/// The exit status and the output of `tooldock check`.
fn check(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .arg("check")
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .output()
        .expect("started");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
fn check_names_file_and_line_of_mistakes_in_a_folder_that_no_gateway_serves() {
    let folder = TempDir::new().expect("a temporary directory");
    let tools = folder.path().join("my-tools");
    fs::create_dir(&tools).expect("made");
    let write = |name: &str, text: &str| fs::write(tools.join(name), text).expect("written");
    // Nothing is imported: a package that is not there is no mistake here.
    let good = "import not_there\nfrom fastmcp.tools import tool\n\n@tool\ndef add(a: int) -> int:\n    return a\n";
    write("add.py", good);
    let path = tools.display().to_string();
    let (status, text) = check(&[&path]);
    assert_eq!(status, Some(0), "{text}");
    write("_helper.py", "x = 1\nreturn x\n");
    write(
        "star.py",
        "from fastmcp.tools import tool\n\n@tool\ndef star(*all: int) -> int:\n    return 1\n",
    );
    let (status, text) = check(&[&path]);
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("_helper.py:2: SyntaxError"), "{text}");
    assert!(
        text.contains("star.py:4: star will not be served"),
        "{text}"
    );
    let (status, text) = check(&[&format!("{path}/add.py")]);
    assert_eq!(status, Some(0), "{text}");
    let (status, text) = check(&[&format!("{path}/_helper.py"), "--format", "github"]);
    assert_eq!(status, Some(2), "{text}");
    let line = text.lines().next().unwrap_or_default();
    let expected = format!("::error file={path}/_helper.py,line=2::SyntaxError");
    assert!(line.starts_with(&expected), "{text}");
}

#[tokio::test]
async fn check_imports_the_files_of_a_served_folder_with_its_variables_and_hides_secrets() {
    let imports = "from fastmcp.tools import tool\n\nimport not_there\n\n@tool\ndef one() -> int:\n    return not_there.one\n";
    let raises = "import os\nfrom fastmcp.tools import tool\nassert os.environ['REGION'] == 'eu'\nraise ValueError('no ' + os.environ['API_KEY'])\n\n@tool\ndef two() -> int:\n    return 2\n";
    let gateway = Gateway::with_tools([
        ("author", "raises.py", RAISES),
        ("author", "imports.py", imports),
        ("author", "secret.py", raises),
        (
            "author",
            "tooldock.yaml",
            "env: { REGION: 'eu' }\nsecrets: [API_KEY]\n",
        ),
    ])
    .start()
    .await;
    let folder = gateway.tools_dir().join("author");
    let (status, text) = check(&[&folder.display().to_string()]);
    assert_eq!(status, Some(2), "{text}");
    assert!(
        text.contains("imports.py:3: No module named 'not_there'"),
        "{text}"
    );
    assert!(text.contains("secret.py:4: KeyError: 'API_KEY'"), "{text}");
    assert!(!text.contains("raises.py"), "{text}");
}

const DOES_NOT_LOAD: &str = r#"
from fastmcp.tools import tool
raise ValueError("no table")

@tool
def repeat(text: str) -> str:
    """Say it twice."""
    return text * 2
"#;

const NOT_LOADED: &str = "repeat.py was not loaded: ValueError: no table (repeat.py line 3)";

fn tool_call(tool: &str) -> serde_json::Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}}})
}

#[tokio::test]
async fn an_unknown_tool_names_the_file_that_was_not_loaded_to_callers_of_every_tool() {
    let files = [
        ("author", "repeat.py", DOES_NOT_LOAD),
        ("author", "hello.py", tools::HELLO),
        ("author", "tooldock.yaml", "tools_deny: ['secret_*']\n"),
    ];
    let (builder, address) = with_manager(Gateway::with_tools(files));
    let gateway = builder.start().await;
    let told = format!("Unknown tool: repeat; {NOT_LOADED}");
    let (status, refused) = gateway.call("author", "repeat", json!({})).await;
    assert_eq!((status, &refused["detail"]), (404, &json!(told)));
    assert_eq!(refused["error"]["code"], "tool_not_found");
    let (_, answer) = gateway.mcp("author", tool_call("repeat")).await;
    let text = &answer["result"]["content"][0]["text"];
    assert_eq!(*text, format!("tool_not_found: {told}"), "{answer}");
    let schema = gateway.request("GET", "/tools/repeat/schema");
    let schema = schema.header("X-Namespace", "author").send().await.unwrap();
    assert_eq!(schema.status(), 404);
    assert!(schema.text().await.unwrap().contains(NOT_LOADED));

    let manager = Manager::open(address).await;
    let trial = json!({"namespace": "author", "tool_name": "repeat", "input": {}});
    let tried = manager.call("test_tool", trial).await.value();
    let error = tried["error"].as_str().unwrap();
    assert!(error.contains(NOT_LOADED), "{error}");

    // A name that the policy hides, and a key of certain tools, lead to no file.
    let (_, hidden) = gateway.call("author", "secret_repeat", json!({})).await;
    assert_eq!(hidden["detail"], "Unknown tool: secret_repeat");
    let wanted = json!({"name": "ci", "scopes": ["write"], "namespaces": ["author"]});
    let made = manager.call("token_create", wanted).await.value();
    for tool in ["repeat", "project_repeat"] {
        let request = gateway.client.post(gateway.url(&format!("/tools/{tool}")));
        let request = request.bearer_auth(made["token"].as_str().unwrap());
        let request = request.header("X-Namespace", "author").json(&json!({}));
        let refused = request.send().await.unwrap();
        assert!([403, 404].contains(&refused.status().as_u16()));
        let text = refused.text().await.unwrap();
        assert!(!text.contains("repeat.py"), "{text}");
    }
}

#[tokio::test]
async fn an_unknown_tool_names_the_file_whose_port_the_process_before_still_holds() {
    let port = free_address().port();
    let source = |greeting: &str| {
        format!(
            r#"
import socket
from fastmcp.tools import tool
held = socket.create_server(("127.0.0.1", {port}))

@tool
def port() -> str:
    """Hold a port."""
    return "{greeting}"
"#
        )
    };
    let gateway = Gateway::with_tools([
        ("author", "hello.py", tools::HELLO),
        ("author", "holds.py", &source("one")),
    ])
    .start()
    .await;
    assert_eq!(
        gateway.call("author", "port", json!({})).await,
        (200, json!("one"))
    );
    gateway.drop_tool("author", "holds.py", &source("two"));
    let report = gateway.reload().await;
    assert_eq!(report["issues"][0]["subject"], "holds.py", "{report}");
    let (status, refused) = gateway.call("author", "port", json!({})).await;
    let detail = refused["detail"].as_str().unwrap();
    assert_eq!(status, 404, "{detail}");
    assert!(
        detail.starts_with("Unknown tool: port; holds.py was not loaded: OSError: "),
        "{detail}"
    );
}

#[tokio::test]
async fn an_unknown_namespace_whose_folder_was_not_loaded_says_how_to_load_it() {
    let (builder, address) = with_manager(Gateway::empty());
    let gateway = builder.start().await;
    let told = "Its folder exists in the tools directory and is not loaded: call reload_core or POST /reload.";
    let refusal = async |namespace: &str| {
        let (status, refused) = gateway.call(namespace, "say_hello", json!({})).await;
        assert_eq!(status, 404);
        refused["detail"].as_str().unwrap().to_owned()
    };
    assert!(!refusal("author").await.contains("folder"));
    gateway.drop_tool("author", "hello.py", tools::HELLO);
    let detail = refusal("author").await;
    assert!(detail.contains(told), "{detail}");
    let (status, answer) = gateway.mcp("author", tool_call("say_hello")).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(status == 404 && message.contains(told), "{answer}");

    let manager = Manager::open(address).await;
    let trial = json!({"namespace": "author", "tool_name": "say_hello", "input": {}});
    let refused = manager.call("test_tool", trial.clone()).await;
    assert!(refused.error().contains("call reload_core"), "{refused:?}");
    gateway.reload().await;
    let tried = manager.call("test_tool", trial).await.value();
    assert_eq!(tried["success"], true, "{tried}");
}

const WRONG_TYPES: &str = r#"
from fastmcp.tools import tool

@tool
def number() -> int:
    """Return a text."""
    return "secret five"

@tool
def numbers() -> list[int]:
    """Return a text among numbers."""
    return [1, "two"]

@tool
def converted() -> int:
    """Return a number as text."""
    return "5"

@tool
def path() -> str:
    """Return what is a text once it is written."""
    from pathlib import Path
    return Path("/a")
"#;

#[tokio::test]
async fn a_result_that_does_not_fit_its_annotation_is_an_error_for_every_client() {
    let gateway = Gateway::with_tools([("author", "wrong.py", WRONG_TYPES)])
        .start()
        .await;
    for (tool, told) in [
        (
            "number",
            "the result does not fit the return annotation int: the result: Input should be a valid integer",
        ),
        (
            "numbers",
            "the result does not fit the return annotation list[int]: 1: Input should be a valid integer",
        ),
    ] {
        let (status, failed) = gateway.call("author", tool, json!({})).await;
        assert_eq!(status, 500, "{failed}");
        assert_eq!(failed["error"]["code"], "output_type");
        assert!(
            failed["detail"].as_str().unwrap().starts_with(told),
            "{failed}"
        );
        let (_, answer) = gateway.mcp("author", tool_call(tool)).await;
        let result = &answer["result"];
        assert_eq!(result["isError"], true, "{answer}");
        assert_eq!(result["_meta"]["tooldock/error"]["code"], "output_type");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(
            text.starts_with(&format!("output_type: {told}")),
            "{answer}"
        );
        assert!(!answer.to_string().contains("secret"), "{answer}");
    }
    assert_eq!(
        gateway.call("author", "converted", json!({})).await,
        (200, json!(5))
    );
    assert_eq!(
        gateway.call("author", "path", json!({})).await,
        (200, json!("/a"))
    );
}
