//! Messages between equal eras keep their bytes, and unknown members stay in them between different eras, too.

use super::*;

/// Members of a client's messages that no reader here knows, and that no type can hold.
const ODD: &str = r#""a":1e400,"i":12345678901234567890,"t":"\u00e9\ud800\/","twice":1,"twice":2,"#;
const CALLED: &str = r#""m\u0065thod":"tools\/call""#;

/// A call of a legacy client.
fn legacy_call(id: &str, tool: &str, token: &str) -> String {
    format!(
        r#"{{{ODD}"jsonrpc":"2.0","id":{id},{CALLED},"params":{{"name":"{tool}","arguments":{{{ODD}"n":-0.0}},"_meta":{{"progress\u0054oken":{token},"k":1.50}}}},"z":[ ]}}"#
    )
}

/// A call of a modern client.
fn modern_call(id: &str, tool: &str, token: &str) -> String {
    let meta = format!(
        r#""{V}":"2026-07-28","{CAPS}":{{"elicitation":{{}}}},"progress\u0054oken":{token},"k":1.50"#
    );
    legacy_call(id, tool, token)
        .replace(&format!(r#""progress\u0054oken":{token},"k":1.50"#), &meta)
}

/// The response to a call, with this result or error.
fn response(id: &str, part: &str) -> String {
    format!(
        r#"{{{}"jsonrpc":"2.0","id":{id},{part}{}}}"#,
        fake::BEFORE,
        fake::BEHIND
    )
}

fn params(message: &str) -> &str {
    match crate::jsonrpc::message(message) {
        Ok(crate::jsonrpc::Message::Request { members, .. }) => members
            .raw(crate::jsonrpc::Key::Params)
            .expect("parameters"),
        other => panic!("{other:?}"),
    }
}

impl House {
    async fn modern_raw(&self, tool: &str, text: String) -> Reply {
        let like = modern("tools/call", json!({ "name": tool }));
        let service = &self.harness.service;
        let reply = service.post(caller(), modern_head(&like), text.into());
        let limit = Duration::from_secs(20);
        timeout(limit, reply).await.expect("an answer in time")
    }

    /// The last request of a client, as the server reads it, and its id.
    fn line(&self) -> (String, String) {
        let last = self.seen.of_clients().pop().expect("a request");
        (last.line, last.id)
    }
}

const ID: &str = r#""c\u002d1\ud800""#;
const TOKEN: &str = r#""\u0041""#;

#[tokio::test(start_paused = true)]
async fn a_request_goes_up_whole_and_its_answer_comes_back_whole() {
    // A shared process, and the session's own.
    for capabilities in [json!({}), json!({ "roots": {} })] {
        let house = house(EraSupport::Legacy);
        let (session, _) = house.open(capabilities).await;
        for (tool, part) in [
            ("echo", None),
            (
                "missing",
                Some(r#""error":{"code":-32602,"message":"Unknown tool: missing"}"#),
            ),
        ] {
            let message = legacy_call(ID, tool, TOKEN);
            let reply = house.raw(Some(&session), &message).await;
            let (line, id) = house.line();
            assert_eq!(
                line,
                legacy_call(&id, tool, &id),
                "only the names that must be unique are others"
            );
            let params = params(&line);
            let echoed = format!(
                r#""result":{{"content":[],"structuredContent":{{"params":{params}}},"x":1.50}}"#
            );
            let part = part.unwrap_or(&echoed);
            assert_eq!(text(&reply), response(ID, part));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_between_modern_equals() {
    let house = house(EraSupport::Modern);
    let message = modern_call(ID, "echo", TOKEN);
    let reply = house.modern_raw("echo", message.clone()).await;
    let (line, id) = house.line();
    assert_eq!(line, modern_call(&id, "echo", &id));
    let params = params(&line);
    let echoed =
        format!(r#""result":{{"content":[],"structuredContent":{{"params":{params}}},"x":1.50}}"#);
    assert_eq!(text(&reply), response(ID, &echoed));
    let missing = modern_call(ID, "missing", TOKEN);
    let reply = house.modern_raw("missing", missing).await;
    let part = r#""error":{"code":-32602,"message":"Unknown tool: missing"}"#;
    assert_eq!(text(&reply), response(ID, part));
}

#[tokio::test(start_paused = true)]
async fn between_unlike_eras_unknown_members_stay_around_what_is_translated() {
    let legacy = house(EraSupport::Legacy);
    let call = modern_call(ID, "echo", TOKEN);
    let answer = text(&legacy.modern_raw("echo", call).await);
    let line = legacy.line();
    let modern = house(EraSupport::Modern);
    let (session, _) = modern.open(json!({})).await;
    let reply = modern
        .raw(Some(&session), &legacy_call(ID, "echo", TOKEN))
        .await;
    for ((line, id), answer) in [(line, answer), (modern.line(), text(&reply))] {
        let head = format!(r#"{{{ODD}"jsonrpc":"2.0","id":{id},{CALLED},"params":"#);
        assert!(line.starts_with(&head), "{line}");
        assert!(line.ends_with(r#","z":[ ]}"#), "{line}");
        assert!(
            line.contains(&format!(r#""arguments":{{{ODD}"n":-0.0}}"#)),
            "{line}"
        );
        let head = format!(r#"{{{}"jsonrpc":"2.0","id":{ID},"#, fake::BEFORE);
        assert!(answer.starts_with(&head), "{answer}");
        assert!(answer.ends_with(&format!("{}}}", fake::BEHIND)), "{answer}");
    }
    let lost = r#"{"x":1.50,"jsonrpc":"2.0","id":1,"method":"no/such"}"#;
    let error = text(&modern.raw(Some(&session), lost).await);
    let part = r#""error":{"code":-32601,"message":"Method not found"}"#;
    assert_eq!(error, response("1", part));
}

#[tokio::test(start_paused = true)]
async fn what_belongs_to_a_call_keeps_its_bytes_in_either_era() {
    for speaks in ERAS {
        // A shared process, and the session's own if that is required.
        for capabilities in [json!({}), json!({ "roots": {} })] {
            let house = house(speaks);
            let (session, _) = house.open(capabilities).await;
            let params = json!({ "name": "speak", "_meta": { "progressToken": "t" } });
            let mut wire = Wire::of(house.in_session(&session, "tools/call", params).await);
            let mut lines = Vec::new();
            while let Some(line) = wire.line().await {
                lines.push(line);
            }
            for line in [
                progress("\"t\""),
                fake::logged("error"),
                fake::UNKNOWN.into(),
            ] {
                assert!(lines.contains(&line), "{speaks:?}: {line} in {lines:?}");
            }
        }
        let house = house(speaks);
        let params = json!({ "name": "speak", "_meta": { "progressToken": 7, LEVEL: "error" } });
        let mut wire = Wire::of(house.modern("tools/call", params).await);
        let mut lines = Vec::new();
        while let Some(line) = wire.line().await {
            lines.push(line);
        }
        for line in [progress("7"), fake::logged("error"), fake::UNKNOWN.into()] {
            assert!(lines.contains(&line), "{speaks:?}: {line} in {lines:?}");
        }
        assert!(!lines.contains(&fake::logged("debug")));
    }
}

fn progress(token: &str) -> String {
    format!(
        r#"{{"x":1.50,"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1.0}}}}"#
    )
}

#[tokio::test(start_paused = true)]
async fn a_question_and_its_answer_pass_whole() {
    for outcome in [
        r#""result":{"action":"accept","n":12345678901234567890}"#,
        r#""error":{"code":-1,"message":"User rejected","data":{"n":1.50}}"#,
    ] {
        let house = house(EraSupport::Legacy);
        let (session, _) = house.open(json!({ "elicitation": {} })).await;
        let call = house.in_session(&session, "tools/call", json!({ "name": "ask" }));
        let mut wire = Wire::of(call.await);
        let question = wire.line().await.expect("a question");
        let id = serde_json::from_str::<Value>(&question).expect("JSON")["id"].to_string();
        assert_eq!(question, fake::QUESTION.replace(r#""srv\u002d1""#, &id));
        let answer =
            |id: &str| format!(r#"{{"r":1.50,{outcome},"id": {id} ,"jsonrpc":"2.0","s":[1e3]}}"#);
        let reply = house.raw(Some(&session), &answer(&id)).await;
        assert_eq!(reply.head().status, StatusCode::ACCEPTED);
        wire.message().await.expect("the answer");
        let told = house.seen.told.lock().expect("not poisoned");
        assert_eq!(*told, [answer(r#""srv\u002d1""#)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_taken_back_in_a_call_is_taken_back_at_the_client() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({ "elicitation": {} })).await;
    let params = json!({ "name": "withdraw" });
    let mut wire = Wire::of(house.in_session(&session, "tools/call", params).await);
    let question = wire.message().await.expect("a question");
    let id = question["id"].to_string();
    let taken_back = wire.line().await.expect("news");
    assert_eq!(taken_back, fake::TAKEN_BACK.replace(r#""srv\u002d1""#, &id));
    // The call goes on, and sends no other message before its response.
    let answer = wire.message().await.expect("the answer");
    assert_eq!(answer["result"], json!({ "content": [] }));
    assert_eq!(wire.line().await, None);
    // The client may not know of the cancellation yet: its answer is dropped.
    house
        .answer(&session, &question["id"], json!({ "result": {} }))
        .await;
    assert_eq!(house.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_call_goes_on_when_its_question_is_taken_back() {
    let house = house(EraSupport::Legacy);
    let params = json!({ "name": "withdraw" });
    let asked = body(&house.modern("tools/call", params.clone()).await)["result"].clone();
    assert_eq!(asked["resultType"], "input_required");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut retry = params;
    retry["requestState"] = asked["requestState"].clone();
    retry["inputResponses"] = json!({});
    let result = body(&house.modern("tools/call", retry).await)["result"].clone();
    assert_eq!(result["resultType"], "complete", "{result}");
    assert_eq!(house.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_taken_back_before_its_client_hears_of_it_suspends_no_call() {
    let house = house(EraSupport::Legacy);
    let call = house.modern("tools/call", json!({ "name": "withdraw_soon" }));
    let result = body(&call.await)["result"].clone();
    assert_eq!(result["resultType"], "complete", "{result}");
    let told = (house.calls(), house.cancelled());
    assert_eq!(told, (1, 0), "it ran once, to its end");
}

#[tokio::test(start_paused = true)]
async fn a_client_cancels_in_its_own_words_and_who_leaves_in_ours() {
    let short = Duration::from_millis(5);
    let words = r#"{"x":1e400,"jsonrpc":"2.0","params":{"reason":"\u00e9","requestId":"q","n":1.50},"method":"notifications/cancelled"}"#;
    for speaks in ERAS {
        for capabilities in [json!({}), json!({ "roots": {} })] {
            let house = house(speaks);
            let (session, _) = house.open(capabilities).await;
            let call = house.in_session(&session, "tools/call", json!({ "name": "hang" }));
            assert!(timeout(short, call).await.is_err());
            house.raw(Some(&session), words).await;
            tokio::time::sleep(short).await;
            let notices = house.seen.cancellations();
            let [(id, notice)] = &notices[..] else {
                panic!("{notices:?}");
            };
            assert_eq!(*notice, words.replace(r#""q""#, id));
        }
        let house = house(speaks);
        let call = house.modern("tools/call", json!({ "name": "hang" }));
        assert!(timeout(short, call).await.is_err());
        let notices = house.seen.cancellations();
        let [(_, notice)] = &notices[..] else {
            panic!("{notices:?}");
        };
        assert!(!notice.contains("1e400"), "{notice}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_readers_could_read_in_two_ways_is_not_passed() {
    let house = denying(EraSupport::Legacy);
    let (session, _) = house.open(json!({})).await;
    for params in [
        r#"{"name":"echo","name":"secret_tool"}"#,
        r#"{"name":"echo","n\u0061me":"secret_tool"}"#,
        r#"{"name":"\ud800"}"#,
        r#"{"name":["secret_tool"]}"#,
        r#"{"name":"echo","_meta":{"progressToken":1,"progressToken":2}}"#,
    ] {
        let message =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools\/call","params":{params}}}"#);
        let answer = body(&house.raw(Some(&session), &message).await);
        assert_eq!(answer["error"]["code"], -32602, "{params}: {answer}");
    }
    let cancelled = r#"{"jsonrpc":"2.0","id":1,"method":"notifications/cancelled","params":{"requestId":65536}}"#;
    let answer = body(&house.raw(Some(&session), cancelled).await);
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    let message = r#"{"jsonrpc":"2.0","id":1,"m\u0065thod":"tools\/call","params":{"n\u0061me":"secret\u005ftool"}}"#;
    let denied = body(&house.raw(Some(&session), message).await);
    assert_eq!(denied["result"]["isError"], true, "{denied}");
    assert_eq!(house.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_some_readers_take_for_another_key_is_not_passed() {
    // A shared process, and the session's own.
    for capabilities in [json!({}), json!({ "roots": {} })] {
        let house = house(EraSupport::Legacy);
        let (session, _) = house.open(capabilities).await;
        let session = Some(&*session);
        for (members, code) in [
            (
                r#""method":"tools/call","params":{"Name":"secret_tool"}"#,
                -32602,
            ),
            (
                r#""method":"tools/call","params":{"name":"echo","NAME":"secret_tool"}"#,
                -32602,
            ),
            (
                r#""method":"tools/call","params":{"name":"echo","_meta":{"progre\u017fsToken":1}}"#,
                -32602,
            ),
            (
                r#""method":"tools/call","Method":"notifications/cancelled","params":{"name":"echo"}"#,
                -32600,
            ),
            (
                r#""method":"tools/call","Id":65537,"params":{"name":"echo"}"#,
                -32600,
            ),
            (
                r#""method":"x/own","params":{"\u004eame":"secret_tool"}"#,
                -32602,
            ),
        ] {
            let message = format!(r#"{{"jsonrpc":"2.0","id":1,{members}}}"#);
            let answer = body(&house.raw(session, &message).await);
            assert_eq!(answer["error"]["code"], code, "{members}: {answer}");
        }
        for members in [
            r#""method":"x/news","Method":"notifications/cancelled","params":{"requestId":65536}"#,
            r#""method":"notifications/cancelled","params":{"requestId":"q","RequestId":65536}"#,
            r#""method":"notifications/cancelled","params":{"requestId":"q"},"ID":1"#,
        ] {
            let reply = house
                .raw(session, &format!(r#"{{"jsonrpc":"2.0",{members}}}"#))
                .await;
            assert_eq!(reply.head().status, StatusCode::BAD_REQUEST, "{members}");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(house.seen.of_clients().len(), 0);
        assert!(
            house
                .seen
                .notifications
                .lock()
                .expect("not poisoned")
                .is_empty()
        );
        // The arguments are the server's own business.
        let fine = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"Name":"x"}}}"#;
        assert!(body(&house.raw(session, fine).await)["result"].is_object());
    }
    // A namespace of functions passes no message on.
    let house = house(EraSupport::Legacy);
    let mut there = caller();
    there.namespace = Some("other".parse().expect("a name"));
    let body = json!({ "jsonrpc": "2.0", "Method": "x", "method": "x/news" });
    let bare = McpHead {
        version: Some("2025-03-26".into()),
        ..head(None, None)
    };
    let reply = house.post_as(there, bare, &body).await;
    assert_eq!(reply.head().status, StatusCode::ACCEPTED);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_a_server_could_take_for_something_else_is_not_passed() {
    let house = house(EraSupport::Legacy);
    let (session, _) = house.open(json!({ "elicitation": {} })).await;
    let call = house.in_session(&session, "tools/call", json!({ "name": "ask" }));
    let mut wire = Wire::of(call.await);
    let question = wire.message().await.expect("a question");
    let id = &question["id"];
    for more in [
        r#""Method":"notifications/cancelled""#,
        r#""Result":{}"#,
        r#""params":{"RequestId":1}"#,
    ] {
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"Method":1}},{more}}}"#);
        let reply = house.raw(Some(&session), &answer).await;
        assert_eq!(reply.head().status, StatusCode::BAD_REQUEST, "{more}");
    }
    assert!(house.seen.told.lock().expect("not poisoned").is_empty());
    let fine = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"Method":1}}}}"#);
    house.raw(Some(&session), &fine).await;
    wire.message().await.expect("the answer");
    assert_eq!(house.seen.told.lock().expect("not poisoned").len(), 1);
}
