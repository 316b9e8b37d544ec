//! Classifies the lines of a client over pipes.

use crate::jsonrpc::{self, Body, Key, Message};

/// The kind of a client's line. Ids are raw JSON.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    /// An `initialize` request.
    Initialize(Box<str>),
    /// The cancellation of a request with this id.
    Cancelled(Box<str>),
    /// Any other message that gets no answer, such as a notification.
    OneWay,
    /// A request of 2026-07-28. `listens`: true if its answer is a stream that does not end by itself.
    Modern { id: Box<str>, listens: bool },
    /// Any other line, which gets an answer: a request of the legacy era, a batch, or a malformed message.
    Legacy {
        id: Option<Box<str>>,
        /// The request's method; `None` for a batch or a malformed message.
        method: Option<Box<str>>,
    },
}

impl LineKind {
    pub(super) fn of(line: &[u8]) -> Self {
        const NO_REQUEST: LineKind = LineKind::Legacy {
            id: None,
            method: None,
        };
        let Ok(Body::One(message)) = jsonrpc::body(line) else {
            return NO_REQUEST;
        };
        match message {
            Message::Request {
                id,
                method,
                members,
            } => match &*method {
                _ if members.raw(Key::ProtocolVersion).is_some() => Self::Modern {
                    id: id.into(),
                    listens: method == "subscriptions/listen",
                },
                "initialize" => Self::Initialize(id.into()),
                _ => Self::Legacy {
                    id: Some(id.into()),
                    method: Some(method.into()),
                },
            },
            Message::Notification { method, members } => match members.name(Key::RequestId) {
                Some(id) if method == "notifications/cancelled" => Self::Cancelled(id.into()),
                _ => Self::OneWay,
            },
            Message::Response { .. } => Self::OneWay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_told_by_its_method_and_the_version_it_names() {
        let modern = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
        let legacy = |id: Option<&str>, method: Option<&str>| LineKind::Legacy {
            id: id.map(Into::into),
            method: method.map(Into::into),
        };
        for (line, expected) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#.to_owned(),
                LineKind::Initialize("1".into()),
            ),
            (
                r#"{"jsonrpc":"2.0","id":"a","method":"tools/list"}"#.to_owned(),
                legacy(Some("\"a\""), Some("tools/list")),
            ),
            (
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{{modern}}}}}"#),
                LineKind::Modern {
                    id: "1".into(),
                    listens: false,
                },
            ),
            (
                format!(
                    r#"{{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{{{modern}}}}}"#
                ),
                LineKind::Modern {
                    id: "1".into(),
                    listens: true,
                },
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}"#
                    .to_owned(),
                LineKind::Cancelled("\"a\"".into()),
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#.to_owned(),
                LineKind::OneWay,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.to_owned(),
                LineKind::OneWay,
            ),
            ("[]".to_owned(), legacy(None, None)),
            ("{".to_owned(), legacy(None, None)),
            (
                r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#.to_owned(),
                legacy(None, None),
            ),
        ] {
            assert_eq!(LineKind::of(line.as_bytes()), expected, "{line}");
        }
    }
}
