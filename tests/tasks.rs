//! Python tools as tasks, for clients of 2025-11-25 and of 2026-07-28: states and outcomes, owners, questions, and ends of tasks.

mod durable;
mod ends;
mod questions;

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::gateway::Builder;
use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, eventually, sha256};

const LEGACY: &str = "2025-11-25";
const EXTENSION: &str = "io.modelcontextprotocol/tasks";
const RELATED: &str = "io.modelcontextprotocol/related-task";

const TOOLS: &str = r#"
import asyncio
import os

from fastmcp import Context
from fastmcp.exceptions import ToolError
from fastmcp.tools import tool


@tool(task=True)
async def job(folder: str, ctx: Context) -> str:
    """Leaves a mark, and works until it finds a gate"""
    with open(f"{folder}/marks", "a") as marks:
        marks.write("run\n")
    await ctx.report_progress(1, 2, "half done")
    try:
        while not os.path.exists(f"{folder}/gate"):
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        open(f"{folder}/cancelled", "w").close()
        raise
    return "done"


@tool(task="required")
async def only_task(fail: bool = False) -> str:
    if fail:
        raise ToolError("it failed")
    return "a result"


@tool(task=True)
async def asks(ctx: Context) -> str:
    answer = await ctx.elicit("Sure?", bool)
    return answer.action


@tool
def plain() -> str:
    return "no task"
"#;

fn gateway() -> Builder {
    Gateway::with_tools([("jobs", "jobs.py", TOOLS)])
}

fn marks(folder: &Path) -> usize {
    let marks = std::fs::read_to_string(folder.join("marks")).unwrap_or_default();
    marks.lines().count()
}

fn open_gate(folder: &Path) {
    std::fs::write(folder.join("gate"), "").expect("written");
}

/// A request of a client of 2026-07-28 that knows tasks.
async fn modern(gateway: &Gateway, method: &str, params: Value) -> Value {
    let capabilities = json!({"elicitation": {}, "extensions": {EXTENSION: {}}});
    modern_as(gateway, method, params, capabilities).await
}

async fn modern_as(gateway: &Gateway, method: &str, params: Value, capabilities: Value) -> Value {
    let mut params = params;
    params["_meta"] = json!({ "io.modelcontextprotocol/clientCapabilities": capabilities });
    let message = crate::modern::message(json!(1), method, params);
    crate::modern::ask(gateway, "jobs", &message).await.1
}

fn call(tool: &str, arguments: Value) -> Value {
    json!({"name": tool, "arguments": arguments})
}

/// The parameters of a call as a task of 2025-11-25.
fn as_task(tool: &str, arguments: Value) -> Value {
    json!({"name": tool, "arguments": arguments, "task": {}})
}

fn id_of(created: &Value) -> String {
    let result = &created["result"];
    let task = result.get("task").unwrap_or(result);
    task["taskId"]
        .as_str()
        .unwrap_or_else(|| panic!("{created}"))
        .to_owned()
}

/// Waits until a client of 2026-07-28 sees that state.
async fn settled(gateway: &Gateway, id: &str, status: &str) -> Value {
    eventually(status, async || {
        let state = modern(gateway, "tasks/get", json!({"taskId": id})).await;
        (state["result"]["status"] == status).then_some(state)
    })
    .await
}

#[tokio::test]
async fn a_client_of_2025_11_25_begins_a_task_and_fetches_its_result() {
    let gateway = gateway().start().await;
    let session = Session::start(&gateway, "jobs", LEGACY).await;
    let listed = session.request(2, "tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().expect("tools");
    let support = |name: &str| {
        let tool = tools.iter().find(|tool| tool["name"] == name);
        tool.expect("a tool")["execution"]["taskSupport"].clone()
    };
    assert_eq!(support("job"), "optional");
    assert_eq!(support("only_task"), "required");
    assert_eq!(support("plain"), Value::Null);

    let folder = TempDir::new().expect("a folder");
    let arguments = json!({"folder": folder.path()});
    let created = session
        .request(3, "tools/call", as_task("job", arguments))
        .await;
    let task = &created["result"]["task"];
    assert_eq!(task["status"], "working", "{created}");
    for key in ["createdAt", "lastUpdatedAt", "ttl", "pollInterval"] {
        assert!(!task[key].is_null(), "{key}: {created}");
    }
    let id = json!({"taskId": id_of(&created)});
    eventually("progress shows in the state", async || {
        let state = session.request(4, "tasks/get", id.clone()).await;
        (state["result"]["statusMessage"] == "half done").then_some(())
    })
    .await;
    let listed = session.request(5, "tasks/list", json!({})).await;
    assert_eq!(listed["result"]["tasks"][0]["taskId"], id["taskId"]);

    // The result is waited for.
    let (result, ()) = tokio::join!(session.request(6, "tasks/result", id.clone()), async {
        open_gate(folder.path());
    });
    assert_eq!(result["result"]["content"][0]["text"], "done", "{result}");
    assert_eq!(result["result"]["_meta"][RELATED], id);
    let state = session.request(7, "tasks/get", id.clone()).await;
    assert_eq!(state["result"]["status"], "completed");
    let late = session.request(8, "tasks/cancel", id).await;
    assert_eq!(late["error"]["code"], -32602, "{late}");
    assert_eq!(marks(folder.path()), 1);
}

#[tokio::test]
async fn a_call_without_the_wish_for_a_task_is_an_ordinary_one_or_is_refused() {
    let gateway = gateway().start().await;
    let folder = TempDir::new().expect("a folder");
    open_gate(folder.path());
    let arguments = json!({"folder": folder.path()});
    let session = Session::start(&gateway, "jobs", LEGACY).await;
    let older = Session::start(&gateway, "jobs", "2025-06-18").await;
    for session in [&session, &older] {
        let mut answer = session.call(2, "job", arguments.clone()).await;
        let last = answer.messages().await.pop().expect("an answer");
        assert_eq!(last["result"]["content"][0]["text"], "done", "{last}");
        let refused = session
            .request(3, "tools/call", call("only_task", json!({})))
            .await;
        assert_eq!(refused["error"]["code"], -32601, "{refused}");
    }
    let refused = session
        .request(4, "tools/call", as_task("plain", json!({})))
        .await;
    assert_eq!(refused["error"]["code"], -32601, "{refused}");

    let (_, rest) = gateway.call("jobs", "only_task", json!({})).await;
    assert_eq!(rest["error"]["code"], "missing_capability", "{rest}");
    let (status, rest) = gateway.call("jobs", "job", arguments).await;
    assert_eq!(status, 200, "{rest}");

    let refused = modern_as(
        &gateway,
        "tools/call",
        call("only_task", json!({})),
        json!({}),
    )
    .await;
    assert_eq!(refused["error"]["code"], -32021, "{refused}");
}

#[tokio::test]
async fn failures_of_the_tool_are_results_and_a_question_without_an_answer_is_the_tools_to_handle()
{
    let gateway = gateway().start().await;
    let created = modern(
        &gateway,
        "tools/call",
        call("only_task", json!({"fail": true})),
    )
    .await;
    let state = settled(&gateway, &id_of(&created), "completed").await;
    assert_eq!(state["result"]["result"]["isError"], true, "{state}");

    let session = Session::start_as(&gateway, "jobs", LEGACY, TOKEN, json!({})).await;
    let created = session
        .request(2, "tools/call", as_task("asks", json!({})))
        .await;
    let failed = session
        .request(3, "tasks/result", json!({"taskId": id_of(&created)}))
        .await;
    assert_eq!(failed["error"]["code"], -32021, "{failed}");
}

#[tokio::test]
async fn a_task_is_unknown_to_other_principals_and_namespaces() {
    let tokens = json!({"admission": {"tokens": [
        {"name": "eve", "sha256": sha256("eves-token"), "namespaces": ["*"]}]}});
    let gateway = gateway().config(tokens);
    let gateway = gateway.fixture("tasks", "conformance/tasks").start().await;
    let ada = Session::start_as(&gateway, "jobs", LEGACY, TOKEN, json!({})).await;
    let created = ada
        .request(2, "tools/call", as_task("only_task", json!({})))
        .await;
    let id = json!({"taskId": id_of(&created)});
    let eve = Session::start_as(&gateway, "jobs", LEGACY, "eves-token", json!({})).await;
    let elsewhere = Session::start_as(&gateway, "tasks", LEGACY, TOKEN, json!({})).await;
    for other in [&eve, &elsewhere] {
        for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
            let unknown = other.request(3, method, id.clone()).await;
            assert_eq!(unknown["error"]["code"], -32602, "{method} {unknown}");
            let made_up = other.request(4, method, json!({"taskId": "made up"})).await;
            assert_eq!(made_up["error"], unknown["error"]);
        }
        let listed = other.request(5, "tasks/list", json!({})).await;
        assert_eq!(listed["result"]["tasks"], json!([]));
    }
    let result = ada.request(6, "tasks/result", id).await;
    assert_eq!(result["result"]["content"][0]["text"], "a result");
}

#[tokio::test]
async fn an_aggregate_publishes_tasks_of_its_members_as_its_own() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("tools.toml");
    let servers = "active_toolsets = [\"*\"]\n[[servers]]\nnamespace = \"sub\"\nfrom = \"jobs\"\n";
    std::fs::write(&file, servers).expect("written");
    let gateway = gateway()
        .config(json!({"toolman": {"toolman": {"config": file}}}))
        .start()
        .await;
    let session = Session::start_as(&gateway, "toolman", LEGACY, TOKEN, json!({})).await;
    let created = session
        .request(2, "tools/call", as_task("sub_only_task", json!({})))
        .await;
    let id = json!({"taskId": id_of(&created)});
    let result = session.request(3, "tasks/result", id.clone()).await;
    assert_eq!(
        result["result"]["content"][0]["text"], "a result",
        "{result}"
    );
    let direct = Session::start_as(&gateway, "jobs", LEGACY, TOKEN, json!({})).await;
    let unknown = direct.request(4, "tasks/get", id).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");

    let capabilities =
        json!({"io.modelcontextprotocol/clientCapabilities": {"extensions": {EXTENSION: {}}}});
    let ask = async |method: &str, mut params: Value| {
        params["_meta"] = capabilities.clone();
        let message = crate::modern::message(json!(1), method, params);
        crate::modern::ask(&gateway, "toolman", &message).await.1
    };
    let offered = ask("server/discover", json!({})).await;
    let extensions = &offered["result"]["capabilities"]["extensions"];
    assert!(extensions[EXTENSION].is_object(), "{offered}");
    let created = ask("tools/call", call("sub_asks", json!({}))).await;
    assert_eq!(created["result"]["resultType"], "task", "{created}");
    let cancelled = ask("tasks/cancel", json!({"taskId": id_of(&created)})).await;
    assert_eq!(cancelled["result"]["resultType"], "complete", "{cancelled}");
}
