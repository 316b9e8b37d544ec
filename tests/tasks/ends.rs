//! Ends of tasks: cancellation, time limits, lifetime, a dead worker.

use serde_json::json;
use tempfile::TempDir;

use super::{LEGACY, as_task, call, gateway, id_of, marks, modern, settled};
use crate::support::eventually;
use crate::support::session::Session;

#[tokio::test]
async fn a_cancelled_task_ends_its_call() {
    let gateway = gateway().start().await;
    let folder = TempDir::new().expect("a folder");
    let arguments = json!({"folder": folder.path()});
    let created = modern(&gateway, "tools/call", call("job", arguments)).await;
    let id = json!({"taskId": id_of(&created)});
    eventually("the tool runs", async || {
        (marks(folder.path()) == 1).then_some(())
    })
    .await;
    for _ in 0..2 {
        let taken = modern(&gateway, "tasks/cancel", id.clone()).await;
        assert_eq!(taken["result"]["resultType"], "complete", "{taken}");
        let state = modern(&gateway, "tasks/get", id.clone()).await;
        assert_eq!(state["result"]["status"], "cancelled", "{state}");
    }
    eventually("the call is cancelled", async || {
        folder.path().join("cancelled").exists().then_some(())
    })
    .await;
    let session = Session::start(&gateway, "jobs", LEGACY).await;
    let none = session.request(2, "tasks/result", id).await;
    assert!(none["error"]["code"].is_i64(), "{none}");
}

#[tokio::test]
async fn a_task_that_never_ends_fails_at_its_time_limit() {
    let limits = json!({"namespaces": {"overrides": {"jobs": {"task_timeout": "300ms"}}}});
    let gateway = gateway().config(limits).start().await;
    let folder = TempDir::new().expect("a folder");
    let arguments = json!({"folder": folder.path()});
    let created = modern(&gateway, "tools/call", call("job", arguments)).await;
    let state = settled(&gateway, &id_of(&created), "failed").await;
    let error = &state["result"]["error"];
    assert_eq!(error["data"]["code"], "execution_timeout", "{state}");
    eventually("the call is cancelled", async || {
        folder.path().join("cancelled").exists().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_task_may_take_longer_than_an_ordinary_call() {
    let limits = json!({"namespaces": {"overrides": {"jobs": {"timeout": "100ms"}}}});
    let gateway = gateway().config(limits).start().await;
    let folder = TempDir::new().expect("a folder");
    let arguments = json!({"folder": folder.path()});
    let created = modern(&gateway, "tools/call", call("job", arguments.clone())).await;
    // An ordinary call that began later has reached its limit.
    let session = Session::start(&gateway, "jobs", LEGACY).await;
    let mut answer = session.call(2, "job", arguments).await;
    let last = answer.messages().await.pop().expect("an answer");
    assert_eq!(last["result"]["isError"], true, "{last}");
    super::open_gate(folder.path());
    settled(&gateway, &id_of(&created), "completed").await;
}

#[tokio::test]
async fn a_task_is_deleted_when_its_time_is_over() {
    let gateway = gateway().start().await;
    let session = Session::start(&gateway, "jobs", LEGACY).await;
    let folder = TempDir::new().expect("a folder");
    let mut params = as_task("job", json!({"folder": folder.path()}));
    params["task"] = json!({"ttl": 1});
    let created = session.request(2, "tools/call", params).await;
    // The shortest lifetime is a second.
    assert_eq!(created["result"]["task"]["ttl"], 1000, "{created}");
    let id = json!({"taskId": id_of(&created)});
    eventually("the task is gone", async || {
        let state = session.request(3, "tasks/get", id.clone()).await;
        (state["error"]["code"] == -32602).then_some(())
    })
    .await;
    eventually("the call is cancelled", async || {
        folder.path().join("cancelled").exists().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_task_whose_worker_dies_has_failed() {
    const DYING: &str = "import os\nfrom fastmcp.tools import tool\n\n\n@tool(task=True)\ndef die() -> str:\n    os._exit(3)\n";
    let gateway = crate::support::Gateway::with_tools([("jobs", "dying.py", DYING)]);
    let gateway = gateway.start().await;
    let created = modern(&gateway, "tools/call", call("die", json!({}))).await;
    let state = settled(&gateway, &id_of(&created), "failed").await;
    let error = &state["result"]["error"];
    assert_eq!(error["data"]["code"], "worker_unavailable", "{state}");
}
