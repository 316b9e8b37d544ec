//! Servers that come, go and change while others, and calls in flight, go on.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    and, is_gone, no_examples, pid, runs, shared_pid, stray, text, with_servers, write_servers,
};
use crate::support::session::Session;
use crate::support::sse::Answering;
use crate::support::{Gateway, eventually};

/// A gateway whose servers are in `external/config.yaml`.
async fn with_file(servers: Value) -> Gateway {
    let prepare = |data: &std::path::Path| {
        no_examples(data);
        write_servers(data, &servers);
    };
    with_servers(json!({})).start_with(prepare).await
}

/// A call that is in its server and waits for its client, and the question.
async fn asking(session: &Session) -> (Answering, Value) {
    let arguments = json!({"message": "still there?"});
    let mut answer = session.call(11, "ask", arguments).await;
    let question = answer.message().await;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    (answer, question)
}

async fn answer(session: &Session, question: &Value) {
    let response = json!({"jsonrpc": "2.0", "id": question["id"],
        "result": {"action": "accept", "content": {"answer": "yes"}}});
    assert_eq!(session.post(&response).await.status, 202);
}

#[tokio::test]
async fn a_server_is_added_and_removed_by_a_reload_and_its_neighbour_is_untouched() {
    let gateway = with_file(json!({"stays": stray(&[])})).await;
    let neighbour = shared_pid(&gateway, "stays").await;
    assert_eq!(gateway.call("new", "pid", json!({})).await.0, 404);
    let both = json!({"stays": stray(&[]), "new": stray(&[])});
    write_servers(gateway.data_dir(), &both);
    let report = gateway.reload().await;
    assert_eq!(report["workers_restarted"], json!(["new"]), "{report}");
    let new = shared_pid(&gateway, "new").await;
    write_servers(gateway.data_dir(), &json!({"stays": stray(&[])}));
    gateway.reload().await;
    assert_eq!(gateway.call("new", "pid", json!({})).await.0, 404);
    is_gone(new).await;
    assert_eq!(shared_pid(&gateway, "stays").await, neighbour);
}

#[tokio::test]
async fn a_replaced_server_finishes_its_calls_and_new_ones_go_to_its_successor() {
    let with_flavour = |flavour: &str| {
        let changed = and(stray(&[]), json!({"env": {"FLAVOUR": flavour}}));
        json!({"changes": changed, "stays": stray(&[])})
    };
    let gateway = with_file(with_flavour("old")).await;
    let neighbour = shared_pid(&gateway, "stays").await;
    let old = shared_pid(&gateway, "changes").await;
    let session = Session::start(&gateway, "changes", "2025-11-25").await;
    let (mut call, question) = asking(&session).await;
    write_servers(gateway.data_dir(), &with_flavour("new"));
    let report = gateway.reload().await;
    assert_eq!(report["workers_restarted"], json!(["changes"]), "{report}");
    let new = shared_pid(&gateway, "changes").await;
    assert_eq!(super::environment(new)["FLAVOUR"], "new");
    is_gone(old).await;
    answer(&session, &question).await;
    let end = call.message().await;
    assert!(text(&end["result"]).contains("accept"), "{end}");
    // The session goes on, with a process of the successor.
    let own = pid(&super::called(&session, "pid", json!({})).await);
    assert_eq!(super::environment(own)["FLAVOUR"], "new");
    assert_eq!(shared_pid(&gateway, "stays").await, neighbour);
}

#[tokio::test]
async fn a_reload_without_a_change_touches_no_process() {
    let gateway = with_file(json!({"any": stray(&[])})).await;
    let before = shared_pid(&gateway, "any").await;
    let report = gateway.reload().await;
    assert_eq!(report["workers_restarted"], json!([]));
    assert_eq!(shared_pid(&gateway, "any").await, before);
}

#[tokio::test]
async fn sighup_takes_the_servers_of_the_configuration_into_force() {
    let builder = with_servers(json!({"stays": stray(&[]), "goes": stray(&[])}));
    let gateway = super::start(builder).await;
    let (stays, goes) = (
        shared_pid(&gateway, "stays").await,
        shared_pid(&gateway, "goes").await,
    );
    gateway.reconfigure(json!({"upstreams": {"stdio":
        {"goes": {"enabled": false}, "comes": stray(&["--era", "dual"])}}}));
    gateway.signal(Signal::HUP);
    eventually("the new server is there", || async {
        (gateway.call("comes", "pid", json!({})).await.0 == 200).then_some(())
    })
    .await;
    assert_eq!(gateway.call("goes", "pid", json!({})).await.0, 404);
    is_gone(goes).await;
    assert_eq!(shared_pid(&gateway, "stays").await, stays);
}

#[tokio::test]
async fn a_change_that_is_wrong_leaves_what_was_served_in_place_and_says_so() {
    let gateway = with_file(json!({"any": stray(&[])})).await;
    let before = shared_pid(&gateway, "any").await;
    let wrong = and(stray(&[]), json!({"isolation": "none"}));
    write_servers(gateway.data_dir(), &json!({"any": wrong}));
    let report = gateway.reload().await;
    assert_eq!(report["failed"][0]["namespace"], "any", "{report}");
    assert!(
        report["failed"].to_string().contains("isolation"),
        "{report}"
    );
    assert_eq!(shared_pid(&gateway, "any").await, before);
    // A file that is none at all changes nothing either.
    std::fs::write(
        gateway.data_dir().join("external/config.yaml"),
        "servers: [",
    )
    .unwrap();
    let report = gateway.reload().await;
    assert!(
        report["failed"]
            .to_string()
            .contains("external/config.yaml"),
        "{report}"
    );
    assert_eq!(shared_pid(&gateway, "any").await, before);
}

#[tokio::test]
async fn a_server_whose_variable_is_taken_away_is_not_served_with_its_old_value() {
    let gateway = with_file(json!({"any": stray(&[])})).await;
    let before = shared_pid(&gateway, "any").await;
    let needs = and(stray(&[]), json!({"env": {"KEY": "${NOT_SET_ANYWHERE}"}}));
    write_servers(gateway.data_dir(), &json!({"any": needs}));
    gateway.reload().await;
    assert_eq!(gateway.call("any", "pid", json!({})).await.0, 503);
    is_gone(before).await;
}

#[tokio::test]
async fn everything_ends_with_the_gateway() {
    let gateway = with_file(json!({"a": stray(&[]), "b": stray(&["--era", "dual"])})).await;
    let session = Session::start(&gateway, "a", "2025-11-25").await;
    let mut all = vec![
        shared_pid(&gateway, "a").await,
        shared_pid(&gateway, "b").await,
    ];
    all.push(pid(&super::called(&session, "pid", json!({})).await));
    all.extend(super::descendants(gateway.pid()));
    assert!(all.iter().all(|pid| runs(*pid)));
    gateway.signal(Signal::TERM);
    assert!(gateway.ended().await.success());
    for pid in all {
        is_gone(pid).await;
    }
}

#[tokio::test]
async fn everything_ends_with_a_gateway_that_is_killed() {
    let gateway = with_file(json!({"a": stray(&[])})).await;
    let session = Session::start(&gateway, "a", "2025-11-25").await;
    let mut all = vec![shared_pid(&gateway, "a").await];
    all.push(pid(&super::called(&session, "pid", json!({})).await));
    all.extend(super::descendants(gateway.pid()));
    gateway.signal(Signal::KILL);
    gateway.ended().await;
    for pid in all {
        is_gone(pid).await;
    }
}

#[tokio::test]
async fn a_call_in_flight_is_answered_before_a_gateway_that_was_told_to_stop_ends() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let server = stray(&["--journal", journal.to_str().unwrap()]);
    let gateway = with_file(json!({"any": server})).await;
    let call = gateway.call("any", "sleep", json!({"ms": 1000}));
    let stop = async {
        eventually("the server has it", || async {
            let sent = std::fs::read_to_string(&journal).unwrap_or_default();
            sent.contains("tools/call").then_some(())
        })
        .await;
        gateway.signal(Signal::TERM);
    };
    let (answer, ()) = tokio::join!(call, stop);
    assert_eq!(answer, (200, json!("slept")));
    assert!(gateway.ended().await.success());
}
