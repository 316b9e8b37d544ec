//! Gateways of one machine with names of their own, whose sessions are in one data directory (`sessions.store: disk`).

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    KEY, LATEST, announce, both_up, claimed_while_frozen, holds, killed_behind_two_events, ping,
    see,
};
use crate::support::gateway::Builder;
use crate::support::manager::Manager;
use crate::support::ports::free_address;
use crate::support::session::Session;
use crate::support::{Gateway, eventually, tools};

/// A gateway of that name with sessions in its data directory.
fn named(name: &str) -> Builder {
    Gateway::with_tools([("talk", "talking.py", tools::TALKING)]).config(json!({
        "sessions": {"store": "disk"},
        "replicas": {"id": name, "grace": "5s"},
    }))
}

/// Starts a gateway whose sessions are those of `first`. Its tools and workers are its own.
async fn beside(first: &Gateway, gateway: Builder) -> Gateway {
    let shared = first.data_dir().to_owned();
    gateway.start_with(|data| share(&shared, data)).await
}

fn share(shared: &Path, data: &Path) {
    fs::create_dir_all(data).expect("a data directory");
    for name in ["sessions.db", "replicas"] {
        symlink(shared.join(name), data.join(name)).expect("linked");
    }
    let _ = fs::copy(shared.join("session.key"), data.join("session.key"));
}

/// Two gateways with one session key that have heard of each other.
async fn two() -> (Gateway, Gateway) {
    let one = named("one").env("SESSION_KEY", KEY).start().await;
    let two = beside(&one, named("two").env("SESSION_KEY", KEY)).await;
    both_up((one, two)).await
}

/// The state of the replicas, as `/ready` of the metrics listener tells it.
async fn ready(gateway: &Gateway) -> Value {
    let url = format!("http://{}/ready", gateway.metrics);
    let answer = gateway.client.get(url).send().await.expect("answered");
    answer.json().await.expect("JSON")
}

#[tokio::test]
async fn any_gateway_of_the_machine_answers_for_a_session_that_lives_in_another() {
    let (one, two) = two().await;
    let socket = one.data_dir().join("replicas/two/socket");
    let metadata = fs::metadata(&socket).expect("a socket");
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);

    let here = Session::start(&one, "talk", LATEST).await;
    let there = here.at(&two);
    let mut stream = there.listen().await;
    announce(&here, 3).await;
    let event = stream.event().await.expect("an announcement");
    assert_eq!(event.json()["method"], "notifications/tools/list_changed");
    announce(&there, 4).await;
    let event = stream.event().await.expect("one more");
    assert_eq!(event.json()["method"], "notifications/tools/list_changed");
    assert!(holds(&one, 1).await && holds(&two, 0).await);

    assert_eq!(there.delete().await, 204);
    assert_eq!((ping(&here).await, ping(&there).await), (404, 404));
}

#[tokio::test]
async fn the_sessions_and_events_of_a_killed_gateway_go_on_in_the_other() {
    let (mut one, two) = two().await;
    killed_behind_two_events(&mut one, &two, async |one, here| {
        // This event has no reader before the gateway ends; another client's is on disk as late.
        let witness = Session::start(one, "talk", LATEST).await;
        let mut witnessed = witness.listen().await;
        announce(here, 3).await;
        witnessed.event().await.expect("the announcement");
    })
    .await;
    assert!(holds(&two, 1).await);
}

#[tokio::test]
async fn a_gateway_of_another_name_goes_on_with_the_sessions_of_a_killed_one() {
    let mut one = named("one").env("SESSION_KEY", KEY).start().await;
    let session = Session::start(&one, "talk", LATEST).await;
    one.kill();
    let two = beside(&one, named("two").env("SESSION_KEY", KEY)).await;
    assert_eq!(ping(&session.at(&two)).await, 200);
    let left = fs::read_dir(one.data_dir().join("replicas")).expect("a folder");
    let left: Vec<_> = left.map(|it| it.expect("an entry").file_name()).collect();
    assert_eq!(left, ["two"], "the folder of the killed one is gone");
}

#[tokio::test]
async fn a_frozen_gateway_gives_up_the_sessions_that_another_has_claimed() {
    let (one, two) = two().await;
    let (here, read, lost) = claimed_while_frozen(&one, &two).await;
    let there = here.at(&two);
    see(&one, 2).await;
    assert_eq!(ping(&here).await, 200, "forwarded to its new home");
    let mut again = there.get(read.as_deref()).await;
    assert_eq!(again.event().await.expect("kept").json(), lost);
}

#[tokio::test]
async fn a_gateway_that_stops_hands_its_sessions_over_and_leaves_nothing_behind() {
    let (one, two) = two().await;
    let here = Session::start(&one, "talk", LATEST).await;
    one.signal(Signal::TERM);
    assert_eq!(ping(&here.at(&two)).await, 200);
    assert!(one.ended().await.success());
    assert_eq!(ping(&here.at(&two)).await, 200);
    assert!(!one.data_dir().join("replicas/one").exists());
}

#[tokio::test]
async fn a_second_gateway_of_one_name_does_not_start_and_names_the_remedy() {
    let one = named("one").start().await;
    let second = named("one").spawn_with(|data| share(one.data_dir(), data));
    assert!(!second.ended().await.success());
    let log = second.log();
    for part in [
        "replica one runs on this data directory already",
        &format!("process {}", one.pid()),
        "set REPLICA_ID (replicas.id)",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    assert_eq!(ping(&Session::start(&one, "talk", LATEST).await).await, 200);
}

#[tokio::test]
async fn gateways_without_a_name_and_a_session_key_of_the_operator_forward_nothing_and_claim_all_the_same()
 {
    let unnamed = || {
        Gateway::with_tools([("talk", "talking.py", tools::TALKING)]).config(json!({
            "sessions": {"store": "disk"},
            "replicas": {"grace": "5s"},
        }))
    };
    let one = unnamed().start().await;
    let two = beside(&one, unnamed()).await;
    let (mut one, two) = both_up((one, two)).await;
    let here = Session::start(&one, "talk", LATEST).await;
    assert_eq!(ping(&here.at(&two)).await, 503);
    let told = ready(&two).await;
    let problem = told["replicas"]["others"][0]["problem"].as_str();
    assert!(
        problem.is_some_and(|it| it.contains("SESSION_KEY")),
        "{told}"
    );
    let folders = fs::read_dir(one.data_dir().join("replicas")).expect("a folder");
    for folder in folders {
        let folder = folder.expect("an entry").path();
        assert!(!folder.join("socket").exists(), "{}", folder.display());
    }
    one.kill();
    assert_eq!(ping(&here.at(&two)).await, 200);
}

#[tokio::test]
async fn a_reload_of_one_gateway_reaches_the_other() {
    // Both wait to be told to reload.
    let watcher = json!({"watcher": {"enabled": false}});
    let one = named("one").config(watcher.clone()).start().await;
    let two = beside(&one, named("two").config(watcher)).await;
    let (one, two) = both_up((one, two)).await;
    for gateway in [&one, &two] {
        gateway.drop_tool(
            "talk",
            "more.py",
            "from fastmcp.tools import tool\n\n@tool\ndef more() -> int:\n    return 1\n",
        );
    }
    one.reload().await;
    eventually("the other gateway serves the new tool", || async {
        let (status, _) = two.call("talk", "more", json!({})).await;
        (status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_data_directory_whose_path_is_too_long_for_a_socket_is_reached_by_a_short_one() {
    let long = |name| {
        named(name)
            .env("SESSION_KEY", KEY)
            .nested_data_dir(&"x".repeat(100))
    };
    let one = long("one").start().await;
    let two = beside(&one, long("two")).await;
    let (one, two) = both_up((one, two)).await;
    let here = Session::start(&one, "talk", LATEST).await;
    assert_eq!(ping(&here.at(&two)).await, 200);
    assert!(holds(&one, 1).await && holds(&two, 0).await);
}

#[tokio::test]
async fn the_socket_for_replicas_takes_nothing_without_a_passport_of_theirs() {
    let one = named("one").env("SESSION_KEY", KEY).start().await;
    let socket = one.data_dir().join("replicas/one/socket");
    let client = reqwest::Client::builder().unix_socket(socket).build();
    let client = client.expect("a client");
    for passport in [None, Some("forged")] {
        let request = client
            .post("http://localhost/mcp/talk")
            .bearer_auth(crate::support::TOKEN)
            .json(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
        let request = match passport {
            Some(passport) => request.header("tooldock-passport", passport),
            None => request,
        };
        let answer = request.send().await.expect("answered");
        assert_eq!(answer.status(), 403, "{passport:?}");
    }
}

#[tokio::test]
async fn a_manager_of_its_own_shares_the_directory_and_is_no_replica_of_its_core() {
    let disk = json!({"sessions": {"store": "disk"}});
    let core = Gateway::empty()
        .arguments(&["--role", "core"])
        .config(disk.clone())
        .env("ALLOW_INSECURE_SECRETS", "1")
        .start()
        .await;
    let (address, metrics) = (free_address(), free_address());
    let manager = Gateway::empty()
        .listening(address, metrics)
        .config(json!({"listeners": [
            {"name": "manager", "address": address.to_string(), "profile": "manager"},
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
        ]}))
        .config(disk)
        .arguments(&["--role", "manager"])
        .env("DATA_DIR", core.data_dir().to_str().expect("UTF-8"))
        .env("CORE_URL", &core.url(""))
        .env("ALLOW_INSECURE_SECRETS", "1")
        .start()
        .await;
    Manager::open(manager.address).await;
    for (gateway, folder) in [(&core, "replicas"), (&manager, "replicas-manager")] {
        see(gateway, 1).await;
        let own = fs::read_dir(core.data_dir().join(folder)).expect("a folder");
        assert_eq!(own.count(), 1, "{folder}");
    }
}

#[tokio::test]
async fn named_gateways_serve_from_one_data_directory_and_seal_by_its_session_key() {
    let mut one = named("one").start().await;
    let shared = one.data_dir().to_str().expect("UTF-8").to_owned();
    let two = named("two").env("DATA_DIR", &shared).start().await;
    for gateway in [&one, &two] {
        see(gateway, 2).await;
    }
    let here = Session::start(&one, "talk", LATEST).await;
    let there = here.at(&two);
    announce(&there, 2).await;
    assert!(holds(&one, 1).await && holds(&two, 0).await);
    one.kill();
    announce(&there, 3).await;
    one.started_again().await;
    see(&one, 2).await;
    announce(&here, 4).await;
    assert!(holds(&one, 0).await && holds(&two, 1).await);
}
