//! JSON-RPC messages as text with the positions of their members: kind, id, method and parameters; requests, responses and
//! notifications; edits of the text.
//!
//! Only the members that the gateway needs are decoded. So ids, numbers and unknown members keep their spelling. Repeated keys in
//! an object that is read are refused, and so is nesting deeper than other JSON parsers accept.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tooldock_base::json;

pub mod depth;
mod entries;
mod few;
mod index;
mod key;
mod members;
pub mod notification;
mod nulls;
pub mod plain;
#[cfg(test)]
mod properties;
mod received;
mod request;
mod request_error;
mod response;
mod server_request;
pub mod spans;
pub mod splice;
pub mod subject;
mod violation;

pub use entries::{all_entries, entries, few_entries};
pub use few::few;
use index::Index;
pub use key::Key;
pub use members::Members;
pub use notification::Notification;
pub use nulls::{holds_null_beside_method, without_nulls};
pub use received::received;
pub use request::{Request, Unreadable};
pub use request_error::RequestError;
pub use response::{Response, ResponseOutcome, RpcError};
pub use server_request::{Asker, RawId, ServerRequest};
pub use violation::ProtocolViolation;

/// Maximum nesting depth of objects and lists in a body. Deeper bodies are refused.
pub const MAX_DEPTH: usize = json::DEPTH_MAX;

/// Maximum number of messages in one batch. Larger batches are refused.
pub const MESSAGES_MAX: usize = 50;

/// Maximum length of a request id and of a progress token, in bytes of raw JSON. Every message that belongs to the request
/// repeats them, so longer ones would multiply memory and traffic.
pub const ID_MAX: usize = 1024;

/// A JSON-RPC message. `id` is the raw JSON of a string or a number.
#[derive(Debug)]
pub enum Message<'a> {
    /// A request, which expects an answer.
    Request {
        /// The request's id, as raw JSON.
        id: &'a str,
        /// The request's method.
        method: Cow<'a, str>,
        /// Positions of the request's known members.
        members: Members<'a>,
    },
    /// A notification, which expects no answer.
    Notification {
        /// The notification's method.
        method: Cow<'a, str>,
        /// Positions of the notification's known members.
        members: Members<'a>,
    },
    /// The answer to a request, with a `result` or an `error`.
    Response {
        /// Id of the answered request, as raw JSON.
        id: &'a str,
        /// `Ok` with the `result`, or `Err` with the `error`.
        outcome: Result<&'a RawValue, &'a RawValue>,
        /// Positions of the response's known members.
        members: Members<'a>,
    },
}

/// A malformed message, with its id if that can be used in the answer.
#[derive(Debug)]
pub struct Invalid<'a> {
    /// The error that the sender gets as the answer.
    pub failure: RequestError,
    /// The message's id, as raw JSON; `None` if it has none that can be used.
    pub id: Option<&'a str>,
}

impl From<RequestError> for Invalid<'_> {
    fn from(failure: RequestError) -> Self {
        Self { failure, id: None }
    }
}

/// Deserializes a member so that `null` is `Some`. A plain `Option` would not distinguish `"id":null` from a missing id.
pub fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// A parsed request body: one message, or a batch.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every body is one message, which a box would cost an allocation"
)]
pub enum Body<'a> {
    /// The body is a single message, which has been parsed.
    One(Message<'a>),
    /// The messages of a batch, not parsed. If the batch is too large, it is cut after one more than [`MESSAGES_MAX`] messages.
    Batch(Vec<&'a RawValue>),
}

/// Parses a body. Refuses nesting deeper than [`MAX_DEPTH`].
pub fn body(body: &[u8]) -> Result<Body<'_>, Invalid<'_>> {
    let text = utf8(body)?;
    // Fast path: nearly every body is a single message. This pass also checks its depth.
    if let Ok(index) = Index::of(text) {
        return of_members(Members::new(text, index)).map(Body::One);
    }
    within_depth(text)?;
    if text.trim_ascii_start().starts_with('[') {
        let messages = few(text, MESSAGES_MAX).map_err(|error| syntax_or_shape(&error))?;
        return Ok(Body::Batch(messages));
    }
    message(text).map(Body::One)
}

/// Returns the body as text. Refuses an empty body, invalid UTF-8, and nesting deeper than [`MAX_DEPTH`].
pub fn text(body: &[u8]) -> Result<&str, RequestError> {
    let text = utf8(body)?;
    within_depth(text)?;
    Ok(text)
}

fn utf8(body: &[u8]) -> Result<&str, RequestError> {
    if body.is_empty() {
        return Err(RequestError::Parse("the body is empty".into()));
    }
    let text = simdutf8::basic::from_utf8(body);
    text.map_err(|_| RequestError::Parse("the body is not UTF-8".into()))
}

fn within_depth(text: &str) -> Result<(), RequestError> {
    if depth::exceeds(text.as_bytes(), MAX_DEPTH) {
        return Err(RequestError::Shape(
            format!("the body is nested deeper than {MAX_DEPTH} levels").into(),
        ));
    }
    Ok(())
}

/// Parses one message.
pub fn message(text: &str) -> Result<Message<'_>, Invalid<'_>> {
    if let Ok(index) = Index::of(text) {
        return of_members(Members::new(text, index));
    }
    is_object(text)?;
    // The fast parser has refused the text. This slower parser determines the fault for the error message.
    let index = Index::by_parser(text).map_err(|error| syntax_or_shape(&error))?;
    let members = Members::new(text, index);
    if members.raw(Key::Method).is_some() {
        return Err(Invalid {
            failure: RequestError::Shape("the message is nested too deep".into()),
            id: members.name(Key::Id).filter(|id| id.len() <= ID_MAX),
        });
    }
    of_members(members)
}

/// Checks that the text is a JSON object. The error tells other JSON from text that is not JSON.
fn is_object(text: &str) -> Result<(), RequestError> {
    if text.trim_ascii_start().starts_with('{') {
        return Ok(());
    }
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| syntax_or_shape(&error))?;
    Err(RequestError::Shape("a message must be an object".into()))
}

#[inline]
fn of_members(members: Members<'_>) -> Result<Message<'_>, Invalid<'_>> {
    let id = match members.raw(Key::Id) {
        None => None,
        Some(id) if id.len() > ID_MAX => {
            // The error response has no id, since it would repeat the long one.
            return Err(
                RequestError::Shape(format!("id is longer than {ID_MAX} bytes").into()).into(),
            );
        }
        Some(id) if id.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9')) => {
            Some(id)
        }
        Some("null") if is_notification(&members) => None,
        Some(_) => {
            return Err(RequestError::Shape("id must be a string or a number".into()).into());
        }
    };
    let shape = |reason: &'static str| Invalid {
        failure: RequestError::Shape(reason.into()),
        id,
    };
    if members.raw(Key::JsonRpc).and_then(decoded).as_deref() != Some("2.0") {
        return Err(shape("jsonrpc must be \"2.0\""));
    }
    let outcome = match (members.get(Key::Result), members.get(Key::Error)) {
        (None, None) => None,
        (Some(result), None) => Some(Ok(result)),
        (None, Some(error)) => Some(Err(error)),
        (Some(_), Some(_)) => return Err(shape("a response has either result or error")),
    };
    let Some(method) = members.raw(Key::Method) else {
        return match (outcome, id) {
            (None, _) => Err(shape("method is missing")),
            (Some(outcome), Some(id)) => Ok(Message::Response {
                id,
                outcome,
                members,
            }),
            (Some(_), None) => Err(shape("a response needs the id of its request")),
        };
    };
    let is_null = |outcome: Result<&RawValue, &RawValue>| match outcome {
        Ok(value) | Err(value) => value.get() == "null",
    };
    if outcome.is_some_and(|outcome| !is_null(outcome)) {
        return Err(shape("a message has either a method or a result or error"));
    }
    let method = decoded(method).ok_or_else(|| shape("method must be a string"))?;
    Ok(match id {
        Some(id) => Message::Request {
            id,
            method,
            members,
        },
        None => Message::Notification { method, members },
    })
}

/// Returns true if the method begins with `notifications/`. In such a message, an id that is `null` counts as missing.
#[cold]
fn is_notification(members: &Members<'_>) -> bool {
    let method = members.raw(Key::Method).and_then(decoded);
    method.is_some_and(|method| method.starts_with("notifications/"))
}

/// Deserializes an object into a struct whose fields are spans of the text. Refuses repeated keys at the object's top level.
pub fn fields<'a, T: Deserialize<'a>>(
    raw: Option<&'a RawValue>,
    what: &'static str,
) -> Result<T, RequestError> {
    // The type is checked first, since serde would also accept an array as a struct.
    object(raw, what)?;
    json::from_str(raw.map_or("{}", RawValue::get))
        .map_err(|error| RequestError::InvalidParams(format!("{what}: {}", plain(&error)).into()))
}

/// Checks that a value is an object. A missing value is accepted. `what` names the value in the error message.
#[inline]
pub fn object(raw: Option<&RawValue>, what: &'static str) -> Result<(), RequestError> {
    match raw {
        Some(raw) if !raw.get().starts_with('{') => Err(RequestError::InvalidParams(
            format!("{what} must be an object").into(),
        )),
        _ => Ok(()),
    }
}

/// The text of a JSON string, borrowed if the string contains no escapes; `None` for any other value.
#[inline]
pub fn string(raw: &RawValue) -> Option<Cow<'_, str>> {
    decoded(raw.get())
}

/// The text of a JSON string in raw JSON; `None` for any other value.
#[inline]
fn decoded(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
}

fn syntax_or_shape(error: &serde_json::Error) -> RequestError {
    if error.is_data() {
        RequestError::Shape(plain(error).into())
    } else {
        RequestError::Parse(error.to_string().into())
    }
}

/// The parser's message without the position at its end. The position would be relative to the parsed part, not to the message.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_id(id: &str) -> Option<String> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        match message(&body) {
            Ok(Message::Request { id, .. }) => Some(id.to_owned()),
            _ => None,
        }
    }

    #[test]
    fn ids_keep_their_spelling() {
        for id in [
            "0",
            "7",
            "-0",
            "1.5",
            "1e3",
            "9007199254740993",
            r#""""#,
            r#""init-1""#,
            r#""🦀""#,
            r#""\u0041\"\\""#,
        ] {
            assert_eq!(request_id(id).as_deref(), Some(id));
        }
    }

    #[test]
    fn other_ids_are_no_ids() {
        for id in ["null", "true", "[1]", "{}"] {
            assert_eq!(request_id(id), None, "{id}");
        }
    }

    #[test]
    fn a_null_id_of_a_notification_and_a_null_outcome_count_as_absent() {
        for odd in [
            r#"{"jsonrpc":"2.0","id":null,"method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","error":null}"#,
        ] {
            let read = message(odd);
            assert!(matches!(read, Ok(Message::Notification { .. })), "{odd}");
        }
        for outcome in ["result", "error"] {
            let odd = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","{outcome}":null}}"#);
            let read = message(&odd);
            assert!(
                matches!(read, Ok(Message::Request { id: "1", .. })),
                "{odd}"
            );
        }
        assert!(message(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#).is_err());
    }

    #[test]
    fn an_id_beyond_its_bound_is_refused_and_not_repeated() {
        let id = |length: usize| format!("\"{}\"", "i".repeat(length - 2));
        assert_eq!(request_id(&id(ID_MAX)), Some(id(ID_MAX)));
        for long in [id(ID_MAX + 1), "1".repeat(ID_MAX + 1)] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{long},"method":"ping"}}"#);
            let invalid = message(&body).expect_err("too long");
            assert!(matches!(invalid.failure, RequestError::Shape(_)));
            assert_eq!(invalid.id, None);
        }
    }

    #[test]
    fn no_json_and_no_message_are_told_apart() {
        for (body, parse) in [
            ("{", true),
            ("nonsense", true),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"} x"#, true),
            (r#"{"jsonrpc":"2.0","id":1,"method":"a	b"}"#, true),
            ("5", false),
            (r#"{"jsonrpc":"2.0","id":1}"#, false),
            (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, false),
            (r#"{"id":1,"method":"ping"}"#, false),
            (r#"{"jsonrpc":"2.0","id":1,"method":5}"#, false),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, false),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"ping","m\u0065thod":"x"}"#,
                false,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#,
                false,
            ),
            (r#"{"jsonrpc":"2.0","id":1,"error":{},"result":{}}"#, false),
            (r#"{"jsonrpc":"2.0","result":{}}"#, false),
        ] {
            let failure = message(body).expect_err(body).failure;
            assert_eq!(
                matches!(failure, RequestError::Parse(_)),
                parse,
                "{body}: {failure:?}"
            );
        }
    }

    #[test]
    fn a_broken_message_still_tells_its_id() {
        let invalid = message(r#"{"jsonrpc":"2.0","id":"a"}"#).expect_err("no method");
        assert_eq!(invalid.id, Some(r#""a""#));
    }

    #[test]
    fn a_message_without_id_is_a_notification_and_one_with_a_result_a_response() {
        let body = r#" {"method":"initialized","jsonrpc":"2.0"} "#;
        assert!(
            matches!(message(body), Ok(Message::Notification { method, .. }) if method == "initialized")
        );
        let response = |body: &'static str| match message(body) {
            Ok(Message::Response { id, outcome, .. }) => {
                (id, outcome.map(RawValue::get).map_err(RawValue::get))
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(
            response(r#"{"jsonrpc":"2.0","id":1,"result":null}"#),
            ("1", Ok("null"))
        );
        assert_eq!(
            response(r#"{"jsonrpc":"2.0","id":"a","error":{"code": -1}}"#),
            (r#""a""#, Err(r#"{"code": -1}"#))
        );
    }

    #[test]
    fn params_must_be_an_object() {
        #[derive(Debug, Deserialize)]
        struct Name<'a> {
            #[serde(borrow, default, deserialize_with = "present")]
            name: Option<&'a RawValue>,
        }
        let parse = |text: &'static str| {
            let raw = serde_json::from_str::<&RawValue>(text).expect("valid JSON");
            fields::<Name<'_>>(Some(raw), "params").map(|fields| fields.name.map(RawValue::get))
        };
        assert_eq!(
            parse(r#"{"x":1,"name":null}"#).expect("an object"),
            Some("null")
        );
        for text in [r#"["a"]"#, "null", "3", r#"{"name":1,"name":2}"#] {
            assert!(
                matches!(parse(text), Err(RequestError::InvalidParams(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn a_body_is_one_message_or_a_batch_and_nested_no_deeper_than_allowed() {
        let nested = |levels: usize, end: &str| {
            let (open, close) = ("[".repeat(levels), "]".repeat(levels));
            format!(r#" {{"jsonrpc":"2.0","id":1,"method":"m","params":{open}{close}{end}"#)
        };
        let deepest = nested(MAX_DEPTH - 1, "} ");
        match body(deepest.as_bytes()) {
            Ok(Body::One(Message::Request { id, members, .. })) => {
                assert_eq!((members.message(), id), (&*deepest, "1"));
            }
            _ => panic!("not read"),
        }
        match body(br#" [{"a":1}, 2]"#) {
            Ok(Body::Batch(messages)) => assert_eq!(messages.len(), 2),
            _ => panic!("not read"),
        }
        let refused = |text: &[u8]| body(text).err().expect("refused").failure;
        // Excessive depth is reported before other faults.
        for end in ["}", "", "} x"] {
            let failure = refused(nested(MAX_DEPTH, end).as_bytes());
            assert!(matches!(failure, RequestError::Shape(reason) if reason.contains("deeper")));
            let failure = refused(nested(MAX_DEPTH - 1, &end.replace("}", "]")).as_bytes());
            assert!(matches!(failure, RequestError::Parse(_)), "{failure:?}");
        }
        for none in [&b""[..], b"\xff", b"{", b"[1,]", b"x"] {
            assert!(matches!(refused(none), RequestError::Parse(_)), "{none:?}");
        }
        assert!(matches!(refused(b"5"), RequestError::Shape(_)));
    }

    #[test]
    fn depth_and_encoding_are_checked_before_parsing() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        assert!(text(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert!(matches!(
            text(nested(MAX_DEPTH + 1).as_bytes()),
            Err(RequestError::Shape(_))
        ));
        assert!(matches!(text(b"\xff\xfe"), Err(RequestError::Parse(_))));
        assert!(matches!(text(b""), Err(RequestError::Parse(_))));
    }
}
