//! Dropping folders in, changing and removing them, while everything else keeps answering.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::support::session::Session;
use crate::support::sse::{Answering, End};
use crate::support::{Gateway, eventually, raw, sha256, tools};

const VERSIONED: &str = r#"
import asyncio
from fastmcp.tools import tool

@tool
async def version(seconds: float = 0) -> int:
    """Which source this is."""
    await asyncio.sleep(seconds)
    return 1
"#;

pub(crate) const PID: &str = r#"
import os
from fastmcp.tools import tool

@tool
def pid() -> int:
    """The worker's process id."""
    return os.getpid()
"#;

fn names(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_dropped_folder_is_served_after_a_reload_and_gone_after_its_removal() {
    let gateway = Gateway::empty().start().await;
    gateway.drop_tool("my-tools", "hello.py", tools::HELLO);
    gateway.drop_tool("Bad.Name", "hello.py", tools::HELLO);
    fs::create_dir(gateway.tools_dir().join("empty")).unwrap();
    let call = || gateway.call("my-tools", "say_hello", json!({}));
    assert_eq!(call().await.0, 404);
    let report = gateway.reload().await;
    assert_eq!(report["reloaded"], true);
    assert_eq!(
        names(&report["namespaces"]),
        ["empty", "my-tools", "shared"]
    );
    assert_eq!(call().await, (200, json!("Hello, World!")));
    let (_, list) = gateway
        .mcp(
            "empty",
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        )
        .await;
    assert_eq!(list["result"]["tools"], json!([]));
    fs::remove_dir_all(gateway.tools_dir().join("my-tools")).unwrap();
    assert_eq!(
        names(&gateway.reload().await["namespaces"]),
        ["empty", "shared"]
    );
    assert_eq!(call().await.0, 404);
    eventually("the socket is gone", || async {
        (!gateway
            .data_dir()
            .join("workers/my-tools/worker.sock")
            .exists())
        .then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_empty_data_directory_gets_the_shared_namespace() {
    let gateway = Gateway::empty().start().await;
    assert_eq!(
        gateway
            .call("shared", "say_hello", json!({"name": "you"}))
            .await,
        (200, json!("Hello, you!"))
    );
}

#[tokio::test]
async fn only_what_changed_is_restarted_and_calls_in_flight_finish_where_they_began() {
    let gateway = Gateway::with_tools([("changes", "v.py", VERSIONED), ("stays", "pid.py", PID)])
        .start()
        .await;
    let pid = gateway.call("stays", "pid", json!({})).await.1;
    let slow = gateway.call("changes", "version", json!({"seconds": 3}));
    let reload = async {
        gateway.in_flight("changes", 1).await;
        gateway.drop_tool(
            "changes",
            "v.py",
            &VERSIONED.replace("return 1", "return 2"),
        );
        let report = gateway.reload().await;
        assert_eq!(names(&report["workers_restarted"]), ["changes"]);
        assert_eq!(
            gateway.call("changes", "version", json!({})).await,
            (200, json!(2))
        );
    };
    let (old, ()) = tokio::join!(slow, reload);
    assert_eq!(
        old,
        (200, json!(1)),
        "the call in flight finished on the old worker"
    );
    assert_eq!(gateway.call("stays", "pid", json!({})).await.1, pid);
    let nothing = gateway.reload().await;
    assert_eq!(names(&nothing["workers_restarted"]), Vec::<&str>::new());
}

#[tokio::test]
async fn readers_see_one_complete_list_or_the_other() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .start()
        .await;
    let list = || async {
        let (status, list) = gateway
            .mcp(
                "calc",
                json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
            )
            .await;
        assert_eq!(status, 200);
        names_of(&list["result"]["tools"])
    };
    gateway.drop_tool("calc", "more.py", &PID.replace("def pid", "def zero"));
    let (seen, _) = tokio::join!(
        async {
            let mut seen = Vec::new();
            for _ in 0..200 {
                seen.push(list().await);
            }
            seen
        },
        gateway.reload()
    );
    for names in seen {
        assert!(
            names == ["add", "multiply"] || names == ["add", "multiply", "zero"],
            "{names:?}"
        );
    }
    assert_eq!(list().await.len(), 3);
}

fn names_of(tools: &Value) -> Vec<String> {
    tools
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn requirements_are_installed_and_synced_only_when_they_change() {
    let wheels = tempfile::TempDir::new().unwrap();
    crate::support::tools::write_wheel(wheels.path(), "tinypkg", "1.0");
    crate::support::tools::write_wheel(wheels.path(), "tinypkg", "2.0");
    let source = r#"
import tinypkg
from fastmcp.tools import tool

@tool
def package_version() -> str:
    """The installed version."""
    return tinypkg.__version__
"#;
    let gateway = Gateway::empty()
        .env("PIP_NO_INDEX", "1")
        .env("PIP_FIND_LINKS", wheels.path().to_str().unwrap())
        .env("UV_NO_INDEX", "1")
        .env("UV_FIND_LINKS", wheels.path().to_str().unwrap())
        .start()
        .await;
    for (namespace, version) in [("one", "1.0"), ("two", "2.0")] {
        gateway.drop_tool(namespace, "package.py", source);
        gateway.drop_tool(
            namespace,
            "requirements.txt",
            &format!("tinypkg=={version}\n"),
        );
    }
    let report = gateway.reload().await;
    assert_eq!(names(&report["deps_synced"]), ["one", "two"], "{report}");
    assert_eq!(
        gateway.call("one", "package_version", json!({})).await,
        (200, json!("1.0"))
    );
    assert_eq!(
        gateway.call("two", "package_version", json!({})).await,
        (200, json!("2.0"))
    );
    gateway.drop_tool("one", "requirements.txt", "tinypkg==1.0\n");
    assert_eq!(
        names(&gateway.reload().await["deps_synced"]),
        Vec::<&str>::new()
    );
    gateway.drop_tool("one", "requirements.txt", "tinypkg==2.0\n");
    assert_eq!(names(&gateway.reload().await["deps_synced"]), ["one"]);
    assert_eq!(
        gateway.call("one", "package_version", json!({})).await,
        (200, json!("2.0"))
    );
    // A failing update leaves the old version serving, is reported, and blocks no other namespace.
    gateway.drop_tool("one", "requirements.txt", "no-such-package-anywhere==9\n");
    gateway.drop_tool("three", "hello.py", tools::HELLO);
    let report = gateway.reload().await;
    assert!(
        report["failed"].to_string().contains("dependency_error"),
        "{report}"
    );
    assert_eq!(
        gateway.call("one", "package_version", json!({})).await,
        (200, json!("2.0"))
    );
    assert_eq!(gateway.call("three", "say_hello", json!({})).await.0, 200);
    // A new namespace that cannot be installed answers with the reason, never with an empty list.
    gateway.drop_tool("four", "hello.py", tools::HELLO);
    gateway.drop_tool("four", "requirements.txt", "no-such-package-anywhere==9\n");
    gateway.reload().await;
    let (status, answer) = gateway.call("four", "say_hello", json!({})).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (500, &json!("dependency_error"))
    );
    let (_, list) = gateway
        .mcp(
            "four",
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        )
        .await;
    assert!(list["error"]["code"].is_i64(), "{list}");
}

#[tokio::test]
async fn files_and_folders_that_do_not_count_are_issues_of_a_gateway_that_is_ready() {
    let gateway = Gateway::with_tools([("good", "hello.py", tools::HELLO)])
        .start()
        .await;
    let server = "from fastapi import FastAPI\n\napp = FastAPI()\n";
    for (namespace, file, text) in [
        ("api", "openapi.json", "{}"),
        ("Bad.Name", "hello.py", tools::HELLO),
        ("needs", "hello.py", tools::HELLO),
        (
            "needs",
            "tooldock.yaml",
            "secrets: [ABSENT]\npython: '3.12'\n",
        ),
        ("server", "main.py", server),
    ] {
        gateway.drop_tool(namespace, file, text);
    }
    fs::write(gateway.tools_dir().join("stray.py"), tools::HELLO).unwrap();
    let issues_of = |answer: &Value| -> Vec<(String, String)> {
        let issues = answer["issues"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        issues
            .map(|it| (text(&it["namespace"]), text(&it["code"])))
            .collect()
    };
    let report = gateway.reload().await;
    assert_eq!(report["failed"], json!([]), "{report}");
    let issues = issues_of(&report);
    let expected = [
        ("api", "empty_namespace"),
        ("needs", "missing_secret"),
        ("needs", "unknown_key"),
        ("server", "server_file"),
        ("Bad.Name", "invalid_name"),
        ("stray.py", "loose_file"),
    ];
    for (namespace, code) in expected {
        let issue = (namespace.to_owned(), code.to_owned());
        assert!(issues.contains(&issue), "{issue:?}: {report}");
    }

    let ready = gateway.request("GET", "/ready").send().await.unwrap();
    assert_eq!(ready.status(), 200);
    let ready: Value = ready.json().await.unwrap();
    let namespaces = ready["namespaces"].as_array().unwrap();
    let needs = namespaces.iter().find(|it| it["name"] == "needs").unwrap();
    assert_eq!(needs["state"], "ready");
    let message = "tooldock secrets set --key ABSENT --scope needs";
    assert!(needs["issues"].to_string().contains(message), "{ready}");

    gateway.drop_tool("needs", "hello.py", &tools::HELLO.replace("Hello", "Hi"));
    let report = gateway.reload().await;
    assert_eq!(names(&report["workers_restarted"]), ["needs"]);
    let issues = issues_of(&report);
    assert_eq!(
        issues[0].0, "needs",
        "changed namespaces come first: {report}"
    );
    assert!(issues.iter().any(|(namespace, _)| namespace == "api"));
}

#[tokio::test]
async fn two_reloads_at_once_are_one() {
    let gateway = Gateway::with_tools([("changes", "v.py", VERSIONED)])
        .start()
        .await;
    gateway.drop_tool(
        "changes",
        "v.py",
        &VERSIONED.replace("return 1", "return 2"),
    );
    let before = restarts(&gateway).await;
    let (first, second) = tokio::join!(gateway.reload(), gateway.reload());
    assert!(
        first["coalesced"] == true || second["coalesced"] == true,
        "{first} {second}"
    );
    assert_eq!(gateway.call("changes", "version", json!({})).await.1, 2);
    assert_eq!(
        restarts(&gateway).await,
        before,
        "a new generation is no restart"
    );
}

async fn restarts(gateway: &Gateway) -> usize {
    gateway
        .metrics_text()
        .await
        .lines()
        .filter(|line| line.starts_with("tooldock_worker_restarts_total") && !line.ends_with(" 0"))
        .count()
}

#[tokio::test]
async fn a_symlink_out_of_the_tree_is_not_followed() {
    let gateway = Gateway::empty().start().await;
    let outside = gateway.data.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("hello.py"), tools::HELLO).unwrap();
    std::os::unix::fs::symlink(&outside, gateway.tools_dir().join("linked")).unwrap();
    gateway.drop_tool("inside", "math_tools.py", tools::MATH);
    std::os::unix::fs::symlink(
        outside.join("hello.py"),
        gateway.tools_dir().join("inside/hello.py"),
    )
    .unwrap();
    let report = gateway.reload().await;
    assert_eq!(names(&report["namespaces"]), ["inside", "shared"]);
    let (_, list) = gateway
        .mcp(
            "inside",
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        )
        .await;
    assert_eq!(names_of(&list["result"]["tools"]), ["add", "multiply"]);
}

#[tokio::test]
async fn sighup_reads_configuration_and_namespaces_again_and_keeps_what_was_when_they_are_wrong() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .start()
        .await;
    gateway.drop_tool("late", "hello.py", tools::HELLO);
    gateway.reconfigure(
        json!({"namespaces": {"overrides": {"calc": {"tools_deny": ["add"]}}},
        "admission": {"limits": {"body": "1KiB"}}, "threads": 7}),
    );
    gateway.signal(Signal::HUP);
    eventually("the new namespace is served", || async {
        (gateway.call("late", "say_hello", json!({})).await.0 == 200).then_some(())
    })
    .await;
    eventually("the new rule is in force", || async {
        (gateway.call("calc", "add", json!({"a": 1, "b": 1})).await.0 == 404).then_some(())
    })
    .await;
    let large = gateway
        .call("late", "say_hello", json!({"name": "x".repeat(2000)}))
        .await;
    assert_eq!(large.0, 413);
    assert!(
        gateway.log().contains("threads"),
        "what cannot change live is named"
    );
    gateway.reconfigure(json!({"admission": {"no_such_key": 1}}));
    gateway.signal(Signal::HUP);
    eventually("the wrong key is in the log", || async {
        gateway.log().contains("no_such_key").then_some(())
    })
    .await;
    assert_eq!(
        gateway
            .call("late", "say_hello", json!({"name": "x".repeat(2000)}))
            .await
            .0,
        413
    );
}

#[tokio::test]
async fn nothing_fails_while_namespaces_reload() {
    let gateway = Gateway::with_tools([("changes", "v.py", VERSIONED), ("stays", "pid.py", PID)])
        .start()
        .await;
    let (done, mut over) = tokio::sync::watch::channel(false);
    let traffic = async {
        let mut answered = 0;
        while !*over.borrow_and_update() {
            assert_eq!(gateway.call("stays", "pid", json!({})).await.0, 200);
            assert_eq!(gateway.call("changes", "version", json!({})).await.0, 200);
            assert_eq!(
                gateway
                    .client
                    .get(gateway.url("/health"))
                    .send()
                    .await
                    .unwrap()
                    .status(),
                200
            );
            answered += 1;
        }
        answered
    };
    let reloads = async {
        for number in 2..6 {
            gateway.drop_tool(
                "changes",
                "v.py",
                &VERSIONED.replace("return 1", &format!("return {number}")),
            );
            gateway.reload().await;
        }
        done.send_replace(true);
    };
    let (answered, ()) = tokio::time::timeout(Duration::from_secs(120), async {
        tokio::join!(traffic, reloads)
    })
    .await
    .unwrap();
    assert!(answered > 0);
}

/// Has the configuration and the namespaces read again, and waits for it.
async fn hang_up(gateway: &Gateway) {
    let loads = || gateway.log().matches("namespaces loaded").count();
    let before = loads();
    gateway.signal(Signal::HUP);
    eventually("the namespaces are read again", || async {
        (loads() > before).then_some(())
    })
    .await;
}

/// Reads a stream to its end, which must be clean and say when to come back. That lists have changed may come before it.
async fn told_to_come_back(stream: &mut Answering) {
    let mut retry = None;
    while let Some(event) = stream.next().await {
        retry = event.retry.or(retry);
    }
    assert!(retry.is_some(), "a time to come back at");
    assert_eq!(stream.end().await, End::Whole);
}

#[tokio::test]
async fn who_may_not_come_in_any_more_hears_nothing_more_and_others_resume() {
    let (alice, bob) = ("alice-token-0123456789abcdef", "bob-token-0123456789abcdef");
    let token = |name, token| json!({"name": name, "sha256": sha256(token), "namespaces": ["*"]});
    let both = json!({"tokens": [token("alice", alice), token("bob", bob)]});
    let one = json!({"tokens": [token("alice", alice)]});
    let gateway = Gateway::with_tools([("talk", "talking.py", tools::TALKING)])
        .config(json!({"admission": both}))
        .start()
        .await;
    let start =
        async |token| Session::start_as(&gateway, "talk", "2025-11-25", token, json!({})).await;
    let (hers, his) = (start(alice).await, start(bob).await);
    let (mut she_hears, mut he_hears) = (hers.listen().await, his.listen().await);
    let announce = async |id| {
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": "announce", "arguments": {}}});
        assert_eq!(hers.post(&call).await.status, 200);
    };
    let changed = "notifications/tools/list_changed";

    hang_up(&gateway).await;
    announce(1).await;
    assert_eq!(he_hears.message().await["method"], changed);
    let heard = she_hears.event().await.expect("nothing has ended");
    assert_eq!(heard.json()["method"], changed);

    gateway.reconfigure(json!({"admission": one}));
    hang_up(&gateway).await;
    told_to_come_back(&mut he_hears).await;
    told_to_come_back(&mut she_hears).await;
    assert_eq!(his.get(None).await.status, 401);
    announce(2).await;
    let mut resumed = hers.get(heard.id.as_deref()).await;
    assert_eq!(resumed.status, 200);
    assert_eq!(
        resumed.message().await["method"],
        changed,
        "nothing is lost"
    );

    gateway.reconfigure(json!({"admission": one,
        "namespaces": {"overrides": {"talk": {"principals": ["nobody"]}}}}));
    hang_up(&gateway).await;
    told_to_come_back(&mut resumed).await;
    assert_eq!(hers.get(None).await.status, 403);
}

/// A request of a session, in two pieces: all but the end of its body, and the end.
fn halves(session: &Session, message: &Value) -> (String, String) {
    let mut text = session.post_text(message);
    let end = text.split_off(text.len() - 5);
    (text, end)
}

#[tokio::test]
async fn a_request_is_judged_by_what_is_in_force_when_its_body_has_arrived() {
    let (alice, bob) = ("alice-token-0123456789abcdef", "bob-token-0123456789abcdef");
    let token = |name, token| json!({"name": name, "sha256": sha256(token), "namespaces": ["*"]});
    let both = json!({"tokens": [token("alice", alice), token("bob", bob)]});
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .config(json!({"admission": both}))
        .start()
        .await;
    let add = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "add", "arguments": {"a": 1, "b": 2}}});
    let denied = |overrides: Value| json!({"admission": both, "namespaces": {"overrides": {"calc": overrides}}});
    for (changes, status) in [
        (
            json!({"admission": {"tokens": [token("alice", alice)]}}),
            401,
        ),
        (denied(json!({"principals": ["alice"]})), 403),
    ] {
        let session = Session::start_as(&gateway, "calc", "2025-11-25", bob, json!({})).await;
        let (begin, end) = halves(&session, &add);
        let mut stream = tokio::net::TcpStream::connect(gateway.address)
            .await
            .unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        // Another request on another connection: the head of the first has been admitted by then.
        assert_eq!(session.post(&add).await.status, 200);
        gateway.reconfigure(changes);
        hang_up(&gateway).await;
        stream.write_all(end.as_bytes()).await.unwrap();
        let answer = raw::answer(&mut stream).await.expect("an answer");
        assert_eq!(answer.status, status);
        assert_eq!(session.post(&add).await.status, status);
        gateway.reconfigure(denied(json!({})));
        hang_up(&gateway).await;
    }
}

#[tokio::test]
async fn a_namespace_that_lets_a_principal_in_no_more_is_closed_on_every_surface() {
    let folder = tempfile::tempdir().unwrap();
    let members = folder.path().join("both.toml");
    fs::write(
        &members,
        "active_toolsets = [\"*\"]\n\n[[servers]]\nnamespace = \"\"\nfrom = \"talk\"\n",
    )
    .unwrap();
    let (alice, bob) = ("alice-token-0123456789abcdef", "bob-token-0123456789abcdef");
    let token = |name, token| json!({"name": name, "sha256": sha256(token), "namespaces": ["*"]});
    let config = |principals: Value| {
        json!({"admission": {"tokens": [token("alice", alice), token("bob", bob)]},
            "toolman": {"both": {"config": members}},
            "namespaces": {"overrides": {"talk": {"principals": principals}}}})
    };
    let gateway = Gateway::with_tools([("talk", "talking.py", tools::TALKING)])
        .config(config(json!(["*"])))
        .start()
        .await;
    let session = Session::start_as(&gateway, "talk", "2025-11-25", bob, json!({})).await;
    let aggregate = Session::start_as(&gateway, "both", "2025-11-25", bob, json!({})).await;
    let announce = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "announce", "arguments": {}}});
    let mut stream = session.listen().await;
    assert_eq!(session.post(&announce).await.status, 200);
    let heard = stream.event().await.expect("lists have changed");
    let listed = async || {
        let answer = aggregate
            .request(2, "tools/list", json!({}))
            .await
            .to_string();
        answer.contains("announce")
    };
    eventually("the member is listed", async || {
        listed().await.then_some(())
    })
    .await;
    let rest = async |path: &str| {
        let request = gateway.client.get(gateway.url(path)).bearer_auth(bob);
        let answer = request.header("X-Namespace", "talk").send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let open = "\"name\":\"talk\"";
    assert!(rest("/namespaces").await.1.contains(open));

    gateway.reconfigure(config(json!(["alice"])));
    hang_up(&gateway).await;
    told_to_come_back(&mut stream).await;
    assert_eq!(session.get(heard.id.as_deref()).await.status, 403);
    assert_eq!(session.post(&announce).await.status, 403);
    assert_eq!(rest("/tools").await.0, 403);
    let call = gateway.client.post(gateway.url("/tools/announce"));
    let call = call
        .bearer_auth(bob)
        .header("X-Namespace", "talk")
        .json(&json!({}));
    assert_eq!(call.send().await.unwrap().status(), 403);
    let (status, namespaces) = rest("/namespaces").await;
    assert!(status == 200 && !namespaces.contains(open), "{namespaces}");
    assert!(
        !listed().await,
        "the aggregate lists what its member does not"
    );
    let mut answer = aggregate.post(&announce).await;
    let answer = match answer.is_events() {
        true => answer.message().await,
        false => answer.json().await,
    };
    let failed = answer["error"].is_object() || answer["result"]["isError"] == true;
    assert!(failed, "{answer}");
}

#[tokio::test]
async fn what_tool_code_writes_into_the_data_directory_lets_nobody_in() {
    let gateway = Gateway::with_tools([
        ("vault", "hello.py", tools::HELLO),
        ("calc", "math_tools.py", tools::MATH),
    ])
    .config(json!({"namespaces": {"overrides": {
        "vault": {"principals": ["admin"]}, "calc": {"tools_deny": ["mul*"]}}}}))
    .start()
    .await;
    let statuses = async || {
        let (vault, _) = gateway.call("vault", "say_hello", json!({})).await;
        let (add, _) = gateway.call("calc", "add", json!({"a": 1, "b": 2})).await;
        let product = json!({"a": 1, "b": 2});
        let (multiply, _) = gateway.call("calc", "multiply", product).await;
        [vault, add, multiply]
    };
    assert_eq!(statuses().await, [403, 200, 404]);
    let over = json!({"namespaces": {
        "defaults": {"principals": ["*"]},
        "overrides": {"vault": {"principals": ["*"]}, "calc": {"tools_deny": []}}}});
    fs::write(gateway.data_dir().join("config.yaml"), over.to_string()).unwrap();
    hang_up(&gateway).await;
    assert_eq!(statuses().await, [403, 200, 404]);
    let log = gateway.log();
    for told in [
        "config.yaml: namespaces.overrides.vault.principals: \"*\" counts only as far",
        "config.yaml: namespaces.overrides.calc.tools_deny: the operator's \"mul*\" stays denied",
    ] {
        assert!(log.contains(told), "{told}\n{log}");
    }
    // Restrictions are in force.
    let over = json!({"namespaces": {"defaults": {"principals": []}}});
    fs::write(gateway.data_dir().join("config.yaml"), over.to_string()).unwrap();
    hang_up(&gateway).await;
    assert_eq!(statuses().await, [403, 403, 403]);
}

#[tokio::test]
async fn a_crash_after_an_edit_lists_what_is_loaded_and_ready_says_so() {
    let gateway = Gateway::with_tools([("ns", "t.py", PID)]).start().await;
    let (_, pid) = gateway.call("ns", "pid", json!({})).await;
    gateway.drop_tool("ns", "t.py", &PID.replace("def pid", "def renamed"));
    let pid = i32::try_from(pid.as_i64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    eventually("the renamed tool is listed", || async {
        let (_, answer) = gateway.mcp("ns", list.clone()).await;
        (names_of(&answer["result"]["tools"]) == ["renamed"]).then_some(())
    })
    .await;
    assert_eq!(gateway.call("ns", "renamed", json!({})).await.0, 200);
    assert_eq!(gateway.call("ns", "pid", json!({})).await.0, 404);
    let ready = gateway.request("GET", "/ready").send().await.unwrap();
    let ready: Value = ready.json().await.unwrap();
    let namespaces = ready["namespaces"].as_array().unwrap();
    let ns = namespaces.iter().find(|it| it["name"] == "ns").unwrap();
    assert_eq!(ns["issues"][0]["code"], "files_changed", "{ready}");
    let message = ns["issues"][0]["message"].as_str().unwrap();
    assert!(message.ends_with("it was reloaded"), "{message}");
}
