//! While a call runs: giving it up, its log messages, its progress.

use serde_json::{Value, json};

use super::super::client::Modern;
use super::super::{serving, silent_session, stray, text};
use super::{VERSION, journal, of_method, was_sent, with_journal};
use crate::support::session::Session;
use crate::support::sse::Answering;

#[tokio::test]
async fn a_modern_client_that_leaves_cancels_its_call_and_a_legacy_one_does_not() {
    for era in ["legacy", "modern"] {
        let folder = tempfile::tempdir().unwrap();
        let (gateway, file) = with_journal(era, &folder).await;
        let session = silent_session(&gateway, "any").await;
        let left = tokio::spawn({
            let session = session.clone();
            async move { session.call(5, "hang", json!({})).await.status }
        });
        was_sent(&file, "tools/call", 1).await;
        left.abort();
        let client = Modern::new(&gateway, "any");
        let call = client.call_message(json!("gone"), "hang", json!({"x": 1}));
        {
            let answer = client.send(&call);
            tokio::pin!(answer);
            tokio::select! {
                _ = &mut answer => panic!("it hangs"),
                () = was_sent(&file, "tools/call", 2) => {}
            }
        }
        was_sent(&file, "notifications/cancelled", 1).await;
        let cancelled = of_method(&file, "notifications/cancelled");
        let call = &of_method(&file, "tools/call")[1];
        assert_eq!(
            cancelled[0]["params"]["requestId"], call["id"],
            "{era}: {cancelled:?}"
        );
        // The legacy client says so itself.
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5, "reason": "enough"}});
        assert_eq!(session.post(&cancel).await.status, 202);
        was_sent(&file, "notifications/cancelled", 2).await;
        let cancelled = of_method(&file, "notifications/cancelled");
        assert_eq!(
            cancelled[1]["params"]["requestId"],
            of_method(&file, "tools/call")[0]["id"]
        );
        assert_eq!(cancelled.len(), 2);
    }
}

#[tokio::test]
async fn a_session_that_ends_cancels_what_it_left_running() {
    let folder = tempfile::tempdir().unwrap();
    let (gateway, file) = with_journal("legacy", &folder).await;
    let session = silent_session(&gateway, "any").await;
    let running = tokio::spawn({
        let session = session.clone();
        async move { session.call(5, "hang", json!({})).await.status }
    });
    was_sent(&file, "tools/call", 1).await;
    session.delete().await;
    was_sent(&file, "notifications/cancelled", 1).await;
    running.abort();
}

/// The methods of the messages of a stream.
async fn methods(answer: Answering) -> Vec<String> {
    let mut answer = answer;
    if !answer.is_events() {
        answer.json().await;
        return Vec::new();
    }
    let messages = answer.messages().await;
    let methods = messages.iter().filter_map(|it| it["method"].as_str());
    methods.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_modern_request_hears_log_messages_of_the_level_it_asks_for() {
    for era in ["legacy", "modern"] {
        let folder = tempfile::tempdir().unwrap();
        let (gateway, file) = with_journal(era, &folder).await;
        let client = Modern::new(&gateway, "any");
        let log = |level: Option<&str>| {
            let mut params = json!({"name": "log", "arguments": {"level": "info", "count": 2}});
            if let Some(level) = level {
                params["_meta"] = json!({"io.modelcontextprotocol/logLevel": level});
            }
            client.message(json!(1), "tools/call", params)
        };
        assert!(
            methods(client.send(&log(None)).await).await.is_empty(),
            "{era}"
        );
        assert_eq!(
            methods(client.send(&log(Some("debug"))).await).await,
            ["notifications/message"; 2],
            "{era}"
        );
        if era == "legacy" {
            let set = of_method(&file, "logging/setLevel");
            assert_eq!(set[0]["params"]["level"], "debug", "{set:?}");
            let levels = methods(client.send(&log(Some("error"))).await).await;
            assert!(levels.is_empty(), "{levels:?}");
        }
    }
}

#[tokio::test]
async fn a_sessions_log_level_is_the_servers_in_either_era() {
    for era in ["legacy", "modern"] {
        let folder = tempfile::tempdir().unwrap();
        let (gateway, file) = with_journal(era, &folder).await;
        let session = Session::start(&gateway, "any", VERSION).await;
        let set = session
            .request(2, "logging/setLevel", json!({"level": "warning"}))
            .await;
        assert_eq!(set["result"], json!({}), "{era}: {set}");
        let said = methods(session.call(3, "log", json!({"level": "error"})).await).await;
        assert_eq!(said, ["notifications/message"], "{era}");
        let told = journal(&file).iter().any(|it| {
            it["params"]["level"] == "warning"
                || it["params"]["_meta"]["io.modelcontextprotocol/logLevel"] == "warning"
        });
        assert!(told, "{era}");
        let wrong = session
            .request(4, "logging/setLevel", json!({"level": "loud"}))
            .await;
        assert!(
            wrong["error"]["code"] == -32602 || era == "legacy",
            "{era}: {wrong}"
        );
    }
}

#[tokio::test]
async fn progress_comes_under_the_clients_own_token_in_every_pairing() {
    for era in ["legacy", "modern", "dual"] {
        let gateway = serving(json!({"any": stray(&["--era", era])})).await;
        let client = Modern::new(&gateway, "any");
        let params = json!({"name": "progress", "arguments": {"steps": 3}, "_meta": {"progressToken": "mine"}});
        let said = client
            .send(&client.message(json!(1), "tools/call", params))
            .await;
        progressed(said, &json!("mine"), era).await;
        let session = silent_session(&gateway, "any").await;
        let said = session.call(9, "progress", json!({"steps": 3})).await;
        progressed(said, &json!("token-9"), era).await;
    }
}

async fn progressed(mut answer: Answering, token: &Value, era: &str) {
    for step in 1..=3 {
        let progress = answer.message().await;
        assert_eq!(
            progress["method"], "notifications/progress",
            "{era}: {progress}"
        );
        assert_eq!(
            (
                &progress["params"]["progressToken"],
                &progress["params"]["progress"]
            ),
            (token, &json!(step))
        );
    }
    assert_eq!(text(&answer.message().await["result"]), "done");
}
