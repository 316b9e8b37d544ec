//! The one place here that maps a failure to a status or a JSON-RPC error.
//!
//! Two families. A [`Failure`] is a refused MCP message: a JSON-RPC error object. A `CallError` is a tool call that
//! failed: an `isError` result in MCP (built in `content`), a status and the one error shape in REST.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use serde_json::value::{RawValue, to_raw_value};
use tooldock_workers::error::{CallError, CallErrorCode};

use crate::caller::Caller;
use crate::protocol::code;
use crate::reply::{Head, Reply};

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
    /// A namespace that could not be brought up.
    Upstream(CallError),
    /// A fault of the gateway; the cause is in the log.
    Internal,
}

impl Failure {
    /// Method and parameter errors are answers (200); everything before is a refused request.
    fn status(&self) -> StatusCode {
        match self {
            Self::Parse(_)
            | Self::Shape(_)
            | Self::UnsupportedVersion(_)
            | Self::VersionMismatch { .. }
            | Self::SessionRequired
            | Self::NamespaceRequired => StatusCode::BAD_REQUEST,
            Self::NotAcceptable(_) => StatusCode::NOT_ACCEPTABLE,
            Self::SessionNotFound | Self::NamespaceNotFound(_) => StatusCode::NOT_FOUND,
            Self::NotInitialized
            | Self::MethodNotFound(_)
            | Self::InvalidParams(_)
            | Self::Upstream(_) => StatusCode::OK,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
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
            | Self::NotInitialized => code::INVALID_REQUEST,
            Self::SessionNotFound | Self::NamespaceNotFound(_) => code::NOT_FOUND,
            Self::MethodNotFound(_) => code::METHOD_NOT_FOUND,
            Self::InvalidParams(_) => code::INVALID_PARAMS,
            Self::Upstream(_) | Self::Internal => code::INTERNAL,
        }
    }

    /// The stable code in `error.data.code`.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Parse(_) => "parse_error",
            Self::Shape(_) => "invalid_request",
            Self::UnsupportedVersion(_) => "unsupported_version",
            Self::VersionMismatch { .. } => "version_mismatch",
            Self::NotAcceptable(_) => "not_acceptable",
            Self::SessionRequired => "session_required",
            Self::SessionNotFound => "session_not_found",
            Self::NamespaceRequired => "namespace_required",
            Self::NamespaceNotFound(_) => "namespace_not_found",
            Self::NotInitialized => "not_initialized",
            Self::MethodNotFound(_) => "method_not_found",
            Self::InvalidParams(_) => "invalid_params",
            Self::Upstream(error) => error.code.as_str(),
            Self::Internal => "internal_error",
        }
    }

    fn message(&self) -> Cow<'_, str> {
        match self {
            Self::Parse(_) => "Parse error".into(),
            Self::Shape(reason) | Self::InvalidParams(reason) => (&**reason).into(),
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
            Self::Upstream(error) => (&*error.message).into(),
            Self::Internal => "Internal error".into(),
        }
    }

    /// The failure as a JSON-RPC error object; `id` is raw JSON, `None` answers with `null`.
    pub(crate) fn body(&self, id: Option<&str>) -> Vec<u8> {
        let reason = match self {
            Self::Parse(reason) => Some(&**reason),
            _ => None,
        };
        let data = match reason {
            Some(reason) => serde_json::json!({ "code": self.code(), "reason": reason }),
            None => serde_json::json!({ "code": self.code() }),
        };
        let error = serde_json::json!({
            "code": self.rpc_code(),
            "message": self.message(),
            "data": data,
        });
        format!(
            r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#,
            id.unwrap_or("null")
        )
        .into_bytes()
    }

    /// The failure as the answer to a whole POST or DELETE.
    pub(crate) fn reply(&self, id: Option<&str>) -> Reply {
        Reply::json(self.status(), self.body(id))
    }
}

/// The status of a failed call in REST (RST-08).
pub(crate) fn rest_status(code: CallErrorCode) -> StatusCode {
    match code {
        CallErrorCode::ToolNotFound => StatusCode::NOT_FOUND,
        CallErrorCode::InvalidArguments => StatusCode::UNPROCESSABLE_ENTITY,
        CallErrorCode::ExecutionTimeout => StatusCode::GATEWAY_TIMEOUT,
        CallErrorCode::WorkerUnavailable | CallErrorCode::Overloaded => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        CallErrorCode::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        CallErrorCode::DependencyError
        | CallErrorCode::InternalError
        | CallErrorCode::ResultTooLarge
        | CallErrorCode::Cancelled => StatusCode::INTERNAL_SERVER_ERROR,
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
    let mut reply = rest(
        rest_status(error.code),
        error.code.as_str(),
        &error.message,
        &details(error, caller),
    );
    let unavailable = matches!(
        error.code,
        CallErrorCode::WorkerUnavailable | CallErrorCode::Overloaded | CallErrorCode::RateLimited
    );
    if let (true, Reply::Full { head, .. }) = (unavailable, &mut reply) {
        let seconds = retry_seconds(error.retry_after.unwrap_or(Duration::from_secs(1)));
        let value = HeaderValue::from(seconds);
        *head = std::mem::replace(head, Head::new(StatusCode::OK)).with(RETRY_AFTER, value);
    }
    reply
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
        Reply::Full { body, .. } => body.clone(),
        other => panic!("{other:?}"),
    }
}
