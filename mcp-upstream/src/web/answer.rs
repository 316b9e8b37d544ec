//! Responses of the web API: JSON that must not be cached, or an error with its code.

use http::header::{ALLOW, CACHE_CONTROL, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, HeaderValue, StatusCode};
use serde::Serialize;
use serde_json::Value;
use serde_json::json;
use serde_json::value::to_raw_value;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_workers::manage::NotDone;

use crate::error;
use crate::reply::{Head, Reply};

/// Result of an API handler.
pub(super) type Answer = Result<Reply, WebFailure>;

/// Failure of an API request: status, code, message and details. Boxed, since failures are rare and would otherwise enlarge the
/// result of every handler.
#[derive(Debug)]
pub(super) struct WebFailure(Box<FailureParts>);

#[derive(Debug)]
struct FailureParts {
    status: StatusCode,
    code: String,
    message: String,
    details: Value,
    header: Option<(HeaderName, HeaderValue)>,
}

impl WebFailure {
    pub(super) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self(Box::new(FailureParts {
            status,
            code: code.to_owned(),
            message: message.into(),
            details: json!({}),
            header: None,
        }))
    }

    /// A failure with status 400 that contains the name of the wrong field, parameter or path segment.
    pub(super) fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
            .with(json!({ "field": field }))
    }

    /// A failure with status 400 for an operation that could not be done.
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "refused", message)
    }

    pub(super) fn not_found(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    pub(super) fn exists(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "exists", message)
    }

    /// A failure with status 403 for a request that the scopes of the caller's credential do not cover.
    pub(super) fn out_of_scope(message: String) -> Self {
        let code = CallErrorCode::InsufficientScope.as_str();
        Self::new(StatusCode::FORBIDDEN, code, message)
    }

    pub(super) fn method(message: String, allow: &str) -> Self {
        let mut failure = Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            message,
        );
        let allow = HeaderValue::from_str(allow).expect("names of methods");
        failure.0.header = Some((ALLOW, allow));
        failure
    }

    /// Converts the REST error response of a management tool to a failure.
    pub(super) fn of_tool(status: StatusCode, body: &[u8], retry: Option<HeaderValue>) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let error = &body["error"];
        let code = error["code"].as_str().unwrap_or("internal_error");
        let message = error["message"]
            .as_str()
            .unwrap_or("The management tool failed.");
        let (status, code) = match code {
            "tool_error" => (StatusCode::BAD_REQUEST, "refused"),
            "invalid_arguments" => (StatusCode::BAD_REQUEST, "invalid_request"),
            "namespace_not_found" => return Self::without_management(),
            other => (status, other),
        };
        let mut failure = Self::new(status, code, message);
        failure.0.header = retry.map(|value| (RETRY_AFTER, value));
        failure
    }

    /// A failure with status 503 and code `starting`, for a namespace that is still starting.
    pub(super) fn starting(failed: &CallError) -> Self {
        let mut failure = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            failed.code.as_str(),
            &*failed.message,
        );
        failure.0.header = Some((RETRY_AFTER, error::again_in(failed)));
        failure
    }

    /// A failure with status 429 for an operation that is already running as often as it may run concurrently.
    pub(super) fn rate_limited(message: &str) -> Self {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let mut failure = Self::new(status, "rate_limited", message);
        failure.0.header = Some((RETRY_AFTER, HeaderValue::from_static("5")));
        failure
    }

    /// A failure with status 503 for a process without management tools.
    pub(super) fn without_management() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "management_unavailable",
            "This process has no management tools; use the listener of one that has.",
        )
    }

    #[must_use]
    pub(super) fn with(mut self, details: Value) -> Self {
        self.0.details = details;
        self
    }

    pub(super) fn code(&self) -> &str {
        &self.0.code
    }

    /// The JSON body of the failure, for a response or an event.
    pub(super) fn body(&self) -> Value {
        let FailureParts {
            code,
            message,
            details,
            ..
        } = &*self.0;
        json!({"detail": message, "error": {"code": code, "message": message, "details": details}})
    }

    fn reply(self) -> Reply {
        let told = *self.0;
        let details = to_raw_value(&told.details);
        let details = details.expect("a value serializes into memory");
        let mut reply = error::rest(told.status, &told.code, &told.message, &details);
        if let (Some(header), Reply::Full { head, .. }) = (told.header, &mut reply) {
            head.headers.push(header);
        }
        reply
    }
}

impl From<NotDone> for WebFailure {
    fn from(error: NotDone) -> Self {
        Self::refused(capitalised(error.to_string()))
    }
}

/// Writes the first letter of a text in upper case.
pub(super) fn capitalised(mut text: String) -> String {
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    text
}

/// Creates a response with status 200 and a JSON body.
pub(super) fn json_of(value: &impl Serialize) -> Answer {
    with_status(StatusCode::OK, value)
}

/// Creates a response with this status and a JSON body.
pub(super) fn with_status(status: StatusCode, value: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(value).map_err(|error| {
        WebFailure::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal_error",
            error.to_string(),
        )
    })?;
    Ok(Reply::json(status, body))
}

/// Adds the headers of all API responses: a response must not be cached, and its media type must not be guessed.
pub(super) fn sealed(answer: Answer) -> Reply {
    let mut reply = answer.unwrap_or_else(WebFailure::reply);
    let add = |head: &mut Head| {
        head.headers.retain(|(name, _)| *name != CACHE_CONTROL);
        head.headers.extend([
            (
                CACHE_CONTROL,
                HeaderValue::from_static("no-store, no-transform"),
            ),
            (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        ]);
    };
    match &mut reply {
        Reply::Full { head, .. }
        | Reply::Opening { head, .. }
        | Reply::Body { head, .. }
        | Reply::Events { head, .. } => add(head),
        Reply::Elsewhere {
            unreachable, lost, ..
        } => {
            add(&mut unreachable.head);
            add(&mut lost.head);
        }
    }
    reply
}
