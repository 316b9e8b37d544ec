//! Questions of tasks to clients of 2025-11-25: asked on the stream of `tasks/result`, answered once, withdrawn.

use serde_json::{Value, json};

use super::{EXTENSION, LEGACY, RELATED, as_task, gateway, id_of, modern_as};
use crate::legacy_sse::Legacy;
use crate::support::programs::{python, root, run};
use crate::support::session::Session;
use crate::support::sse::Answering;
use crate::support::{Gateway, TOKEN, eventually};

fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn answer(question: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"value": true}}})
}

/// Begins a task that asks a question, waits until the question is open, and returns the parameters that name the task.
async fn asking(session: &Session) -> Value {
    let created = session
        .request(2, "tools/call", as_task("asks", json!({})))
        .await;
    let id = json!({"taskId": id_of(&created)});
    eventually("the task asks", async || {
        let state = session.request(3, "tasks/get", id.clone()).await;
        (state["result"]["status"] == "input_required").then_some(())
    })
    .await;
    id
}

/// Waits for a task, and reads the question on the stream of the wait.
async fn asked(session: &Session, task: &Value) -> (Answering, Value) {
    let mut wait = session
        .post(&request(4, "tasks/result", task.clone()))
        .await;
    assert!(wait.is_events());
    let question = wait.message().await;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    assert_eq!(question["params"]["message"], "Sure?");
    assert_eq!(&question["params"]["_meta"][RELATED], task, "{question}");
    (wait, question)
}

#[tokio::test]
async fn a_task_asks_its_client_on_the_stream_of_the_wait_for_its_result() {
    let gateway = gateway().start().await;
    let session = Session::start(&gateway, "jobs", LEGACY).await;
    let task = asking(&session).await;
    let (mut wait, question) = asked(&session, &task).await;
    assert_eq!(session.post(&answer(&question)).await.status, 202);
    let result = wait.message().await;
    assert_eq!(result["id"], 4);
    assert_eq!(result["result"]["content"][0]["text"], "accept", "{result}");
    assert_eq!(result["result"]["_meta"][RELATED], task);
    let state = session.request(5, "tasks/get", task).await;
    assert_eq!(state["result"]["status"], "completed", "{state}");
}

#[tokio::test]
async fn a_wait_that_begins_before_the_question_is_asked_it() {
    let gateway = gateway().start().await;
    let session = Session::start(&gateway, "jobs", LEGACY).await;
    let created = session
        .request(2, "tools/call", as_task("asks", json!({})))
        .await;
    let task = json!({"taskId": id_of(&created)});
    let (mut wait, question) = asked(&session, &task).await;
    assert_eq!(session.post(&answer(&question)).await.status, 202);
    let result = wait.message().await;
    assert_eq!(result["result"]["content"][0]["text"], "accept", "{result}");
}

#[tokio::test]
async fn a_question_outlives_the_session_that_was_asked_and_goes_to_the_next_wait() {
    let gateway = gateway().start().await;
    let first = Session::start(&gateway, "jobs", LEGACY).await;
    let task = asking(&first).await;
    let (wait, _) = asked(&first, &task).await;
    drop(wait);
    // A second client waits for the task without the capability for questions, so it gets none, and the question stays open.
    let mute = Session::start_as(&gateway, "jobs", LEGACY, TOKEN, json!({})).await;
    let wait = request(9, "tasks/result", task.clone());
    let quiet = tokio::spawn(async move { mute.post(&wait).await.json().await });
    assert_eq!(first.delete().await, 204);
    let second = Session::start(&gateway, "jobs", LEGACY).await;
    let state = second.request(3, "tasks/get", task.clone()).await;
    assert_eq!(state["result"]["status"], "input_required", "{state}");
    let (mut wait, question) = asked(&second, &task).await;
    assert_eq!(second.post(&answer(&question)).await.status, 202);
    let result = wait.message().await;
    assert_eq!(result["result"]["content"][0]["text"], "accept", "{result}");
    let result = quiet.await.expect("not cancelled");
    assert_eq!(result["result"]["content"][0]["text"], "accept", "{result}");
}

#[tokio::test]
async fn a_cancelled_task_withdraws_its_question() {
    let gateway = gateway().start().await;
    let session = Session::start(&gateway, "jobs", LEGACY).await;
    let task = asking(&session).await;
    let (mut wait, question) = asked(&session, &task).await;
    let cancelled = session.request(5, "tasks/cancel", task).await;
    assert_eq!(cancelled["result"]["status"], "cancelled", "{cancelled}");
    let withdrawn = wait.message().await;
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
    let end = wait.message().await;
    assert!(end["error"]["code"].is_i64(), "{end}");
    // An answer that was on its way is no error.
    assert_eq!(session.post(&answer(&question)).await.status, 202);
}

#[tokio::test]
async fn an_answer_of_a_client_of_2026_07_28_withdraws_the_question_at_the_waiting_client() {
    let gateway = gateway().start().await;
    let session = Session::start(&gateway, "jobs", LEGACY).await;
    let task = asking(&session).await;
    let (mut wait, question) = asked(&session, &task).await;
    let capabilities = json!({"elicitation": {}, "extensions": {EXTENSION: {}}});
    let ask = async |method: &str, params: Value| {
        modern_as(&gateway, method, params, capabilities.clone()).await
    };
    let state = ask("tasks/get", task.clone()).await;
    let asked = state["result"]["inputRequests"].as_object();
    let (key, _) = asked.and_then(|all| all.iter().next()).expect("a question");
    let mut answered = task.clone();
    answered["inputResponses"] = json!({key: {"action": "decline"}});
    let taken = ask("tasks/update", answered).await;
    assert_eq!(taken["result"]["resultType"], "complete", "{taken}");
    let withdrawn = wait.message().await;
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
    let result = wait.message().await;
    assert_eq!(
        result["result"]["content"][0]["text"], "decline",
        "{result}"
    );
}

#[tokio::test]
async fn a_client_without_the_capability_is_not_asked_and_its_task_says_why() {
    let gateway = gateway().start().await;
    for declared in [json!({}), json!({"sampling": {}})] {
        let session = Session::start_as(&gateway, "jobs", LEGACY, TOKEN, declared).await;
        let created = session
            .request(2, "tools/call", as_task("asks", json!({})))
            .await;
        let task = json!({"taskId": id_of(&created)});
        let failed = session.request(3, "tasks/result", task).await;
        assert_eq!(failed["error"]["code"], -32021, "{failed}");
        let data =
            json!({"code": "missing_capability", "requiredCapabilities": {"elicitation": {}}});
        assert_eq!(failed["error"]["data"], data);
    }
}

#[tokio::test]
async fn a_task_asks_its_client_over_http_and_sse() {
    let gateway = gateway().start().await;
    let mut legacy = Legacy::open(&gateway, "jobs").await;
    let initialize = request(
        1,
        "initialize",
        json!({"protocolVersion": LEGACY, "capabilities": {"elicitation": {}}, "clientInfo": {"name": "old", "version": "1"}}),
    );
    post(&gateway, &legacy, &initialize).await;
    let version = legacy.message().await["result"]["protocolVersion"].clone();
    assert_eq!(version, LEGACY);
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    post(&gateway, &legacy, &ready).await;
    let call = request(2, "tools/call", as_task("asks", json!({})));
    post(&gateway, &legacy, &call).await;
    let task = json!({"taskId": id_of(&legacy.message().await)});
    post(&gateway, &legacy, &request(3, "tasks/result", task.clone())).await;
    let question = legacy.message().await;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    assert_eq!(question["params"]["_meta"][RELATED], task);
    // Other requests are answered meanwhile.
    post(&gateway, &legacy, &request(4, "tasks/get", task)).await;
    let state = legacy.message().await;
    assert_eq!(state["result"]["status"], "input_required", "{state}");
    post(&gateway, &legacy, &answer(&question)).await;
    let result = legacy.message().await;
    assert_eq!(result["id"], 3);
    assert_eq!(result["result"]["content"][0]["text"], "accept", "{result}");
}

async fn post(gateway: &Gateway, legacy: &Legacy, message: &Value) {
    assert_eq!(legacy.post(gateway, &message.to_string()).await, 202);
}

#[tokio::test]
async fn the_python_sdk_answers_the_question_of_its_task() {
    let gateway = gateway().start().await;
    for transport in ["mcp", "sse"] {
        let url = gateway.url(&format!("/{transport}"));
        let printed = tokio::task::spawn_blocking(move || {
            let mut client = python("clients-mcp1");
            client.arg(root().join("tests/clients/tasks_mcp1.py"));
            run(client.args([&url, TOKEN, transport]))
        });
        let printed = printed.await.expect("not cancelled");
        let seen: Value = serde_json::from_str(printed.trim()).expect("JSON");
        assert_eq!(
            seen,
            json!({"asked": "Sure?", "status": "completed", "text": "accept"})
        );
    }
}
