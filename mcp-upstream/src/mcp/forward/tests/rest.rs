//! The same tools as plain HTTP.

use bytes::Bytes;
use http::Request;

use super::*;

async fn rest(house: &House, method: &str, path: &str, body: &str) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(path);
    let request = request
        .body(Bytes::copy_from_slice(body.as_bytes()))
        .expect("a request");
    parts(&house.harness.service.route(caller(), request).await)
}

#[tokio::test(start_paused = true)]
async fn tools_are_listed_described_and_called() {
    for speaks in [Speaks::Legacy, Speaks::Modern, Speaks::Dual] {
        let house = house(speaks);
        let (_, list) = rest(&house, "GET", "/tools", "").await;
        let names: Vec<_> = list
            .as_array()
            .expect("a list")
            .iter()
            .map(|it| it["name"].clone())
            .collect();
        assert_eq!(names, ["echo", "headed"]);
        assert_eq!(list[0]["inputSchema"]["n"], 1.5);
        let (_, schema) = rest(&house, "GET", "/tools/echo/schema", "").await;
        assert_eq!(schema, json!({ "type": "object", "n": 1.50 }));
        let (status, value) = rest(&house, "POST", "/tools/echo", r#"{"a":1.50}"#).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(value["params"]["arguments"], json!({ "a": 1.5 }));
        let (_, document) = rest(&house, "GET", "/openapi.json", "").await;
        assert!(document["paths"]["/tools/echo"].is_object(), "{document}");
        assert!(document["paths"].get("/tools/secret_tool").is_none());
        let (status, body) = rest(&house, "POST", "/tools/echo", " ").await;
        assert_eq!(status, StatusCode::OK, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_have_the_status_of_what_failed() {
    let house = house(Speaks::Legacy);
    rest(&house, "GET", "/tools", "").await;
    for (tool, status, code) in [
        ("fails", 500, "internal_error"),
        ("missing", 404, "tool_not_found"),
        ("secret_tool", 404, "tool_not_found"),
    ] {
        let (got, body) = rest(&house, "POST", &format!("/tools/{tool}"), "{}").await;
        assert_eq!(
            (got.as_u16(), &body["error"]["code"]),
            (status, &json!(code)),
            "{tool}"
        );
    }
    let (got, _) = rest(&house, "GET", "/tools/secret_tool/schema", "").await;
    assert_eq!(got, StatusCode::NOT_FOUND);
}
