//! Every surface and kind of namespace through a replica that does not have the session.

use serde_json::{Value, json};

use super::{LATEST, both_up, member, two};
use crate::legacy_sse::Legacy;
use crate::modern::{again, ask, call};
use crate::stdio_servers::{and, called, is_gone, pid, stray};
use crate::support::redis::Redis;
use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, everything};
use crate::toolman::{SERVERS, activate, tools_of, write};

fn runs(marks: &std::path::Path) -> String {
    std::fs::read_to_string(marks).unwrap_or_default()
}

/// Two replicas with this configuration that have heard of each other.
async fn two_with(redis: &Redis, config: &Value) -> (Gateway, Gateway) {
    let start =
        |name| everything::start(member(Gateway::empty().config(config.clone()), redis, name));
    both_up(tokio::join!(start("one"), start("two"))).await
}

#[tokio::test]
async fn http_sse_takes_messages_at_the_other_replica_and_ends_with_its_own() {
    let redis = Redis::start().await;
    let (mut one, two) = two(&redis).await;
    let mut legacy = Legacy::open(&one, "talk").await;
    let request = |id: u64, tool: &str, arguments: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params":
            {"name": tool, "arguments": arguments}})
        .to_string()
    };
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        {"protocolVersion": "2024-11-05", "capabilities": {"elicitation": {}},
         "clientInfo": {"name": "old", "version": "1"}}});
    assert_eq!(legacy.post(&two, &initialize.to_string()).await, 202);
    assert_eq!(legacy.message().await["id"], 1);
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(legacy.post(&two, &initialized.to_string()).await, 202);

    let marks = one.scratch().join("marks");
    let asks = request(2, "runs", json!({"file": marks}));
    assert_eq!(legacy.post(&two, &asks).await, 202);
    let question = legacy.message().await;
    assert_eq!(question["method"], "elicitation/create");
    let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}});
    assert_eq!(legacy.post(&two, &reply.to_string()).await, 202);
    let answer = legacy.message().await;
    assert_eq!(
        answer["result"]["content"][0]["text"], "decline",
        "{answer}"
    );
    assert_eq!(runs(&marks), "run\n");

    // The stream is the session: no replica takes it up.
    one.kill();
    assert_eq!(legacy.post(&two, &asks).await, 404);
    assert_eq!(runs(&marks), "run\n");
}

#[tokio::test]
async fn a_suspended_call_goes_on_once_where_it_waits_and_is_gone_with_its_replica() {
    let redis = Redis::start().await;
    let (mut one, two) = two(&redis).await;
    let marks = two.scratch().join("marks");
    let first = call(json!(1), "runs", json!({"file": marks}));
    let retry = |parked: &Value| {
        let asked = &parked["result"]["inputRequests"];
        let key = asked.as_object().expect("questions").keys().next();
        let answers = json!({key.expect("a question"): {"action": "decline"}});
        again(json!(2), &first, &parked["result"]["requestState"], answers)
    };
    let (_, parked) = ask(&one, "talk", &first).await;
    let (status, done) = ask(&two, "talk", &retry(&parked)).await;
    assert_eq!(status, 200);
    assert_eq!(done["result"]["content"][0]["text"], "decline", "{done}");
    assert_eq!(runs(&marks), "run\n");
    // The state is spent at either.
    for gateway in [&one, &two] {
        let (_, spent) = ask(gateway, "talk", &retry(&parked)).await;
        assert_eq!(spent["error"]["code"], -32602, "{spent}");
    }

    let (_, parked) = ask(&one, "talk", &first).await;
    assert_eq!(runs(&marks), "run\nrun\n");
    one.kill();
    let (_, gone) = ask(&two, "talk", &retry(&parked)).await;
    assert_eq!(gone["error"]["code"], -32602, "{gone}");
    let message = gone["error"]["message"].as_str().expect("a message");
    assert!(message.contains("its call is gone"), "{gone}");
    assert_eq!(runs(&marks), "run\nrun\n");
}

#[tokio::test]
async fn the_active_tools_of_an_aggregate_are_those_of_the_session_at_every_replica() {
    let redis = Redis::start().await;
    let folder = tempfile::TempDir::new().expect("a temporary directory");
    write(folder.path(), SERVERS);
    let config = json!({"toolman": {"toolman": {"config": folder.path().join("tools.toml")}}});
    let (mut one, two) = two_with(&redis, &config).await;
    let here = Session::start_as(&one, "toolman", LATEST, TOKEN, json!({})).await;
    let there = here.at(&two);
    let has = async |tool: &str| tools_of(&there).await.contains(&tool.to_owned());
    assert!(!has("vec_index").await && has("pjpd_create_task").await);
    let change = json!({"tools_on": ["vec_index"], "tools_off": ["pjpd_create_task"]});
    activate(&here, change).await;
    assert!(has("vec_index").await && !has("pjpd_create_task").await);
    one.kill();
    assert!(has("vec_index").await && !has("pjpd_create_task").await);
    activate(&there, json!({"tools_on": ["pjpd_create_task"]})).await;
    assert!(has("vec_index").await && has("pjpd_create_task").await);
}

#[tokio::test]
async fn a_stdio_server_of_a_session_is_the_same_process_at_every_replica() {
    let redis = Redis::start().await;
    let servers = json!({"any": and(stray(&[]), json!({"isolation": "session"}))});
    let config = json!({"upstreams": {"stdio": servers}});
    let (mut one, two) = two_with(&redis, &config).await;
    let start = async || Session::start_as(&one, "any", LATEST, TOKEN, json!({})).await;
    let (first, second) = (start().await, start().await);
    let process = async |session: &Session| pid(&called(session, "pid", json!({})).await);
    let (of_first, of_second) = (process(&first).await, process(&second).await);
    assert_ne!(of_first, of_second);
    let (first, second) = (first.at(&two), second.at(&two));
    assert_eq!(process(&first).await, of_first);
    assert_eq!(process(&second).await, of_second);
    assert_eq!(first.delete().await, 204);
    is_gone(of_first).await;

    // A server's process ends with its replica; the session goes on with another process.
    one.kill();
    let new = process(&second).await;
    assert_ne!(new, of_second);
    is_gone(of_second).await;
    assert_eq!(process(&second).await, new);
}
