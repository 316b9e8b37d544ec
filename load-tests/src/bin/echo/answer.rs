//! The response to one message. Only the members that the response needs are looked up; the rest of the message is not checked.

use crate::json::{Members, member};

const INFO: &str = r#"{"name":"tooldock-load-echo","version":"1"}"#;
const CAPABILITIES: &str = r#"{"tools":{}}"#;
/// The JSON name of the tool whose calls are answered by a stream of events over HTTP.
const STREAMING: &[u8] = br#""echo_stream""#;
const TOOLS: &str = r#"[{"name":"echo","description":"Gives the text back.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}]"#;
/// The protocol versions that begin with `initialize`, as JSON; the first is the answer to a client that names none of
/// them.
const VERSIONS: [&str; 4] = [
    r#""2025-11-25""#,
    r#""2025-06-18""#,
    r#""2025-03-26""#,
    r#""2024-11-05""#,
];
const MODERN: &str = r#""2026-07-28""#;
const MODERN_KEY: &[u8] = b"io.modelcontextprotocol/protocolVersion";

/// The protocol versions that the server supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Dual,
}

/// Appends the answer to one message, without a line end; nothing for a notification.
pub(crate) fn answer(era: Era, message: &[u8], answers: &mut Vec<u8>) {
    let (mut id, mut method, mut params) = (None, None, None);
    for (key, value) in Members::of(message) {
        match key {
            b"id" => id = Some(value),
            b"method" => method = Some(value),
            b"params" => params = Some(value),
            _ => {}
        }
    }
    let (Some(id), Some(method)) = (id, method) else {
        return;
    };
    let params = params.unwrap_or_default();
    let modern = era == Era::Dual
        && member(params, b"_meta").is_some_and(|meta| member(meta, MODERN_KEY).is_some());
    let complete = if modern {
        r#""resultType":"complete","#
    } else {
        ""
    };
    let cached = if modern {
        r#","ttlMs":3600000,"cacheScope":"public""#
    } else {
        ""
    };
    answers.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    answers.extend_from_slice(id);
    let outcome = match method {
        br#""tools/call""# => match echoed(params) {
            Ok(text) => {
                answers.extend_from_slice(b",\"result\":{");
                answers.extend_from_slice(complete.as_bytes());
                answers.extend_from_slice(br#""content":[{"type":"text","text":"#);
                answers.extend_from_slice(text);
                "}]}}".to_owned()
            }
            Err(why) => format!(",\"error\":{{\"code\":-32602,\"message\":\"{why}\"}}}}"),
        },
        br#""initialize""# => {
            let asked = member(params, b"protocolVersion");
            let known = VERSIONS
                .iter()
                .find(|known| asked == Some(known.as_bytes()));
            let version = known.unwrap_or(&VERSIONS[0]);
            format!(
                ",\"result\":{{\"protocolVersion\":{version},\"capabilities\":{CAPABILITIES},\"serverInfo\":{INFO}}}}}"
            )
        }
        br#""server/discover""# if era == Era::Dual => {
            let legacy = VERSIONS.join(",");
            format!(
                ",\"result\":{{{complete}\"supportedVersions\":[{MODERN},{legacy}],\"capabilities\":{CAPABILITIES},\
                 \"_meta\":{{\"io.modelcontextprotocol/serverInfo\":{INFO}}}{cached}}}}}"
            )
        }
        br#""tools/list""# => {
            format!(",\"result\":{{{complete}\"tools\":{TOOLS}{cached}}}}}")
        }
        br#""ping""# => ",\"result\":{}}".to_owned(),
        _ => ",\"error\":{\"code\":-32601,\"message\":\"no such method\"}}".to_owned(),
    };
    answers.extend_from_slice(outcome.as_bytes());
}

/// Returns true if a message opens a session.
pub(crate) fn opens(message: &[u8]) -> bool {
    member(message, b"method") == Some(br#""initialize""#)
}

/// Returns true if a message is a call that is answered by a stream of events.
pub(crate) fn wants_events(message: &[u8]) -> bool {
    let params = member(message, b"params").unwrap_or_default();
    member(params, b"name") == Some(STREAMING)
}

/// The text argument of a call as JSON, with quotes and escapes as received.
fn echoed(params: &[u8]) -> Result<&[u8], &'static str> {
    if !matches!(member(params, b"name"), Some(br#""echo""# | STREAMING)) {
        return Err("no such tool");
    }
    member(params, b"arguments")
        .and_then(|arguments| member(arguments, b"text"))
        .filter(|text| text.first() == Some(&b'"'))
        .ok_or("text must be a string")
}
