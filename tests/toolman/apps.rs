//! MCP Apps of a member: pages, and tools that only pages call.

use serde_json::{Value, json};

use super::{House, activate, call, catalogue, names, result, said};
use crate::support::programs;
use crate::support::session::Session;

const PAGE: &str = "ui://sales_chart/view.html";

/// Starts an aggregate whose only member is the server `fixtures/servers/app.py`.
async fn house() -> House {
    house_of("").await
}

/// Starts the same aggregate with keys at the beginning of its file.
async fn house_of(keys: &str) -> House {
    let script = programs::root().join("tests/fixtures/servers/app.py");
    let file = format!(
        "{keys}\n[[servers]]\nnamespace = \"sales\"\ncommand = \"exec python3 '{}'\"\n",
        script.display()
    );
    House::with(&file, json!({})).await
}

async fn session(house: &House, capabilities: Value) -> Session {
    let token = crate::support::TOKEN;
    Session::start_as(
        &house.gateway,
        "toolman",
        super::VERSION,
        token,
        capabilities,
    )
    .await
}

#[tokio::test]
async fn a_client_that_shows_pages_finds_them_under_published_uris_and_its_pages_call_their_tools()
{
    let house = house().await;
    let extension = json!({"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}});
    let client = session(&house, extension).await;
    activate(&client, json!({"tools_on": ["sales_show_chart"]})).await;
    let listed = result(&client, "tools/list", json!({})).await;
    assert_eq!(
        names(&listed["tools"], "name"),
        ["toolman_activate", "sales_show_chart", "sales_refresh"]
    );
    let meta = &listed["tools"][1]["_meta"];
    assert_eq!(
        *meta,
        json!({"ui": {"resourceUri": PAGE}, "ui/resourceUri": PAGE})
    );
    // The model neither sees nor activates the page and its tool.
    let lines = catalogue(&listed["tools"]);
    assert!(
        !lines
            .iter()
            .any(|it| it.contains("refresh") || it.contains("ui://")),
        "{lines:#?}"
    );

    let resources = result(&client, "resources/list", json!({})).await;
    assert_eq!(names(&resources["resources"], "uri"), [PAGE]);
    let read = result(&client, "resources/read", json!({"uri": PAGE})).await;
    assert_eq!(read["contents"][0]["uri"], PAGE);
    assert_eq!(read["contents"][0]["text"], "<p>chart</p>");

    for tool in ["sales_show_chart", "sales_refresh"] {
        let shown = call(&client, tool, json!({})).await;
        assert_eq!(shown["content"][1]["resource"]["uri"], PAGE, "{shown}");
        assert_eq!(shown["_meta"]["ui"]["resourceUri"], PAGE, "{shown}");
    }
}

#[tokio::test]
async fn a_client_that_shows_no_pages_is_offered_no_tool_of_a_page() {
    let house = house().await;
    let client = session(&house, json!({})).await;
    let before = said(&call(&client, "sales_show_chart", json!({})).await);
    assert_eq!(before["success"], false, "{before}");
    activate(&client, json!({"tools_on": ["sales_show_chart"]})).await;
    let listed = result(&client, "tools/list", json!({})).await;
    assert_eq!(
        names(&listed["tools"], "name"),
        ["toolman_activate", "sales_show_chart"]
    );
}

#[tokio::test]
async fn a_page_that_its_server_does_not_list_is_read_by_the_uri_that_its_tool_names() {
    let house = house().await;
    let client = session(&house, json!({})).await;
    activate(&client, json!({"tools_on": ["sales_show_table"]})).await;
    let listed = result(&client, "tools/list", json!({})).await;
    let page = &listed["tools"][1]["_meta"]["ui"]["resourceUri"];
    assert_eq!(page, "ui://sales_chart/unlisted.html");
    let read = result(&client, "resources/read", json!({"uri": page})).await;
    assert_eq!(read["contents"][0]["uri"], *page);
    assert_eq!(read["contents"][0]["text"], "<p>chart</p>");
}

#[tokio::test]
async fn toolman_call_calls_no_tool_that_only_pages_call() {
    let house = house_of("toolman_call = true").await;
    let client = session(&house, json!({})).await;
    let refused = call(&client, "toolman_call", json!({"tool": "sales_refresh"})).await;
    assert_eq!(refused["isError"], true, "{refused}");
    assert!(!refused.to_string().contains("<p>now</p>"), "{refused}");
}

#[tokio::test]
async fn an_aggregate_declares_that_it_serves_pages() {
    let house = house().await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": super::VERSION, "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"}}});
    let answer = house
        .gateway
        .client
        .post(house.gateway.url("/mcp/toolman"))
        .bearer_auth(crate::support::TOKEN)
        .header("Accept", "application/json, text/event-stream")
        .json(&body)
        .send()
        .await
        .expect("sent");
    let text = answer.text().await.expect("a text");
    assert!(
        text.contains(r#""extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}"#),
        "{text}"
    );
}
