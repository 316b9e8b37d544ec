//! Gateways that are killed and started again over the same data directory: with `sessions.store: disk` their clients go on
//! as if nothing had happened.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::support::session::Session;
use crate::support::{Gateway, tools};

const LATEST: &str = "2025-11-25";

async fn durable() -> Gateway {
    Gateway::with_tools([("talk", "talking.py", tools::TALKING)])
        .config(json!({"sessions": {"store": "disk"}}))
        .start()
        .await
}

#[tokio::test]
async fn a_session_and_its_unread_events_survive_a_killed_gateway() {
    let mut gateway = durable().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    session
        .request(1, "logging/setLevel", json!({"level": "error"}))
        .await;
    let deleted = Session::start(&gateway, "talk", LATEST).await;
    assert_eq!(deleted.delete().await, 204);
    let mut stream = session.listen().await;
    let announce = async || {
        let mut answer = session.call(2, "announce", json!({})).await;
        let messages = match answer.is_events() {
            true => answer.messages().await,
            false => vec![answer.json().await],
        };
        assert_eq!(messages.last().expect("an answer")["id"], 2);
    };
    announce().await;
    let read = stream.event().await.expect("the announcement");
    assert_eq!(read.json()["method"], "notifications/tools/list_changed");
    drop(stream);
    // This event has no reader before the gateway ends. An announcement is not waited for by the call that makes it: it is
    // on disk when another client has read it.
    let witness = Session::start(&gateway, "talk", LATEST).await;
    let mut witnessed = witness.listen().await;
    announce().await;
    witnessed.event().await.expect("the announcement");

    gateway.killed_and_started_again().await;
    let mut stream = session.get(read.id.as_deref()).await;
    assert_eq!(stream.status, 200);
    let kept = stream.event().await.expect("the event kept on disk");
    assert_eq!(kept.json()["method"], "notifications/tools/list_changed");
    assert_ne!(kept.id, read.id);
    announce().await;
    let new = stream.event().await.expect("an event of the new process");
    assert_eq!(new.json()["method"], "notifications/tools/list_changed");
    // The level of its log messages is as the client set it.
    let mut answer = session.call(3, "logs", json!({})).await;
    let said = answer.messages().await;
    let logged: Vec<_> = said
        .iter()
        .filter_map(|it| it["params"]["data"].as_str())
        .collect();
    assert_eq!(logged, ["loudest"], "{said:?}");
    assert_eq!(deleted.ping().await, 404, "it was ended before");

    // Once more, without a word in between.
    gateway.killed_and_started_again().await;
    assert_eq!(session.ping().await, 200);
    assert_eq!(session.delete().await, 204);
    gateway.killed_and_started_again().await;
    assert_eq!(session.ping().await, 404);
}

#[tokio::test]
async fn a_call_that_ended_with_its_gateway_is_answered_with_an_error_and_not_made_again() {
    let mut gateway = durable().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let marks = gateway.scratch().join("marks");
    let mut answer = session.call(5, "runs", json!({"file": marks})).await;
    assert!(answer.is_events());
    let question = answer.event().await.expect("a question");
    assert_eq!(question.json()["method"], "elicitation/create");

    gateway.killed_and_started_again().await;
    let mut resumed = session.get(question.id.as_deref()).await;
    let told = resumed.message().await;
    assert_eq!(told["id"], 5, "{told}");
    let code = told["result"]["_meta"]["tooldock/error"]["code"].as_str();
    let code = code.or_else(|| told["error"]["data"]["code"].as_str());
    assert_eq!(code, Some("worker_unavailable"), "{told}");
    // The answer to its question goes nowhere.
    let reply =
        json!({"jsonrpc": "2.0", "id": question.json()["id"], "result": {"action": "cancel"}});
    assert_eq!(session.post(&reply).await.status, 202);
    assert_eq!(fs::read_to_string(&marks).unwrap(), "run\n");
}

#[tokio::test]
async fn a_damaged_file_of_sessions_is_set_aside_and_the_log_says_so() {
    let mut gateway = durable().await;
    let session = Session::start(&gateway, "talk", LATEST).await;
    let file = gateway.data_dir().join("sessions.db");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    gateway.kill();
    for ending in ["-wal", "-shm"] {
        let _ = fs::remove_file(file.with_file_name(format!("sessions.db{ending}")));
    }
    fs::write(&file, "no database at all").unwrap();
    gateway.started_again().await;
    assert_eq!(session.ping().await, 404);
    let another = Session::start(&gateway, "talk", LATEST).await;
    assert_eq!(another.ping().await, 200);
    let log = gateway.log();
    assert!(log.contains("the session store was damaged"), "{log}");
    let names: Vec<_> = fs::read_dir(gateway.data_dir())
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    assert!(
        names
            .iter()
            .any(|name| name.starts_with("sessions.db.damaged-")),
        "{names:?}"
    );
}
