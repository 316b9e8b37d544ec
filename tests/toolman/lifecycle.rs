//! Servers that fail, and files that change.

use serde_json::{Value, json};

use super::{House, SERVERS, call, catalogue, logged, pid_of, result, said, tools_of, write};
use crate::conditions::is_everywhere;
use crate::support::session::Session;
use crate::support::sse::Answering;
use crate::support::{Gateway, eventually};

/// AGG-35, AGG-36, AGG-40, and wrong commands.
#[tokio::test]
async fn a_server_that_fails_takes_only_its_own_entries_away() {
    let bad = r#"
[[servers]]
namespace = "gone"
command = "exit 3"

[[servers]]
namespace = "absent"
command = "/no/such/program"

[[servers]]
namespace = "mute"
command = "exec sleep 1000"
connect_timeout = "300ms"
"#;
    let house = House::of("").await;
    let session = house.session().await;
    write(house.folder.path(), &format!("{SERVERS}{bad}"));
    house.gateway.reload().await;
    let listed = tools_of(&session).await;
    assert!(
        listed.contains(&"pjpd_list_projects".to_owned()),
        "{listed:?}"
    );
    for words in [
        "server gone of toolman",
        "server absent of toolman",
        "server mute of toolman",
    ] {
        logged(&house.gateway, words).await;
    }
    let why = said(&call(&session, "gone_tool", json!({})).await);
    assert!(
        why["error"].as_str().unwrap().contains("server gone"),
        "{why}"
    );
    // An unchanged server was not started again.
    assert_eq!(house.asked("pjpd", "initialize"), 1);

    // A crash: lists and the catalogue lose the server's entries, the log says so, and no new process is started.
    let crashed = call(&session, "pjpd_crash", json!({})).await;
    assert_eq!(crashed["isError"], true, "{crashed}");
    eventually("the entries to leave", async || {
        let listed = result(&session, "tools/list", json!({})).await;
        let there = catalogue(&listed["tools"])
            .iter()
            .any(|it| it.contains("pjpd_create_task"));
        (!there).then_some(())
    })
    .await;
    logged(&house.gateway, "server pjpd of toolman offers nothing").await;
    let listed = tools_of(&session).await;
    // The name is free for the server behind.
    assert!(
        !listed.contains(&"pjpd_create_task".to_owned())
            && listed.contains(&"vec_search".to_owned())
    );
    let prompts = result(&session, "prompts/list", json!({})).await;
    assert_eq!(super::names(&prompts["prompts"], "name"), ["vec_explain"]);
    // A call is told of its own server, not of tools of others with similar names.
    let refused = call(&session, "pjpd_create_task", json!({})).await;
    let code = &refused["_meta"]["tooldock/error"]["code"];
    assert_eq!(code, "worker_unavailable", "{refused}");
    let gone = said(&refused);
    let error = gone["error"].as_str().unwrap();
    assert!(
        error.contains("server pjpd offers nothing now") && !error.contains("did you mean"),
        "{gone}"
    );
    let missing = call(&session, "pjpd_no_such_tool", json!({})).await;
    let code = &missing["_meta"]["tooldock/error"]["code"];
    assert_eq!(code, "tool_not_found", "{missing}");
    assert_eq!(house.asked("pjpd", "initialize"), 1);
}

/// A member of a gateway comes back by itself; one that is not to be started again, by a reload of an unchanged file.
#[tokio::test]
async fn a_member_that_is_killed_comes_back_and_one_that_does_not_makes_the_aggregate_degraded() {
    let file = r#"
active_toolsets = ["*"]

[[servers]]
namespace = "pjpd"
command = "PJPD"

[[servers]]
namespace = "vec"
command = "PJPD"
restart = "never"
"#;
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), file);
    let keys = json!({
        "toolman": {"toolman": {"config": folder.path().join("tools.toml")}},
        "namespaces": {"starter": false},
    });
    let gateway = Gateway::empty().with_web().config(keys).start().await;
    let kill = async |tool: &str| {
        let pid = eventually("a process", async || pid_of(&gateway, tool).await.ok()).await;
        let killed = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(killed, rustix::process::Signal::KILL).unwrap();
        pid
    };
    let of = |told: &Value, name: &str| {
        let members = told["members"].as_array().unwrap().iter();
        let state = members
            .filter(|it| it["name"] == name)
            .map(|it| it["state"].clone());
        state.collect::<Vec<_>>()
    };

    let killed = kill("pjpd_pid").await;
    eventually("another process", async || {
        let pid = pid_of(&gateway, "pjpd_pid").await.ok()?;
        (pid != killed).then_some(())
    })
    .await;

    // Its lists are read again a moment after the process answers.
    is_everywhere(&gateway, "toolman", "ready").await;

    let killed = kill("vec_pid").await;
    let told = is_everywhere(&gateway, "toolman", "degraded").await;
    assert_eq!(of(&told, "vec"), ["failed"], "{told}");
    gateway.reload().await;
    eventually("another process", async || {
        let pid = pid_of(&gateway, "vec_pid").await.ok()?;
        (pid != killed).then_some(())
    })
    .await;
    let told = is_everywhere(&gateway, "toolman", "ready").await;
    for name in ["pjpd", "vec"] {
        assert_eq!(of(&told, name), ["ready"], "{told}");
    }
}

/// A member that does not start within its time is logged and counts as down; it comes back once it answers.
#[tokio::test]
async fn an_aggregate_is_failed_while_all_its_members_are_down() {
    let file = r#"
[[servers]]
namespace = "gone"
command = "exit 0"
restart = "never"

[[servers]]
namespace = "late"
command = "until [ -e go ]; do sleep 0.02; done; PJPD"
connect_timeout = "200ms"
"#;
    let folder = tempfile::TempDir::new().unwrap();
    write(folder.path(), file);
    let keys = json!({
        "toolman": {"toolman": {"config": folder.path().join("tools.toml")}},
        "namespaces": {"starter": false},
    });
    let gateway = Gateway::empty().with_web().config(keys).start().await;
    let told = is_everywhere(&gateway, "toolman", "failed").await;
    let late = &told["members"][1];
    assert_eq!(
        (&late["name"], &late["state"]),
        (&json!("late"), &json!("failed"))
    );
    assert!(
        late["reason"].as_str().unwrap().contains("connect_timeout"),
        "{told}"
    );
    logged(&gateway, "server late of toolman is not there after 0.2 s").await;
    let health = gateway.request("GET", "/health").send().await.unwrap();
    let health: Value = health.json().await.unwrap();
    assert_eq!(health["failing"][0]["name"], "toolman", "{health}");
    std::fs::write(folder.path().join("go"), "").unwrap();
    let told = is_everywhere(&gateway, "toolman", "degraded").await;
    assert_eq!(told["members"][1]["state"], "ready", "{told}");
}

/// Only the end of a server takes its entries away: a list that is refused is asked for again, and stays as it was.
#[tokio::test]
async fn a_server_that_lives_keeps_its_entries_when_it_refuses_a_list() {
    let file = r#"
active_toolsets = ["odd*"]
[[servers]]
namespace = "odd"
command = "ODD"
"#;
    let house = House::with(file, json!({})).await;
    let session = house.session().await;
    let listed = tools_of(&session).await;
    assert!(listed.contains(&"odd_spoil".to_owned()), "{listed:?}");
    logged(&house.gateway, "it refused resources/list").await;
    eventually("the resources", async || {
        let listed = result(&session, "resources/list", json!({})).await;
        let listed = super::names(&listed["resources"], "uri");
        listed.contains(&"odd_note://1".to_owned()).then_some(())
    })
    .await;

    call(&session, "odd_spoil", json!({})).await;
    logged(&house.gateway, "it refused tools/list").await;
    let listed = tools_of(&session).await;
    assert!(listed.contains(&"odd_spoil".to_owned()), "{listed:?}");
    call(&session, "odd_grow", json!({})).await;
    eventually("the new tool", async || {
        let listed = tools_of(&session).await;
        listed.contains(&"odd_grown".to_owned()).then_some(())
    })
    .await;
    assert_eq!(house.asked("odd", "initialize"), 1);
}

/// A file that cannot be used changes nothing; without one the namespace says why.
#[tokio::test]
async fn a_wrong_file_changes_nothing_and_says_where() {
    let house = House::of("").await;
    let session = house.session().await;
    let before = tools_of(&session).await;
    write(
        house.folder.path(),
        "active_toolsets = []\n[[servers]]\nnamespace = \"a\"\ncomand = \"x\"\n",
    );
    let report = house.gateway.reload().await;
    assert!(report.to_string().contains("tools.toml"), "{report}");
    assert_eq!(tools_of(&session).await, before);

    house.gateway.reconfigure(json!({"toolman": {"toolman": {"config": house.folder.path().join("tools.toml")}, "other": {"config": "/no/such/tools.toml"}}}));
    house.gateway.signal(rustix::process::Signal::HUP);
    let answer = eventually("the other namespace", async || {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
        let (_, answer) = house.gateway.mcp("other", message).await;
        let told: &Value = &answer["error"]["message"];
        told.as_str()
            .is_some_and(|it| it.contains("/no/such/tools.toml"))
            .then_some(answer)
    })
    .await;
    assert!(answer["error"].is_object());
}

/// AGG-35 and AGG-39 where the server is a session's own: what left is gone for that session alone.
#[tokio::test]
async fn a_session_whose_own_copy_of_a_server_ended_sees_nothing_of_that_server() {
    let house = House::of("").await;
    let (asking, plain) = (house.asking("toolman").await, house.session().await);
    let before = tools_of(&asking).await;
    assert!(before.contains(&"pjpd_mixed".to_owned()), "{before:?}");
    let mut stream = asking.listen().await;

    let crashed = call(&asking, "pjpd_crash", json!({})).await;
    assert_eq!(crashed["isError"], true, "{crashed}");
    let failed = said(&crashed);
    assert_eq!(
        (&failed["success"], &failed["result"]),
        (&json!(false), &Value::Null)
    );
    let error = failed["error"].as_str().unwrap();
    assert!(
        error.contains("server pjpd") && error.contains("tools/list"),
        "{error}"
    );
    let code = &crashed["_meta"]["tooldock/error"]["code"];
    assert_eq!(code, "worker_unavailable", "{crashed}");
    let listed = tools_without_pjpd(&asking, &mut stream).await;
    let lines = catalogue(&listed["tools"]);
    assert!(!lines.iter().any(|it| it.contains("pjpd_")), "{lines:#?}");
    let refused = call(&asking, "pjpd_mixed", json!({})).await;
    let code = &refused["_meta"]["tooldock/error"]["code"];
    assert_eq!(code, "worker_unavailable", "{refused}");
    let why = said(&refused);
    let error = why["error"].as_str().unwrap();
    assert!(error.contains("offers nothing in this session"), "{error}");
    let params = json!({"uri": "pjpd_projects://list"});
    let read = super::answer(&asking, "resources/read", params).await;
    assert_eq!(read["error"]["data"]["success"], false, "{read}");

    // Others go on with the process that all share.
    assert_eq!(tools_of(&plain).await, before);
    let ran = call(&plain, "pjpd_list_projects", json!({})).await;
    assert_eq!(ran["content"][0]["text"], "pjpd ran list_projects");
    assert_eq!(house.asked("pjpd", "initialize"), 2);
}

/// AGG-35 without a call: the end itself notifies the session.
#[tokio::test]
async fn a_session_hears_that_its_own_copy_of_a_server_ended_while_nothing_was_asked_of_it() {
    let house = House::of("").await;
    let session = house.asking("toolman").await;
    let mut stream = session.listen().await;
    let pid = call(&session, "pjpd_pid", json!({})).await;
    let pid = pid["content"][0]["text"].as_str().unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    tools_without_pjpd(&session, &mut stream).await;
}

/// Lists are those of the shared process: changes that a session's own copy reports of its lists are not passed on.
#[tokio::test]
async fn a_copy_that_changes_its_own_lists_changes_none_for_its_session() {
    let house = House::of("").await;
    let session = house.asking("toolman").await;
    let mut stream = session.listen().await;
    result(&session, "tools/list", json!({})).await;
    let grown = call(&session, "pjpd_grow", json!({})).await;
    assert_eq!(grown["content"][0]["text"], "pjpd ran grow", "{grown}");
    assert_eq!(session.delete().await, 204);
    let heard = stream.messages().await;
    let of_copy = heard.iter().find(|it| it["params"]["of"] == "pjpd");
    assert!(of_copy.is_none(), "{heard:?}");
}

/// The list of tools after the change that took those of server pjpd away. Changes from the time when the servers started
/// may be told first.
async fn tools_without_pjpd(session: &Session, stream: &mut Answering) -> Value {
    loop {
        if stream.message().await["method"] != "notifications/tools/list_changed" {
            continue;
        }
        let listed = result(session, "tools/list", json!({})).await;
        let names = super::names(&listed["tools"], "name");
        assert!(names.contains(&"vec_search".to_owned()), "{names:?}");
        if !names.iter().any(|it| it.starts_with("pjpd_")) {
            return listed;
        }
    }
}

/// A message of a client to all servers starts none of them; a copy that starts later is told the level first.
#[tokio::test]
async fn a_level_and_changed_roots_start_no_server() {
    let house = House::of("").await;
    let session = house.asking("toolman").await;
    tools_of(&session).await;
    result(&session, "logging/setLevel", json!({"level": "debug"})).await;
    let roots = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
    assert_eq!(session.post(&roots).await.status, 202);
    call(&session, "pjpd_pid", json!({})).await;
    assert_eq!(session.post(&roots).await.status, 202);
    eventually("the server that runs to hear of the roots", async || {
        let heard = house.asked("pjpd", "notifications/roots/list_changed");
        (heard > 0).then_some(())
    })
    .await;
    let asked = |server, method| house.asked(server, method);
    assert_eq!(asked("pjpd", "initialize"), 2);
    assert_eq!(asked("pjpd", "logging/setLevel"), 1);
    assert_eq!(asked("pjpd", "notifications/roots/list_changed"), 1);
    assert_eq!(
        (asked("vec", "initialize"), asked("vec", "logging/setLevel")),
        (1, 0)
    );
}

/// AGG-11: strict clients refuse a whole list for one entry, so none is published that they would not take.
#[tokio::test]
async fn definitions_that_no_client_takes_are_mended_or_left_out() {
    let file = "active_toolsets = [\"*\"]\n[[servers]]\nnamespace = \"wild\"\ncommand = \"WILD\"\n";
    let house = House::with(file, json!({})).await;
    let session = house.session().await;
    let listed = result(&session, "tools/list", json!({})).await;
    let names = super::names(&listed["tools"], "name");
    assert_eq!(names, ["toolman_activate", "wild_good", "wild_bare"]);
    assert_eq!(listed["tools"][2]["inputSchema"], json!({"type": "object"}));
    let resources = result(&session, "resources/list", json!({})).await;
    assert_eq!(resources["resources"][0]["name"], "note://1");
    logged(
        &house.gateway,
        "\"text\" is left out: its inputSchema is not of type object",
    )
    .await;
    logged(
        &house.gateway,
        "\"bare\" was mended: its inputSchema is missing",
    )
    .await;
    // Tools that were read are kept.
    let asked = house.asked("wild", "tools/list");
    assert_eq!(tools_of(&session).await, names);
    assert_eq!(house.asked("wild", "tools/list"), asked);
    assert_eq!(house.asked("wild", "resources/list"), 1);
}
