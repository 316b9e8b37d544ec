//! Replicas behind a gateway whose remote pool is their load balancer, in both modes.

use serde_json::json;

use super::{KEY, LATEST, ping, see, two};
use crate::support::redis::Redis;
use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, eventually};

/// Calls a tool, and answers if that worked.
async fn works(session: &Session, id: u64) -> bool {
    let mut answer = session.call(id, "logs", json!({})).await;
    let messages = match answer.is_events() {
        true => answer.messages().await,
        false => vec![answer.json().await],
    };
    let last = messages.last().expect("an answer");
    last["id"] == id && last["result"]["isError"] != true && last["error"].is_null()
}

#[tokio::test]
async fn sessions_through_a_remote_pool_go_on_when_a_replica_dies() {
    let redis = Redis::start().await;
    let (one, mut two) = two(&redis).await;
    let backends = json!([one.url("/mcp/talk"), two.url("/mcp/talk")]);
    let pool = |mode: &str| {
        json!({"backends": backends, "credentials": "Bearer ${REPLICAS_TOKEN}", "mode": mode,
            "balance": "round_robin", "allow_private": true})
    };
    let front = Gateway::empty()
        .config(json!({"upstreams": {"remote": {
            "through": pool("pass_through"), "shared-client": pool("client")}}}))
        .env("REPLICAS_TOKEN", TOKEN)
        .start()
        .await;
    let mut sessions = Vec::new();
    for namespace in ["through", "shared-client"] {
        for _ in 0..4 {
            sessions.push(Session::start(&front, namespace, LATEST).await);
        }
    }
    for session in &sessions {
        assert!(works(session, 2).await);
    }
    two.kill();
    see(&one, 1).await;
    for session in &sessions {
        eventually("the session goes on", || async {
            (ping(session).await == 200 && works(session, 3).await).then_some(())
        })
        .await;
    }
    for session in &sessions {
        assert_eq!(session.delete().await, 204);
    }
    assert!(!front.log().contains(KEY) && !front.log().contains(TOKEN));
}
