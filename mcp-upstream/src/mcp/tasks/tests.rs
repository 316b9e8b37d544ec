use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tooldock_base::tool::{TaskSupport, Tool};
use tooldock_engine::upstream::Client;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::interaction::testing::{Wait, round};
use tooldock_sessions::replicas::ReplicaId;
use tooldock_sessions::tasks::{TaskOutcome, TaskStatus};
use tooldock_sessions::testing::{caller, caller_with_scopes, namespace};
use tooldock_workers::registry::Namespace;

use super::*;
use crate::jsonrpc::{self, Message};
use crate::mcp;
use crate::protocol::ProtocolVersion;
use crate::testing::{Harness, harness, head};

/// A conversation with a namespace whose tools run as tasks, over the harness's backend.
struct Fixture {
    harness: Harness,
    namespace: Arc<Namespace>,
}

fn fixture() -> Fixture {
    let mut namespace = namespace("shared");
    for tool in &mut namespace.tools {
        *tool = Arc::new(Tool {
            task: Some(TaskSupport::Optional),
            ..Tool::clone(tool)
        });
    }
    Fixture {
        harness: harness(),
        namespace: Arc::new(namespace),
    }
}

impl Fixture {
    fn tasks(&self) -> &Tasks {
        &self.harness.service.core().tasks
    }

    /// The answer to a request of a client of 2025-11-25.
    async fn ask(
        &self,
        caller: &Caller,
        method: &str,
        params: &Value,
    ) -> Result<Value, RequestError> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}"#);
        let body = Bytes::from(body);
        let text = std::str::from_utf8(&body).expect("text");
        let Ok(Message::Request { members, .. }) = jsonrpc::message(text) else {
            panic!("no request: {text}");
        };
        let core = self.harness.service.core();
        let client = Client::Legacy(ProtocolVersion::V2025_11_25);
        let namespace = Arc::clone(&self.namespace);
        let cx = mcp::context(core, caller, &body, namespace, client, true);
        let request = IncomingRequest {
            id: "7",
            method,
            members: &members,
        };
        let answer = match prepare_with_tasks(core, &cx, request).await? {
            RequestOrWait::Request(PreparedRequest::Response(answer)) => answer,
            RequestOrWait::Wait(wait) => wait.run(None, "7", &Arc::new(AwaitingPost), None).await?,
            RequestOrWait::Request(PreparedRequest::Call(_)) => panic!("{method} is a call"),
        };
        Ok(serde_json::from_slice(&answer).expect("JSON"))
    }

    /// Begins a task, and returns its id as parameters.
    async fn begin(&self, tool: &str) -> Result<Value, RequestError> {
        let call = json!({"name": tool, "arguments": {}, "task": {}});
        let created = self.ask(&caller(), "tools/call", &call).await?;
        Ok(json!({"taskId": created["result"]["task"]["taskId"]}))
    }

    /// Waits until the end of each task is stored, which is a moment after the end.
    async fn all_stored(&self) {
        while self.tasks().count() > 0 {
            tokio::task::yield_now().await;
        }
    }

    async fn get(&self, id: &Value) -> Value {
        let state = self.ask(&caller(), "tasks/get", id).await;
        state.expect("a task")["result"].clone()
    }

    async fn result(&self, id: &Value) -> Value {
        let result = self.ask(&caller(), "tasks/result", id).await;
        result.expect("an outcome")
    }
}

#[tokio::test]
async fn a_principal_with_too_many_tasks_begins_no_further_one() {
    let fixture = fixture();
    let tasks = fixture.tasks();
    let owner = TaskOwner {
        principal: Some("tester".into()),
        namespace: "other".parse().expect("a name"),
    };
    for _ in 0..tasks.bounds.per_principal {
        let record = TaskRecord::new(owner.clone(), "t".into(), ReplicaId(0), 60_000);
        let record = record.expect("randomness");
        let created = tasks.store.create(&record, tasks.bounds).await;
        assert_eq!(created.expect("works"), InsertedTask::Stored);
    }
    let refused = fixture.begin("hang").await.expect_err("refused");
    assert_eq!(refused.code(), "overloaded");
    assert!(tasks.running().is_empty());
    let other = Caller {
        principal: Some("another".into()),
        ..caller()
    };
    let call = json!({"name": "echo", "arguments": {}, "task": {}});
    let created = fixture.ask(&other, "tools/call", &call).await;
    assert!(created.expect("a task")["result"]["task"]["taskId"].is_string());
}

#[tokio::test]
async fn failures_of_tools_are_results_and_those_of_workers_are_none() {
    let fixture = fixture();
    for (tool, status) in [
        ("echo", "completed"),
        ("internal_error", "completed"),
        ("invalid_arguments", "completed"),
        ("worker_unavailable", "failed"),
        ("execution_timeout", "failed"),
        ("missing_capability", "failed"),
    ] {
        let id = fixture.begin(tool).await.expect("a task");
        let outcome = fixture.result(&id).await;
        let state = fixture.get(&id).await;
        assert_eq!(state["status"], status, "{tool} {state}");
        let is_error = &outcome["result"]["isError"];
        match status {
            "failed" => assert!(outcome["error"]["message"].is_string(), "{tool} {outcome}"),
            _ => assert_eq!(*is_error == json!(true), tool != "echo", "{tool} {outcome}"),
        }
    }
}

#[tokio::test]
async fn a_task_that_needs_a_missing_capability_fails_with_the_reason() {
    let fixture = fixture();
    let id = fixture.begin("missing_capability").await.expect("a task");
    let error = fixture.result(&id).await["error"].clone();
    assert_eq!(error["code"], -32021, "{error}");
    assert_eq!(error["data"]["code"], "missing_capability");
    assert_eq!(fixture.get(&id).await["statusMessage"], error["message"]);
}

#[tokio::test]
async fn a_task_asks_only_clients_that_declared_the_capability() {
    for (declared, status) in [
        (r#"{"roots":{}}"#, TaskStatus::InputRequired),
        (r#"{"sampling":{}}"#, TaskStatus::Working),
        ("{}", TaskStatus::Working),
    ] {
        let task = RunningTask::new(record(), capabilities(declared));
        let wait = Wait::new();
        let (question, _told) = round(&wait);
        task.ask(vec![Arc::clone(&question)]);
        assert_eq!(task.view().record.status, status);
        assert_eq!(question.is_open(), status == TaskStatus::InputRequired);
    }
}

fn capabilities(declared: &str) -> Arc<RawValue> {
    let declared: Box<RawValue> = serde_json::from_str(declared).expect("JSON");
    declared.into()
}

/// The record of a new task.
pub(super) fn record() -> TaskRecord {
    let owner = TaskOwner {
        principal: None,
        namespace: "shared".parse().expect("a name"),
    };
    let record = TaskRecord::new(owner, "t".into(), ReplicaId(0), 60_000);
    record.expect("randomness")
}

/// A running task whose client can be asked for roots.
pub(super) fn running_task() -> Arc<RunningTask> {
    RunningTask::new(record(), capabilities(r#"{"roots":{}}"#))
}

#[tokio::test]
async fn a_task_whose_runner_panics_fails_and_its_waits_are_answered() {
    let fixture = fixture();
    let core = fixture.harness.service.core();
    let caller = caller();
    let body = Bytes::from_static(
        br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{}}}"#,
    );
    let text = std::str::from_utf8(&body).expect("text");
    let Ok(Message::Request { members, .. }) = jsonrpc::message(text) else {
        panic!("no request");
    };
    let client = Client::Legacy(ProtocolVersion::V2025_11_25);
    let namespace = Arc::clone(&fixture.namespace);
    let cx = mcp::context(core, &caller, &body, namespace, client, true);
    let request = IncomingRequest {
        id: "7",
        method: "tools/call",
        members: &members,
    };
    let Ok(PreparedRequest::Call(call)) = prepare(core, &cx, request).await else {
        panic!("no call");
    };
    let (go, gone) = tokio::sync::oneshot::channel::<()>();
    let work = async move {
        let _ = gone.await;
        panic!("a runner panics, as this test wants it to");
    };
    let call = TaskCall {
        call,
        driver: CallDriver::new(work, None),
        questions: Vec::new(),
    };
    let created = begun(core, &cx, "7", call).await.expect("a task");
    let created: Value = serde_json::from_slice(&created).expect("JSON");
    let id = json!({"taskId": created["result"]["task"]["taskId"]});
    let (result, ()) = tokio::join!(fixture.result(&id), async {
        go.send(()).expect("it waits");
    });
    assert_eq!(
        result["error"]["data"]["code"], "internal_error",
        "{result}"
    );
    fixture.all_stored().await;
    assert_eq!(fixture.get(&id).await["status"], "failed");
}

/// A session of a client of 2025-11-25 with the fixture's namespace, and the parameters of a task in it that never ends.
async fn waiting(fixture: &Fixture) -> (String, Value) {
    let namespace = Namespace::clone(&fixture.namespace);
    fixture.harness.publish(vec![namespace]);
    let session = fixture.harness.open("2025-11-25", true).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params":
        {"name": "hang", "arguments": {}, "task": {}}});
    let head = head(Some(&session), None);
    let (_, created) = fixture.harness.post(head, &call.to_string()).await;
    let id = created["result"]["task"]["taskId"].clone();
    assert!(id.is_string(), "{created}");
    (session, id)
}

fn result_request(id: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": 2, "method": "tasks/result", "params": {"taskId": id}})
        .to_string()
}

#[tokio::test]
async fn a_wait_ends_with_its_connection_its_session_and_its_cancellation() {
    for end in ["connection", "session", "cancellation"] {
        let fixture = fixture();
        let (session, id) = waiting(&fixture).await;
        let task = fixture.tasks().running().values().next().map(Arc::clone);
        let task = task.expect("a running task");
        let head = || head(Some(&session), None);
        let request = result_request(&id);
        let mut wait = Box::pin(fixture.harness.post(head(), &request));
        while task.waits() == 0 {
            assert!(futures_util::poll!(&mut wait).is_pending());
            tokio::task::yield_now().await;
        }
        match end {
            "connection" => drop(wait),
            "session" => {
                fixture.harness.service.delete(caller(), head()).await;
                let (_, answer) = wait.await;
                assert!(answer["error"].is_object(), "{answer}");
            }
            _ => {
                let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
                    "params": {"requestId": 2}});
                fixture.harness.post(head(), &cancelled.to_string()).await;
                let (_, answer) = wait.await;
                assert!(answer["error"].is_object(), "{answer}");
            }
        }
        assert_eq!(task.waits(), 0, "{end}");
        assert_eq!(task.view().record.status, TaskStatus::Working, "{end}");
    }
}

#[tokio::test]
async fn tasks_of_a_removed_principal_are_cancelled() {
    let fixture = fixture();
    let id = fixture.begin("hang").await.expect("a task");
    assert_eq!(fixture.get(&id).await["status"], "working");
    fixture.tasks().end_of(|name| name == "another");
    assert_eq!(fixture.get(&id).await["status"], "working");
    fixture.tasks().end_of(|name| name == "tester");
    assert_eq!(fixture.get(&id).await["status"], "cancelled");
    let refused = fixture.ask(&caller(), "tasks/result", &id).await;
    refused.expect_err("there is no result");
}

#[tokio::test]
async fn a_later_principal_of_the_same_name_does_not_have_the_tasks_of_a_removed_one() {
    let fixture = fixture();
    let id = fixture.begin("echo").await.expect("a task");
    fixture.result(&id).await;
    let service = &fixture.harness.service;
    service.forget_tasks("another").await.expect("works");
    fixture.result(&id).await;
    service.forget_tasks("tester").await.expect("works");
    fixture.all_stored().await;
    for method in ["tasks/get", "tasks/result"] {
        let unknown = fixture.ask(&caller(), method, &id).await;
        assert_eq!(unknown.expect_err("unknown").message(), "Task not found");
    }
}

#[tokio::test]
async fn a_task_leaves_the_table_if_its_request_ends_before_it_is_stored() {
    let fixture = fixture();
    let tasks = fixture.tasks();
    let owner = TaskOwner {
        principal: caller().principal,
        namespace: fixture.namespace.name.clone(),
    };
    let record = TaskRecord::new(owner, "echo".into(), tasks.replicas.own(), 60_000);
    let task = RunningTask::new(record.expect("randomness"), capabilities("{}"));
    let entry = TableEntry::enter(fixture.harness.service.core(), task);
    assert_eq!(tasks.count(), 1);
    drop(entry);
    assert_eq!(tasks.count(), 0);
}

#[tokio::test]
async fn a_result_that_is_too_large_for_the_store_becomes_a_failure() {
    let fixture = fixture();
    let tasks = fixture.tasks();
    let owner = TaskOwner {
        principal: Some("tester".into()),
        namespace: "other".parse().expect("a name"),
    };
    let record = TaskRecord::new(owner, "t".into(), ReplicaId(0), 60_000);
    let mut record = record.expect("randomness");
    let created = tasks.store.create(&record, tasks.bounds).await;
    assert_eq!(created.expect("works"), InsertedTask::Stored);
    record.apply(TaskEvent::Ended(TaskEnd::Completed));
    // A result of this size leaves 2,000 bytes.
    let bytes = usize::try_from(tasks.bounds.bytes_per_principal).expect("a size") - 2000;
    let large = TaskOutcome::Result("x".repeat(bytes - 1).into());
    let stored = tasks
        .store
        .update(&record, Some(&large), tasks.bounds)
        .await;
    assert_eq!(stored.expect("works"), UpdatedTask::Stored);
    for (bytes, status) in [(3000, "failed"), (10, "completed")] {
        let arguments = json!({"text": "x".repeat(bytes)});
        let call = json!({"name": "echo", "arguments": arguments, "task": {}});
        let created = fixture.ask(&caller(), "tools/call", &call).await;
        let created = created.expect("a task");
        let id = json!({"taskId": created["result"]["task"]["taskId"]});
        fixture.result(&id).await;
        fixture.all_stored().await;
        let state = fixture.get(&id).await;
        assert_eq!(state["status"], status, "{state}");
        let outcome = fixture.result(&id).await;
        let code = &outcome["error"]["data"]["code"];
        match status {
            "failed" => assert_eq!(code, "result_too_large", "{outcome}"),
            _ => assert!(outcome["result"].is_object(), "{outcome}"),
        }
    }
    let (failure, _) = outcome::too_large();
    assert!(failure.bytes() as u64 <= tasks.bounds.small_outcome);
}

#[tokio::test]
async fn a_credential_without_the_scope_of_the_tool_does_not_see_its_task() {
    let fixture = fixture();
    let id = fixture.begin("echo").await.expect("a task");
    fixture.result(&id).await;
    let narrow = caller_with_scopes(&[]);
    let unknown = fixture.ask(&narrow, "tasks/get", &id).await;
    assert_eq!(unknown.expect_err("unknown").message(), "Task not found");
    let listed = fixture.ask(&narrow, "tasks/list", &json!({})).await;
    assert_eq!(listed.expect("a list")["result"]["tasks"], json!([]));
}

#[tokio::test]
async fn a_running_task_whose_process_has_ended_is_recorded_as_failed() {
    let fixture = fixture();
    let tasks = fixture.tasks();
    let owner = TaskOwner {
        principal: caller().principal,
        namespace: fixture.namespace.name.clone(),
    };
    // Neither this process nor another replica has the task.
    for runner in [tasks.replicas.own(), ReplicaId(77)] {
        let record = TaskRecord::new(owner.clone(), "echo".into(), runner, 60_000);
        let record = record.expect("randomness");
        tasks
            .store
            .create(&record, tasks.bounds)
            .await
            .expect("works");
        let state = fixture.get(&json!({"taskId": &*record.id})).await;
        assert_eq!(state["status"], "failed", "{state}");
        assert_eq!(state["statusMessage"], "the process that ran it ended");
        let stored = tasks.store.find(&record.id).await.expect("works");
        assert_eq!(stored.expect("a task").record.status, TaskStatus::Failed);
    }
}

#[test]
fn a_lifetime_is_bounded() {
    let hour = Duration::from_secs(3600);
    for (wanted, expected) in [
        (None, 2 * 3_600_000),
        (Some(None), 7 * 24 * 3_600_000),
        (Some(Some(0)), 1000),
        (Some(Some(60_000)), 60_000),
        (Some(Some(u64::MAX)), 7 * 24 * 3_600_000),
    ] {
        assert_eq!(ttl(wanted, hour), expected, "{wanted:?}");
    }
}
