//! Transcripts of MCP over Streamable HTTP.

use super::scene::{Answerer, Asker, Cell, Exchange, Scene};

const ASKED: &str = r#"{"elicitation":{},"sampling":{},"roots":{}}"#;

/// Starts a scene, with a session if its client needs one.
async fn scene(cell: Cell, title: &str) -> Scene {
    let mut scene = Scene::new(cell, title);
    scene.open(ASKED).await;
    scene
}

/// Requests with a single answer, each as: title, method, parameters after the metadata, result of the server.
const SIMPLE: &[(&str, &str, &str, &str)] = &[
    (
        "a call: a result with members nobody knows",
        "tools/call",
        r#""name":"echo","arguments":{"a":1.50,"\u0062":"\u00e9\/\ud83e\udd80","n":12345678901234567890,"e":1E400},"x":[1.0]"#,
        r#""result":{$DONE"content":[{"type":"text","text":"h\u00e9\/","y":1.0}],"x":1.50,"_meta":{"k":12345678901234567890}},"top":1.50,"\u0065nd":[]"#,
    ),
    (
        "a call: a structured result that is no object",
        "tools/call",
        r#""name":"count""#,
        r#""result":{$DONE"content":[{"type":"text","text":"7"}],"structuredContent":7.0}"#,
    ),
    (
        "a call: a structured result",
        "tools/call",
        r#""name":"add","arguments":{"a":1}"#,
        r#""result":{"content":[],$DONE"structuredContent":{"sum":1.50}}"#,
    ),
    (
        "a call: the tool failed",
        "tools/call",
        r#""name":"echo","arguments":{}"#,
        r#""result":{$DONE"isError":true,"content":[{"type":"text","text":"no"}]}"#,
    ),
    (
        "a call: an error",
        "tools/call",
        r#""name":"echo","arguments":{}"#,
        r#""error":{"code":-32602,"message":"Unknown tool: \u00e9","data":{"n":1.50}},"x":1"#,
    ),
    (
        "a call: an error of the server's own",
        "tools/call",
        r#""name":"echo""#,
        r#""error":{"code":-32099,"message":"no","z":1.50}"#,
    ),
    (
        "a resource",
        "resources/read",
        r#""uri":"test://a\u002fb""#,
        r#""result":{$DONE"contents":[{"uri":"test://a/b","text":"t","x":1.50}]}"#,
    ),
    (
        "a resource that is not there, in the legacy code",
        "resources/read",
        r#""uri":"test://no""#,
        r#""error":{"code":-32002,"message":"Resource not found","data":{"uri":"test://no"}}"#,
    ),
    (
        "a resource that is not there, in the modern code",
        "resources/read",
        r#""uri":"test://no""#,
        r#""error":{"code":-32602,"message":"Resource not found","data":{"uri":"test://no"}}"#,
    ),
    (
        "resources",
        "resources/list",
        r#""cursor":"c\u0031""#,
        r#""result":{$DONE"resources":[{"uri":"test://a","name":"a","x":1.50}],"nextCursor":"c2"}"#,
    ),
    (
        "templates",
        "resources/templates/list",
        "",
        r#""result":{$DONE"resourceTemplates":[]}"#,
    ),
    (
        "prompts",
        "prompts/list",
        "",
        r#""result":{$DONE"prompts":[{"name":"p","x":1.50}]}"#,
    ),
    (
        "a prompt",
        "prompts/get",
        r#""name":"p","arguments":{"k":"\u00e9"}"#,
        r#""result":{$DONE"messages":[{"role":"user","content":{"type":"text","text":"t"},"x":1.50}]}"#,
    ),
    (
        "completion",
        "completion/complete",
        r#""ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"k","value":"v"}"#,
        r#""result":{$DONE"completion":{"values":["v1"],"total":1.0}}"#,
    ),
    (
        "an unknown method",
        "custom\\/echo",
        r#""n":12345678901234567890"#,
        r#""result":{$DONE"n":1.50}"#,
    ),
    (
        "an unknown method that the server does not know",
        "custom/nothing",
        "",
        r#""error":{"code":-32601,"message":"Method not found"}"#,
    ),
];

/// Request ids as raw JSON in unusual spellings, which must be returned unchanged.
const IDS: &[&str] = &[
    "9007199254740993",
    "-0",
    r#""\u0041\"\/""#,
    r#""🦀""#,
    r#""""#,
];

fn request(id: &str, method: &str, params: &str) -> String {
    let comma = if params.is_empty() { "" } else { "," };
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"_meta":{{$ERA}}{comma}{params}}}}}"#
    )
}

/// Returns a call of the tool `echo` with these members in its metadata.
fn call(meta: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{{"_meta":{{$ERA{meta}}},"name":"echo","arguments":{{}}}}}}"#
    )
}

pub(super) async fn with_a_server(cell: Cell) -> String {
    let mut text = opening(cell).await;

    let mut scene = Scene::with(cell, "tools", true);
    scene.open("{}").await;
    let asked = scene.send(&request("1", "tools/list", ""));
    scene.up().await;
    scene.result(super::server::TOOLS).await;
    scene.answer(asked).await;
    text += &scene.end().await;

    for (title, method, params, answer) in SIMPLE {
        let mut scene = self::scene(cell, title).await;
        let asked = scene.send(&request("7", method, params));
        scene.up().await;
        scene
            .down(&format!(r#"{{"jsonrpc":"2.0","id":$ID,{answer}}}"#))
            .await;
        scene.answer(asked).await;
        text += &scene.end().await;
    }
    for id in IDS {
        let mut scene = self::scene(cell, &format!("the id {id}")).await;
        let asked = scene.send(&request(id, "prompts/get", r#""name":"p""#));
        scene.up().await;
        scene
            .down(r#"{"x":1.50,"result":{$DONE"messages":[]},"id":$ID,"jsonrpc":"2.0"}"#)
            .await;
        scene.answer(asked).await;
        text += &scene.end().await;
    }
    text += &refused(cell).await;
    text += &speaking(cell).await;
    text += &elicitation(cell).await;
    text += &sampling(cell).await;
    if cell.server == Answerer::Modern {
        text += &state_alone(cell).await;
    }
    text += &unasked(cell).await;
    text + &cancelled(cell).await
}

pub(super) async fn with_a_worker(cell: Cell) -> String {
    let mut text = opening(cell).await;
    let rows = [
        ("tools", "tools/list", ""),
        ("resources", "resources/list", ""),
        ("templates", "resources/templates/list", ""),
        ("prompts", "prompts/list", ""),
        (
            "a value",
            "tools/call",
            r#""name":"value","arguments":{"value":1.50}"#,
        ),
        (
            "an object",
            "tools/call",
            r#""name":"echo","arguments":{ "b":1.50,"a":12345678901234567890,"\u0063":"\u00e9\/" },"x":1"#,
        ),
        ("a text", "tools/call", r#""name":"say_hello""#),
        (
            "a content block",
            "tools/call",
            r#""name":"image","arguments":{}"#,
        ),
        (
            "a failed tool",
            "tools/call",
            r#""name":"internal_error","arguments":{}"#,
        ),
        (
            "wrong arguments",
            "tools/call",
            r#""name":"invalid_arguments","arguments":{}"#,
        ),
        (
            "an overloaded worker",
            "tools/call",
            r#""name":"overloaded","arguments":{}"#,
        ),
        (
            "a worker that is away",
            "tools/call",
            r#""name":"worker_unavailable","arguments":{}"#,
        ),
        (
            "a client that lacks a capability",
            "tools/call",
            r#""name":"missing_capability","arguments":{}"#,
        ),
        (
            "a tool that is denied",
            "tools/call",
            r#""name":"secret_tool","arguments":{}"#,
        ),
        (
            "a tool that is not there",
            "tools/call",
            r#""name":"nothing","arguments":{}"#,
        ),
        ("a resource", "resources/read", r#""uri":"test://static""#),
        (
            "a resource of a template",
            "resources/read",
            r#""uri":"test://item/7""#,
        ),
        (
            "a resource that is not there",
            "resources/read",
            r#""uri":"test://no""#,
        ),
        (
            "a prompt",
            "prompts/get",
            r#""name":"greet","arguments":{"k":"\u00e9"}"#,
        ),
        (
            "a prompt whose arguments are wrong",
            "prompts/get",
            r#""name":"strict","arguments":{}"#,
        ),
        (
            "a prompt that is not there",
            "prompts/get",
            r#""name":"nothing""#,
        ),
        (
            "completion",
            "completion/complete",
            r#""ref":{"type":"ref/prompt","name":"greet"},"argument":{"name":"k","value":"p"}"#,
        ),
        ("an unknown method", "custom/echo", r#""n":1"#),
        (
            "progress without a token",
            "tools/call",
            r#""name":"talk","arguments":{"steps":[{"progress":1}]}"#,
        ),
    ];
    for (title, method, params) in rows {
        let mut scene = self::scene(cell, title).await;
        let asked = scene.send(&request("7", method, params));
        scene.answer(asked).await;
        text += &scene.end().await;
    }
    for id in IDS {
        let mut scene = self::scene(cell, &format!("the id {id}")).await;
        let asked = scene.send(&request(id, "tools/call", r#""name":"say_hello""#));
        scene.answer(asked).await;
        text += &scene.end().await;
    }
    text += &refused(cell).await;

    let mut scene = self::scene(cell, "progress and a log message").await;
    let level = level(cell);
    let asked = scene.send(&format!(r#"{{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{{"_meta":{{$ERA"progressToken":"p\u0031"{level}}},"name":"talk","arguments":{{"steps":[{{"progress":2}},{{"log":"debug"}},{{"log":"error"}},{{"notice":"tools"}}]}}}}}}"#));
    scene.answer(asked).await;
    text += &scene.end().await;

    for (title, method, params) in [
        (
            "two questions of a tool",
            "tools/call",
            r#""name":"talk","arguments":{"steps":[{"ask":[{"key":"who","method":"elicitation/create","params":{"message":"who?","n":1.50}}]},{"ask":[{"key":"what","method":"sampling/createMessage","params":{"messages":[],"maxTokens":7}}]}]}"#,
        ),
        (
            "a question of a resource",
            "resources/read",
            r#""uri":"test://talk""#,
        ),
        ("a question of a prompt", "prompts/get", r#""name":"talk""#),
    ] {
        let mut scene = self::scene(cell, title).await;
        let questions = if method == "tools/call" { 2 } else { 1 };
        let mut asked = scene.send(&request(r#""c""#, method, params));
        for turn in 1..=questions {
            let answer = format!(r#"{{"action":"accept","content":{{"n":{turn}.50}}}}"#);
            asked = answered(
                &mut scene,
                asked,
                turn,
                &answer,
                &request(r#""r""#, method, params),
            )
            .await;
        }
        scene.answer(asked).await;
        text += &scene.end().await;
    }

    let mut scene = self::scene(cell, "a call that is cancelled").await;
    let asked = scene.send(&request(r#""c""#, "tools/call", r#""name":"hang""#));
    scene.worker_has_begun().await;
    give_up(&mut scene, asked).await;
    scene.worker_is_done().await;
    text + &scene.end().await
}

/// Plays `initialize` or `server/discover`, and `ping`.
async fn opening(cell: Cell) -> String {
    let mut text = String::new();
    if cell.client == Asker::Legacy {
        for capabilities in ["{}", ASKED] {
            let mut scene = Scene::new(cell, &format!("initialize with {capabilities}"));
            scene.initialize(capabilities).await;
            text += &scene.end().await;
        }
    } else {
        let mut scene = Scene::new(cell, "server/discover");
        let asked = scene.send(&request("1", "server/discover", ""));
        scene.answer(asked).await;
        text += &scene.end().await;
    }
    let mut scene = self::scene(cell, "ping").await;
    let asked = scene.send(&request("1.50", "ping", ""));
    scene.answer(asked).await;
    text + &scene.end().await
}

/// Plays messages that the gateway refuses, so that they do not reach a server.
async fn refused(cell: Cell) -> String {
    let mut text = String::new();
    for (title, message) in [
        ("no JSON", r#"{"jsonrpc":"2.0","id":1,"#),
        ("no request", r#"{"jsonrpc":"2.0","id":1}"#),
        (
            "another version of JSON-RPC",
            r#"{"jsonrpc":"1.0","id":1,"method":"ping","params":{"_meta":{$ERA}}}"#,
        ),
        (
            "a key twice",
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{$ERA},"name":"echo","n\u0061me":"secret_tool"}}"#,
        ),
        ("a batch", r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#),
        (
            "a tool that is denied",
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{$ERA},"name":"secret_tool"}}"#,
        ),
        (
            "a call without a name",
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{$ERA}}}"#,
        ),
        (
            "an answer to no question",
            r#"{"jsonrpc":"2.0","id":"nothing","result":{}}"#,
        ),
    ] {
        let mut scene = self::scene(cell, &format!("refused: {title}")).await;
        let asked = scene.send(message);
        scene.settle(asked).await;
        text += &scene.end().await;
    }
    text
}

/// Returns the member of a modern request's metadata that requests log messages; empty for other clients.
fn level(cell: Cell) -> &'static str {
    match cell.client {
        Asker::Modern => r#","io.modelcontextprotocol/logLevel":"warning""#,
        _ => "",
    }
}

/// Plays progress and log messages before the answer, and an unknown notification.
async fn speaking(cell: Cell) -> String {
    let mut text = String::new();
    for token in [r#""p\u0031""#, "7.0"] {
        let mut scene = self::scene(cell, &format!("progress with the token {token}")).await;
        let asked = scene.send(&call(&format!(r#""progressToken":{token}"#)));
        scene.up().await;
        for progress in ["1.0", "2"] {
            scene.down(&format!(r#"{{"x":1.50,"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":$ID,"progress":{progress},"message":"\u00e9"}}}}"#)).await;
        }
        scene.result(r#"{$DONE"content":[]}"#).await;
        scene.answer(asked).await;
        text += &scene.end().await;
    }

    let mut scene = self::scene(cell, "log messages").await;
    if cell.client == Asker::Legacy {
        let asked = scene.send(
            r#"{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"warning"}}"#,
        );
        if cell.server == Answerer::Legacy {
            scene.up().await;
            scene.result("{}").await;
        }
        scene.answer(asked).await;
    }
    let asked = scene.send(&call(&format!(r#""progressToken":1{}"#, level(cell))));
    scene.up().await;
    if cell.client == Asker::Modern && cell.server == Answerer::Legacy {
        // The gateway sets the process's log level before it sends the call.
        scene.result("{}").await;
        scene.up().await;
    }
    for level in ["debug", "error"] {
        scene.down(&format!(r#"{{"x":1.50,"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"{level}","data":1.0}}}}"#)).await;
    }
    scene.down(r#"{"x":1.50,"jsonrpc":"2.0","m\u0065thod":"x\/unknown","params":{"a":12345678901234567890}}"#).await;
    scene.result(r#"{$DONE"content":[]}"#).await;
    scene.answer(asked).await;
    text + &scene.end().await
}

/// Answers, as the client, the question for which the call waits. Returns the exchange that will contain the call's answer.
async fn answered(
    scene: &mut Scene,
    asked: Exchange,
    turn: usize,
    answer: &str,
    again: &str,
) -> Exchange {
    if scene.cell.client == Asker::Legacy {
        let asked = scene.question(asked).await;
        let id = scene.question_id();
        scene
            .tell(&format!(
                r#"{{"x":1.50,"jsonrpc":"2.0","id":{id},"result":{answer}}}"#
            ))
            .await;
        return asked;
    }
    scene.answer(asked).await;
    let key = scene.question_key();
    let state = format!("<state-{turn}>");
    let retry = format!(r#""inputResponses":{{"{key}":{answer}}},"requestState":"{state}"}}}}"#);
    let again = again.strip_suffix("}}").expect("parameters");
    scene.send(&format!("{again},{retry}"))
}

/// Sends a question during a call, as the server, and continues with the client's answer.
async fn asks(scene: &mut Scene, method: &str, params: &str, answer: &str) {
    let asked = scene.send(&call(""));
    scene.up().await;
    let work = scene.work();
    if scene.cell.server == Answerer::Modern {
        scene
            .result(&format!(r#"{{"resultType":"input_required","inputRequests":{{"who":{{"method":"{method}","params":{params}}}}},"requestState":"theirs","x":1.50}}"#))
            .await;
    } else {
        scene
            .down(&format!(r#"{{"a":1.50,"jsonrpc":"2.0","id":"srv\u002d1","m\u0065thod":"{method}","params":{params},"z":[]}}"#))
            .await;
    }
    let again = call("").replace(r#""id":"c""#, r#""id":"again""#);
    let asked = answered(scene, asked, 1, answer, &again).await;
    scene.up().await;
    if scene.cell.server != Answerer::Modern {
        scene.go_on(work);
    }
    scene.result(r#"{$DONE"content":[],"x":1.50}"#).await;
    scene.answer(asked).await;
}

async fn elicitation(cell: Cell) -> String {
    let params =
        r#"{"message":"who?","requestedSchema":{"type":"object","properties":{}},"n":1.50}"#;
    let mut text = String::new();
    for answer in [
        r#"{"action":"accept","content":{"n":12345678901234567890,"s":"\u00e9"},"y":1.0}"#,
        r#"{"action":"decline"}"#,
    ] {
        let mut scene = self::scene(cell, &format!("elicitation: {answer}")).await;
        asks(&mut scene, "elicitation/create", params, answer).await;
        text += &scene.end().await;
    }
    text
}

async fn sampling(cell: Cell) -> String {
    let mut scene = self::scene(cell, "sampling").await;
    let params =
        r#"{"messages":[{"role":"user","content":{"type":"text","text":"?"}}],"maxTokens":7.0}"#;
    let answer =
        r#"{"role":"assistant","content":{"type":"text","text":"!"},"model":"m","x":1.50}"#;
    asks(&mut scene, "sampling/createMessage", params, answer).await;
    scene.end().await
}

/// Plays a result `input_required` that contains no question, only a state.
async fn state_alone(cell: Cell) -> String {
    let mut scene = self::scene(cell, "a state without questions").await;
    let asked = scene.send(&call(""));
    scene.up().await;
    scene
        .result(r#"{"resultType":"input_required","inputRequests":{},"requestState":"theirs"}"#)
        .await;
    let asked = if cell.client == Asker::Modern {
        scene.answer(asked).await;
        let state = "<state-1>";
        let again = call("").replace(
            r#""arguments""#,
            &format!(r#""requestState":"{state}","arguments""#),
        );
        scene.send(&again)
    } else {
        asked
    };
    scene.up().await;
    scene.result(r#"{$DONE"content":[]}"#).await;
    scene.answer(asked).await;
    scene.end().await
}

/// Plays a server's question to a client that has declared no capabilities.
async fn unasked(cell: Cell) -> String {
    let mut scene = Scene::new(cell, "a question to a client that declares nothing");
    scene.declares_nothing();
    scene.open("{}").await;
    let asked = scene.send(&call(""));
    scene.up().await;
    if cell.server == Answerer::Modern {
        scene
            .result(r#"{"resultType":"input_required","inputRequests":{"who":{"method":"elicitation/create","params":{"message":"who?"}}},"requestState":"theirs"}"#)
            .await;
    } else {
        let work = scene.work();
        scene
            .down(r#"{"jsonrpc":"2.0","id":"srv-1","method":"elicitation/create","params":{"message":"who?"}}"#)
            .await;
        scene.up().await;
        scene.go_on(work);
        scene.result(r#"{"content":[]}"#).await;
    }
    scene.answer(asked).await;
    scene.end().await
}

/// Cancels the call as a client of this era does: by a notification, or by closing the connection.
async fn give_up(scene: &mut Scene, asked: Exchange) {
    if scene.cell.client == Asker::Legacy {
        scene
            .tell(r#"{"x":1.50,"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c","reason":"never \u006dind","y":1.0}}"#)
            .await;
        scene.answer(asked).await;
    } else {
        scene.leave(asked);
    }
}

async fn cancelled(cell: Cell) -> String {
    let mut scene = self::scene(cell, "a call that is cancelled").await;
    let asked = scene.send(&call(""));
    scene.up().await;
    give_up(&mut scene, asked).await;
    scene.up().await;
    scene.end().await
}
