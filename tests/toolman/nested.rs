//! Aggregates that are members of aggregates, and listeners that serve an aggregate alone.

use serde_json::json;

use super::{House, SERVERS, activate, call, catalogue, names, result, said, tools_of, write};
use crate::support::session::Session;
use crate::support::{TOKEN, eventually, sha256};

const OUTER: &str = r#"
active_toolsets = ["in_pjpd*"]

[[servers]]
namespace = "in"
from = "toolman"
"#;

#[tokio::test]
async fn an_aggregate_is_a_member_that_gives_all_it_has() {
    let folder = tempfile::TempDir::new().unwrap();
    let outer = folder.path().join("outer.toml");
    std::fs::write(&outer, OUTER).unwrap();
    let config = json!({
        "toolman": {"outer": {"config": outer}},
        "admission": {"tokens": [{"name": "eve", "sha256": sha256("eves-token"), "namespaces": ["outer"]}]},
    });
    let house = House::with(SERVERS, config).await;
    let token = crate::support::TOKEN;
    let session =
        Session::start_as(&house.gateway, "outer", super::VERSION, token, json!({})).await;
    let listed = result(&session, "tools/list", json!({})).await;
    let tools = names(&listed["tools"], "name");
    assert_eq!(
        tools[..2],
        ["toolman_activate", "in_pjpd_list_projects"],
        "{tools:?}"
    );
    // The start set of the inner aggregate says nothing here, and its own tool is not there.
    assert!(!tools.contains(&"in_vec_search".to_owned()), "{tools:?}");
    let lines = catalogue(&listed["tools"]);
    assert!(
        lines.iter().any(|it| it.starts_with("in_vec_index:")),
        "{lines:#?}"
    );
    assert!(
        !lines.iter().any(|it| it.contains("in_toolman_")),
        "{lines:#?}"
    );

    let inactive = said(&call(&session, "in_vec_index", json!({})).await);
    assert_eq!(inactive["success"], false);
    activate(&session, json!({"tools_on": ["in_vec_index"]})).await;
    let ran = call(&session, "in_vec_index", json!({})).await;
    assert_eq!(ran["content"][0]["text"], "vec ran index");
    let mixed = call(&session, "in_pjpd_mixed", json!({})).await;
    assert_eq!(
        mixed["content"][2]["uri"], "in_pjpd_projects://list",
        "{mixed}"
    );
    let read = result(
        &session,
        "resources/read",
        json!({"uri": "in_pjpd_item://42"}),
    )
    .await;
    assert_eq!(
        read["contents"][0],
        json!({"uri": "in_pjpd_item://42", "text": "read item://42"})
    );
    let prompts = result(&session, "prompts/list", json!({})).await;
    let prompts = names(&prompts["prompts"], "name");
    assert_eq!(prompts, ["in_pjpd_summarize", "in_vec_explain"]);
    let params = json!({"name": "in_pjpd_refuse", "arguments": {}});
    let refused = super::answer(&session, "tools/call", params).await;
    assert_eq!(refused["error"]["code"], -32099, "{refused}");

    // A change of a server inside reaches the outer list.
    call(&session, "in_pjpd_grow", json!({})).await;
    eventually("the new tool", async || {
        let listed = tools_of(&session).await;
        listed.contains(&"in_pjpd_grown".to_owned()).then_some(())
    })
    .await;

    // Whoever may not use the inner one sees nothing of it.
    let eve = Session::start_as(
        &house.gateway,
        "outer",
        super::VERSION,
        "eves-token",
        json!({}),
    );
    assert_eq!(tools_of(&eve.await).await, ["toolman_activate"]);

    // A circle is refused, and both go on as they were.
    let back = "[[servers]]\nnamespace = \"back\"\nfrom = \"outer\"\n";
    write(house.folder.path(), &format!("{SERVERS}{back}"));
    let report = house.gateway.reload().await.to_string();
    assert!(report.contains("from leads in a circle, "), "{report}");
    let ran = call(&session, "in_vec_index", json!({})).await;
    assert_eq!(ran["content"][0]["text"], "vec ran index");
}

/// A listener with `namespace: toolman` serves that namespace alone, with all that is behind it.
#[tokio::test]
async fn a_listener_of_the_aggregate_alone_serves_members_that_are_namespaces() {
    let file = "active_toolsets = [\"*\"]\ntoolman_call = true\n[[servers]]\nnamespace = \"sums\"\nfrom = \"calc\"\n";
    let limits = json!({"namespaces": {"overrides": {"toolman": {
        "tools": {"sums_add": {"max_result": "1KiB"}, "sums_multiply": {"max_result": "1B"}},
    }}}});
    let house = House::behind(json!({"namespace": "toolman"}), file, limits).await;
    let session =
        Session::start_as(&house.gateway, "toolman", super::VERSION, TOKEN, json!({})).await;
    let listed = tools_of(&session).await;
    assert!(listed.contains(&"sums_add".to_owned()), "{listed:?}");
    let sum = call(&session, "sums_add", json!({"a": 2, "b": 3})).await;
    assert_eq!(sum["structuredContent"], json!({"result": 5.0}), "{sum}");

    // Limits on a tool of the aggregate hold by way of toolman_call, too.
    let of_call = async |tool: &str| {
        let arguments = json!({"tool": tool, "arguments": {"a": 6, "b": 3}});
        call(&session, "toolman_call", arguments).await
    };
    let sum = of_call("sums_add").await;
    assert_eq!(sum["structuredContent"], json!({"result": 9.0}), "{sum}");
    let refused = of_call("sums_multiply").await;
    let code = &refused["_meta"]["tooldock/error"]["code"];
    assert_eq!(code, "result_too_large", "{refused}");
}
