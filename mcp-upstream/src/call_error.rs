//! What a failed call tells its caller, on whichever path it came: details, seconds to wait, and the status that audit log
//! and REST count it by.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use serde_json::value::{RawValue, to_raw_value};
use tooldock_workers::error::{CallError, CallErrorCode};

use crate::caller::Caller;

/// The status of a failed call in REST (RST-08), which the audit log has, too.
pub(crate) fn rest_status(code: CallErrorCode) -> StatusCode {
    match code {
        CallErrorCode::ToolNotFound
        | CallErrorCode::ResourceNotFound
        | CallErrorCode::PromptNotFound => StatusCode::NOT_FOUND,
        CallErrorCode::InvalidArguments => StatusCode::UNPROCESSABLE_ENTITY,
        CallErrorCode::InsufficientScope => StatusCode::FORBIDDEN,
        // A caller of REST can be asked nothing: this is what it asked for, and another try will not change it.
        CallErrorCode::MissingCapability => StatusCode::BAD_REQUEST,
        CallErrorCode::ExecutionTimeout => StatusCode::GATEWAY_TIMEOUT,
        CallErrorCode::WorkerUnavailable | CallErrorCode::Overloaded => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        CallErrorCode::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        CallErrorCode::UpstreamError => StatusCode::BAD_GATEWAY,
        CallErrorCode::MissingCredential => StatusCode::FORBIDDEN,
        CallErrorCode::DependencyError
        | CallErrorCode::InternalError
        | CallErrorCode::OutputType
        | CallErrorCode::ToolError
        | CallErrorCode::ResultTooLarge
        | CallErrorCode::Cancelled
        | CallErrorCode::AskFailed => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The details of a failed call as this caller may see them: the worker's own, without a traceback unless the caller
/// holds the manager token, with the request id to look it up by and the seconds to wait.
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

pub(crate) fn empty_object() -> &'static RawValue {
    serde_json::from_str("{}").expect("an empty object is JSON")
}
