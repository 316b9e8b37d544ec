//! Describes a body that does not answer the request it was received for, for the caller and the log. Its contents are left out.

use super::{Message, message, plain};

/// Maximum number of characters of an id in the description.
const ID_SHOWN: usize = 40;

/// Describes a body that does not answer the request it was received for. Error messages write it after "answered with".
pub fn received(body: &[u8]) -> String {
    let size = body.len();
    if body.trim_ascii().is_empty() {
        return "an empty body".into();
    }
    let Ok(text) = std::str::from_utf8(body) else {
        return format!("{size} bytes that are not UTF-8");
    };
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) {
        return match error.is_eof() {
            true => format!("JSON that was cut after {size} bytes"),
            false => format!("{size} bytes that are no JSON ({error})"),
        };
    }
    if text.trim_ascii_start().starts_with('[') {
        return "a batch of messages in place of a response".into();
    }
    let plain = plain::plain(text, None);
    match message(plain.as_deref().unwrap_or(text)) {
        Ok(Message::Response { id, .. }) => {
            let id: String = id.chars().take(ID_SHOWN).collect();
            format!("the id {id}, which is not that of the request")
        }
        Ok(Message::Request { .. }) => "a request in place of a response".into(),
        Ok(Message::Notification { .. }) => "a notification in place of a response".into(),
        Err(invalid) => {
            let fault = invalid.failure.message();
            format!("JSON that is no JSON-RPC response: {fault}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_answers_nothing_is_named() {
        for (body, said) in [
            ("", "an empty body"),
            (
                r#"{"jsonrpc":"2.0","id":5,"resul"#,
                "JSON that was cut after 30 bytes",
            ),
            (
                "<html>",
                "6 bytes that are no JSON (expected value at line 1 column 1)",
            ),
            (
                r#"{"jsonrpc":"2.0","id":"a","result":{}}"#,
                "the id \"a\", which is not that of the request",
            ),
            (
                r#"{"jsonrpc":"2.0","id":"a","method":null,"result":{},"error":null}"#,
                "the id \"a\", which is not that of the request",
            ),
            ("[]", "a batch of messages in place of a response"),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
                "a request in place of a response",
            ),
            (
                r#"{"jsonrpc":"2.0","method":"x"}"#,
                "a notification in place of a response",
            ),
            (
                "{}",
                "JSON that is no JSON-RPC response: jsonrpc must be \"2.0\"",
            ),
        ] {
            assert_eq!(received(body.as_bytes()), said, "{body}");
        }
        assert_eq!(received(b"\xff\xfe"), "2 bytes that are not UTF-8");
    }
}
