//! Classifies forwarded messages for the records: a response with its status, a request to the client, or another message.
//!
//! A message is parsed only if it contains one of the relevant keys, which few responses do. A message that is too long to be
//! buffered is only searched for the keys. Inside a JSON string every quote is escaped, so a match is a real key or a complete
//! value. In a long message, a key with that name inside the result is counted, too.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;
use serde::de::IgnoredAny;
use tooldock_base::json;
use tooldock_engine::engine::UpstreamReply;
use tooldock_servers::http::error_of_request;

use crate::jsonrpc::plain::is_same_value;
use crate::jsonrpc::splice::span;
use crate::jsonrpc::{self, Body, Message, Response, plain};

const IS_ERROR_KEY: &[u8] = b"\"isError\"";
const ERROR_KEY: &[u8] = b"\"error\"";
const METHOD_KEY: &[u8] = b"\"method\"";

static IS_ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(IS_ERROR_KEY));
static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(ERROR_KEY));
static METHOD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(METHOD_KEY));

/// Number of bytes at the beginning of a long message that are searched for `error`. A match further on could be in a result.
const HEAD: usize = 256;
/// Number of bytes of a long message that are kept from one piece to the next. `"isError" : true` fits into them, so it is found
/// even if it is split between two pieces.
const OVERLAP: usize = 32;

/// The kind of a message that a server sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// The answer to the client's request, with the status under which it is counted.
    Answer(&'static str),
    /// A request that the server sends to the client.
    Question,
    /// The answer to a request with another id.
    Foreign,
    /// The message is neither a response nor a request.
    Other,
}

impl MessageKind {
    /// Returns true if the message may be irregular, so that normalizing it ([`read_plain`]) may change its kind.
    pub(super) fn may_be_odd(self) -> bool {
        match self {
            Self::Foreign | Self::Other => true,
            // A successful result that also has `"error": null` looks like an error before it is normalized.
            Self::Answer(status) => status == "upstream_error",
            Self::Question => false,
        }
    }
}

/// Classifies a complete message. `asked`: raw id of the request whose response is awaited; `None` if ids are not compared.
pub(super) fn read(text: &[u8], asked: Option<&str>) -> MessageKind {
    let mut is_plain = true;
    let is_value = json::is_value(text, |key| {
        is_plain &= !matches!(key, IS_ERROR_KEY | ERROR_KEY | METHOD_KEY);
    });
    if !is_value {
        // The text cannot be read as JSON: the body was cut off (unnoticed if its length was not announced), or is nested
        // very deep.
        let found = |word: &Finder<'_>| word.find(text).is_some();
        is_plain = !(found(&IS_ERROR) || found(&ERROR) || found(&METHOD));
    }
    if is_plain {
        let is_whole = is_value || serde_json::from_slice::<IgnoredAny>(text).is_ok();
        return match is_whole {
            true if asked.is_none_or(|asked| has_id(text, asked)) => MessageKind::Answer("ok"),
            true => MessageKind::Foreign,
            false => MessageKind::Other,
        };
    }
    match jsonrpc::body(text) {
        Ok(Body::One(Message::Request { .. })) => MessageKind::Question,
        Ok(Body::One(Message::Response {
            id,
            outcome,
            members,
        })) => {
            if asked.is_some_and(|asked| !is_same_value(id, asked) && id != "null") {
                return MessageKind::Foreign;
            }
            let message = members.message();
            let (Ok(part) | Err(part)) = outcome;
            let response = Response::new(
                Bytes::copy_from_slice(message.as_bytes()),
                span(message, id),
                span(message, part.get()),
                outcome.is_err(),
            );
            MessageKind::Answer(UpstreamReply::Response(response).status())
        }
        // An error without an id is the server's answer to a request that it could not parse.
        Err(_) if ERROR.find(text).is_some() => MessageKind::Answer("upstream_error"),
        Ok(_) | Err(_) => MessageKind::Other,
    }
}

/// Classifies a complete message, and returns it with its kind. An irregular message is normalized first: optional keys that
/// are `null` are removed, the request's spelling of the id is restored, and an error without an id gets the request's id.
pub(super) fn read_plain(text: Bytes, asked: Option<&str>) -> (Bytes, MessageKind) {
    let said = read(&text, asked);
    if !said.may_be_odd() {
        return (text, said);
    }
    if let Some(error) = asked.and_then(|asked| error_of_request(&text, asked)) {
        return (error, MessageKind::Answer("upstream_error"));
    }
    let plain = std::str::from_utf8(&text).ok();
    match plain.and_then(|text| plain::plain(text, asked)) {
        Some(plain) => {
            let said = read(plain.as_bytes(), asked);
            (plain.into(), said)
        }
        None => (text, said),
    }
}

/// Returns true if a JSON message has this id. The beginning of the message is compared first, without parsing, since most
/// servers write the id there; otherwise the complete message is parsed.
fn has_id(text: &[u8], asked: &str) -> bool {
    let id = || match jsonrpc::body(text) {
        Ok(Body::One(Message::Response { id, .. })) => is_same_value(id, asked),
        _ => false,
    };
    starts_with_id(text, asked) || id()
}

/// Returns true if a message begins with this id, or with the protocol version followed by this id.
fn starts_with_id(text: &[u8], asked: &str) -> bool {
    let text = text.trim_ascii_start();
    let Some(text) = text.strip_prefix(b"{") else {
        return false;
    };
    let after_version = text.strip_prefix(b"\"jsonrpc\":\"2.0\",").unwrap_or(text);
    let id = after_version.strip_prefix(b"\"id\":");
    let rest = id.and_then(|rest| rest.strip_prefix(asked.as_bytes()));
    rest.is_some_and(|rest| matches!(rest.first(), Some(b',' | b'}')))
}

/// Classifies a message that is too long to be buffered. It is read piece by piece.
#[derive(Debug, Default)]
pub(super) struct LongMessage {
    head: Vec<u8>,
    tail: Vec<u8>,
    is_error: bool,
    /// The last byte of the message so far that is not white space.
    last: u8,
}

impl LongMessage {
    /// Reads the next piece of the message.
    pub(super) fn push(&mut self, piece: &[u8]) {
        let room = HEAD.saturating_sub(self.head.len()).min(piece.len());
        self.head.extend_from_slice(&piece[..room]);
        // The end of the last piece and the beginning of this one are searched together, to find a match that is split
        // between them.
        let begin = &piece[..piece.len().min(OVERLAP)];
        self.tail.extend_from_slice(begin);
        self.is_error |= says_is_error(&self.tail) || says_is_error(piece);
        self.last = piece.trim_ascii_end().last().copied().unwrap_or(self.last);
        if piece.len() > OVERLAP {
            self.tail.clear();
            self.tail.extend_from_slice(&piece[piece.len() - OVERLAP..]);
        } else {
            let surplus = self.tail.len().saturating_sub(OVERLAP);
            self.tail.drain(..surplus);
        }
    }

    /// Returns true if the last byte can end a JSON object. The end of the connection alone does not show that the message is
    /// complete, since the body may have been cut.
    pub(super) fn is_whole(&self) -> bool {
        self.last == b'}'
    }

    /// Returns the kind of the message. It is called after the last piece.
    pub(super) fn end(&self) -> MessageKind {
        let error = ERROR.find(&self.head);
        let result = memchr::memmem::find(&self.head, b"\"result\"");
        let fails = error.is_some_and(|error| result.is_none_or(|result| error < result));
        let method = METHOD.find(&self.head);
        match method.is_some_and(|method| result.is_none_or(|result| method < result)) {
            true => MessageKind::Other,
            false if fails => MessageKind::Answer("upstream_error"),
            false if self.is_error => MessageKind::Answer("tool_error"),
            false => MessageKind::Answer("ok"),
        }
    }
}

/// Returns true if a text contains `"isError": true`.
fn says_is_error(text: &[u8]) -> bool {
    IS_ERROR.find_iter(text).any(|at| {
        let after = text[at + IS_ERROR_KEY.len()..].trim_ascii_start();
        let value = after.strip_prefix(b":").unwrap_or_default();
        value.trim_ascii_start().starts_with(b"true")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_told_by_what_it_says() {
        for (text, said) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
                MessageKind::Answer("ok"),
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}"#,
                MessageKind::Answer("tool_error"),
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"isError":true}}}"#,
                MessageKind::Answer("ok"),
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"m"}}"#,
                MessageKind::Answer("upstream_error"),
            ),
            (
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"m"}}"#,
                MessageKind::Answer("upstream_error"),
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"text":"\"error\" \"method\""}}"#,
                MessageKind::Answer("ok"),
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create"}"#,
                MessageKind::Question,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"notifications/message"}"#,
                MessageKind::Other,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"te"#,
                MessageKind::Other,
            ),
            ("", MessageKind::Other),
        ] {
            assert_eq!(read(text.as_bytes(), None), said, "{text}");
        }
    }

    #[test]
    fn an_answer_that_is_odd_and_clear_is_rewritten() {
        let read = |text: &'static str, asked| {
            let (text, said) = read_plain(Bytes::from_static(text.as_bytes()), Some(asked));
            (String::from_utf8(text.to_vec()).expect("UTF-8"), said)
        };
        for (odd, asked, plain, status) in [
            (
                r#"{"jsonrpc":"2.0","id":"5","result":{"x":null}}"#,
                "5",
                r#"{"jsonrpc":"2.0","id":5,"result":{"x":null}}"#,
                "ok",
            ),
            (
                r#"{"jsonrpc":"2.0","id":5,"result":{"isError":true},"error":null}"#,
                "5",
                r#"{"jsonrpc":"2.0","id":5,"result":{"isError":true}}"#,
                "tool_error",
            ),
            (
                r#"{"jsonrpc":"2.0","id":5,"method":null,"result":null,"error":{"code":-1}}"#,
                r#""5""#,
                r#"{"jsonrpc":"2.0","id":"5","error":{"code":-1}}"#,
                "upstream_error",
            ),
        ] {
            let plain = (plain.to_owned(), MessageKind::Answer(status));
            assert_eq!(read(odd, asked), plain, "{odd}");
        }
        let foreign = r#"{"jsonrpc":"2.0","id":"6","result":{}}"#;
        assert_eq!(
            read(foreign, "5"),
            (foreign.to_owned(), MessageKind::Foreign)
        );
    }

    #[test]
    fn only_the_answer_to_the_request_is_one() {
        for (text, asked, said) in [
            (
                r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
                "1",
                MessageKind::Answer("ok"),
            ),
            (
                r#" {"id":1,"jsonrpc":"2.0","result":{}}"#,
                "1",
                MessageKind::Answer("ok"),
            ),
            (
                r#"{"result":{"id":2},"jsonrpc":"2.0", "id" : 1}"#,
                "1",
                MessageKind::Answer("ok"),
            ),
            (
                r#"{"jsonrpc":"2.0","id":1.0,"result":{}}"#,
                "1",
                MessageKind::Answer("ok"),
            ),
            (
                r#"{"jsonrpc":"2.0","id":"\u00e9","result":{}}"#,
                "\"é\"",
                MessageKind::Answer("ok"),
            ),
            (
                r#"{"jsonrpc":"2.0","id":12,"result":{}}"#,
                "1",
                MessageKind::Foreign,
            ),
            (
                r#"{"jsonrpc":"2.0","id":"1","result":{}}"#,
                "1",
                MessageKind::Foreign,
            ),
            (
                r#"{"result":{"x":{"jsonrpc":"2.0","id":1}},"id":2}"#,
                "1",
                MessageKind::Foreign,
            ),
            (
                r#"{"jsonrpc":"2.0","id":2,"error":{"code":-1,"message":"m"}}"#,
                "1",
                MessageKind::Foreign,
            ),
            (
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"m"}}"#,
                "1",
                MessageKind::Answer("upstream_error"),
            ),
            ("[]", "1", MessageKind::Foreign),
            ("7", "1", MessageKind::Foreign),
            (r#"{"result":{}}"#, "1", MessageKind::Foreign),
        ] {
            assert_eq!(read(text.as_bytes(), Some(asked)), said, "{text}");
        }
    }

    #[test]
    fn a_long_message_is_told_however_it_is_cut() {
        let text = "x".repeat(5_000);
        let of = |end: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{{"text":"{text}"}}]{end}}}}}"#
            )
        };
        let failed = format!(r#"{{"id":1,"error":{{"code":1,"data":"{text}"}}}}"#);
        for (message, said) in [
            (of(""), "ok"),
            (of(r#","isError": true"#), "tool_error"),
            (of(r#","isError" :false"#), "ok"),
            (of(r#","x":"\"isError\":true""#), "ok"),
            (failed, "upstream_error"),
        ] {
            for size in [1, 7, 33, 1_000, 10_000] {
                let mut long = LongMessage::default();
                for piece in message.as_bytes().chunks(size) {
                    long.push(piece);
                }
                assert!(long.is_whole());
                assert_eq!(long.end(), MessageKind::Answer(said), "{said} by {size}");
                long.push(b"x");
                assert!(!long.is_whole());
            }
        }
    }
}
