//! The subject of a message, for log lines: its method, and the tool, prompt or resource.

use super::{Body, Key, Message, body, string};

/// The method of a message, and the tool, prompt or resource that the message names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The method, such as `tools/call`.
    pub method: String,
    /// Name of the tool or prompt, or URI of the resource; `None` if the message names none.
    pub name: Option<String>,
}

impl Subject {
    /// The subject of a body with a single message; `None` for a batch, a response, or a body that is not a message.
    pub fn of_message(bytes: &[u8]) -> Option<Self> {
        let Body::One(
            Message::Request {
                method, members, ..
            }
            | Message::Notification { method, members },
        ) = body(bytes).ok()?
        else {
            return None;
        };
        let name = members.get(Key::Name).or(members.get(Key::Uri));
        let name = name.filter(|_| members.unique().is_ok()).and_then(string);
        Some(Self {
            method: method.into_owned(),
            name: name.map(Into::into),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(body: &str) -> Option<(String, Option<String>)> {
        Subject::of_message(body.as_bytes()).map(|subject| (subject.method, subject.name))
    }

    #[test]
    fn a_message_is_about_its_method_and_what_it_names() {
        let of = |method: &str, params: &str| {
            subject(&format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#
            ))
        };
        let some = |method: &str, name: &str| Some((method.to_owned(), Some(name.to_owned())));
        assert_eq!(
            of("tools/call", r#"{"name":"\u0061dd","arguments":{}}"#),
            some("tools/call", "add")
        );
        assert_eq!(
            of("resources/read", r#"{"uri":"a://b"}"#),
            some("resources/read", "a://b")
        );
        assert_eq!(
            of("tools/call", r#"{"name":7}"#),
            Some(("tools/call".to_owned(), None))
        );
        assert_eq!(of("ping", "[]"), Some(("ping".to_owned(), None)));
    }

    #[test]
    fn what_is_no_message_is_about_nothing() {
        for body in [
            "",
            "x",
            "[]",
            "{}",
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        ] {
            assert_eq!(subject(body), None, "{body}");
        }
    }
}
