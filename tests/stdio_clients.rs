//! The clients of `sdk.rs` and `rust_client.rs` go through the same steps with stdio servers of either era and of both.
//!
//! A client meets servers of both eras and of the other one than its own; the first of each language meets all three.
//! The servers behind the gateway are one program with many tools, so differences come from the gateway's translation.

use serde_json::{Value, json};

use crate::rust_client::{self, Era};
use crate::sdk::{self, Client};
use crate::support::{Gateway, everything};

const OF_BOTH_ERAS: &str = "dual";
const OF_THE_OLD_ONE: &str = "legacy";
const OF_THE_NEW_ONE: &str = "modern";

/// A gateway with a namespace for each of the eras.
async fn gateway(namespaces: &[&str]) -> Gateway {
    let namespaces: Vec<_> = namespaces.iter().map(|era| (*era, *era)).collect();
    let gateway = everything::behind_a_gateway(&namespaces);
    let gateway = gateway.config(json!({"sessions": {"poll_after": "200ms"}}));
    everything::start(gateway).await
}

async fn goes_through_every_step(client: Client, namespaces: &[&'static str]) {
    let gateway = gateway(namespaces).await;
    for namespace in namespaces {
        client.goes_through_every_step(&gateway, namespace).await;
    }
}

#[tokio::test]
async fn the_python_sdk_1_over_streamable_http() {
    let servers = [OF_BOTH_ERAS, OF_THE_OLD_ONE, OF_THE_NEW_ONE];
    goes_through_every_step(sdk::PYTHON_1, &servers).await;
}

#[tokio::test]
async fn the_python_sdk_1_over_http_and_sse() {
    let servers = [OF_BOTH_ERAS, OF_THE_OLD_ONE, OF_THE_NEW_ONE];
    goes_through_every_step(sdk::PYTHON_1_SSE, &servers).await;
}

#[tokio::test]
async fn the_python_sdk_2_in_the_legacy_era() {
    goes_through_every_step(sdk::PYTHON_2_LEGACY, &[OF_BOTH_ERAS, OF_THE_NEW_ONE]).await;
}

#[tokio::test]
async fn the_python_sdk_2_finds_the_modern_era_by_itself() {
    let servers = [OF_BOTH_ERAS, OF_THE_OLD_ONE, OF_THE_NEW_ONE];
    goes_through_every_step(sdk::PYTHON_2_AUTO, &servers).await;
}

#[tokio::test]
async fn the_python_sdk_2_pinned_to_the_modern_era() {
    goes_through_every_step(sdk::PYTHON_2_PINNED, &[OF_THE_OLD_ONE]).await;
}

#[tokio::test]
async fn the_typescript_sdk_1_over_streamable_http() {
    goes_through_every_step(sdk::TYPESCRIPT_1, &[OF_BOTH_ERAS, OF_THE_NEW_ONE]).await;
}

#[tokio::test]
async fn the_typescript_sdk_1_over_http_and_sse() {
    goes_through_every_step(sdk::TYPESCRIPT_1_SSE, &[OF_BOTH_ERAS, OF_THE_NEW_ONE]).await;
}

#[tokio::test]
async fn the_typescript_client_2_in_the_legacy_era() {
    goes_through_every_step(sdk::TYPESCRIPT_2_LEGACY, &[OF_BOTH_ERAS, OF_THE_NEW_ONE]).await;
}

#[tokio::test]
async fn the_typescript_client_2_finds_the_modern_era_by_itself() {
    goes_through_every_step(sdk::TYPESCRIPT_2_AUTO, &[OF_BOTH_ERAS, OF_THE_OLD_ONE]).await;
}

#[tokio::test]
async fn the_typescript_client_2_pinned_to_the_modern_era() {
    goes_through_every_step(sdk::TYPESCRIPT_2_PINNED, &[OF_THE_OLD_ONE]).await;
}

#[tokio::test]
async fn the_fastmcp_client_in_the_legacy_era() {
    goes_through_every_step(sdk::FASTMCP_LEGACY, &[OF_BOTH_ERAS, OF_THE_NEW_ONE]).await;
}

#[tokio::test]
async fn the_fastmcp_client_in_the_modern_era() {
    goes_through_every_step(sdk::FASTMCP_MODERN, &[OF_BOTH_ERAS, OF_THE_OLD_ONE]).await;
}

#[tokio::test]
async fn the_rust_sdk_in_the_legacy_era() {
    let servers = [OF_BOTH_ERAS, OF_THE_OLD_ONE, OF_THE_NEW_ONE];
    let gateway = gateway(&servers).await;
    for namespace in servers {
        rust_client::goes_through_every_step(Era::Legacy, &gateway, namespace).await;
    }
}

#[tokio::test]
async fn the_rust_sdk_in_the_modern_era() {
    let servers = [OF_BOTH_ERAS, OF_THE_OLD_ONE, OF_THE_NEW_ONE];
    let gateway = gateway(&servers).await;
    for namespace in servers {
        rust_client::goes_through_every_step(Era::Modern, &gateway, namespace).await;
    }
}

/// The answer to `GET /tools`.
async fn listed(gateway: &Gateway, namespace: &str) -> Value {
    let request = gateway.request("GET", "/tools");
    let response = request.header("X-Namespace", namespace).send().await;
    let response = response.expect("answered");
    assert_eq!(response.status(), 200);
    response.json().await.expect("a JSON body")
}

#[tokio::test]
async fn over_rest_servers_of_all_eras_list_the_same_tools_and_answer_with_bare_values() {
    let servers = [OF_BOTH_ERAS, OF_THE_OLD_ONE, OF_THE_NEW_ONE];
    let gateway = gateway(&servers).await;
    let tools = listed(&gateway, OF_BOTH_ERAS).await;
    let first = json!({
        "name": "test_simple_text",
        "description": "Returns one text block",
        "inputSchema": {"type": "object", "properties": {}},
        "filename": "",
    });
    assert_eq!(tools[0], first);
    for namespace in servers {
        assert_eq!(listed(&gateway, namespace).await, tools, "{namespace}");
        let text = gateway
            .call(namespace, "test_custom_header", json!({"region": "eu"}))
            .await;
        assert_eq!(text, (200, json!("region=eu")), "{namespace}");
        let arguments = json!({"number": 1, "text": "ö", "list": [null, 1.5]});
        let (status, echo) = gateway.call(namespace, "echo_raw", arguments.clone()).await;
        assert_eq!(status, 200, "{namespace}: {echo}");
        assert_eq!(echo["params"]["arguments"], arguments, "{namespace}");
        let (status, image) = gateway
            .call(namespace, "test_image_content", json!({}))
            .await;
        assert_eq!(status, 200, "{namespace}: {image}");
        assert_eq!(image["content"][0]["type"], "image", "{namespace}");
    }
}

#[tokio::test]
async fn over_rest_a_tool_that_fails_or_asks_is_an_error_with_its_reason() {
    let servers = [OF_BOTH_ERAS, OF_THE_OLD_ONE, OF_THE_NEW_ONE];
    let gateway = gateway(&servers).await;
    for namespace in servers {
        let (status, failed) = gateway
            .call(namespace, "test_error_handling", json!({}))
            .await;
        assert_eq!(status, 500, "{namespace}: {failed}");
        let said = "This tool intentionally returns an error for testing";
        assert_eq!(failed["error"]["message"], said, "{namespace}");
        let (status, asking) = gateway
            .call(namespace, "test_sampling", json!({"prompt": "Hi"}))
            .await;
        // A server of the old era is told that its client cannot be asked, and says so in its own words.
        let expected = match namespace {
            OF_THE_OLD_ONE => (500, "internal_error"),
            _ => (400, "missing_capability"),
        };
        let code = asking["error"]["code"].as_str().unwrap_or_default();
        assert_eq!((status, code), expected, "{namespace}: {asking}");
        let (status, missing) = gateway.call(namespace, "nothing", json!({})).await;
        assert_eq!(status, 404, "{namespace}: {missing}");
        assert_eq!(missing["error"]["code"], "tool_not_found", "{namespace}");
    }
}
