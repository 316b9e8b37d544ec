//! MCP Apps of a member: pages, and tools that only pages call.

use serde_json::{Value, json};

use super::{House, activate, call, catalogue, names, result, said};
use crate::support::programs;
use crate::support::session::Session;

const PAGE: &str = "ui://sales_chart/view.html";

/// An aggregate with `fixtures/servers/app.py` as its only server.
async fn house() -> House {
    let script = programs::root().join("tests/fixtures/servers/app.py");
    let file = format!(
        "[[servers]]\nnamespace = \"sales\"\ncommand = \"exec python3 '{}'\"\n",
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
