//! The one place here that maps a failure to a status or a JSON-RPC error.
//!
//! Two families. A [`Failure`] is a refused MCP message: a JSON-RPC error object, whose status and some of whose codes
//! differ between the eras. A `CallError` is a call that failed: of a tool an `isError` result in MCP (built in
//! `content`), of anything else a `Failure`; a status and the one error shape in REST.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ALLOW, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tooldock_workers::error::{CallError, CallErrorCode};

use crate::caller::Caller;
use crate::protocol::code;
use crate::reply::{Head, Reply};
use crate::stdio::message::Answer;

/// Seconds after which a principal with too many streams may try again: streams end by their clients, at any time.
const STREAM_LIMIT_RETRY: u64 = 5;

/// Why an MCP message is refused.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The body is no JSON. The reason is for `data`; the message is the specification's.
    Parse(Cow<'static, str>),
    /// JSON, but no message we take: shape, headers, batch rules.
    Shape(Cow<'static, str>),
    /// `MCP-Protocol-Version` names a version that is not served here; holds the list that is.
    UnsupportedVersion(String),
    /// `MCP-Protocol-Version` is not the session's.
    VersionMismatch { session: &'static str },
    /// `Accept` does not cover what the version wants.
    NotAcceptable(&'static str),
    /// The version in force wants a session id.
    SessionRequired,
    /// No such session: unknown, expired, ended, or another namespace's or principal's.
    SessionNotFound,
    /// The path needs a namespace and none was given.
    NamespaceRequired,
    /// The namespace is gone.
    NamespaceNotFound(String),
    /// The session waits for `notifications/initialized`.
    NotInitialized,
    /// Unknown method.
    MethodNotFound(String),
    /// The parameters do not fit the method.
    InvalidParams(Cow<'static, str>),
    /// 2026-07-28: a required member of `_meta` is missing or malformed.
    MissingMeta(Cow<'static, str>),
    /// 2026-07-28: a header does not say what the body says, or is there twice.
    HeaderMismatch(Cow<'static, str>),
    /// The call needs what its client did not declare; the capabilities as a JSON object.
    MissingCapability(Box<RawValue>),
    /// `_meta` names a version that is not served here.
    UnsupportedModernVersion {
        /// What was asked for.
        requested: String,
        /// What is served, of both eras.
        supported: Vec<&'static str>,
    },
    /// The namespace has no such resource.
    ResourceNotFound(Arc<str>),
    /// `Last-Event-ID` names no event of this session.
    UnknownEventId,
    /// The principal has as many streams as it may.
    StreamLimit,
    /// 2026-07-28 has neither GET nor DELETE.
    MethodNotAllowed,
    /// An answer to a question nobody asked.
    UnknownAnswer,
    /// A namespace that could not be brought up, or a call of something that is no tool and failed.
    Upstream(CallError),
    /// What a server of others answered, passed on as it is.
    Forwarded {
        /// The whole response.
        answer: Box<Answer>,
        /// Its code, where it has one.
        code: i64,
    },
    /// A fault of the gateway; the cause is in the log.
    Internal,
}

impl Failure {
    /// A failed call of something that is no tool: an error object, never a result (what a client reads would be taken
    /// for a resource or a prompt).
    pub(crate) fn of_call(error: CallError, subject: &str) -> Self {
        match error.code {
            CallErrorCode::ResourceNotFound => Self::ResourceNotFound(subject.into()),
            CallErrorCode::PromptNotFound | CallErrorCode::InvalidArguments => {
                Self::InvalidParams(error.message.into())
            }
            _ => Self::Upstream(error),
        }
    }

    /// The error of a server, passed on.
    pub(crate) fn forwarded(answer: Answer) -> Self {
        #[derive(serde::Deserialize)]
        struct Coded {
            #[serde(default)]
            code: i64,
        }
        let code = serde_json::from_slice::<Coded>(answer.part()).map_or(0, |coded| coded.code);
        let answer = Box::new(answer);
        Self::Forwarded { answer, code }
    }

    /// The capabilities a failed call missed, if that is why it failed.
    pub(crate) fn missing_capability(error: &CallError) -> Option<Self> {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Details {
            required_capabilities: Box<RawValue>,
        }
        if error.code != CallErrorCode::MissingCapability {
            return None;
        }
        let required = error.details.as_ref().and_then(|details| {
            let details: Details = serde_json::from_str(details.get()).ok()?;
            Some(details.required_capabilities)
        });
        let required = required.filter(|required| required.get().starts_with('{'));
        Some(Self::MissingCapability(
            required.unwrap_or_else(|| empty_object().to_owned()),
        ))
    }

    /// Method and parameter errors are answers (200); everything before is a refused request.
    fn status(&self) -> StatusCode {
        match self {
            Self::Parse(_)
            | Self::Shape(_)
            | Self::UnsupportedVersion(_)
            | Self::VersionMismatch { .. }
            | Self::SessionRequired
            | Self::NamespaceRequired
            | Self::MissingMeta(_)
            | Self::HeaderMismatch(_)
            | Self::MissingCapability(_)
            | Self::UnsupportedModernVersion { .. }
            | Self::UnknownEventId
            | Self::UnknownAnswer => StatusCode::BAD_REQUEST,
            Self::NotAcceptable(_) => StatusCode::NOT_ACCEPTABLE,
            Self::SessionNotFound | Self::NamespaceNotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::StreamLimit => StatusCode::TOO_MANY_REQUESTS,
            Self::NotInitialized
            | Self::MethodNotFound(_)
            | Self::InvalidParams(_)
            | Self::ResourceNotFound(_)
            | Self::Forwarded { .. }
            | Self::Upstream(_) => StatusCode::OK,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The status in 2026-07-28, where a method nobody has is a refused request, too.
    fn modern_status(&self) -> StatusCode {
        match self {
            Self::MethodNotFound(_) => StatusCode::NOT_FOUND,
            Self::Forwarded { code, .. } => match i32::try_from(*code) {
                Ok(code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
                Ok(
                    code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION,
                ) => StatusCode::BAD_REQUEST,
                _ => StatusCode::OK,
            },
            _ => self.status(),
        }
    }

    fn rpc_code(&self) -> i32 {
        match self {
            Self::Parse(_) => code::PARSE,
            Self::Shape(_)
            | Self::UnsupportedVersion(_)
            | Self::VersionMismatch { .. }
            | Self::NotAcceptable(_)
            | Self::SessionRequired
            | Self::NamespaceRequired
            | Self::UnknownEventId
            | Self::MethodNotAllowed
            | Self::UnknownAnswer
            | Self::NotInitialized => code::INVALID_REQUEST,
            Self::SessionNotFound | Self::NamespaceNotFound(_) => code::NOT_FOUND,
            Self::MethodNotFound(_) => code::METHOD_NOT_FOUND,
            Self::InvalidParams(_) | Self::MissingMeta(_) => code::INVALID_PARAMS,
            Self::HeaderMismatch(_) => code::HEADER_MISMATCH,
            Self::MissingCapability(_) => code::MISSING_CAPABILITY,
            Self::UnsupportedModernVersion { .. } => code::UNSUPPORTED_VERSION,
            Self::ResourceNotFound(_) => code::RESOURCE_NOT_FOUND,
            Self::StreamLimit => code::LIMITED,
            Self::Upstream(_) | Self::Forwarded { .. } | Self::Internal => code::INTERNAL,
        }
    }

    fn modern_rpc_code(&self) -> i32 {
        match self {
            // -32002 is of the versions before it.
            Self::ResourceNotFound(_) => code::INVALID_PARAMS,
            _ => self.rpc_code(),
        }
    }

    /// The stable code in `error.data.code`.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Parse(_) => "parse_error",
            Self::Shape(_) => "invalid_request",
            Self::UnsupportedVersion(_) | Self::UnsupportedModernVersion { .. } => {
                "unsupported_version"
            }
            Self::VersionMismatch { .. } => "version_mismatch",
            Self::NotAcceptable(_) => "not_acceptable",
            Self::SessionRequired => "session_required",
            Self::SessionNotFound => "session_not_found",
            Self::NamespaceRequired => "namespace_required",
            Self::NamespaceNotFound(_) => "namespace_not_found",
            Self::NotInitialized => "not_initialized",
            Self::MethodNotFound(_) => "method_not_found",
            Self::InvalidParams(_) => "invalid_params",
            Self::MissingMeta(_) => "missing_meta",
            Self::HeaderMismatch(_) => "header_mismatch",
            Self::MissingCapability(_) => "missing_capability",
            Self::ResourceNotFound(_) => "resource_not_found",
            Self::UnknownEventId => "unknown_event_id",
            Self::StreamLimit => "stream_limit",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::UnknownAnswer => "unknown_answer",
            Self::Upstream(error) => error.code.as_str(),
            Self::Forwarded { .. } => "upstream_error",
            Self::Internal => "internal_error",
        }
    }

    fn message(&self) -> Cow<'_, str> {
        match self {
            Self::Parse(_) => "Parse error".into(),
            Self::Shape(reason)
            | Self::InvalidParams(reason)
            | Self::MissingMeta(reason)
            | Self::HeaderMismatch(reason) => (&**reason).into(),
            Self::UnsupportedVersion(supported) => {
                format!("Unsupported MCP-Protocol-Version; supported: {supported}").into()
            }
            Self::VersionMismatch { session } => {
                format!("MCP-Protocol-Version does not match the session's version {session}").into()
            }
            Self::NotAcceptable(wanted) => format!("Accept must cover {wanted}").into(),
            Self::SessionRequired => {
                "Mcp-Session-Id is required: send initialize first and repeat the id it answers with"
                    .into()
            }
            Self::SessionNotFound => "Unknown or expired session: send initialize again".into(),
            Self::NamespaceRequired => "X-Namespace is required".into(),
            Self::NamespaceNotFound(name) => format!("Unknown namespace: {name}").into(),
            Self::NotInitialized => {
                "The session is not initialized: send notifications/initialized first".into()
            }
            Self::MethodNotFound(method) => format!("Method not found: {method}").into(),
            Self::MissingCapability(_) => {
                "The client did not declare a capability that this call needs".into()
            }
            Self::UnsupportedModernVersion { .. } => "Unsupported protocol version".into(),
            Self::ResourceNotFound(_) => "Resource not found".into(),
            Self::UnknownEventId => {
                "Last-Event-ID names no event of this session: open a stream without it".into()
            }
            Self::StreamLimit => {
                "Too many open streams: close one, or try again when one has ended".into()
            }
            Self::MethodNotAllowed => "2026-07-28 takes POST alone".into(),
            Self::UnknownAnswer => "No question with this id waits for an answer".into(),
            Self::Upstream(error) => (&*error.message).into(),
            Self::Forwarded { .. } => "The server answered with an error".into(),
            Self::Internal => "Internal error".into(),
        }
    }

    /// What goes into `error.data`: the stable code and what the specification wants beside it.
    fn data(&self) -> Value {
        let mut data = serde_json::json!({ "code": self.code() });
        match self {
            Self::Parse(reason) => data["reason"] = (&**reason).into(),
            Self::ResourceNotFound(uri) => data["uri"] = (&**uri).into(),
            Self::UnsupportedModernVersion {
                requested,
                supported,
            } => {
                data["requested"] = requested.as_str().into();
                data["supported"] = supported.as_slice().into();
            }
            Self::MissingCapability(required) => {
                // A value of its own: names of capabilities are all it holds, so no number loses its spelling.
                let required = serde_json::from_str(required.get());
                data["requiredCapabilities"] = required.unwrap_or_else(|_| serde_json::json!({}));
            }
            _ => {}
        }
        data
    }

    fn error(&self, id: Option<&str>, rpc_code: i32) -> Vec<u8> {
        if let Self::Forwarded { answer, .. } = self {
            return answer.behind(id.unwrap_or("null"));
        }
        let error = serde_json::json!({
            "code": rpc_code,
            "message": self.message(),
            "data": self.data(),
        });
        format!(
            r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#,
            id.unwrap_or("null")
        )
        .into_bytes()
    }

    /// The failure as a JSON-RPC error object; `id` is raw JSON, `None` answers with `null`.
    pub(crate) fn body(&self, id: Option<&str>) -> Vec<u8> {
        self.error(id, self.rpc_code())
    }

    /// The failure as a JSON-RPC error object of 2026-07-28.
    pub(crate) fn modern_body(&self, id: Option<&str>) -> Vec<u8> {
        self.error(id, self.modern_rpc_code())
    }

    /// The failure as the answer to a whole request.
    pub(crate) fn reply(&self, id: Option<&str>) -> Reply {
        self.headed(Reply::json(self.status(), self.body(id)))
    }

    /// The failure as the answer to a whole request of 2026-07-28.
    pub(crate) fn modern_reply(&self, id: Option<&str>) -> Reply {
        self.headed(Reply::json(self.modern_status(), self.modern_body(id)))
    }

    fn headed(&self, reply: Reply) -> Reply {
        match self {
            Self::StreamLimit => {
                with_header(reply, RETRY_AFTER, HeaderValue::from(STREAM_LIMIT_RETRY))
            }
            Self::MethodNotAllowed => with_header(reply, ALLOW, HeaderValue::from_static("POST")),
            _ => reply,
        }
    }
}

fn with_header(mut reply: Reply, name: HeaderName, value: HeaderValue) -> Reply {
    if let Reply::Full { head, .. } = &mut reply {
        *head = std::mem::replace(head, Head::new(StatusCode::OK)).with(name, value);
    }
    reply
}

/// The status of a failed call in REST (RST-08).
pub(crate) fn rest_status(code: CallErrorCode) -> StatusCode {
    match code {
        CallErrorCode::ToolNotFound
        | CallErrorCode::ResourceNotFound
        | CallErrorCode::PromptNotFound => StatusCode::NOT_FOUND,
        CallErrorCode::InvalidArguments => StatusCode::UNPROCESSABLE_ENTITY,
        // A caller of REST can be asked nothing: this is what it asked for, and another try will not change it.
        CallErrorCode::MissingCapability => StatusCode::BAD_REQUEST,
        CallErrorCode::ExecutionTimeout => StatusCode::GATEWAY_TIMEOUT,
        CallErrorCode::WorkerUnavailable | CallErrorCode::Overloaded => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        CallErrorCode::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        CallErrorCode::DependencyError
        | CallErrorCode::InternalError
        | CallErrorCode::ToolError
        | CallErrorCode::ResultTooLarge
        | CallErrorCode::Cancelled
        | CallErrorCode::AskFailed => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The one shape of REST errors (RST-09, EX-24). `details` is a raw JSON object.
pub(crate) fn rest(status: StatusCode, code: &str, message: &str, details: &RawValue) -> Reply {
    #[derive(serde::Serialize)]
    struct Body<'a> {
        detail: &'a str,
        error: Inner<'a>,
    }
    #[derive(serde::Serialize)]
    struct Inner<'a> {
        code: &'a str,
        message: &'a str,
        details: &'a RawValue,
    }
    let body = serde_json::to_vec(&Body {
        detail: message,
        error: Inner {
            code,
            message,
            details,
        },
    })
    .expect("strings and raw JSON always serialize");
    Reply::json(status, body)
}

/// A REST error that has nothing more to say than its code and message.
pub(crate) fn rest_plain(status: StatusCode, code: &str, message: &str) -> Reply {
    rest(status, code, message, empty_object())
}

/// A failed call as a REST answer.
pub(crate) fn rest_call(error: &CallError, caller: &Caller) -> Reply {
    let reply = rest(
        rest_status(error.code),
        error.code.as_str(),
        &error.message,
        &details(error, caller),
    );
    let unavailable = matches!(
        error.code,
        CallErrorCode::WorkerUnavailable | CallErrorCode::Overloaded | CallErrorCode::RateLimited
    );
    if !unavailable {
        return reply;
    }
    let seconds = retry_seconds(error.retry_after.unwrap_or(Duration::from_secs(1)));
    with_header(reply, RETRY_AFTER, HeaderValue::from(seconds))
}

/// The details of a failed call as this caller may see them: the worker's own, without a traceback unless the caller
/// holds the manager token (Q-45), with the request id to look it up by and the seconds to wait.
pub(crate) fn details(error: &CallError, caller: &Caller) -> Box<RawValue> {
    let mut details: BTreeMap<Cow<'_, str>, Cow<'_, RawValue>> = BTreeMap::new();
    if let Some(given) = &error.details {
        match serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(given.get()) {
            Ok(given) => details.extend(
                given
                    .into_iter()
                    .map(|(key, value)| (key.into(), Cow::Owned(value))),
            ),
            Err(_) => {
                details.insert("info".into(), Cow::Borrowed(&**given));
            }
        }
    }
    if !caller.manager {
        details.remove("traceback");
    }
    if let Ok(id) = to_raw_value(&*caller.request_id) {
        details.insert("request_id".into(), Cow::Owned(id));
    }
    if let Some(Ok(seconds)) = error
        .retry_after
        .map(|after| to_raw_value(&retry_seconds(after)))
    {
        details.insert("retry_after".into(), Cow::Owned(seconds));
    }
    to_raw_value(&details).unwrap_or_else(|_| empty_object().to_owned())
}

/// Whole seconds, rounded up, at least one: a client told to wait zero seconds would not wait.
pub(crate) fn retry_seconds(after: Duration) -> u64 {
    let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
    seconds.max(1)
}

fn empty_object() -> &'static RawValue {
    serde_json::from_str("{}").expect("an empty object is JSON")
}

/// The body of a `Full` reply, for tests.
#[cfg(test)]
pub(crate) fn body_of(reply: &Reply) -> bytes::Bytes {
    match reply {
        Reply::Full { body, .. } | Reply::Opening { body, .. } => body.clone(),
        other => panic!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(reply: &Reply) -> (u16, Value) {
        let body = serde_json::from_slice(&body_of(reply)).expect("JSON");
        (reply.head().status.as_u16(), body)
    }

    #[test]
    fn the_eras_differ_in_what_a_refused_request_is() {
        let required = serde_json::from_str(r#"{"elicitation":{}}"#).expect("JSON");
        for (failure, legacy, modern) in [
            (
                Failure::MethodNotFound("x".into()),
                (200, -32601),
                (404, -32601),
            ),
            (
                Failure::InvalidParams("x".into()),
                (200, -32602),
                (200, -32602),
            ),
            (
                Failure::ResourceNotFound("a://b".into()),
                (200, -32002),
                (200, -32602),
            ),
            (
                Failure::MissingMeta("x".into()),
                (400, -32602),
                (400, -32602),
            ),
            (
                Failure::HeaderMismatch("x".into()),
                (400, -32020),
                (400, -32020),
            ),
            (
                Failure::MissingCapability(required),
                (400, -32021),
                (400, -32021),
            ),
            (Failure::UnknownEventId, (400, -32600), (400, -32600)),
            (Failure::UnknownAnswer, (400, -32600), (400, -32600)),
            (Failure::StreamLimit, (429, -32013), (429, -32013)),
            (Failure::MethodNotAllowed, (405, -32600), (405, -32600)),
        ] {
            let of = |reply: Reply| {
                let (status, body) = parsed(&reply);
                assert_eq!(body["id"], json!(1));
                assert_eq!(body["error"]["data"]["code"], failure.code());
                (status, body["error"]["code"].as_i64().expect("a code"))
            };
            assert_eq!(of(failure.reply(Some("1"))), legacy, "{failure:?}");
            assert_eq!(of(failure.modern_reply(Some("1"))), modern, "{failure:?}");
        }
    }

    #[test]
    fn an_error_says_what_would_do() {
        let failure = Failure::UnsupportedModernVersion {
            requested: "2099-01-01".into(),
            supported: vec!["2026-07-28", "2025-11-25"],
        };
        let (_, body) = parsed(&failure.modern_reply(None));
        assert_eq!(
            body["error"]["data"],
            json!({ "code": "unsupported_version", "requested": "2099-01-01",
                "supported": ["2026-07-28", "2025-11-25"] })
        );
        for (failure, name, value) in [
            (Failure::StreamLimit, RETRY_AFTER, "5"),
            (Failure::MethodNotAllowed, ALLOW, "POST"),
        ] {
            let reply = failure.reply(None);
            let headers = &reply.head().headers;
            let found = headers.iter().find(|(known, _)| *known == name);
            assert_eq!(
                found.map(|(_, value)| value),
                Some(&HeaderValue::from_static(value))
            );
        }
    }

    #[test]
    fn a_missing_capability_is_named_if_the_worker_named_it() {
        let mut error = CallError::new(CallErrorCode::MissingCapability, "no");
        for (details, required) in [
            (
                Some(r#"{"requiredCapabilities":{"roots":{}}}"#),
                json!({ "roots": {} }),
            ),
            (Some(r#"{"requiredCapabilities":[1]}"#), json!({})),
            (Some("{}"), json!({})),
            (None, json!({})),
        ] {
            error.details = details.map(|text| serde_json::from_str(text).expect("JSON"));
            let failure = Failure::missing_capability(&error).expect("it is one");
            let (_, body) = parsed(&failure.modern_reply(None));
            assert_eq!(body["error"]["data"]["requiredCapabilities"], required);
        }
        let other = CallError::new(CallErrorCode::InternalError, "no");
        assert!(Failure::missing_capability(&other).is_none());
    }
}
