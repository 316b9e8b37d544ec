//! Builds messages for a client from the reports and questions of a function: progress, log messages, questions, and their
//! withdrawal. Each is one line of JSON, spliced from spans and never decoded.

use bytes::Bytes;
use tooldock_process::worker::{LogLevel, Question};
use tooldock_protocol::jsonrpc::splice;

use super::PeerEvent;

/// Message that withdraws a question from a client, in two versions: the MCP server's and the gateway's.
pub struct WithdrawalMessage {
    /// The MCP server's message that withdraws the question, with the server's id of the question replaced by the id that the
    /// gateway has sent to the client; `None` if the server sent no such message. Limited only by the maximum length of any
    /// message.
    pub own: Option<Bytes>,
    /// The gateway's message, which is short. Used if the server's message is missing or does not fit into the queue.
    pub ours: Bytes,
}

/// Builds the request that sends a question to the client. `id` is the gateway's id of the question, unique in the session.
pub(super) fn question(id: u64, question: &Question) -> Vec<u8> {
    let head = format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"{}","params":"#,
        question.method.as_str()
    );
    let params = match question.params.trim_ascii() {
        [] => b"{}",
        params => params,
    };
    let mut out = head.into_bytes();
    out.extend_from_slice(params);
    out.push(b'}');
    out
}

/// Builds the withdrawal of a question from the MCP server's `message`. `id` replaces the server's id of the question.
pub(super) fn taken_back(id: u64, message: &[u8]) -> WithdrawalMessage {
    let text = std::str::from_utf8(message).ok();
    let own = text.and_then(|text| splice::with_request_id(text, &id.to_string()));
    WithdrawalMessage {
        own: own.map(Bytes::from),
        ..cancelled(id, "The server withdrew the question")
    }
}

/// Builds the gateway's message that withdraws a question for the given reason.
pub(super) fn cancelled(id: u64, reason: &str) -> WithdrawalMessage {
    let params = serde_json::json!({ "requestId": id, "reason": reason });
    let ours =
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
    WithdrawalMessage {
        own: None,
        ours: ours.into(),
    }
}

/// Builds the notification of an event for one client: `token` is the client's progress token as raw JSON, and `level` the least
/// severe level of log messages that it wants. Returns `None` if the client does not want the event, or if it is a question.
pub fn notification(
    event: PeerEvent,
    token: Option<&str>,
    wanted: Option<LogLevel>,
) -> Option<Vec<u8>> {
    let wants = |level: LogLevel| wanted.is_some_and(|wanted| level >= wanted);
    match event {
        PeerEvent::Progress(params) => Some(progress(token?, &params)),
        PeerEvent::Log { level, params } => wants(level).then(|| log(&params)),
        PeerEvent::Message { level, message } => level.is_none_or(wants).then(|| message.into()),
        PeerEvent::InputRequests(_) => None,
    }
}

/// Builds `notifications/progress`. `token` is the client's, raw JSON; `params` is an object with the other parameters.
fn progress(token: &str, params: &[u8]) -> Vec<u8> {
    const HEAD: &[u8] =
        br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"#;
    let mut out = Vec::with_capacity(HEAD.len() + token.len() + params.len() + 2);
    out.extend_from_slice(HEAD);
    out.extend_from_slice(token.as_bytes());
    // `params` without its opening brace, but with its closing brace.
    let rest = params.trim_ascii();
    let rest = rest.strip_prefix(b"{").unwrap_or(b"}").trim_ascii_start();
    if rest != b"}" {
        out.push(b',');
    }
    out.extend_from_slice(rest);
    out.push(b'}');
    out
}

/// Builds `notifications/message` with these parameters, a JSON object.
fn log(params: &[u8]) -> Vec<u8> {
    const HEAD: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/message","params":"#;
    let mut out = Vec::with_capacity(HEAD.len() + params.len() + 1);
    out.extend_from_slice(HEAD);
    out.extend_from_slice(params.trim_ascii());
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tooldock_process::worker::AskMethod;

    use super::*;

    fn read(message: impl AsRef<[u8]>) -> Value {
        serde_json::from_slice(message.as_ref()).expect("JSON")
    }

    #[test]
    fn questions_are_requests_and_can_be_taken_back() {
        let asked = Question {
            key: "k".into(),
            method: AskMethod::Roots,
            params: Bytes::new(),
        };
        assert_eq!(
            read(question(3, &asked)),
            json!({ "jsonrpc": "2.0", "id": 3, "method": "roots/list", "params": {} })
        );
        assert_eq!(
            read(cancelled(3, "over").ours),
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled",
                "params": { "requestId": 3, "reason": "over" } })
        );
    }

    #[test]
    fn progress_keeps_the_tokens_and_the_numbers_spelling() {
        let message = progress(r#""\u0041""#, br#" {"progress":1.50,"total":2}"#);
        let text = String::from_utf8(message.clone()).expect("UTF-8");
        assert!(
            text.contains(r#"{"progressToken":"\u0041","progress":1.50,"total":2}"#),
            "{text}"
        );
        assert_eq!(read(message)["method"], "notifications/progress");
        for odd in ["{}", "{ }", ""] {
            let params = &read(progress("7", odd.as_bytes()))["params"];
            assert_eq!(params, &json!({ "progressToken": 7 }), "{odd:?}");
        }
    }

    #[test]
    fn a_log_message_is_what_the_function_said() {
        assert_eq!(
            read(log(br#"{"level":"info","data":1}"#))["params"],
            json!({ "level": "info", "data": 1 })
        );
    }
}
