//! Clients that are notified of changes, and the number of subscriptions at the server.

use serde_json::{Value, json};

use super::super::client::Modern;
use super::super::{called, serving, silent_session, stray};
use super::{VERSION, of_method, was_sent, with_journal};
use crate::support::eventually;
use crate::support::session::Session;
use crate::support::sse::Answering;

const COUNTER: &str = "stray://counter";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

fn listen(client: &Modern<'_>, id: Value) -> Value {
    client.message(id, "subscriptions/listen", json!({"notifications":
        {"toolsListChanged": true, "promptsListChanged": true, "resourceSubscriptions": [COUNTER]}}))
}

/// A listener that was acknowledged.
async fn listening(client: &Modern<'_>, id: Value) -> Answering {
    let mut listener = client.send(&listen(client, id.clone())).await;
    assert!(listener.is_events(), "{}", listener.status);
    let first = listener.message().await;
    assert_eq!(
        first["method"], "notifications/subscriptions/acknowledged",
        "{first}"
    );
    assert_eq!(first["params"]["_meta"][SUBSCRIPTION], id);
    let granted = &first["params"]["notifications"];
    assert_eq!(granted["toolsListChanged"], true, "{first}");
    assert_ne!(
        granted["promptsListChanged"], true,
        "the server has no such thing: {first}"
    );
    assert_eq!(
        granted["resourceSubscriptions"],
        json!([COUNTER]),
        "{first}"
    );
    listener
}

async fn hears(listener: &mut Answering, method: &str, id: &Value) {
    let heard = listener.message().await;
    assert_eq!(
        (&heard["method"], &heard["params"]["_meta"][SUBSCRIPTION]),
        (&json!(method), id)
    );
}

#[tokio::test]
async fn listeners_hear_a_legacy_server_over_one_subscription_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (gateway, file) = with_journal("legacy", &folder).await;
    let client = Modern::new(&gateway, "any");
    let ids = [json!("first é"), json!(9_007_199_254_740_993_u64)];
    let mut one = listening(&client, ids[0].clone()).await;
    let mut two = listening(&client, ids[1].clone()).await;
    client.call("touch", json!({})).await;
    hears(&mut one, "notifications/resources/updated", &ids[0]).await;
    hears(&mut two, "notifications/resources/updated", &ids[1]).await;
    client.call("change", json!({})).await;
    hears(&mut one, "notifications/tools/list_changed", &ids[0]).await;
    hears(&mut two, "notifications/tools/list_changed", &ids[1]).await;
    assert_eq!(of_method(&file, "resources/subscribe").len(), 1);
    drop(one);
    client.call("touch", json!({})).await;
    hears(&mut two, "notifications/resources/updated", &ids[1]).await;
    assert!(of_method(&file, "resources/unsubscribe").is_empty());
    drop(two);
    was_sent(&file, "resources/unsubscribe", 1).await;
}

#[tokio::test]
async fn listeners_go_on_hearing_when_the_server_was_restarted() {
    for era in ["legacy", "modern"] {
        let folder = tempfile::tempdir().unwrap();
        let (gateway, file) = with_journal(era, &folder).await;
        let client = Modern::new(&gateway, "any");
        let id = json!("l");
        let mut listener = listening(&client, id.clone()).await;
        let method = if era == "legacy" {
            "resources/subscribe"
        } else {
            "subscriptions/listen"
        };
        // Among others of a modern server that are for changes of its lists alone.
        let asked_for = async |times: usize| {
            eventually("the server is asked for the resource", || async {
                let asked = of_method(&file, method).into_iter();
                let asked = asked.filter(|it| it.to_string().contains(COUNTER));
                (asked.count() >= times).then_some(())
            })
            .await;
        };
        asked_for(1).await;
        gateway.call("any", "crash", json!({})).await;
        asked_for(2).await;
        client.call("touch", json!({})).await;
        // A new process may have other tools than the old one: that is worth a word.
        loop {
            let heard = listener.message().await;
            assert_eq!(heard["params"]["_meta"][SUBSCRIPTION], id);
            if heard["method"] == "notifications/resources/updated" {
                break;
            }
        }
    }
}

#[tokio::test]
async fn sessions_subscribe_to_a_resource_of_either_server_over_one_upstream_subscription() {
    for (era, method) in [
        ("legacy", "resources/subscribe"),
        ("modern", "subscriptions/listen"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (gateway, file) = with_journal(era, &folder).await;
        let mut streams = Vec::new();
        let mut sessions = Vec::new();
        for _ in 0..2 {
            let session = silent_session(&gateway, "any").await;
            let answer = session
                .request(2, "resources/subscribe", json!({"uri": COUNTER}))
                .await;
            assert_eq!(answer["result"], json!({}), "{era}: {answer}");
            streams.push(session.listen().await);
            sessions.push(session);
        }
        eventually("the server knows of the resource", || async {
            let known = of_method(&file, method)
                .into_iter()
                .filter(|it| it.to_string().contains(COUNTER));
            (known.count() > 0).then_some(())
        })
        .await;
        // A modern server confirms a subscription in its own time.
        let mut heard = false;
        for stream in &mut streams {
            if !heard {
                called(&sessions[0], "touch", json!({})).await;
                heard = true;
            }
            let message = stream.message().await;
            assert_eq!(
                message["method"], "notifications/resources/updated",
                "{era}"
            );
            assert_eq!(message["params"]["uri"], COUNTER);
            assert!(
                message["params"]["_meta"].get(SUBSCRIPTION).is_none(),
                "{message}"
            );
        }
        let subscribed = of_method(&file, method);
        let subscribed = subscribed
            .iter()
            .filter(|it| it.to_string().contains(COUNTER));
        assert_eq!(subscribed.count(), 1, "{era}");
    }
}

#[tokio::test]
async fn a_session_hears_on_its_stream_that_its_servers_tools_have_changed() {
    for era in ["legacy", "modern"] {
        let gateway = serving(json!({"any": stray(&["--era", era])})).await;
        for session in [
            Session::start(&gateway, "any", VERSION).await,
            silent_session(&gateway, "any").await,
        ] {
            let mut stream = session.listen().await;
            called(&session, "change", json!({})).await;
            assert_eq!(
                stream.message().await["method"],
                "notifications/tools/list_changed",
                "{era}"
            );
        }
    }
}
