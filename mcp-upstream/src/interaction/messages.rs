//! The messages that ask a client by a request and take such a question back. Each is one line of JSON, spliced from
//! spans and never decoded.

use bytes::Bytes;
use tooldock_workers::worker::Question;

use crate::jsonrpc::splice;

/// The message that takes a question back.
pub(crate) struct TakenBack {
    /// In the words of the server that asked. It may be as long as any message.
    pub(crate) own: Option<Bytes>,
    /// In our words, which are short.
    pub(crate) ours: Bytes,
}

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
pub(super) fn taken_back(id: u64, message: &[u8]) -> TakenBack {
    let text = std::str::from_utf8(message).ok();
    let own = text.and_then(|text| splice::with_request_id(text, &id.to_string()));
    TakenBack {
        own: own.map(Bytes::from),
        ..cancelled(id, "The server withdrew the question")
    }
}

/// Takes a question back.
pub(super) fn cancelled(id: u64, reason: &str) -> TakenBack {
    let params = serde_json::json!({ "requestId": id, "reason": reason });
    let ours =
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
    TakenBack {
        own: None,
        ours: ours.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tooldock_workers::worker::AskMethod;

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
}
