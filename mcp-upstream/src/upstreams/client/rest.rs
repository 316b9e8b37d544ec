//! Tools of MCP servers as plain HTTP.

use super::*;
use crate::testing::asked;

async fn rest(house: &House, path: &str, body: &str) -> (StatusCode, Value) {
    let request = asked(path, body.as_bytes());
    parts(&house.harness.service.handle(caller(), request).await)
}

#[tokio::test(start_paused = true)]
async fn tools_are_listed_described_and_called() {
    for speaks in [EraSupport::Legacy, EraSupport::Modern, EraSupport::Dual] {
        let house = denying(speaks);
        let (_, list) = rest(&house, "/tools", "").await;
        let names: Vec<_> = list
            .as_array()
            .expect("a list")
            .iter()
            .map(|it| it["name"].clone())
            .collect();
        assert_eq!(names, ["echo", "headed"]);
        assert_eq!(list[0]["inputSchema"]["n"], 1.5);
        let (_, schema) = rest(&house, "/tools/echo/schema", "").await;
        assert_eq!(schema, json!({ "type": "object", "n": 1.50 }));
        let (status, value) = rest(&house, "/tools/echo", r#"{"a":1.50}"#).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(value["params"]["arguments"], json!({ "a": 1.5 }));
        let (_, document) = rest(&house, "/openapi.json", "").await;
        assert!(document["paths"]["/tools/echo"].is_object(), "{document}");
        assert!(document["paths"].get("/tools/secret_tool").is_none());
        let (status, body) = rest(&house, "/tools/echo", " ").await;
        assert_eq!(status, StatusCode::OK, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_have_the_status_of_what_failed() {
    let (open, house) = (house(EraSupport::Legacy), denying(EraSupport::Legacy));
    for (house, tool, status, code) in [
        (&open, "fails", 500, "internal_error"),
        (&open, "missing", 404, "tool_not_found"),
        (&house, "secret_tool", 404, "tool_not_found"),
    ] {
        rest(house, "/tools", "").await;
        let (got, body) = rest(house, &format!("/tools/{tool}"), "{}").await;
        assert_eq!(
            (got.as_u16(), &body["error"]["code"]),
            (status, &json!(code)),
            "{tool}"
        );
    }
    let (got, _) = rest(&house, "/tools/secret_tool/schema", "").await;
    assert_eq!(got, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn arguments_that_do_not_fit_the_schema_are_refused_before_the_server_hears_of_them() {
    for speaks in [EraSupport::Legacy, EraSupport::Modern, EraSupport::Dual] {
        let house = house(speaks);
        let (status, body) = rest(&house, "/tools/headed", r#"{"region":["eu"]}"#).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{body}");
        let error = &body["error"];
        assert_eq!(error["code"], "invalid_arguments");
        assert_eq!(error["message"], "region: value is not of type \"string\"");
        assert_eq!(
            error["details"]["errors"],
            json!([{ "loc": ["region"], "msg": "value is not of type \"string\"", "type": "type" }])
        );
        assert!(error["details"]["request_id"].is_string(), "{body}");
        assert_eq!(house.calls(), 0);
        let (status, _) = rest(&house, "/tools/headed", r#"{"region":"eu"}"#).await;
        assert_eq!((status, house.calls()), (StatusCode::OK, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_of_mcp_goes_up_whatever_its_arguments_are() {
    let house = house(EraSupport::Legacy);
    rest(&house, "/tools", "").await;
    let (session, _) = house.open(json!({})).await;
    let params = json!({ "name": "headed", "arguments": { "region": ["eu"] } });
    let answer = house.in_session(&session, "tools/call", params).await;
    assert_eq!(
        body(&answer)["result"]["structuredContent"]["params"]["arguments"]["region"][0],
        "eu"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_tool_the_policy_denies_is_not_told_of_its_schema() {
    let house = denying(EraSupport::Legacy);
    let (status, body) = rest(&house, "/tools/secret_tool", r#"{"x":1}"#).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!("tool_not_found"))
    );
}
