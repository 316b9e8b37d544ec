//! Tasks beyond a process: a killed gateway, replicas, reloads.

use serde_json::json;
use tempfile::TempDir;

use super::{LEGACY, TOOLS, as_task, call, gateway, id_of, marks, modern, open_gate, settled};
use crate::replicas::{member, see};
use crate::support::redis::Redis;
use crate::support::session::Session;
use crate::support::{Gateway, eventually};

#[tokio::test]
async fn a_result_survives_a_killed_gateway_and_a_task_that_ran_has_failed() {
    let store = json!({"sessions": {"store": "disk"}});
    let mut gateway = gateway().config(store).start().await;
    let folder = TempDir::new().expect("a folder");
    let created = modern(&gateway, "tools/call", call("only_task", json!({}))).await;
    let kept = id_of(&created);
    settled(&gateway, &kept, "completed").await;
    let arguments = json!({"folder": folder.path()});
    let created = modern(&gateway, "tools/call", call("job", arguments)).await;
    let ran = id_of(&created);
    eventually("the tool runs", async || {
        (marks(folder.path()) == 1).then_some(())
    })
    .await;

    gateway.killed_and_started_again().await;
    open_gate(folder.path());
    let state = modern(&gateway, "tasks/get", json!({"taskId": kept})).await;
    let text = &state["result"]["result"]["content"][0]["text"];
    assert_eq!(text, "a result", "{state}");
    let state = modern(&gateway, "tasks/get", json!({"taskId": ran})).await;
    assert_eq!(state["result"]["status"], "failed", "{state}");
    let reason = &state["result"]["error"]["message"];
    assert_eq!(reason, "the process that ran it ended", "{state}");
    assert!(state["result"].get("result").is_none(), "{state}");

    // The failure is recorded, and the tool is not run again.
    gateway.killed_and_started_again().await;
    let again = modern(&gateway, "tasks/get", json!({"taskId": ran})).await;
    assert_eq!(again["result"]["status"], "failed", "{again}");
    let session = Session::start(&gateway, "jobs", LEGACY).await;
    let listed = session.request(2, "tasks/list", json!({})).await;
    let listed = listed["result"]["tasks"].as_array().expect("a list");
    let states: Vec<_> = listed.iter().map(|task| &task["status"]).collect();
    assert_eq!(states, ["failed", "completed"]);
    assert_eq!(marks(folder.path()), 1);
}

#[tokio::test]
async fn any_replica_answers_for_a_task_and_cancels_it() {
    let redis = Redis::start().await;
    let replica = async |name: &str| {
        let gateway = Gateway::with_tools([("jobs", "jobs.py", TOOLS)]);
        member(gateway, &redis, name).start().await
    };
    let (one, mut two) = tokio::join!(replica("one"), replica("two"));
    for gateway in [&one, &two] {
        see(gateway, 2).await;
    }
    let folder = TempDir::new().expect("a folder");
    let arguments = json!({"folder": folder.path()});
    let begin = async |gateway: &Gateway| {
        id_of(&modern(gateway, "tools/call", call("job", arguments.clone())).await)
    };
    // A request of 2026-07-28 is answered by the replica that runs the task.
    let id = begin(&one).await;
    eventually("the other replica knows the progress", async || {
        let state = modern(&two, "tasks/get", json!({"taskId": id})).await;
        (state["result"]["statusMessage"] == "half done").then_some(())
    })
    .await;
    let asking = modern(&one, "tools/call", call("asks", json!({}))).await;
    let asking = id_of(&asking);
    let state = settled(&two, &asking, "input_required").await;
    let requests = state["result"]["inputRequests"]
        .as_object()
        .expect("questions");
    let key = requests.keys().next().expect("a question").clone();
    let inputs = json!({key: {"action": "decline"}});
    let params = json!({"taskId": asking, "inputResponses": inputs});
    let taken = modern(&two, "tasks/update", params).await;
    assert_eq!(taken["result"]["resultType"], "complete", "{taken}");
    let state = settled(&two, &asking, "completed").await;
    let text = &state["result"]["result"]["content"][0]["text"];
    assert_eq!(text, "decline", "{state}");

    // A session lives on one replica, and cancels a task of the other by its record.
    let session = Session::start(&two, "jobs", LEGACY).await;
    let cancelled = session
        .request(2, "tasks/cancel", json!({"taskId": id}))
        .await;
    assert_eq!(cancelled["result"]["status"], "cancelled", "{cancelled}");
    eventually("the call is cancelled", async || {
        folder.path().join("cancelled").exists().then_some(())
    })
    .await;

    // A task of a replica that was killed has failed, and runs nowhere else.
    let lost = begin(&two).await;
    eventually("the tool runs", async || {
        (marks(folder.path()) == 2).then_some(())
    })
    .await;
    two.kill();
    see(&one, 1).await;
    let state = modern(&one, "tasks/get", json!({"taskId": lost})).await;
    assert_eq!(state["result"]["status"], "failed", "{state}");
    assert_eq!(marks(folder.path()), 2);
}

#[tokio::test]
async fn a_reload_ends_no_task() {
    let gateway = gateway().start().await;
    let session = Session::start(&gateway, "jobs", LEGACY).await;
    let folder = TempDir::new().expect("a folder");
    let arguments = json!({"folder": folder.path()});
    let created = session
        .request(2, "tools/call", as_task("job", arguments))
        .await;
    eventually("the tool runs", async || {
        (marks(folder.path()) == 1).then_some(())
    })
    .await;
    gateway.drop_tool("jobs", "jobs.py", &format!("{TOOLS}\n# changed\n"));
    gateway.reload().await;
    open_gate(folder.path());
    let result = session
        .request(3, "tasks/result", json!({"taskId": id_of(&created)}))
        .await;
    assert_eq!(result["result"]["content"][0]["text"], "done", "{result}");
    assert_eq!(marks(folder.path()), 1);
}
