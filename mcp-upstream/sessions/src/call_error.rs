//! Parts of a failed call's error that are the same in all protocols: details for the caller and seconds to wait. Also the HTTP
//! status in REST and in the audit log.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use serde_json::value::{RawValue, to_raw_value};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::jsonrpc::{self, spans};

use crate::caller::Caller;

/// The HTTP status of a failed call in REST (RST-08). The audit log contains it, too.
pub fn rest_status(code: CallErrorCode) -> StatusCode {
    match code {
        CallErrorCode::ToolNotFound
        | CallErrorCode::ResourceNotFound
        | CallErrorCode::PromptNotFound => StatusCode::NOT_FOUND,
        CallErrorCode::InvalidArguments => StatusCode::UNPROCESSABLE_ENTITY,
        CallErrorCode::InsufficientScope => StatusCode::FORBIDDEN,
        // A call by REST cannot ask the caller a question, so the tool will fail in the same way when the call is repeated.
        CallErrorCode::MissingCapability => StatusCode::BAD_REQUEST,
        CallErrorCode::ExecutionTimeout => StatusCode::GATEWAY_TIMEOUT,
        CallErrorCode::WorkerUnavailable | CallErrorCode::Starting | CallErrorCode::Overloaded => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        CallErrorCode::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        // A tool whose result a hook withholds has run, so clients are not told to try again.
        CallErrorCode::UpstreamError | CallErrorCode::HookFailed => StatusCode::BAD_GATEWAY,
        CallErrorCode::MissingCredential | CallErrorCode::HookRefused => StatusCode::FORBIDDEN,
        CallErrorCode::DependencyError
        | CallErrorCode::InternalError
        | CallErrorCode::OutputType
        | CallErrorCode::ToolError
        | CallErrorCode::ResultTooLarge
        | CallErrorCode::Cancelled
        | CallErrorCode::AskFailed => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Details of a failed call for its caller: the worker's details, the request id, by which the logs can be searched, and the
/// seconds to wait. A traceback is included only if the caller has sent the manager token (Q-45).
pub fn details(error: &CallError, caller: &Caller) -> Box<RawValue> {
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

/// Maximum length of a cause's text, in bytes. Longer texts are cut.
const DETAIL_MAX: usize = 2048;
/// Maximum size of an answer that is searched for the cause of a failure, in bytes. Larger ones are not searched.
const SAID_MAX: usize = 64 * 1024;

/// The cause of a failed call, for log lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallCause {
    /// The kind of failure, or the error code that the server returned.
    pub code: Cow<'static, str>,
    /// Description of the cause, cut to `DETAIL_MAX` bytes.
    pub detail: String,
    /// True if the description was written by a tool or its server, and so may contain data that only the caller may see; false
    /// if the gateway wrote it.
    pub of_tool: bool,
}

impl CallCause {
    fn new(code: impl Into<Cow<'static, str>>, detail: &str, of_tool: bool) -> Self {
        let mut end = detail.len().min(DETAIL_MAX);
        while !detail.is_char_boundary(end) {
            end -= 1;
        }
        Self {
            code: code.into(),
            detail: detail[..end].to_owned(),
            of_tool,
        }
    }

    /// Extracts the cause from an error of the gateway.
    pub fn of(error: &CallError) -> Self {
        let of_tool = match error.code {
            CallErrorCode::ToolError | CallErrorCode::OutputType => true,
            CallErrorCode::InternalError => error.details.is_some() || error.cause.is_some(),
            _ => false,
        };
        match error.cause.as_deref() {
            Some(cause) => Self::new(cause.code.clone(), &cause.detail, of_tool),
            None => Self::new(error.code.as_str(), &error.message, of_tool),
        }
    }

    /// Extracts the cause from the answer of a failed call: an error object, a result with `isError`, or a message that contains
    /// one of these. `status` is the code under which the call is counted.
    pub fn from_answer(status: &'static str, answer: &[u8]) -> Option<Self> {
        if answer.len() > SAID_MAX {
            return None;
        }
        let object = spans::raw(answer)?;
        let object = spans::member(object, "error")
            .or_else(|| spans::member(object, "result"))
            .unwrap_or(object);
        let text = |object, name| jsonrpc::string(spans::member(object, name)?);
        if let Some(message) = text(object, "message") {
            let code = spans::member(object, "code").map(|code| code.get().to_owned());
            return Some(Self::new(
                code.map_or(Cow::Borrowed(status), Cow::Owned),
                &message,
                true,
            ));
        }
        let content = spans::member(object, "content")?;
        let blocks: Vec<&RawValue> = serde_json::from_str(content.get()).ok()?;
        let said = blocks.iter().find_map(|block| text(block, "text"))?;
        Some(Self::new(status, &said, true))
    }
}

/// Converts a time to wait to seconds, rounded up and at least 1. With 0, a client would retry immediately.
pub fn retry_seconds(after: Duration) -> u64 {
    let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
    seconds.max(1)
}

/// An empty JSON object, for errors without details.
pub fn empty_object() -> &'static RawValue {
    serde_json::from_str("{}").expect("an empty object is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(code: &'static str, detail: &str, of_tool: bool) -> CallCause {
        CallCause::new(code, detail, of_tool)
    }

    #[test]
    fn a_cause_is_what_operators_are_told_in_the_place_of_the_message() {
        let error = CallError::new(CallErrorCode::WorkerUnavailable, "cannot be reached");
        assert_eq!(
            CallCause::of(&error),
            cause("worker_unavailable", "cannot be reached", false)
        );
        let error = error.caused_by("connect", "a:80: the connection was refused");
        assert_eq!(
            CallCause::of(&error),
            cause("connect", "a:80: the connection was refused", false)
        );
        let long = CallError::new(CallErrorCode::ToolError, "\u{e9}".repeat(DETAIL_MAX));
        let long = CallCause::of(&long);
        assert!(long.of_tool && long.detail.len() == DETAIL_MAX);
    }

    #[test]
    fn answers_that_are_no_success_name_their_cause() {
        let error = r#"{"code":-32603,"message":"no \u0064isk","data":1}"#;
        for (answer, expected) in [
            (error.to_owned(), Some(cause("-32603", "no disk", true))),
            (
                format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#),
                Some(cause("-32603", "no disk", true)),
            ),
            (
                r#"{"isError":true,"content":[{"type":"image"},{"type":"text","text":"boom"}]}"#
                    .to_owned(),
                Some(cause("tool_error", "boom", true)),
            ),
            (r#"{"isError":true,"content":[]}"#.to_owned(), None),
            ("[".to_owned(), None),
        ] {
            let found = CallCause::from_answer("tool_error", answer.as_bytes());
            assert_eq!(found, expected, "{answer}");
        }
    }
}
