//! Elicitation in URL mode, between clients and servers of either era.

use super::*;

const OPENS: &str = r#"{"elicitation":{"form":{},"url":{}}}"#;

fn opens() -> Value {
    serde_json::from_str(OPENS).expect("JSON")
}

fn modern_call(name: &str, more: Value) -> Value {
    let mut params = json!({ "name": name, "arguments": {}, "_meta": { CAPS: opens() } });
    for (name, value) in more.as_object().expect("an object") {
        params[name] = value.clone();
    }
    params
}

#[tokio::test(start_paused = true)]
async fn an_error_that_requires_a_page_asks_a_modern_client_and_the_request_is_repeated() {
    let house = house(EraSupport::Legacy);
    let asked = body(
        &house
            .modern("tools/call", modern_call("page", json!({})))
            .await,
    );
    let result = &asked["result"];
    assert_eq!(result["resultType"], "input_required", "{asked}");
    let question = &result["inputRequests"]["link-1"];
    let expected = json!({ "mode": "url", "url": "https://page.example/1", "message": "Log in." });
    assert_eq!(question["params"], expected, "{asked}");
    let retry = json!({
        "requestState": result["requestState"],
        "inputResponses": { "link-1": { "action": "accept" } },
    });
    // The server requires the page for two calls, so the request is repeated until the third call succeeds.
    let answer = body(&house.modern("tools/call", modern_call("page", retry)).await);
    assert_eq!(answer["result"]["content"][0]["text"], "paged", "{answer}");
    assert_eq!(house.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_user_who_declines_a_page_ends_the_call() {
    let house = house(EraSupport::Legacy);
    let asked = body(
        &house
            .modern("tools/call", modern_call("page", json!({})))
            .await,
    );
    let retry = json!({
        "requestState": asked["result"]["requestState"],
        "inputResponses": { "link-1": { "action": "decline" } },
    });
    let answer = body(&house.modern("tools/call", modern_call("page", retry)).await);
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert_eq!(house.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_opens_no_pages_gets_the_link_as_text_and_another_the_error() {
    let house = house(EraSupport::Legacy);
    let call = json!({ "name": "page_always", "arguments": {} });
    for capabilities in [json!({}), json!({ "elicitation": {} })] {
        let (session, _) = house.open(capabilities.clone()).await;
        let answer = body(&house.in_session(&session, "tools/call", call.clone()).await);
        let text = answer["result"]["content"][0]["text"]
            .as_str()
            .expect("text");
        assert!(text.contains("Log in. https://page.example/1"), "{text}");
        let modern =
            json!({ "name": "page_always", "arguments": {}, "_meta": { CAPS: capabilities } });
        let answer = body(&house.modern("tools/call", modern).await);
        let text = answer["result"]["content"][0]["text"]
            .as_str()
            .expect("text");
        assert!(text.contains("https://page.example/1"), "{text}");
    }
    let (session, _) = house.open(opens()).await;
    let answer = body(&house.in_session(&session, "tools/call", call).await);
    assert_eq!(answer["error"]["code"], -32042, "{answer}");
    let pages = &answer["error"]["data"]["elicitations"];
    assert_eq!(pages[0]["elicitationId"], "page-1", "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_modern_servers_page_reaches_a_legacy_client_with_an_id_and_its_end_is_announced() {
    let house = house(EraSupport::Modern);
    let (session, _) = house.open(opens()).await;
    let call = house.in_session(&session, "tools/call", json!({ "name": "page" }));
    let mut wire = Wire::of(call.await);
    let question = wire.message().await.expect("a question");
    let params = &question["params"];
    assert_eq!(params["url"], "https://page.example/1", "{question}");
    let id = params["elicitationId"].as_str().expect("an id").to_owned();
    let outcome = json!({ "result": { "action": "accept" } });
    house.answer(&session, &question["id"], outcome).await;
    let completed = wire.message().await.expect("a notification");
    assert_eq!(completed["method"], "notifications/elicitation/complete");
    assert_eq!(completed["params"]["elicitationId"], json!(id));
    let answer = wire.message().await.expect("the answer");
    assert_eq!(answer["result"]["got"]["login"]["action"], "accept");

    let (session, _) = house.open(json!({ "elicitation": {} })).await;
    let call = house.in_session(&session, "tools/call", json!({ "name": "page" }));
    let answer = body(&call.await);
    let text = answer["result"]["content"][0]["text"]
        .as_str()
        .expect("text");
    assert!(text.contains("https://page.example/1"), "{text}");
}
