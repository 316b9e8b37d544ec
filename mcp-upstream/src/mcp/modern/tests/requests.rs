//! Contents of requests, the order of their checks, and the form of simple answers.

use tooldock_sessions::profile::Profile;

use super::*;
use crate::testing::parts;

fn list() -> Value {
    request(json!("l"), "tools/list", json!({}))
}

#[tokio::test]
async fn results_say_their_type_who_answered_and_how_long_they_keep() {
    let harness = service();
    for (method, params, key) in [
        ("tools/list", json!({}), "tools"),
        ("resources/list", json!({}), "resources"),
        ("resources/templates/list", json!({}), "resourceTemplates"),
        ("prompts/list", json!({}), "prompts"),
        (
            "resources/read",
            json!({ "uri": "test://static" }),
            "contents",
        ),
        ("server/discover", json!({}), "supportedVersions"),
    ] {
        let result = harness.result(&request(json!("l"), method, params)).await;
        assert_eq!(result["resultType"], "complete", "{method}");
        assert_eq!(result["_meta"][SERVER]["name"], "tooldock/shared");
        assert!(result["ttlMs"].is_u64(), "{method}: {result}");
        // A policy limits the tools of this namespace that callers see.
        assert_eq!(result["cacheScope"], "private", "{method}");
        assert!(result[key].is_array(), "{method}: {result}");
    }
    let hello = json!({ "name": "say_hello" });
    let result = harness
        .result(&request(json!(1), "tools/call", hello))
        .await;
    assert_eq!(result["resultType"], "complete");
    assert_eq!(result["content"][0]["text"], "Hello, Ada!");
    assert!(result.get("ttlMs").is_none());
    assert_eq!(
        result["_meta"][SERVER]["version"],
        env!("CARGO_PKG_VERSION")
    );
}

#[tokio::test]
async fn discover_names_versions_capabilities_and_instructions() {
    let harness = service();
    let result = harness
        .result(&request(json!(1), "server/discover", json!({})))
        .await;
    assert_eq!(
        result["supportedVersions"],
        json!(["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"])
    );
    assert_eq!(result["instructions"], "Tools of shared");
    let capabilities = result["capabilities"].as_object().expect("an object");
    let mut names: Vec<_> = capabilities.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["completions", "logging", "prompts", "resources", "tools"]
    );
}

#[tokio::test]
async fn ids_come_back_in_their_own_spelling() {
    let harness = service();
    for id in [
        "9007199254740993",
        "1.50",
        r#""\u0041\"""#,
        r#""🦀""#,
        r#""""#,
        "1e3",
    ] {
        for method in ["tools/list", "server/discover", "nope"] {
            let message = request(Value::Null, method, json!({}));
            let text = message
                .to_string()
                .replace(r#""id":null"#, &format!(r#""id":{id}"#));
            let reply = harness
                .service
                .post(caller(), head_of(&message), text.into())
                .await;
            let body = crate::error::body_of(&reply);
            let body = std::str::from_utf8(&body).expect("UTF-8");
            assert!(body.contains(&format!(r#""id":{id},"#)), "{body}");
        }
    }
}

#[tokio::test]
async fn metadata_is_required_and_looked_at_before_other_headers() {
    let harness = service();
    let with = |change: fn(&mut Value)| {
        let mut message = list();
        change(&mut message["params"]);
        message
    };
    let rows: Vec<(&str, Value)> = vec![
        ("no _meta", with(|params| *params = json!({}))),
        ("no params", with(|params| *params = json!(null))),
        (
            "_meta is a list",
            with(|params| params["_meta"] = json!([])),
        ),
        (
            "no version",
            with(|params| {
                drop(
                    params["_meta"]
                        .as_object_mut()
                        .expect("an object")
                        .remove(V),
                )
            }),
        ),
        (
            "version is a number",
            with(|params| params["_meta"][V] = json!(3)),
        ),
        (
            "no capabilities",
            with(|params| {
                drop(
                    params["_meta"]
                        .as_object_mut()
                        .expect("an object")
                        .remove(CAPS),
                )
            }),
        ),
        (
            "capabilities is null",
            with(|params| params["_meta"][CAPS] = json!(null)),
        ),
        (
            "capabilities is a list",
            with(|params| params["_meta"][CAPS] = json!([])),
        ),
        (
            "client info is a text",
            with(|params| params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!("x")),
        ),
        (
            "unknown level",
            with(|params| params["_meta"][LEVEL] = json!("loud")),
        ),
        (
            "token is an object",
            with(|params| params["_meta"]["progressToken"] = json!({})),
        ),
        (
            "token is too long",
            with(|params| params["_meta"]["progressToken"] = json!("p".repeat(1023))),
        ),
    ];
    for (what, message) in rows {
        let mut head = head_of(&list());
        // A client from before this era sends no other headers either.
        head.mirrored = None;
        let reply = harness.send_as(caller(), head, &message).await;
        let (status, code, text) = refusal(&reply, &json!("l"));
        assert_eq!((status, code), (400, -32602), "{what}: {text}");
    }
    // Optional members may be absent, and unknown ones are ignored.
    let message = request(json!(1), "tools/list", json!({ "_meta": { "x/y": [1] } }));
    harness.result(&message).await;
}

#[tokio::test]
async fn headers_must_say_what_the_body_says() {
    let harness = service();
    let call = request(
        json!(7),
        "tools/call",
        json!({ "name": "echo", "arguments": {} }),
    );
    let change = |change: fn(&mut McpHead)| {
        let mut head = head_of(&call);
        change(&mut head);
        head
    };
    let mirrored = |head: &mut McpHead| head.mirrored.get_or_insert_default().clone();
    let rows: Vec<(&str, McpHead, i64)> = vec![
        ("no version", change(|head| head.version = None), -32020),
        (
            "another version",
            change(|head| head.version = Some("2025-11-25".into())),
            -32020,
        ),
        (
            "no mirrored headers",
            change(|head| head.mirrored = None),
            -32020,
        ),
        (
            "white space around",
            change(|head| head.version = Some(" 2026-07-28\t".into())),
            0,
        ),
    ];
    for (what, head, code) in rows {
        let reply = harness.send_as(caller(), head, &call).await;
        match code {
            0 => assert_eq!(reply.head().status, StatusCode::OK, "{what}"),
            _ => {
                let (status, found, text) = refusal(&reply, &json!(7));
                assert_eq!((status, found), (400, code), "{what}: {text}");
            }
        }
    }
    let mut wrong = head_of(&call);
    wrong.mirrored = Some(Box::new(MirroredHeaders {
        name: Some("value".into()),
        ..*mirrored(&mut wrong.clone())
    }));
    let (status, code, _) = refusal(&harness.send_as(caller(), wrong, &call).await, &json!(7));
    assert_eq!((status, code), (400, -32020));
    assert_eq!(harness.backend.counts().0, 1, "refused calls do not run");
}

#[tokio::test]
async fn an_unknown_version_is_told_the_known_ones() {
    let harness = service();
    let versions = json!(["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"]);
    for version in ["v999.0.0", "2025-11-25", "1999-01-01", ""] {
        let message = request(
            json!(301),
            "server/discover",
            json!({ "_meta": { V: version } }),
        );
        let (status, body) = harness.ask(&message).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{version}");
        assert_eq!(body["error"]["code"], -32022);
        assert_eq!(body["error"]["data"]["requested"], version);
        assert_eq!(body["error"]["data"]["supported"], versions);
        assert_eq!(body["id"], 301);
    }
}

#[tokio::test]
async fn an_unknown_version_in_the_header_alone_is_told_the_known_ones_too() {
    let service = service();
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    for (version, expected) in [
        ("2027-01-01", "unsupported_version"),
        ("zzz", "unsupported_version"),
        ("2026-07-28", "missing_meta"),
    ] {
        let head = McpHead {
            version: Some(version.into()),
            accept: accept_both(),
            ..McpHead::default()
        };
        let reply = service.send_as(caller(), head, &ping).await;
        let (status, body) = crate::testing::parts(&reply);
        assert_eq!(status, StatusCode::BAD_REQUEST, "{version}");
        assert_eq!(body["error"]["data"]["code"], expected, "{version}: {body}");
    }
}

#[tokio::test]
async fn initialize_opens_a_session_whatever_era_its_header_is_of() {
    let service = service();
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" },
    } });
    for (version, status, said) in [
        ("2026-07-28", 200, "2025-11-25"),
        // The version in the body counts.
        ("2027-01-01", 200, "2025-11-25"),
    ] {
        let head = McpHead {
            version: Some(version.into()),
            accept: accept_both(),
            ..McpHead::default()
        };
        let reply = service.send_as(caller(), head, &message).await;
        let (found, body) = crate::testing::parts(&reply);
        assert_eq!(found.as_u16(), status, "{version}: {body}");
        assert!(body.to_string().contains(said), "{version}: {body}");
    }
}

#[tokio::test]
async fn a_listener_without_this_era_names_the_versions_it_has() {
    let harness = service();
    let mut caller = caller();
    caller.profile = Arc::new(Profile {
        modern: false,
        ..Profile::core()
    });
    for message in [list(), request(json!("l"), "initialize", json!({}))] {
        let reply = harness
            .send_as(caller.clone(), head_of(&message), &message)
            .await;
        let (status, body) = parts(&reply);
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(body["error"]["code"], -32022);
        assert_eq!(
            body["error"]["data"]["supported"],
            json!(["2025-11-25", "2025-06-18", "2025-03-26"])
        );
    }
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": "2025-11-25", "capabilities": {} } });
    let head = McpHead {
        accept: accept_both(),
        ..McpHead::default()
    };
    let reply = harness.send_as(caller, head, &initialize).await;
    assert_eq!(reply.head().status, StatusCode::OK);
}

#[tokio::test]
async fn what_went_with_this_revision_is_unknown() {
    let harness = service();
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "unknown/method",
        "notifications/initialized",
    ] {
        let params = json!({ "uri": "test://static", "level": "info" });
        let (status, code, _) = harness.refusal(&request(json!(500), method, params)).await;
        assert_eq!((status, code), (404, -32601), "{method}");
    }
}

#[tokio::test]
async fn methods_answer_errors_as_this_revision_wants() {
    let harness = service();
    for (method, params, status, code) in [
        (
            "resources/read",
            json!({ "uri": "test://nope" }),
            200,
            -32602,
        ),
        ("tools/call", json!({}), 200, -32602),
        (
            "tools/call",
            json!({ "name": "echo", "arguments": [] }),
            200,
            -32602,
        ),
        ("tools/list", json!({ "cursor": "x" }), 200, -32602),
        ("prompts/get", json!({ "name": "nope" }), 200, -32602),
        (
            "tools/call",
            json!({ "name": "missing_capability" }),
            400,
            -32021,
        ),
        ("subscriptions/listen", json!({}), 200, -32602),
    ] {
        let (found, error, text) = harness.refusal(&request(json!(2), method, params)).await;
        assert_eq!((found, error), (status, code), "{method}: {text}");
    }
    let missing = request(json!(2), "resources/read", json!({ "uri": "test://nope" }));
    assert_eq!(
        harness.ask(&missing).await.1["error"]["data"]["uri"],
        "test://nope"
    );
    let missing = request(
        json!(2),
        "tools/call",
        json!({ "name": "missing_capability" }),
    );
    let (_, body) = harness.ask(&missing).await;
    assert_eq!(
        body["error"]["data"]["requiredCapabilities"],
        json!({ "sampling": {} })
    );
}

#[tokio::test]
async fn one_request_at_a_time_and_nothing_to_answer() {
    let harness = service();
    let head = || McpHead {
        version: Some("2026-07-28".into()),
        accept: accept_both(),
        ..McpHead::default()
    };
    let batch = format!("[{}]", list());
    let response = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    for body in [batch.as_str(), response] {
        let reply = harness
            .service
            .post(caller(), head(), body.to_owned().into())
            .await;
        let (status, answer) = parts(&reply);
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(
            (&answer["error"]["code"], &answer["id"]),
            (&json!(-32600), &json!(null))
        );
    }
    let notification =
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    let reply = harness
        .service
        .post(caller(), head(), notification.into())
        .await;
    assert_eq!(parts(&reply), (StatusCode::ACCEPTED, Value::Null));
}

#[tokio::test]
async fn session_and_event_ids_that_come_along_are_ignored() {
    let harness = service();
    let session = harness.open("2025-11-25", true).await;
    for id in [session.as_str(), "nonsense"] {
        let mut head = head_of(&list());
        head.session = Some(id.into());
        head.last_event_id = Some("1-1".into());
        let reply = harness.send_as(caller(), head, &list()).await;
        assert_eq!(reply.head().status, StatusCode::OK);
        assert!(
            !reply
                .head()
                .headers
                .iter()
                .any(|(name, _)| name == "mcp-session-id")
        );
    }
    // Meanwhile a legacy request of the same session, at the same URL.
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let head = crate::testing::head(Some(&session), Some("2025-11-25"));
    assert_eq!(harness.post(head, ping).await.0, StatusCode::OK);
}

#[tokio::test]
async fn both_media_types_must_be_accepted_by_name() {
    let harness = service();
    for flags in ["application/json", "text/event-stream", "*/*"] {
        let mut head = head_of(&list());
        head.accept = AcceptFlags::parse([flags]);
        let reply = harness.send_as(caller(), head, &list()).await;
        assert_eq!(refusal(&reply, &json!("l")).0, 406, "{flags}");
    }
}

#[tokio::test]
async fn an_escaped_slash_in_the_key_is_the_same_key() {
    let harness = service();
    let text = list()
        .to_string()
        .replace("io.modelcontextprotocol/", "io.modelcontextprotocol\\/");
    let reply = harness
        .service
        .post(caller(), head_of(&list()), text.into())
        .await;
    assert_eq!(reply.head().status, StatusCode::OK);
}
