//! Messages between equals keep their bytes: everything but ids and progress tokens.

mod eras;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::client::Modern;
use super::{and, node_server, serving, silent_session};
use crate::support::session::Session;
use crate::support::sse::Answering;
use crate::support::{Gateway, eventually};

/// Spellings no JSON library would keep; the fixture writes the same spellings into its messages.
const ODD: &str = r#"{"big":12345678901234567890,"huge":1e400,"zeros":1.50,"minus":-0.0,"escaped":"\u00e9\ud83d\ude00\/","spaced" : [ 1 ,2 ]}"#;

/// Such spellings, as far as clients parse them at once.
const MILD: &str =
    r#"{"big":12345678901234567890,"zeros":1.50,"escaped":"\u00e9\/","spaced" : [ 1 ,2 ]}"#;

fn verbatim(flags: &[&str]) -> Value {
    node_server("verbatim.mjs", flags)
}

/// The text that answers a message of a client without a session.
async fn post(gateway: &Gateway, namespace: &str, body: &str) -> String {
    let request = gateway
        .request("POST", "/mcp")
        .header("X-Namespace", namespace);
    let request = request
        .header("Content-Type", "application/json")
        .body(body.to_owned());
    request.send().await.unwrap().text().await.unwrap()
}

/// The messages of an answer, as they were spelled.
async fn texts(mut answer: Answering) -> Vec<String> {
    let mut texts = Vec::new();
    if !answer.is_events() {
        panic!("no stream: {}", answer.json().await);
    }
    while let Some(event) = answer.event().await {
        texts.push(event.data);
    }
    texts
}

/// A message of a session, spelled as `body` is.
async fn send(gateway: &Gateway, session: &Session, body: &str) -> Answering {
    let lines = format!(
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    Answering::open(gateway.address, &session.head("POST", &lines)).await
}

/// The line a server received, out of an answer that quotes it.
fn received(answer: &str) -> String {
    let answer: Value = serde_json::from_str(&answer.replace("1e400", "1")).expect("JSON");
    let result = &answer["result"];
    let line = result["received"]
        .as_str()
        .or(result["content"][0]["text"].as_str());
    line.unwrap_or_else(|| panic!("no line: {answer}"))
        .to_owned()
}

#[tokio::test]
async fn parameters_reach_a_server_as_they_were_spelled() {
    let gateway = serving(json!({"any": verbatim(&[])})).await;
    for method in [
        "example.org/anything",
        "example.org/tasks",
        "completion/complete",
        "prompts/get",
        "resources/read",
    ] {
        let sent = format!(
            r#"{{"name":"n","uri":"a:\/\/b" , "odd":{ODD},"_meta":{{"example.org/odd":{ODD}}},"n":1.0}}"#
        );
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{sent}}}"#);
        // A 1e400 is no number for the helper that reads the answer, so the line is compared as text.
        let answer = post(&gateway, "any", &body).await;
        let quoted = Value::from(format!(r#""params":{sent}"#)).to_string();
        assert!(
            answer.contains(quoted.trim_matches('"')),
            "{method}: {answer}"
        );
    }
}

#[tokio::test]
async fn arguments_of_a_call_keep_their_bytes_over_mcp_and_rest() {
    let gateway = serving(json!({"any": verbatim(&[])})).await;
    let call = format!(r#"{{"name":"echo","arguments":{ODD},"x-unknown":{ODD}}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{call}}}"#);
    let answer = post(&gateway, "any", &body).await;
    // Behind it all comes the gateway's id of the request.
    let (members, _) = call.rsplit_once('}').expect("an object");
    let quoted = Value::from(format!(r#"{members},"_meta":{{"tooldock/request_id":"#)).to_string();
    assert!(answer.contains(quoted.trim_matches('"')), "{answer}");
    let request = gateway
        .request("POST", "/tools/echo")
        .header("X-Namespace", "any");
    let answer = request
        .header("Content-Type", "application/json")
        .body(ODD)
        .send()
        .await
        .unwrap();
    let line: String = answer.json().await.unwrap();
    assert!(line.contains(&format!(r#""arguments":{ODD}"#)), "{line}");
}

#[tokio::test]
async fn results_and_errors_come_back_as_they_were_spelled() {
    let gateway = serving(json!({"any": verbatim(&[])})).await;
    let call = |tool: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{{}}}}}}"#
        )
    };
    let odd = format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{{"type":"text","text":"\u006fdd","x-unknown":{ODD}}}],"structuredContent":{ODD},"_meta":{{"example.org/odd":{ODD}}},"isError":false,"x-unknown":{ODD}}}}}"#
    );
    assert_eq!(post(&gateway, "any", &call("odd")).await, odd);
    let failed = format!(
        r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":-32042,"message":"n\u006f","data":{ODD},"x-unknown":{ODD}}}}}"#
    );
    assert_eq!(post(&gateway, "any", &call("fail")).await, failed);
    let request = gateway
        .request("POST", "/tools/odd")
        .header("Accept", "application/json")
        .header("X-Namespace", "any");
    assert_eq!(request.send().await.unwrap().text().await.unwrap(), ODD);
}

#[tokio::test]
async fn every_spelling_of_an_id_comes_back() {
    let gateway = serving(json!({"any": verbatim(&[])})).await;
    let long = format!("\"{}\"", "x".repeat(200));
    for id in [
        "0",
        "-7",
        "9007199254740993",
        "12345678901234567890",
        r#""""#,
        r#""\u0061\/\"b""#,
        &long,
    ] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo"}}}}"#
        );
        let answer = post(&gateway, "any", &body).await;
        assert!(
            answer.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"#)),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn lists_and_their_cursors_keep_their_bytes() {
    let gateway = serving(json!({"any": verbatim(&[])})).await;
    let list = |params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{params}}}"#)
    };
    let tool = |name: &str| {
        format!(
            r#"{{"name":"{name}","inputSchema":{{"type":"object","x-odd":{ODD}}},"annotations":{{"readOnlyHint":true,"x-hint":1.50}},"execution":{{"taskSupport":"forbidden"}},"x-unknown":{ODD}}}"#
        )
    };
    let first = post(&gateway, "any", &list("{}")).await;
    let expected = format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{},{}],"nextCursor":"n\u0065xt \/2","x-unknown":{ODD}}}}}"#,
        tool("echo"),
        tool("second")
    );
    assert_eq!(first, expected);
    let second = post(&gateway, "any", &list(r#"{"cursor":"n\u0065xt \/2"}"#)).await;
    assert!(
        second.contains(&format!(r#""tools":[{}]"#, tool("third"))),
        "{second}"
    );
    assert_eq!(
        span(&received(&second), "params"),
        r#"{"cursor":"n\u0065xt \/2"}"#
    );
}

#[tokio::test]
async fn a_list_with_denied_tools_keeps_the_bytes_of_the_others() {
    let policy = json!({"namespaces": {"overrides": {"any": {"tools_deny": ["second"]}}}});
    let builder = super::with_servers(json!({"any": verbatim(&[])})).config(policy);
    let gateway = super::start(builder).await;
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let answer = post(&gateway, "any", list).await;
    assert!(
        answer.contains(r#""nextCursor":"n\u0065xt \/2""#),
        "{answer}"
    );
    let echo = format!(
        r#""tools":[{{"name":"echo","inputSchema":{{"type":"object","x-odd":{ODD}}},"annotations":{{"readOnlyHint":true,"x-hint":1.50}},"execution":{{"taskSupport":"forbidden"}},"x-unknown":{ODD}}}]"#
    );
    assert!(answer.contains(&echo), "{answer}");
    let schema = gateway
        .request("GET", "/tools/echo/schema")
        .header("Accept", "application/json")
        .header("X-Namespace", "any");
    let schema = schema.send().await.unwrap().text().await.unwrap();
    assert_eq!(schema, format!(r#"{{"type":"object","x-odd":{ODD}}}"#));
}

#[tokio::test]
async fn capabilities_and_instructions_of_a_server_are_announced_as_it_says_them() {
    let gateway = serving(json!({"old": verbatim(&[]), "new": verbatim(&["--modern"])})).await;
    let capabilities = format!(
        r#""capabilities":{{"tools":{{"listChanged":true,"x-odd":{MILD}}},"resources":{{}},"prompts":{{}},"completions":{{}},"logging":{{}},"tasks":{{"x":1}},"experimental":{{"example.org/odd":{MILD}}},"extensions":{{"example.org/extension":{{"n":1.50}}}}}}"#
    );
    for namespace in ["old", "new"] {
        let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
        let request = gateway
            .request("POST", "/mcp")
            .header("X-Namespace", namespace);
        let request = request
            .header("Accept", "application/json, text/event-stream")
            .header("Content-Type", "application/json");
        let answer = request
            .body(initialize)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        assert!(answer.contains(&capabilities), "{namespace}: {answer}");
        assert!(
            answer.contains(r#""protocolVersion":"2025-06-18""#),
            "{answer}"
        );
        let modern = Modern::new(&gateway, namespace);
        let discover = modern.message(json!(1), "server/discover", json!({}));
        let request = gateway
            .request("POST", "/mcp")
            .header("X-Namespace", namespace);
        let request = request
            .header("Accept", "application/json, text/event-stream")
            .header("MCP-Protocol-Version", "2026-07-28")
            .header("Mcp-Method", "server/discover");
        let answer = request
            .json(&discover)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        assert!(answer.contains(&capabilities), "{namespace}: {answer}");
    }
}

#[tokio::test]
async fn what_comes_before_an_answer_keeps_its_bytes_but_for_the_progress_token() {
    let gateway =
        serving(json!({"any": and(verbatim(&[]), json!({"isolation": "session"}))})).await;
    let session = Session::start(&gateway, "any", "2025-11-25").await;
    for token in [r#""t\u006fken""#, "9007199254740993", "7"] {
        let call = format!(
            r#"{{"name":"tell","_meta":{{"progressToken":{token},"example.org/odd":{ODD}}}}}"#
        );
        let body = format!(r#"{{"jsonrpc":"2.0","id":"i","method":"tools/call","params":{call}}}"#);
        let said = texts(send(&gateway, &session, &body).await).await;
        let progress = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":1.50,"x-unknown":{ODD},"_meta":{{"example.org/odd":{ODD}}}}}}}"#
        );
        let other = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/example.org/odd","params":{ODD}}}"#
        );
        assert_eq!(said[..2], [progress, other]);
        let line = said[2].clone();
        let upstream = line
            .find("progressToken")
            .expect("the server has a token, too");
        let rest = Value::from(format!(r#","example.org/odd":{ODD}"#)).to_string();
        assert!(line[upstream..].contains(rest.trim_matches('"')), "{line}");
    }
}

#[tokio::test]
async fn notifications_of_a_client_keep_their_bytes() {
    let gateway = serving(json!({"any": verbatim(&[])})).await;
    let session = silent_session(&gateway, "any").await;
    let sent =
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/example.org/odd","params":{ODD}}}"#);
    assert_eq!(send(&gateway, &session, &sent).await.status, 202);
    let ask = r#"{"jsonrpc":"2.0","id":1,"method":"example.org/received"}"#;
    let expected = Value::from(format!(r#""params":{ODD}"#)).to_string();
    eventually("the server has it", || async {
        let answer = post(&gateway, "any", ask).await;
        answer.contains(expected.trim_matches('"')).then_some(())
    })
    .await;
}

#[tokio::test]
async fn unknown_members_beside_the_known_ones_of_a_message_reach_the_server() {
    let gateway = serving(json!({"any": verbatim(&[])})).await;
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"example.org/x","params":{{}},"x-unknown":{ODD}}}"#
    );
    let answer = post(&gateway, "any", &body).await;
    let quoted = Value::from(format!(r#""x-unknown":{ODD}"#)).to_string();
    assert!(answer.contains(quoted.trim_matches('"')), "{answer}");
}

/// The raw value of the first member of that name.
fn span<'a>(message: &'a str, name: &str) -> &'a str {
    let name = format!("\"{name}\":");
    let at = message.find(&name).expect("the member") + name.len();
    let mut rest = serde_json::Deserializer::from_str(&message[at..]).into_iter::<Box<RawValue>>();
    rest.next().expect("a value").expect("JSON");
    &message[at..at + rest.byte_offset()]
}

#[tokio::test]
async fn what_a_server_asks_and_what_its_client_answers_keep_their_bytes() {
    let gateway = serving(json!({"any": verbatim(&[])})).await;
    let session = Session::start(&gateway, "any", "2025-11-25").await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask"}}"#;
    let mut call = send(&gateway, &session, body).await;
    let question = call.event().await.expect("a question").data;
    let asked = format!(
        r#"{{"message":"\u0057ell?","requestedSchema":{{"type":"object","properties":{{}},"x-odd":{ODD}}},"x-unknown":{ODD}}}"#
    );
    assert_eq!(span(&question, "params"), asked);
    let answer = format!(r#"{{"action":"accept","content":{ODD},"x-unknown":{ODD}}}"#);
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{answer}}}"#,
        span(&question, "id")
    );
    assert_eq!(send(&gateway, &session, &body).await.status, 202);
    let end = call.event().await.expect("the answer").data;
    let line = quoted_line(&end);
    assert_eq!(span(&line, "result"), answer);
    assert!(span(&line, "id").starts_with("\"q"), "{line}");
}

#[tokio::test]
async fn a_batch_of_2025_03_26_goes_up_one_by_one_and_comes_back_as_one() {
    let gateway = serving(json!({"any": verbatim(&[])})).await;
    let one = r#"{"jsonrpc":"2.0","id":"\u0061","method":"tools/call","params":{"name":"odd"}}"#;
    let two = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"fail"}}"#;
    let answer = post(&gateway, "any", &format!("[{one},{two}]")).await;
    assert!(answer.starts_with('[') && answer.ends_with(']'), "{answer}");
    assert!(
        answer.contains(r#"{"jsonrpc":"2.0","id":"\u0061","result":"#),
        "{answer}"
    );
    assert!(
        answer.contains(r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32042"#),
        "{answer}"
    );
}

/// The line quoted in the text block of an answer.
fn quoted_line(answer: &str) -> String {
    let at = answer.find(r#""text":"#).expect("a text") + r#""text":"#.len();
    let mut rest = serde_json::Deserializer::from_str(&answer[at..]).into_iter::<String>();
    rest.next().expect("a value").expect("a string")
}
