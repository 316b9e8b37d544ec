use super::*;
use tooldock_protocol::jsonrpc::{Response, ResponseOutcome};

fn value(value: &str, content: Option<&str>) -> UpstreamReply {
    let owned = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    UpstreamReply::Value(ToolReply {
        value: owned(value),
        content: content.map(owned),
        meta: None,
    })
}

fn response(result: &'static str) -> UpstreamReply {
    let result = ResponseOutcome::Result(Bytes::from_static(result.as_bytes()));
    UpstreamReply::Response(Response::from_outcome(result))
}

fn shown(method: &str, reply: &UpstreamReply) -> Option<ShownResult> {
    ShownResult::of(&Method::of(method), reply)
}

/// Passes a reply through a hook that replaces `secret`, and returns it.
fn masked(reply: &UpstreamReply) -> UpstreamReply {
    let shown = shown("tools/call", reply).expect("a result");
    let changed = Bytes::from(shown.text().replace("secret", "***"));
    shown.replaced(reply, &changed).expect("a reply")
}

#[test]
fn a_value_keeps_its_form_when_a_hook_has_changed_it() {
    for (before, after) in [
        (r#""secret""#, r#""***""#),
        (r#"{"a":"secret","n":1e400}"#, r#"{"a":"***","n":1e400}"#),
        (
            r#"["secret",9007199254740993]"#,
            r#"["***",9007199254740993]"#,
        ),
        ("null", "null"),
    ] {
        let UpstreamReply::Value(reply) = masked(&value(before, None)) else {
            panic!("{before}");
        };
        assert_eq!(reply.value, after.as_bytes());
        assert_eq!(reply.content, None, "{before}");
    }
    let blocks = r#"[{"type":"text","text":"secret"}]"#;
    let UpstreamReply::Value(reply) = masked(&value("null", Some(blocks))) else {
        panic!("a value");
    };
    let content = reply.content.expect("blocks");
    assert_eq!(content, r#"[{"type":"text","text":"***"}]"#.as_bytes());
    assert_eq!(reply.value, "null");
}

#[test]
fn a_hook_makes_an_error_of_a_value() {
    let reply = value("1", None);
    let shown = shown("tools/call", &reply).expect("a result");
    let changed = br#"{"content":[{"type":"text","text":"not \"1\""}],"isError":true}"#;
    let error = shown.replaced(&reply, &Bytes::from_static(changed));
    let error = error.expect_err("an error of the tool");
    assert_eq!(
        (error.code, &*error.message),
        (CallErrorCode::ToolError, "not \"1\"")
    );
}

#[test]
fn a_changed_result_of_a_server_keeps_the_type_that_modern_clients_require() {
    let reply = response(r#"{"resultType":"complete","content":[]}"#);
    let shown = shown("tools/call", &reply).expect("a result");
    let changed = Bytes::from_static(br#"{"content":[1]}"#);
    let UpstreamReply::Response(changed) = shown.replaced(&reply, &changed).expect("a reply")
    else {
        panic!("a response");
    };
    assert_eq!(
        changed.payload(),
        br#"{"content":[1],"resultType":"complete"}"#
    );
}

#[test]
fn the_result_of_a_finished_task_is_shown() {
    let reply = response(r#"{"status":"completed","result":{"content":["secret"]}}"#);
    let shown = shown("tasks/get", &reply).expect("a result");
    assert_eq!(shown.text(), r#"{"content":["secret"]}"#);
    let changed = Bytes::from_static(br#"{"content":["***"]}"#);
    let UpstreamReply::Response(changed) = shown.replaced(&reply, &changed).expect("a reply")
    else {
        panic!("a response");
    };
    assert_eq!(
        changed.payload(),
        br#"{"status":"completed","result":{"content":["***"]}}"#
    );
}

#[test]
fn questions_and_begun_tasks_are_no_results() {
    for (method, result) in [
        (
            "tools/call",
            r#"{"resultType":"input_required","inputRequests":{}}"#,
        ),
        (
            "tools/call",
            r#"{"task":{"taskId":"a","status":"working"}}"#,
        ),
        (
            "tools/call",
            r#"{"resultType":"task","taskId":"a","status":"working","pollIntervalMs":1000}"#,
        ),
        ("tasks/get", r#"{"status":"working"}"#),
        ("prompts/get", r#"{"content":[]}"#),
    ] {
        assert!(
            shown(method, &response(result)).is_none(),
            "{method} {result}"
        );
    }
    // A result that looks like none is shown nevertheless.
    for odd in [
        r#"{"task":{},"content":[]}"#,
        r#"{"task":1,"secret":"s"}"#,
        r#"{"task":{"taskId":"a","status":"working"},"secret":"s"}"#,
        r#"{"resultType":"input_required","inputRequests":{},"secret":"s"}"#,
        r#"{"resultType":"task","taskId":1,"status":"working"}"#,
    ] {
        assert!(shown("tools/call", &response(odd)).is_some(), "{odd}");
    }
}
