//! Two principals on one process of a server that tells its clients everything: neither receives messages of the other.

use serde_json::{Value, json};

use super::client::Modern;
use super::{called, last, silent_session, start, stray, text, with_servers};
use crate::support::gateway::Builder;
use crate::support::session::Session;
use crate::support::sse::Answering;
use crate::support::{Gateway, TOKEN, eventually, sha256};

const VERSION: &str = "2025-11-25";
/// Ada's; the other principal has the usual one.
const ADA: &str = "adas-token-0123456789abcdef";
const SECRET: &str = "the moon is made of cheese";

/// A gateway with one `stray`, whose tool `secret` has that much time.
async fn two_tenants(flags: &[&str], timeout: &str) -> Gateway {
    let ada = json!({"name": "ada", "sha256": sha256(ADA), "namespaces": ["*"]});
    let builder: Builder = with_servers(json!({"any": stray(flags)})).config(json!({
        "admission": {"tokens": [ada]},
        "namespaces": {"overrides": {"any": {"tools": {"secret": {"timeout": timeout}}}}},
    }));
    start(builder).await
}

async fn ada(gateway: &Gateway) -> Session {
    Session::start_as(gateway, "any", VERSION, ADA, json!({})).await
}

/// All messages of an answer.
async fn messages(mut answer: Answering) -> Vec<Value> {
    match answer.is_events() {
        true => answer.messages().await,
        false => vec![answer.json().await],
    }
}

/// Messages to a client without a session or with one while it lets the server gossip.
async fn gossip(session: &Session, late: bool) -> Vec<Value> {
    messages(session.call(9, "gossip", json!({"late": late})).await).await
}

fn tells(messages: &[Value]) -> bool {
    messages.iter().any(|it| it.to_string().contains(SECRET))
}

/// Whether a message of the server that names no call comes through.
async fn hears(session: &Session) -> bool {
    let said = messages(session.call(5, "log", json!({"level": "error"})).await).await;
    let count = said.len();
    assert_eq!(said[count - 1]["result"]["content"][0]["text"], "logged");
    count > 1
}

/// Messages of a stream until the list of tools is reported as changed by the reader's own call.
async fn until_changed(session: &Session, stream: &mut Answering) -> Vec<Value> {
    let subscribed = session.request(6, "resources/subscribe", json!({"uri": "stray://counter"}));
    assert_eq!(subscribed.await["result"], json!({}));
    called(session, "touch", json!({})).await;
    let mut all = Vec::new();
    loop {
        let message = stream.message().await;
        if message["method"] == "notifications/resources/updated" {
            return all;
        }
        all.push(message);
    }
}

#[tokio::test]
async fn what_a_server_says_of_a_call_that_ran_out_of_time_reaches_no_other_tenant() {
    let gateway = two_tenants(&[], "500ms").await;
    let (ada, bob) = (ada(&gateway).await, silent_session(&gateway, "any").await);
    let mut stream = bob.listen().await;
    assert!(hears(&bob).await, "alone, and nothing else runs");
    let told = called(&ada, "secret", json!({"text": SECRET})).await;
    assert_eq!(told["isError"], true, "{told}");
    assert!(!tells(&gossip(&bob, false).await));
    assert!(!hears(&bob).await, "the server may mean the other call");
    // The server answers it at last, and no client gets the answer.
    assert!(!tells(&gossip(&bob, true).await));
    assert!(hears(&bob).await, "nothing else can run");
    let on_stream = until_changed(&bob, &mut stream).await;
    assert!(!on_stream.is_empty() && !tells(&on_stream), "{on_stream:?}");
}

#[tokio::test]
async fn what_a_server_says_of_a_call_that_was_cancelled_reaches_no_other_tenant() {
    for era in ["legacy", "modern"] {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("journal");
        let flags = ["--era", era, "--journal", journal.to_str().unwrap()];
        let gateway = two_tenants(&flags, "60s").await;
        let (ada, bob) = (ada(&gateway).await, silent_session(&gateway, "any").await);
        let sent = |what: &'static str| {
            let journal = journal.clone();
            async move {
                eventually(what, || async {
                    let text = std::fs::read_to_string(&journal).unwrap_or_default();
                    text.contains(what).then_some(())
                })
                .await;
            }
        };
        let cancel = async {
            sent(SECRET).await;
            // While the call is in flight, and after it.
            assert!(!tells(&gossip(&bob, false).await), "{era}");
            let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
            assert_eq!(ada.post(&cancelled).await.status, 202);
        };
        tokio::join!(called(&ada, "secret", json!({"text": SECRET})), cancel);
        sent("notifications/cancelled").await;
        assert!(!tells(&gossip(&bob, false).await), "{era}");
        assert!(!tells(&gossip(&bob, true).await), "{era}");
        // A client without a session leaves.
        let client = Modern::new(&gateway, "any").with_token(ADA);
        let call = client.call_message(json!(1), "secret", json!({"text": "to be left"}));
        let left = tokio::time::timeout(std::time::Duration::from_secs(20), async {
            tokio::select! {
                _ = client.send(&call) => panic!("it is not answered"),
                () = sent("to be left") => {}
            }
        });
        left.await.expect("in time");
        let heard = gossip(&bob, false).await;
        assert!(
            !heard.iter().any(|it| it.to_string().contains("to be left")),
            "{heard:?}"
        );
    }
}

/// A call of Ada's that she cancels and the server never answers.
async fn cancelled_for_ever(ada: &Session, journal: &std::path::Path) {
    let cancel = async {
        eventually("the call is at the server", || async {
            let text = std::fs::read_to_string(journal).unwrap_or_default();
            text.contains(SECRET).then_some(())
        })
        .await;
        let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
        assert_eq!(ada.post(&cancelled).await.status, 202);
    };
    tokio::join!(called(ada, "secret", json!({"text": SECRET})), cancel);
}

#[tokio::test]
async fn a_cancelled_call_keeps_no_log_message_from_its_own_principal() {
    for era in ["legacy", "modern"] {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("journal");
        let flags = ["--era", era, "--journal", journal.to_str().unwrap()];
        let gateway = two_tenants(&flags, "60s").await;
        let (first, second) = (ada(&gateway).await, ada(&gateway).await);
        let bob = silent_session(&gateway, "any").await;
        cancelled_for_ever(&first, &journal).await;
        for session in [&first, &second] {
            assert!(hears(session).await, "{era}");
        }
        assert!(!hears(&bob).await, "{era}");
    }
}

#[tokio::test]
async fn a_process_that_is_mute_for_others_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let mut server = stray(&["--journal", journal.to_str().unwrap()]);
    server["isolation_mute"] = json!("1s");
    let ada_token = json!({"name": "ada", "sha256": sha256(ADA), "namespaces": ["*"]});
    let builder: Builder = with_servers(json!({"any": server})).config(json!({
        "admission": {"tokens": [ada_token]},
        "namespaces": {"overrides": {"any": {"tools": {"secret": {"timeout": "60s"}}}}},
    }));
    let gateway = start(builder).await;
    let (ada, bob) = (ada(&gateway).await, silent_session(&gateway, "any").await);
    cancelled_for_ever(&ada, &journal).await;
    assert!(!hears(&bob).await, "the server may mean the cancelled call");
    eventually("bob hears of a new process", || async {
        hears(&bob).await.then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_task_and_what_is_said_of_it_are_its_owners_alone() {
    let gateway = two_tenants(&[], "30s").await;
    let (ada, also_ada) = (ada(&gateway).await, ada(&gateway).await);
    let bob = silent_session(&gateway, "any").await;
    let (mut to_ada, mut to_bob) = (ada.listen().await, bob.listen().await);
    let begin = json!({"name": "secret", "arguments": {"text": SECRET}, "task": {"ttl": 60000}});
    let begun = ada.request(2, "tools/call", begin).await;
    assert_eq!(begun["result"]["task"]["taskId"], "task-1", "{begun}");
    assert!(!tells(&gossip(&bob, false).await));
    assert!(!hears(&bob).await);
    for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/update"] {
        let answers = [
            bob.request(3, method, json!({"taskId": "task-1"})).await,
            bob.request(3, method, json!({"taskId": "task-77"})).await,
        ];
        assert_eq!(answers[0]["error"]["code"], -32602, "{method}: {answers:?}");
        assert_eq!(answers[0], answers[1]);
    }
    let related = json!({"name": "echo", "arguments": {"message": "x"}, "_meta": {
        "io.modelcontextprotocol/related-task": {"taskId": "task-1"}}});
    assert_eq!(
        bob.request(3, "tools/call", related).await["error"]["code"],
        -32602
    );
    let batch = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": "task-1"}},
        {"jsonrpc": "2.0", "id": 2, "method": "tasks/result", "params": {"taskId": "task-1"}},
        {"jsonrpc": "2.0", "id": 3, "method": "tasks/list"},
    ]);
    let (_, answers) = gateway.mcp("any", batch).await;
    assert_eq!(answers.as_array().map(Vec::len), Some(3), "{answers}");
    assert!(
        !answers.to_string().contains(SECRET) && !answers.to_string().contains("task-1"),
        "{answers}"
    );
    let listed = bob.request(3, "tasks/list", json!({})).await;
    assert_eq!(listed["result"]["tasks"], json!([]), "{listed}");
    assert!(!listed.to_string().contains("task-1"), "{listed}");
    assert!(!tells(&until_changed(&bob, &mut to_bob).await));

    // Its owner has all of it, in any session.
    let listed = also_ada.request(3, "tasks/list", json!({})).await;
    assert_eq!(listed["result"]["tasks"][0]["taskId"], "task-1", "{listed}");
    let result = also_ada
        .request(3, "tasks/result", json!({"taskId": "task-1"}))
        .await;
    assert_eq!(text(&result["result"]), SECRET);
    let got = ada
        .request(3, "tasks/get", json!({"taskId": "task-1"}))
        .await;
    assert_eq!(got["result"]["status"], "completed", "{got}");
    loop {
        let message = to_ada.message().await;
        if message["method"] == "notifications/tasks/status" {
            assert_eq!(message["params"]["statusMessage"], SECRET);
            break;
        }
    }
    // It is over, so what names no call is the listener's again; what names the task never is.
    assert!(hears(&bob).await);
    let heard = gossip(&bob, true).await;
    let statuses = heard
        .iter()
        .filter(|it| it["method"].as_str().is_some_and(|it| it.contains("tasks")));
    assert_eq!(statuses.count(), 0, "{heard:?}");
}

#[tokio::test]
async fn a_task_of_2026_07_28_is_its_owners_alone() {
    let gateway = two_tenants(&["--era", "modern"], "30s").await;
    let (ada, bob) = (
        Modern::new(&gateway, "any").with_token(ADA),
        Modern::new(&gateway, "any"),
    );
    let begun = ada
        .call("secret", json!({"text": SECRET, "task": true}))
        .await;
    assert_eq!(
        (&begun["resultType"], &begun["taskId"]),
        (&json!("task"), &json!("task-1"))
    );
    // A client of the other era shares the process.
    let session = silent_session(&gateway, "any").await;
    assert!(!tells(&gossip(&session, true).await));
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let own = ada.request(method, json!({"taskId": "task-1"})).await;
        assert_eq!(own["result"]["taskId"], "task-1", "{own}");
        let foreign = bob.request(method, json!({"taskId": "task-1"})).await;
        assert_eq!(foreign["error"]["code"], -32602, "{foreign}");
        let forged = bob.request(method, json!({"taskId": "forged"})).await;
        assert_eq!(foreign, forged);
    }
    let bridged = session
        .request(3, "tasks/get", json!({"taskId": "task-1"}))
        .await;
    assert_eq!(bridged["error"]["code"], -32602, "{bridged}");
}

#[tokio::test]
async fn a_task_ends_with_its_process_and_its_id_is_free_for_another_tenants() {
    let gateway = two_tenants(&[], "30s").await;
    let (ada, bob) = (ada(&gateway).await, silent_session(&gateway, "any").await);
    let begin = |text: &str| json!({"name": "secret", "arguments": {"text": text}, "task": {}});
    let get = || json!({"taskId": "task-1"});
    ada.request(2, "tools/call", begin("ada's")).await;
    assert!(ada.request(3, "tasks/get", get()).await["result"].is_object());
    let crashed = last(bob.call(4, "crash", json!({})).await).await;
    assert_eq!(crashed["result"]["isError"], true, "{crashed}");
    let begun = bob.request(2, "tools/call", begin(SECRET)).await;
    assert_eq!(begun["result"]["task"]["taskId"], "task-1", "{begun}");
    let foreign = ada.request(3, "tasks/result", get()).await;
    assert_eq!(foreign["error"]["code"], -32602, "{foreign}");
    let own = bob.request(3, "tasks/result", get()).await;
    assert_eq!(text(&own["result"]), SECRET);
    assert_eq!(bob.token, TOKEN);
}
