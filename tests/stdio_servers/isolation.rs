//! Sharing of processes: the clients of each, their number, and their lifetime.

use serde_json::{Value, json};

use super::client::Modern;
use super::{
    and, called, descendants, is_gone, last, metric, pid, readiness, serving, shared_pid,
    silent_session, start, stray, text, with_servers,
};
use crate::support::gateway::Builder;
use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, eventually, sha256};

const VERSION: &str = "2025-11-25";
const OTHER_TOKEN: &str = "other-token-0123456789abcdef";

/// A second principal beside the unrestricted one.
fn two_principals(builder: Builder) -> Builder {
    let other = json!({"name": "other", "sha256": sha256(OTHER_TOKEN), "namespaces": ["*"]});
    builder.config(json!({"admission": {"tokens": [other]}}))
}

async fn silent_session_of(gateway: &Gateway, token: &str) -> Session {
    Session::start_as(gateway, "any", VERSION, token, json!({})).await
}

async fn session_pid(session: &Session) -> i32 {
    pid(&called(session, "pid", json!({})).await)
}

/// How many processes of a server `/ready` tells of.
async fn processes(gateway: &Gateway, kind: &str) -> u64 {
    let ready = readiness(gateway, "any").await;
    ready["server"]["processes"][kind]
        .as_u64()
        .unwrap_or_else(|| panic!("{ready}"))
}

/// A modern call that waits for its client, and its result so far.
async fn parked(client: &Modern<'_>) -> (Value, Value) {
    let call = client.call_message(json!(1), "ask", json!({"message": "well?"}));
    let asked = client.ask(&call).await.1["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    (call, asked)
}

#[tokio::test]
async fn auto_shares_one_process_among_all_who_can_be_asked_nothing() {
    let gateway = serving(json!({"any": stray(&[])})).await;
    let shared = shared_pid(&gateway, "any").await;
    for _ in 0..3 {
        let session = silent_session(&gateway, "any").await;
        assert_eq!(session_pid(&session).await, shared);
    }
    let bare =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pid"}});
    assert_eq!(pid(&gateway.mcp("any", bare).await.1["result"]), shared);
    assert_eq!(
        pid(&Modern::new(&gateway, "any").call("pid", json!({})).await),
        shared
    );
    assert_eq!(processes(&gateway, "serving").await, 1);
    assert_eq!(
        metric(&gateway, "tooldock_server_processes_live", "any").await,
        Some(1.0)
    );
}

#[tokio::test]
async fn auto_gives_a_session_that_can_be_asked_its_own_process_and_ends_it_with_the_session() {
    let gateway = serving(json!({"any": stray(&[])})).await;
    let shared = shared_pid(&gateway, "any").await;
    let (one, two) = (
        Session::start(&gateway, "any", VERSION).await,
        Session::start(&gateway, "any", VERSION).await,
    );
    let (first, second) = (session_pid(&one).await, session_pid(&two).await);
    assert!(first != second && first != shared && second != shared);
    assert_eq!(session_pid(&one).await, first);
    one.delete().await;
    is_gone(first).await;
    assert_eq!(session_pid(&two).await, second);
    assert_eq!(shared_pid(&gateway, "any").await, shared);
}

#[tokio::test]
async fn auto_leases_a_modern_call_that_can_be_asked_a_process_until_it_is_answered() {
    let gateway = serving(json!({"any": stray(&[])})).await;
    let client = Modern::new(&gateway, "any").asked();
    let shared = shared_pid(&gateway, "any").await;
    let (call, asked) = parked(&client).await;
    let (_, also) = parked(&client).await;
    assert_ne!(asked["requestState"], also["requestState"]);
    eventually(
        "two calls have a process each, beside the shared one",
        || async { (processes(&gateway, "serving").await == 3).then_some(()) },
    )
    .await;
    let key = asked["inputRequests"]
        .as_object()
        .unwrap()
        .keys()
        .next()
        .unwrap();
    let responses = json!({key: {"action": "accept", "content": {"answer": "mine"}}});
    let (_, end) = client.ask(&Modern::again(&call, &asked, responses)).await;
    assert!(text(&end["result"]).contains("mine"), "{end}");
    // A returned process serves the next call.
    let leased = pid(&client.call("pid", json!({})).await);
    assert_ne!(leased, shared);
    assert_eq!(pid(&client.call("pid", json!({})).await), leased);
    // Lists ask no client. The returned process and a fresh spare are there before they are counted.
    let settled = || async {
        let (spare, starting) = (
            processes(&gateway, "spare").await,
            processes(&gateway, "starting").await,
        );
        (spare == 2 && starting == 0).then_some(())
    };
    eventually("nothing is being started", settled).await;
    let before = descendants(gateway.pid()).len();
    assert!(client.request("tools/list", json!({})).await["result"]["tools"].is_array());
    assert_eq!(descendants(gateway.pid()).len(), before);
}

#[tokio::test]
async fn shared_is_shared_by_all_and_asks_nobody() {
    let gateway = serving(json!({"any": and(stray(&[]), json!({"isolation": "shared"}))})).await;
    let shared = shared_pid(&gateway, "any").await;
    let session = Session::start(&gateway, "any", VERSION).await;
    assert_eq!(session_pid(&session).await, shared);
    let client = Modern::new(&gateway, "any").asked();
    assert_eq!(pid(&client.call("pid", json!({})).await), shared);
    for refused in [
        called(&session, "ask", json!({})).await,
        client.call("ask", json!({})).await,
    ] {
        assert!(text(&refused).contains("-32601"), "{refused}");
    }
}

#[tokio::test]
async fn session_gives_every_session_and_every_call_without_one_its_own_process() {
    let gateway = serving(json!({"any": and(stray(&[]), json!({"isolation": "session"}))})).await;
    let (one, two) = (
        silent_session(&gateway, "any").await,
        silent_session(&gateway, "any").await,
    );
    let (first, second) = (session_pid(&one).await, session_pid(&two).await);
    let (third, fourth) = (
        shared_pid(&gateway, "any").await,
        shared_pid(&gateway, "any").await,
    );
    let mut all = vec![first, second, third, fourth];
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4, "{all:?}");
    assert_eq!(session_pid(&one).await, first);
    // Processes whose state another session must not see are not handed on.
    is_gone(third).await;
    is_gone(fourth).await;
}

#[tokio::test]
async fn principal_shares_a_process_among_the_sessions_of_one_principal() {
    let servers = json!({"any": and(stray(&[]), json!({"isolation": "principal"}))});
    let gateway = start(two_principals(with_servers(servers))).await;
    let (mine, also_mine) = (
        silent_session_of(&gateway, TOKEN).await,
        silent_session_of(&gateway, TOKEN).await,
    );
    let theirs = silent_session_of(&gateway, OTHER_TOKEN).await;
    let own = session_pid(&mine).await;
    assert_eq!(session_pid(&also_mine).await, own);
    assert_eq!(shared_pid(&gateway, "any").await, own);
    assert_eq!(
        pid(&Modern::new(&gateway, "any").call("pid", json!({})).await),
        own
    );
    let foreign = session_pid(&theirs).await;
    assert_ne!(foreign, own);
    let modern = Modern::new(&gateway, "any").with_token(OTHER_TOKEN);
    assert_eq!(pid(&modern.call("pid", json!({})).await), foreign);
    // A process of several sessions outlives each of them.
    mine.delete().await;
    assert_eq!(session_pid(&also_mine).await, own);
}

#[tokio::test]
async fn a_full_namespace_says_so_and_serves_those_it_has() {
    let keys = json!({"isolation": "session", "max_processes": 2, "warm": 0});
    let gateway = serving(json!({"any": and(stray(&[]), keys), "beside": stray(&[])})).await;
    // A process found out the versions of the server.
    let held = silent_session(&gateway, "any").await;
    let own = session_pid(&held).await;
    let (mcp, rest) = tokio::join!(
        async {
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pid"}});
            gateway.mcp("any", call).await
        },
        async {
            let request = gateway
                .request("POST", "/tools/pid")
                .header("X-Namespace", "any");
            let response = request.json(&json!({})).send().await.unwrap();
            let retry = response.headers().get("retry-after").cloned();
            (
                response.status().as_u16(),
                retry,
                response.json::<Value>().await.unwrap(),
            )
        }
    );
    let (status, answer) = mcp;
    assert_eq!(
        (status, &answer["result"]["isError"]),
        (200, &json!(true)),
        "{answer}"
    );
    assert!(answer.to_string().contains("overloaded"), "{answer}");
    let (status, retry, body) = rest;
    assert_eq!(
        (status, &body["error"]["code"]),
        (503, &json!("overloaded")),
        "{body}"
    );
    assert!(retry.is_some());
    assert_eq!(session_pid(&held).await, own);
    assert!(shared_pid(&gateway, "beside").await > 0);
    assert!(descendants_of_server(&gateway) <= 3 * 2);
    let refused = metric(
        &gateway,
        "tooldock_server_refused_total",
        r#"reason="max_processes""#,
    )
    .await;
    assert_eq!(refused, Some(2.0));
}

/// Processes and their guards, those of two namespaces.
fn descendants_of_server(gateway: &Gateway) -> usize {
    descendants(gateway.pid()).len()
}

#[tokio::test]
async fn a_principal_with_all_its_processes_does_not_keep_others_from_theirs() {
    let keys = json!({"isolation": "session", "max_per_principal": 1, "warm": 0});
    let gateway = start(two_principals(with_servers(
        json!({"any": and(stray(&[]), keys)}),
    )))
    .await;
    let mine = silent_session_of(&gateway, TOKEN).await;
    let own = session_pid(&mine).await;
    let full = async {
        let call =
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pid"}});
        gateway.mcp("any", call).await.1
    };
    let others = async {
        let theirs = silent_session_of(&gateway, OTHER_TOKEN).await;
        session_pid(&theirs).await
    };
    let (full, others) = tokio::join!(full, others);
    assert!(full.to_string().contains("overloaded"), "{full}");
    assert_ne!(others, own);
    assert_eq!(session_pid(&mine).await, own);
}

#[tokio::test]
async fn an_idle_process_stops_and_the_next_request_starts_another() {
    let keys = json!({"idle_stop": "300ms", "warm": 0});
    let gateway = serving(json!({"any": and(stray(&[]), keys)})).await;
    let session = Session::start(&gateway, "any", VERSION).await;
    let (shared, own) = (
        shared_pid(&gateway, "any").await,
        session_pid(&session).await,
    );
    is_gone(shared).await;
    is_gone(own).await;
    eventually("nothing runs", || async {
        (readiness(&gateway, "any").await["state"] == "idle").then_some(())
    })
    .await;
    assert_ne!(shared_pid(&gateway, "any").await, shared);
    // The session does not notice.
    assert_ne!(session_pid(&session).await, own);
}

#[tokio::test]
async fn a_process_beyond_its_lifetime_is_replaced_and_finishes_its_calls_first() {
    let gateway = serving(json!({"any": and(stray(&[]), json!({"max_lifetime": "1s"}))})).await;
    let session = Session::start(&gateway, "any", VERSION).await;
    let own = session_pid(&session).await;
    let mut call = session.call(3, "ask", json!({})).await;
    let question = call.message().await;
    let old = shared_pid(&gateway, "any").await;
    eventually(
        "the shared one is another, and nobody was refused",
        || async { (shared_pid(&gateway, "any").await != old).then_some(()) },
    )
    .await;
    eventually("the session's next call has a new one", || async {
        (session_pid(&session).await != own).then_some(())
    })
    .await;
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}});
    assert_eq!(session.post(&answer).await.status, 202);
    assert!(text(&last(call).await["result"]).contains("decline"));
    is_gone(own).await;
}

#[tokio::test]
async fn a_spare_process_is_there_before_somebody_needs_it() {
    let gateway = serving(json!({"any": and(stray(&[]), json!({"isolation": "session"}))})).await;
    let spare = || async { (processes(&gateway, "spare").await == 1).then_some(()) };
    eventually("a spare", spare).await;
    let before = descendants(gateway.pid());
    let session = silent_session(&gateway, "any").await;
    let own = session_pid(&session).await;
    assert!(before.contains(&own), "it was there before");
    eventually("another spare", spare).await;
}
