//! The messages that ask a client by a request and take such a question back. Each is one line of JSON, spliced from
//! spans and never decoded.

use tooldock_workers::worker::Question;

use crate::jsonrpc::splice;

/// A request to the client. `id` is ours, unique in the session.
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

/// Takes a question back in the words of the server that asked it: its own message, about our id of the question.
pub(super) fn taken_back(id: u64, message: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(message).ok();
    let passed = text.and_then(|text| splice::with_request_id(text, &id.to_string()));
    passed.unwrap_or_else(|| cancelled(id, "The server withdrew the question"))
}

/// Takes a question back.
pub(super) fn cancelled(id: u64, reason: &str) -> Vec<u8> {
    let params = serde_json::json!({ "requestId": id, "reason": reason });
    format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#)
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};
    use tooldock_workers::worker::AskMethod;

    use super::*;

    fn read(message: Vec<u8>) -> Value {
        serde_json::from_slice(&message).expect("JSON")
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
            read(cancelled(3, "over")),
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled",
                "params": { "requestId": 3, "reason": "over" } })
        );
    }
}
