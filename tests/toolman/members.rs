//! Members of other kinds, their policy and audit, and what passes between client and server during a call.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{House, names, result, tools_of};
use crate::support::session::Session;
use crate::support::{TOKEN, eventually, sha256};

const MEMBERS: &str = r#"
active_toolsets = ["*"]

[[servers]]
namespace = "pjpd"
command = "PJPD"

[[servers]]
namespace = "sums"
from = "calc"

[[servers]]
namespace = "nowhere"
from = "missing"
"#;

#[tokio::test]
async fn a_namespace_of_python_is_a_member_with_its_own_policy_and_audit() {
    let config = json!({
        "namespaces": {"overrides": {"calc": {"tools_deny": ["divide"], "principals": ["bearer"]}}},
        "admission": {"tokens": [{"name": "eve", "sha256": sha256("eves-token"), "namespaces": ["toolman"]}]},
    });
    let house = House::with(MEMBERS, config).await;
    let session = house.session().await;
    let listed = tools_of(&session).await;
    assert!(listed.contains(&"sums_add".to_owned()), "{listed:?}");
    let sum = super::call(&session, "sums_add", json!({"a": 2, "b": 3})).await;
    assert_eq!(sum["structuredContent"], json!({"result": 5.0}), "{sum}");

    // A principal that may use the aggregate, and not the namespace behind it, sees nothing of that.
    let eve = Session::start_as(
        &house.gateway,
        "toolman",
        super::VERSION,
        "eves-token",
        json!({}),
    )
    .await;
    let listed = tools_of(&eve).await;
    assert!(
        listed.contains(&"pjpd_pid".to_owned()) && !listed.contains(&"sums_add".to_owned()),
        "{listed:?}"
    );
    let refused = super::said(&super::call(&eve, "sums_add", json!({"a": 2, "b": 3})).await);
    assert_eq!(refused["success"], false);

    // Hidden namespaces are in no list, and no name leads to them.
    for path in ["/mcp/toolman.pjpd", "/mcp/toolman_pjpd"] {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
        let refused = house
            .gateway
            .request("POST", path)
            .json(&message)
            .send()
            .await
            .unwrap();
        assert_eq!(refused.status().as_u16() / 100, 4, "{path}");
    }
    let namespaces = house
        .gateway
        .request("GET", "/namespaces")
        .send()
        .await
        .unwrap();
    let namespaces = namespaces.text().await.unwrap();
    assert!(
        namespaces.contains("toolman") && !namespaces.contains("toolman."),
        "{namespaces}"
    );

    // Two lines for a call, each with the namespace at the other end.
    let line = async |namespace: &str, tool: &str| {
        let lines = crate::observability::audit(&house.gateway);
        let of = |line: &Value| line["namespace"] == namespace && line["tool"] == tool;
        lines.into_iter().find(of)
    };
    let outer = eventually("the line of the aggregate", async || {
        line("toolman", "sums_add").await
    })
    .await;
    assert_eq!(
        (&outer["via"], &outer["status"]),
        (&json!("calc"), &json!("ok")),
        "{outer}"
    );
    let inner = eventually("the line of the member", async || line("calc", "add").await).await;
    assert_eq!(
        (&inner["via"], &inner["request_id"]),
        (&json!("toolman"), &outer["request_id"]),
        "{inner}"
    );
    super::logged(&house.gateway, "server missing of toolman").await;
}

#[tokio::test]
async fn a_closed_namespace_hears_nothing_of_clients_that_may_not_use_it() {
    let folder = TempDir::new().unwrap();
    let journal = folder.path().join("journal");
    let command = super::server("vec", &journal);
    let config = json!({
        "upstreams": {"stdio": {"closed": {"command": "sh", "args": ["-c", command]}}},
        "admission": {"tokens": [{"name": "eve", "sha256": sha256("eves-token"), "namespaces": ["toolman"]}]},
    });
    let file = "active_toolsets = [\"*\"]\n[[servers]]\nnamespace = \"far\"\nfrom = \"closed\"\n";
    let house = House::with(file, config).await;
    let heard = || {
        let text = std::fs::read_to_string(&journal).unwrap_or_default();
        text.matches("logging/setLevel").count()
    };
    let session = house.session().await;
    let listed = tools_of(&session).await;
    assert!(listed.contains(&"far_search".to_owned()), "{listed:?}");
    let eve = Session::start_as(
        &house.gateway,
        "toolman",
        super::VERSION,
        "eves-token",
        json!({}),
    )
    .await;
    assert_eq!(tools_of(&eve).await, ["toolman_activate"]);
    let refused = super::said(&super::call(&eve, "far_search", json!({})).await);
    assert_eq!(refused["success"], false, "{refused}");
    result(&eve, "logging/setLevel", json!({"level": "debug"})).await;
    assert_eq!(heard(), 0);
    result(&session, "logging/setLevel", json!({"level": "debug"})).await;
    eventually(
        "the level of the client that may use the namespace",
        async || (heard() > 0).then_some(()),
    )
    .await;
}

/// Progress and questions pass through; the session that can be asked has a process of its own for that.
#[tokio::test]
async fn progress_and_questions_pass_between_client_and_server() {
    let house = House::of("").await;
    let session = Session::start_as(
        &house.gateway,
        "toolman",
        super::VERSION,
        TOKEN,
        json!({"elicitation": {}}),
    )
    .await;
    let mut answer = session.call(3, "pjpd_steps", json!({})).await;
    let messages = answer.messages().await;
    assert_eq!(
        messages[0]["method"], "notifications/progress",
        "{messages:?}"
    );
    assert_eq!(messages[0]["params"]["progressToken"], "token-3");
    assert_eq!(
        messages.last().unwrap()["result"]["content"][0]["text"],
        "done"
    );

    let mut answer = session.call(4, "pjpd_ask", json!({})).await;
    let question = loop {
        let message = answer.message().await;
        if message["method"] == "elicitation/create" {
            break message;
        }
    };
    let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}}});
    assert_eq!(session.post(&reply).await.status, 202);
    let last = answer.messages().await.pop().unwrap();
    assert_eq!(last["result"]["content"][0]["text"], "accept", "{last}");
    assert_eq!(house.asked("pjpd", "initialize"), 2);

    // Lists and calls without questions go on with the shared process.
    let listed = result(&session, "prompts/list", json!({})).await;
    assert_eq!(names(&listed["prompts"], "name").len(), 2);
}

#[tokio::test]
async fn servers_with_one_namespace_share_its_names_and_the_first_wins() {
    let servers = r#"
active_toolsets = ["*"]

[[servers]]
namespace = "all"
command = "VEC"

[[servers]]
namespace = "all"
command = "PJPD"

[[servers]]
namespace = "all"
command = "PJPD"
"#;
    let house = House::with(servers, json!({})).await;
    let session = house.session().await;
    let listed = tools_of(&session).await;
    for name in ["all_search", "all_list_projects", "all_pid"] {
        let count = listed.iter().filter(|it| **it == name).count();
        assert_eq!(count, 1, "{name} in {listed:?}");
    }
    let pid = async || super::said(&super::call(&session, "all_pid", json!({})).await);
    assert_eq!(pid().await, pid().await, "always the same server");
    let found = super::call(&session, "all_search", json!({"x": 1})).await;
    assert_ne!(found["isError"], true, "{found}");
}
