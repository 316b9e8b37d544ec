//! Wrong credentials by the hundred: they are slowed, and no right one is.

use serde_json::{Value, json};

use crate::support::{Gateway, TOKEN};

/// The status of a request with that token, its time for a later try, and its body.
async fn answer(gateway: &Gateway, path: &str, client: &str, token: &str) -> (u16, u64, Value) {
    let request = gateway
        .client
        .post(gateway.url(path))
        .header("X-Namespace", "shared")
        .header("X-Forwarded-For", client)
        .header("Accept", "application/json, text/event-stream")
        .bearer_auth(token)
        .json(&json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }));
    let answer = request.send().await.expect("answered");
    let retry = answer.headers().get("retry-after");
    let retry = retry.map_or(0, |it| it.to_str().unwrap().parse().unwrap());
    let status = answer.status().as_u16();
    (status, retry, answer.json().await.unwrap_or_default())
}

#[tokio::test]
async fn many_wrong_credentials_of_an_address_are_slowed_and_right_ones_never() {
    let gateway = Gateway::empty()
        .config(json!({ "admission": {
            "trusted_proxies": ["127.0.0.1"], "failures": { "free": 5, "window": "1h", "max_delay": "1h" } } }))
        .start()
        .await;
    let flooder = "198.51.100.9, 192.0.2.66";
    let kinds = ["wrong", "td_0123456789abcdef", "oub_x", "e30.e30.e30", "x"];
    let mut slowed = 0;
    let mut longest = 0;
    // Beyond the free ones each that is answered doubles the delay, so that most soon come within one.
    for number in 0..200 {
        let path = if number % 2 == 0 {
            "/tools/say_hello"
        } else {
            "/mcp"
        };
        let token = kinds[number % kinds.len()];
        let (status, retry, body) = answer(&gateway, path, flooder, token).await;
        assert!(matches!(status, 401 | 429), "{status}");
        assert!(number >= 5 || status == 401, "{number} are free");
        if status == 429 {
            slowed += 1;
            longest = longest.max(retry);
            assert!(retry > 0);
            let code = match path {
                "/mcp" => &body["error"]["data"]["code"],
                _ => &body["error"]["code"],
            };
            assert_eq!(code, "rate_limited", "{body}");
        }
        let right = gateway
            .client
            .get(gateway.url("/tools"))
            .header("X-Namespace", "shared")
            .header("X-Forwarded-For", flooder)
            .bearer_auth(TOKEN);
        let right = right.send().await.expect("answered");
        assert_eq!(right.status(), 200, "a right one from the same address");
    }
    assert!(slowed > 150, "{slowed}");
    assert!(longest >= 1);
    let (status, ..) = answer(&gateway, "/tools/say_hello", "192.0.2.7", "wrong").await;
    assert_eq!(status, 401, "another client");
    let spells = gateway
        .log()
        .matches("wrong credentials come often")
        .count();
    assert_eq!(spells, 1, "{}", gateway.log());
    assert!(gateway.log().contains("192.0.2.66"));
    let metrics = gateway.metrics_text().await;
    let delayed = format!("tooldock_credential_failures_total{{outcome=\"delayed\"}} {slowed}");
    assert!(metrics.contains(&delayed), "{metrics}");
}
