//! If some tools are closed to a caller, names go up as the server lists them, and in no other spelling.

use tooldock_sessions::testing::caller_with_scopes;

use super::*;
use crate::testing::asked;

/// Spellings of a closed tool that a server may take for it.
const SPELLINGS: [&str; 8] = [
    "Secret_tool",
    "SECRET_TOOL",
    " secret_tool",
    "\u{ff53}ecret_tool",
    "\u{17f}ecret_tool",
    "s\u{200b}ecret_tool",
    "Secret_tool\u{0}",
    "echo ",
];

#[tokio::test(start_paused = true)]
async fn another_spelling_of_a_closed_tool_does_not_reach_the_server() {
    for speaks in ERAS {
        // A shared process, and the session's own.
        for capabilities in [json!({}), json!({ "elicitation": {}, "roots": {} })] {
            let house = denying(speaks);
            let (session, _) = house.open(capabilities).await;
            for name in SPELLINGS {
                let call = house.in_session(&session, "tools/call", json!({ "name": name }));
                let answer = body(&call.await);
                assert_eq!(answer["result"]["isError"], true, "{name:?}: {answer}");
                let answer = body(&house.modern("tools/call", json!({ "name": name })).await);
                let refused = answer["error"].is_object() || answer["result"]["isError"] == true;
                assert!(refused, "{name:?}: {answer}");
            }
            for name in ["Secret_tool", "SECRET_TOOL"] {
                let request = asked(&format!("/tools/{name}"), b"{}");
                let reply = house.harness.service.handle(caller(), request).await;
                assert_eq!(reply.head().status, StatusCode::NOT_FOUND, "{name}");
            }
            assert_eq!(house.calls(), 0);
        }
        let house = denying(speaks);
        let (session, _) = house.open(json!({})).await;
        let call = house.in_session(&session, "tools/call", json!({ "name": "echo" }));
        assert_eq!(call.await.head().status, StatusCode::OK);
        assert_eq!(house.calls(), 1, "a listed tool is called");
    }
}

#[tokio::test(start_paused = true)]
async fn scopes_close_other_spellings_as_a_policy_does() {
    let house = house(EraSupport::Legacy);
    let call = |name: &'static str| json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": name } });
    for (scopes, name, calls) in [
        (&["read"][..], "Get_item", 0),
        (&["read"], "get_item ", 0),
        (&["read"], "get_item", 0),
        (&["admin"], "get_item ", 1),
    ] {
        let caller = caller_with_scopes(scopes);
        let _ = house.post_as(caller, head(None, None), &call(name)).await;
        assert_eq!(house.calls(), calls, "{scopes:?} {name:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn where_nothing_is_closed_a_server_may_have_tools_that_it_does_not_list() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({})).await;
    let call = house.in_session(&session, "tools/call", json!({ "name": "Hidden" }));
    call.await;
    assert_eq!(house.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_cannot_be_read_opens_nothing() {
    let house = denying(EraSupport::Legacy);
    house.seen.silent.store(2, Ordering::SeqCst);
    let (session, _) = house.open(json!({})).await;
    let call = house.in_session(&session, "tools/call", json!({ "name": "echo" }));
    let answer = body(&call.await);
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert_eq!(house.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn another_spelling_of_the_method_of_calls_is_no_method() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({})).await;
    for method in [
        "Tools/Call",
        "tools/call ",
        "tools/call\0",
        "tools//call",
        "\u{ff54}ools/call",
    ] {
        let answer = house.in_session(&session, method, json!({ "name": "secret_tool" }));
        let answer = body(&answer.await);
        assert_eq!(answer["error"]["code"], -32601, "{method:?}: {answer}");
    }
    let requests = house.seen.of_clients();
    let called = requests.iter().filter(|it| it.method.contains("all"));
    assert_eq!(called.count(), 0);
}
