use std::sync::Mutex as StdMutex;

use tooldock_protocol::jsonrpc::ServerRequest;

use super::*;

#[derive(Default)]
struct Ear(StdMutex<Vec<String>>);

impl Inbound for Ear {
    fn notification(&self, notification: Notification<'_>) {
        let message = String::from_utf8(notification.message.to_vec()).expect("UTF-8");
        self.0.lock().expect("not poisoned").push(message);
    }

    fn request(&self, _: ServerRequest) {}
}

impl Ear {
    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("not poisoned"))
    }
}

fn principal(name: &str) -> Option<Arc<str>> {
    Some(name.into())
}

fn owner(name: &str) -> TaskOwner {
    TaskOwner {
        caller: CallOwner {
            principal: principal(name),
            aggregate: None,
        },
        ear: None,
    }
}

fn created(id: &str) -> String {
    format!(r#"{{"task":{{"taskId":"{id}","status":"working","ttl":null}}}}"#)
}

/// Answers a call of that principal with a task.
fn begun(tasks: &Tasks, name: &str, id: &str) {
    answered(tasks, 1, &created(id));
    tasks.claim(1, || owner(name));
}

/// Answers the call with this result.
fn answered(tasks: &Tasks, call: u64, result: &str) {
    tasks.begin(Some(call), serde_json::from_str(result).expect("JSON"));
}

fn owns(tasks: &Tasks, name: &str, id: &str) -> bool {
    tasks.owns(principal(name).as_ref(), id)
}

/// Passes on a message of the server; returns true if it names a task.
fn says(tasks: &Tasks, method: &str, params: &str) -> bool {
    tasks.tell(&Notification {
        method,
        params: Some(Bytes::copy_from_slice(params.as_bytes())),
        message: Bytes::copy_from_slice(params.as_bytes()),
    })
}

const STATUS: &str = "notifications/tasks/status";

#[tokio::test]
async fn a_task_is_known_to_the_principal_whose_call_began_it_and_to_nobody_else() {
    let tasks = Tasks::default();
    begun(&tasks, "ada", "t");
    assert!(owns(&tasks, "ada", "t"));
    assert!(!owns(&tasks, "bob", "t") && !tasks.owns(None, "t"));
    assert!(!owns(&tasks, "ada", "forged"));
    // In the shape of 2026-07-28.
    let flat = r#"{"resultType":"task","taskId":"f","status":"working","ttlMs":1000}"#;
    answered(&tasks, 7, flat);
    // Another call's answer does not make it that caller's.
    tasks.claim(8, || owner("ada"));
    tasks.claim(7, || owner("bob"));
    assert!(owns(&tasks, "bob", "f") && !owns(&tasks, "ada", "f"));
}

#[tokio::test]
async fn a_server_that_gives_an_id_away_twice_gives_it_to_the_first() {
    let tasks = Tasks::default();
    begun(&tasks, "ada", "t");
    begun(&tasks, "bob", "t");
    assert!(owns(&tasks, "ada", "t") && !owns(&tasks, "bob", "t"));
    assert!(!tasks.await_owner());
}

#[tokio::test]
async fn a_task_whose_caller_left_belongs_to_nobody_and_may_still_run() {
    let tasks = Tasks::default();
    answered(&tasks, 1, &created("t"));
    assert!(tasks.await_owner());
    tasks.begin(None, serde_json::from_str(&created("late")).expect("JSON"));
    for id in ["t", "late"] {
        assert!(!owns(&tasks, "ada", id) && !tasks.owns(None, id));
    }
    assert!(!tasks.are_over());
    // A task without a name, and a task with two names.
    for unreadable in [
        r#"{"task":{"status":"working"}}"#,
        r#"{"task":{"taskId":"a"},"taskId":"b"}"#,
    ] {
        let tasks = Tasks::default();
        answered(&tasks, 1, unreadable);
        assert!(!tasks.are_over(), "{unreadable}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_is_known_for_as_long_as_its_server_keeps_it() {
    let tasks = Tasks::default();
    begun(&tasks, "ada", "for ever");
    let result = r#"{"task":{"taskId":"t","status":"completed","ttl":60000}}"#;
    answered(&tasks, 7, result);
    tasks.claim(7, || owner("ada"));
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(owns(&tasks, "ada", "t"));
    tokio::time::advance(GRACE).await;
    assert!(!owns(&tasks, "ada", "t") && owns(&tasks, "ada", "for ever"));
    begun(&tasks, "bob", "another");
    assert_eq!(tasks.lock().tasks.len(), 2);
}

#[tokio::test]
async fn tasks_are_over_when_the_server_says_so() {
    let tasks = Tasks::default();
    assert!(tasks.are_over());
    for id in ["told", "asked", "fetched"] {
        begun(&tasks, "ada", id);
    }
    says(&tasks, STATUS, r#"{"taskId":"told","status":"completed"}"#);
    tasks.is_over("fetched");
    for goes_on in ["input_required", "cancelled"] {
        let state = format!(r#"{{"taskId":"asked","status":"{goes_on}"}}"#);
        tasks.observe(state.as_bytes());
        assert!(!tasks.are_over(), "{goes_on}");
    }
    tasks.observe(br#"{"taskId":"asked","status":"failed"}"#);
    assert!(tasks.are_over());
}

#[tokio::test]
async fn what_names_a_task_goes_to_its_owner_or_to_nobody() {
    let tasks = Tasks::default();
    let (ada, bob) = (Arc::new(Ear::default()), Arc::new(Ear::default()));
    for (name, id, ear) in [("ada", "a", &ada), ("bob", "b", &bob)] {
        answered(&tasks, 1, &created(id));
        tasks.claim(1, || TaskOwner {
            ear: Some(Arc::clone(ear) as _),
            ..owner(name)
        });
    }
    let related = r#"{"data":"x","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"a"}}}"#;
    let status = r#"{"taskId":"a","status":"working"}"#;
    for (method, params) in [
        ("notifications/message", related),
        (STATUS, status),
        ("notifications/tasks", status),
    ] {
        assert!(says(&tasks, method, params));
        assert_eq!(ada.heard(), [params]);
    }
    for (method, params) in [
        (STATUS, r#"{"taskId":"unknown"}"#),
        (STATUS, r#"{"taskId":"a","taskId":"b"}"#),
        (STATUS, "{}"),
        (
            STATUS,
            r#"{"taskId":"a","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"b"}}}"#,
        ),
        ("notifications/message", r#"{"taskId":7}"#),
    ] {
        assert!(says(&tasks, method, params), "{params}");
    }
    assert!(!says(
        &tasks,
        "notifications/message",
        r#"{"data":"taskId"}"#
    ));
    assert!(ada.heard().is_empty() && bob.heard().is_empty());
}

#[tokio::test]
async fn what_is_said_of_a_task_before_its_owner_is_known_waits_for_the_owner() {
    let tasks = Tasks::default();
    answered(&tasks, 1, &created("t"));
    let status = r#"{"taskId":"t","status":"completed"}"#;
    for said in [r#"{"taskId":"t","status":"working"}"#, status] {
        assert!(says(&tasks, STATUS, said));
    }
    let ear = Arc::new(Ear::default());
    tasks.claim(1, || TaskOwner {
        ear: Some(Arc::clone(&ear) as _),
        ..owner("ada")
    });
    assert_eq!(ear.heard(), [status]);
}

#[tokio::test]
async fn whoever_begins_most_tasks_loses_the_oldest_first() {
    let tasks = Tasks::default();
    begun(&tasks, "bob", "bob's");
    for number in 0..=OF_ONE_MAX {
        begun(&tasks, "ada", &format!("ada-{number}"));
    }
    assert!(!owns(&tasks, "ada", "ada-0") && owns(&tasks, "ada", "ada-1"));
    for number in 0..TASKS_MAX {
        begun(&tasks, &format!("p{}", number % 16), &format!("t{number}"));
    }
    assert_eq!(tasks.lock().tasks.len(), TASKS_MAX);
    assert!(owns(&tasks, "bob", "bob's"));
    assert!(!owns(&tasks, "ada", "ada-1"));
    // The forgotten task may still run.
    for task in tasks.lock().tasks.values_mut() {
        task.over = true;
    }
    assert!(!tasks.are_over());
}
