//! Parses a client's line as a frame. Ids, arguments and progress tokens are kept as the client's bytes.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_base::secret::Secret;
use tooldock_engine::trace::SentTrace;
use tooldock_servers::pipes::IdScan;

use super::reply;
use crate::jsonrpc::{self, Body, ID_MAX, Key, Members, Message, RequestError};
use crate::protocol::code;

/// Prefix of the greeting, which older clients send as their first line.
const GREETING: &[u8] = b"OUBLIETTE-DOWNSTREAM";
/// Maximum length of a project id in bytes; a longer one is ignored.
const PROJECT_MAX: usize = 128;

/// A line of a client, parsed. Ids are raw JSON.
#[derive(Debug)]
pub(super) enum Frame {
    /// A request for the list of tools that the frame's key may use.
    Tools {
        id: Box<str>,
        key: Secret,
        trace: SentTrace,
    },
    /// A call of a tool.
    Call {
        id: Box<str>,
        key: Secret,
        trace: SentTrace,
        call: ToolCall,
    },
    /// The cancellation of a call.
    Cancelled(Box<str>),
    /// A message that gets no answer, such as an unknown notification.
    Ignored,
    /// An invalid message, which is answered with an error.
    Refused(FrameError),
}

/// The tool call in a frame.
#[derive(Debug)]
pub(super) struct ToolCall {
    pub(super) tool: Box<str>,
    /// The arguments of the call, as a JSON object.
    pub(super) arguments: Bytes,
    /// The client's token for progress notifications, as raw JSON; `None` if the client wants no progress.
    pub(super) progress_token: Option<Box<str>>,
}

/// The error with which an invalid frame is answered.
#[derive(Debug)]
pub(super) struct FrameError {
    id: Option<Box<str>>,
    code: i32,
    message: Cow<'static, str>,
}

impl FrameError {
    /// Creates the error for a frame that is too long.
    pub(super) fn too_long(id: Option<u64>, size: u64, max: usize) -> Self {
        Self {
            id: id.map(|id| id.to_string().into()),
            code: code::INVALID_REQUEST,
            message: format!("the frame has {size} bytes, more than {max}").into(),
        }
    }

    /// Creates the error for an incomplete frame whose memory was needed for frames of other clients.
    pub(super) fn no_memory(id: Option<u64>) -> Self {
        Self {
            id: id.map(|id| id.to_string().into()),
            code: reply::DISPATCH,
            message: "too many unfinished frames hold memory: connect and send this again".into(),
        }
    }

    /// Returns the reason as text for the log, without values from the frame.
    pub(super) fn reason(&self) -> &str {
        &self.message
    }

    /// Writes the frame that reports the error to the client.
    pub(super) fn reply(&self) -> Vec<u8> {
        reply::error(self.id.as_deref(), self.code, &self.message, None)
    }
}

impl Frame {
    pub(super) fn of(line: &[u8]) -> Self {
        match jsonrpc::body(line) {
            Ok(Body::One(Message::Request {
                id,
                method,
                members,
            })) => Self::request(id, &method, &members),
            Ok(Body::One(Message::Notification { method, members })) => {
                match members.name(Key::RequestId) {
                    Some(id) if method == "notifications/cancelled" => Self::Cancelled(id.into()),
                    _ => Self::Ignored,
                }
            }
            Ok(Body::One(Message::Response { .. })) => Self::Ignored,
            Ok(Body::Batch(_)) => {
                let reason = "the relay takes no batches: send one message per line";
                Self::refused(None, RequestError::Shape(reason.into()))
            }
            Err(invalid) => match invalid.id {
                Some(id) => Self::refused(Some(id), invalid.failure),
                None => Self::refused(seen_id(line).as_deref(), invalid.failure),
            },
        }
    }

    fn request(id: &str, method: &str, members: &Members<'_>) -> Self {
        let read = match method {
            "oubliette_tools" => Self::tools(id, members),
            "oubliette_call_tool" => Self::call(id, members),
            _ => {
                return Self::Refused(FrameError {
                    id: Some(id.into()),
                    code: code::METHOD_NOT_FOUND,
                    message: "method not found".into(),
                });
            }
        };
        read.unwrap_or_else(|failure| Self::refused(Some(id), failure))
    }

    fn tools(id: &str, members: &Members<'_>) -> Result<Self, RequestError> {
        let params = FrameParams::of(members)?;
        Ok(Self::Tools {
            id: id.into(),
            key: params.key()?,
            trace: SentTrace::of(members),
        })
    }

    fn call(id: &str, members: &Members<'_>) -> Result<Self, RequestError> {
        let params = FrameParams::of(members)?;
        let key = params.key()?;
        let tool = text(params.tool, "params.tool")?;
        let arguments = params.arguments.filter(|it| it.get() != "null");
        jsonrpc::object(arguments, "params.arguments")?;
        let token = members.progress_token()?;
        Ok(Self::Call {
            id: id.into(),
            key,
            trace: SentTrace::of(members),
            call: ToolCall {
                tool: tool.into(),
                arguments: arguments.map_or(Bytes::from_static(b"{}"), |it| {
                    Bytes::copy_from_slice(it.get().as_bytes())
                }),
                progress_token: token.map(Into::into),
            },
        })
    }

    fn refused(id: Option<&str>, failure: RequestError) -> Self {
        let (code, message) = match failure {
            RequestError::Parse(_) => (code::PARSE, "parse error".into()),
            RequestError::InvalidParams(reason) => (code::INVALID_PARAMS, reason),
            RequestError::Shape(reason) => (code::INVALID_REQUEST, reason),
            _ => (code::INVALID_REQUEST, "invalid request".into()),
        };
        Self::Refused(FrameError {
            id: id.map(Into::into),
            code,
            message,
        })
    }
}

/// Returns the number that seems to be the id of a request that cannot be parsed, so that its sender gets an answer.
fn seen_id(line: &[u8]) -> Option<String> {
    let mut scan = IdScan::default();
    scan.feed(line);
    scan.requested().map(|id| id.to_string())
}

/// The members of `params` that the relay reads. Other members, which older and newer clients send, are ignored.
#[derive(Deserialize)]
struct FrameParams<'a> {
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    api_key: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    tool: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    arguments: Option<&'a RawValue>,
}

impl<'a> FrameParams<'a> {
    fn of(members: &Members<'a>) -> Result<Self, RequestError> {
        jsonrpc::fields(members.params(), "params")
    }

    fn key(&self) -> Result<Secret, RequestError> {
        text(self.api_key, "params.api_key").map(Secret::new)
    }
}

/// Reads a value that must be a string of at most `ID_MAX` bytes. `what` names the value in the error message.
fn text<'a>(raw: Option<&'a RawValue>, what: &'static str) -> Result<Cow<'a, str>, RequestError> {
    let invalid = |reason: String| RequestError::InvalidParams(reason.into());
    let raw = raw.ok_or_else(|| invalid(format!("{what} is missing")))?;
    if raw.get().len() > ID_MAX {
        return Err(invalid(format!("{what} is longer than {ID_MAX} bytes")));
    }
    jsonrpc::string(raw).ok_or_else(|| invalid(format!("{what} must be a string")))
}

/// Returns the project in a greeting, the first line `OUBLIETTE-DOWNSTREAM <project_id>`. `None` for any other line; `Some(None)`
/// for a greeting without a usable id.
pub(super) fn greeting(line: &[u8]) -> Option<Option<String>> {
    let rest = line.strip_prefix(GREETING)?;
    if !rest.is_empty() && !rest[0].is_ascii_whitespace() {
        return None;
    }
    let project = std::str::from_utf8(rest).unwrap_or_default().trim();
    let usable = !project.is_empty()
        && project.len() <= PROJECT_MAX
        && project.chars().all(|it| it.is_ascii_graphic());
    Some(usable.then(|| project.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> (Option<String>, i32) {
        match Frame::of(line.as_bytes()) {
            Frame::Refused(refused) => (refused.id.map(Into::into), refused.code),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_request_for_the_tools_and_a_call_are_read() {
        let line = r#"{"jsonrpc":"2.0","id":1,"method":"oubliette_tools","params":{"api_key":"oub_x","more":[1]},"x":0}"#;
        let Frame::Tools { id, key, .. } = Frame::of(line.as_bytes()) else {
            panic!("no request for the tools");
        };
        assert_eq!((&*id, key.expose()), ("1", "oub_x"));
        let line = r#"{"jsonrpc":"2.0","id":"a","method":"oubliette_call_tool","params":{"api_key":"oub_x","tool":"t","arguments":{"n":1.50},"surplus":1,"_meta":{"progressToken":7}}}"#;
        let Frame::Call { id, key, call, .. } = Frame::of(line.as_bytes()) else {
            panic!("no call");
        };
        assert_eq!((&*id, key.expose(), &*call.tool), ("\"a\"", "oub_x", "t"));
        assert_eq!(&*call.arguments, br#"{"n":1.50}"#);
        assert_eq!(call.progress_token.as_deref(), Some("7"));
    }

    #[test]
    fn arguments_may_be_left_out() {
        for arguments in ["", r#","arguments":null"#, r#","arguments":{}"#] {
            let line = format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"oubliette_call_tool","params":{{"api_key":"k","tool":"t"{arguments}}}}}"#
            );
            let Frame::Call { call, .. } = Frame::of(line.as_bytes()) else {
                panic!("no call: {line}");
            };
            assert_eq!(&*call.arguments, b"{}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_frame_is_told_by_the_codes_of_json_rpc() {
        let id = |id: &str| Some(id.to_owned());
        for line in ["{", "oubliette", "{\"jsonrpc\":\"2.0\",\"id\":1,", "\u{1}"] {
            assert_eq!(refused(line), (None, -32700), "{line}");
        }
        for (line, expected) in [
            ("[]", (None, -32600)),
            (r#"{"id":1,"method":"oubliette_tools"}"#, (id("1"), -32600)),
            (
                r#"{"jsonrpc":"2.0","id":null,"method":"oubliette_tools"}"#,
                (None, -32600),
            ),
            (r#"{"jsonrpc":"2.0","id":1}"#, (id("1"), -32600)),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"foo"}"#,
                (id("1"), -32601),
            ),
        ] {
            assert_eq!(refused(line), expected, "{line}");
        }
        for params in [
            "",
            r#","params":{}"#,
            r#","params":[]"#,
            r#","params":{"api_key":7,"tool":"t"}"#,
            r#","params":{"api_key":"k"}"#,
            r#","params":{"api_key":"k","tool":null}"#,
            r#","params":{"api_key":"k","tool":"t","tool":"u"}"#,
            r#","params":{"api_key":"k","tool":"t","arguments":[1]}"#,
        ] {
            let line =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"oubliette_call_tool"{params}}}"#);
            assert_eq!(refused(&line), (id("1"), -32602), "{line}");
        }
    }

    #[test]
    fn a_request_that_cannot_be_read_is_answered_by_its_id_where_that_is_seen() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let line = format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"oubliette_call_tool","params":{{"api_key":"k","tool":"t","arguments":{{"a":{deep}}}}}}}"#
        );
        let (id, code) = refused(&line);
        assert_eq!((id.as_deref(), code), (Some("7"), -32600));
        let broken = r#"{"jsonrpc":"2.0","id":8,"method":"oubliette_tools","params":{"api_key":}}"#;
        assert_eq!(refused(broken), (Some("8".to_owned()), -32700));
    }

    #[test]
    fn a_refusal_says_nothing_of_the_key() {
        let line = r#"{"jsonrpc":"2.0","id":1,"method":"oubliette_call_tool","params":{"api_key":"oub_secret","tool":["oub_secret"]}}"#;
        let Frame::Refused(refused) = Frame::of(line.as_bytes()) else {
            panic!("a call");
        };
        assert!(!format!("{refused:?}").contains("oub_secret"));
        let key = r#"{"jsonrpc":"2.0","id":1,"method":"oubliette_tools","params":{"api_key":"oub_secret"}}"#;
        assert!(!format!("{:?}", Frame::of(key.as_bytes())).contains("oub_secret"));
    }

    #[test]
    fn notifications_cancel_a_call_or_are_ignored() {
        let line =
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}"#;
        assert!(matches!(Frame::of(line.as_bytes()), Frame::Cancelled(id) if &*id == "\"a\""));
        for line in [
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#,
            r#"{"jsonrpc":"2.0","method":"oubliette_tools","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        ] {
            assert!(
                matches!(Frame::of(line.as_bytes()), Frame::Ignored),
                "{line}"
            );
        }
    }

    #[test]
    fn a_greeting_names_the_project() {
        let project = |line: &str| greeting(line.as_bytes());
        assert_eq!(
            project("OUBLIETTE-DOWNSTREAM proj_1"),
            Some(Some("proj_1".to_owned()))
        );
        assert_eq!(project("OUBLIETTE-DOWNSTREAM"), Some(None));
        assert_eq!(project("OUBLIETTE-DOWNSTREAM a b"), Some(None));
        let long = format!("OUBLIETTE-DOWNSTREAM {}", "p".repeat(129));
        assert_eq!(project(&long), Some(None));
        assert_eq!(project("OUBLIETTE-DOWNSTREAMS x"), None);
        assert_eq!(project("{}"), None);
    }
}
