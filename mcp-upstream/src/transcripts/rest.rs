//! Transcripts of REST and OpenAPI.

use http::Method;

use super::scene::{Answerer, Cell, Scene};

/// Plays requests that need no tool call, such as lists.
async fn lists(cell: Cell, tool: &str) -> String {
    let mut text = String::new();
    let schema = format!("/tools/{tool}/schema");
    for path in [
        "/tools",
        &schema,
        "/tools/secret_tool/schema",
        "/tools/nothing/schema",
        "/namespaces",
        "/openapi.json",
        "/namespaces/shared/openapi.json",
    ] {
        let mut scene = Scene::new(cell, path);
        let asked = scene.rest(&Method::GET, path, "");
        scene.answer(asked).await;
        text += &scene.end().await;
    }
    text
}

pub(super) async fn with_a_server(cell: Cell) -> String {
    let mut text = lists(cell, "add").await;
    let calls = [
        (
            "a value",
            "count",
            "{}",
            r#""result":{$DONE"content":[{"type":"text","text":"7"}],"structuredContent":12345678901234567890.50}"#,
        ),
        (
            "a structured value",
            "add",
            r#"{"a":1,"b":[1.50,"\u00e9"]}"#,
            r#""result":{$DONE"content":[{"type":"text","text":"{}"}],"structuredContent":{"sum":1.50,"\u0061":"\/"}}"#,
        ),
        (
            "one text",
            "echo",
            r#"{"a":12345678901234567890}"#,
            r#""result":{$DONE"content":[{"type":"text","text":"h\u00e9\/\ud83e\udd80"}]}"#,
        ),
        (
            "several blocks",
            "echo",
            "{}",
            r#""result":{$DONE"content":[{"type":"text","text":"a"},{"type":"image","data":"AA==","mimeType":"image/png","x":1.50}]}"#,
        ),
        ("no content", "echo", "", r#""result":{$DONE"content":[]}"#),
        (
            "a failed tool",
            "echo",
            "{}",
            r#""result":{$DONE"isError":true,"content":[{"type":"text","text":"no"}]}"#,
        ),
        (
            "an unknown tool",
            "echo",
            "{}",
            r#""error":{"code":-32602,"message":"Unknown tool: echo"}"#,
        ),
        (
            "an internal error",
            "echo",
            "{}",
            r#""error":{"code":-32603,"message":"it broke","data":{"n":1.50}}"#,
        ),
        (
            "an error of its own",
            "echo",
            "{}",
            r#""error":{"code":-32000,"message":"no","data":{"n":1.50}}"#,
        ),
    ];
    for (title, tool, arguments, answer) in calls {
        let mut scene = Scene::new(cell, &format!("a call: {title}"));
        let asked = scene.rest(&Method::POST, &format!("/tools/{tool}"), arguments);
        scene.up().await;
        scene
            .down(&format!(r#"{{"jsonrpc":"2.0","id":$ID,{answer}}}"#))
            .await;
        scene.answer(asked).await;
        text += &scene.end().await;
    }
    let refused = [
        (
            "arguments that do not fit the schema",
            "add",
            r#"{"a":"1"}"#,
        ),
        ("no object", "add", "[1]"),
        ("no JSON", "add", "{"),
        ("a key twice", "echo", r#"{"a":1,"\u0061":2}"#),
        ("a tool that is denied", "secret_tool", "{}"),
        ("a tool that is not there", "nothing", "{}"),
    ];
    for (title, tool, arguments) in refused {
        let mut scene = Scene::new(cell, &format!("refused: {title}"));
        let asked = scene.rest(&Method::POST, &format!("/tools/{tool}"), arguments);
        scene.settle(asked).await;
        text += &scene.end().await;
    }
    let mut scene = Scene::new(cell, "progress, which nobody hears");
    let asked = scene.rest(&Method::POST, "/tools/echo", "{}");
    scene.up().await;
    scene.down(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":1.0}}"#).await;
    scene.result(r#"{$DONE"content":[]}"#).await;
    scene.answer(asked).await;
    text += &scene.end().await;

    let mut scene = Scene::new(cell, "a question, which nobody can be asked");
    let asked = scene.rest(&Method::POST, "/tools/echo", "{}");
    scene.up().await;
    if cell.server == Answerer::Modern {
        scene.result(r#"{"resultType":"input_required","inputRequests":{"who":{"method":"elicitation/create","params":{"message":"who?"}}},"requestState":"theirs"}"#).await;
    } else {
        let call = scene.work();
        scene.down(r#"{"jsonrpc":"2.0","id":"srv-1","method":"elicitation/create","params":{"message":"who?"}}"#).await;
        scene.up().await;
        scene.go_on(call);
        scene
            .result(r#"{"content":[{"type":"text","text":"nobody"}]}"#)
            .await;
    }
    scene.answer(asked).await;
    text += &scene.end().await;

    let mut scene = Scene::new(cell, "a call that is given up");
    let asked = scene.rest(&Method::POST, "/tools/echo", "{}");
    scene.up().await;
    scene.leave(asked);
    scene.up().await;
    text + &scene.end().await
}

pub(super) async fn with_a_worker(cell: Cell) -> String {
    let mut text = lists(cell, "say_hello").await;
    let calls = [
        ("say_hello", r#"{"name":"Ada"}"#),
        ("say_hello", ""),
        (
            "echo",
            r#"{ "b":1.50,"a":12345678901234567890,"\u0063":"\u00e9\/\ud83e\udd80" }"#,
        ),
        ("echo", r#"{"a":1,"\u0061":2}"#),
        ("value", r#"{"value":null}"#),
        ("value", r#"{"value":1.50}"#),
        ("image", "{}"),
        ("talk", r#"{"steps":[{"progress":2},{"log":"error"}]}"#),
        ("missing_capability", "{}"),
        ("invalid_arguments", "{}"),
        ("dependency_error", "{}"),
        ("internal_error", "{}"),
        ("worker_unavailable", "{}"),
        ("overloaded", "{}"),
        ("execution_timeout", "{}"),
        ("secret_tool", "{}"),
        ("nothing", "{}"),
        ("echo", "[1]"),
        ("echo", "{"),
    ];
    for (tool, arguments) in calls {
        let mut scene = Scene::new(cell, &format!("{tool} {arguments}"));
        let asked = scene.rest(&Method::POST, &format!("/tools/{tool}"), arguments);
        scene.answer(asked).await;
        text += &scene.end().await;
    }
    let mut scene = Scene::new(cell, "a call that is given up");
    let asked = scene.rest(&Method::POST, "/tools/hang", "{}");
    scene.worker_has_begun().await;
    scene.leave(asked);
    scene.worker_is_done().await;
    text + &scene.end().await
}
