//! Maps failures to HTTP statuses and JSON-RPC errors. All such mappings of this crate are in this module.
//!
//! There are two families. A [`RequestError`] is a refused MCP message: a JSON-RPC error object, whose HTTP status, and in some
//! cases whose code, differs between the eras. A `CallError` is a failed call. In MCP it becomes an `isError` result for a tool
//! (built in `format`), and a `RequestError` for any other method. In REST it becomes an error in the common form, with the
//! status that `call_error` defines.

use std::time::Duration;

use http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_sessions::call_error::{details, empty_object, rest_status, retry_seconds};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::replicas::ReplicaId;

use crate::jsonrpc::RequestError;
use crate::protocol::code;
use crate::reply::{Head, Refusal, Reply};
use crate::scopes;

/// Value of `Retry-After`, in seconds, for a principal with too many streams. It is short, since clients may end their streams at
/// any time.
const STREAM_LIMIT_RETRY: u64 = 5;

/// Value of `Retry-After`, in seconds, for a session of an unreachable replica. By then the replica is reachable again, or
/// another replica can claim the session. Also used when the session store is unavailable.
const REPLICA_RETRY: u64 = 3;

/// Conversion of a refusal into the reply to the request.
pub(crate) trait ToReply {
    /// Returns the reply to a failed request of the legacy era, if no part of a response was sent yet. `id` is the raw JSON of
    /// the request's id.
    fn reply(&self, id: Option<&str>) -> Reply;

    /// Returns the reply to a failed request of 2026-07-28, if no part of a response was sent yet. `id` is the raw JSON of the
    /// request's id.
    fn modern_reply(&self, id: Option<&str>) -> Reply;
}

impl ToReply for RequestError {
    fn reply(&self, id: Option<&str>) -> Reply {
        let reply = headed(self, Reply::json(status(self), self.body(id)));
        match self {
            Self::Elsewhere(replica) => {
                elsewhere(ReplicaId(*replica), reply, Self::ReplicaLost.reply(id))
            }
            _ => reply,
        }
    }

    fn modern_reply(&self, id: Option<&str>) -> Reply {
        let reply = headed(self, Reply::json(modern_status(self), self.modern_body(id)));
        match self {
            Self::Elsewhere(replica) => elsewhere(
                ReplicaId(*replica),
                reply,
                Self::ReplicaLost.modern_reply(id),
            ),
            _ => reply,
        }
    }
}

/// Returns the HTTP status of an error in the legacy era. Errors of the method and its parameters are responses (200); errors
/// that are found earlier refuse the HTTP request.
fn status(error: &RequestError) -> StatusCode {
    match error {
        RequestError::Parse(_)
        | RequestError::Shape(_)
        | RequestError::UnsupportedVersion(_)
        | RequestError::VersionMismatch { .. }
        | RequestError::SessionRequired
        | RequestError::NamespaceRequired
        | RequestError::MissingMeta(_)
        | RequestError::HeaderMismatch(_)
        | RequestError::MissingCapability(_)
        | RequestError::UnsupportedModernVersion { .. }
        | RequestError::UnknownEventId
        | RequestError::UnknownAnswer => StatusCode::BAD_REQUEST,
        RequestError::NotAcceptable(_) => StatusCode::NOT_ACCEPTABLE,
        RequestError::SessionNotFound | RequestError::NamespaceNotFound(_) => StatusCode::NOT_FOUND,
        RequestError::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        RequestError::StreamLimit => StatusCode::TOO_MANY_REQUESTS,
        RequestError::Upstream(failed) if failed.code == CallErrorCode::RateLimited => {
            StatusCode::TOO_MANY_REQUESTS
        }
        RequestError::Upstream(failed) if failed.code == CallErrorCode::Starting => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        RequestError::InsufficientScope { .. } => StatusCode::FORBIDDEN,
        RequestError::NotInitialized
        | RequestError::MethodNotFound(_)
        | RequestError::InvalidParams(_)
        | RequestError::ResourceNotFound(_)
        | RequestError::Forwarded { .. }
        | RequestError::Upstream(_) => StatusCode::OK,
        RequestError::Elsewhere(_) | RequestError::StoreAway => StatusCode::SERVICE_UNAVAILABLE,
        RequestError::ReplicaLost => StatusCode::BAD_GATEWAY,
        RequestError::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Returns the HTTP status of an error in 2026-07-28, where an unknown method also refuses the HTTP request.
fn modern_status(error: &RequestError) -> StatusCode {
    match error {
        RequestError::MethodNotFound(_) => StatusCode::NOT_FOUND,
        RequestError::Forwarded { code, .. } => match i32::try_from(*code) {
            Ok(code::METHOD_NOT_FOUND) => StatusCode::NOT_FOUND,
            Ok(code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION) => {
                StatusCode::BAD_REQUEST
            }
            _ => StatusCode::OK,
        },
        _ => status(error),
    }
}

fn headed(error: &RequestError, mut reply: Reply) -> Reply {
    if let Reply::Full { head, .. } = &mut reply
        && head.status != StatusCode::OK
    {
        head.refused = Some(error.code());
    }
    match error {
        RequestError::StreamLimit => {
            with_header(reply, RETRY_AFTER, HeaderValue::from(STREAM_LIMIT_RETRY))
        }
        RequestError::Upstream(failed)
            if matches!(
                failed.code,
                CallErrorCode::RateLimited | CallErrorCode::Starting
            ) =>
        {
            with_header(reply, RETRY_AFTER, again_in(failed))
        }
        RequestError::Elsewhere(_) | RequestError::StoreAway => {
            with_header(reply, RETRY_AFTER, HeaderValue::from(REPLICA_RETRY))
        }
        RequestError::MethodNotAllowed => {
            with_header(reply, ALLOW, HeaderValue::from_static("POST"))
        }
        RequestError::InsufficientScope { wanted, .. } => challenged(reply, wanted),
        _ => reply,
    }
}

/// Builds the reply that makes the edge forward the request to another replica. If forwarding fails, the edge sends `unreachable`
/// if that replica has not processed the request, and `lost` if it may have.
fn elsewhere(replica: ReplicaId, unreachable: Reply, lost: Reply) -> Reply {
    match (unreachable, lost) {
        (
            Reply::Full { head, body },
            Reply::Full {
                head: lost,
                body: lost_body,
            },
        ) => Reply::Elsewhere {
            replica,
            unreachable: Refusal { head, body },
            lost: Box::new(Refusal {
                head: lost,
                body: lost_body,
            }),
        },
        (other, _) => other,
    }
}

/// Adds the challenge that names the scopes which an access token needs (RFC 6750, 3.1). The edge adds the address of the
/// authorization metadata, since only the edge has the address by which clients reach it.
fn challenged(reply: Reply, wanted: &str) -> Reply {
    let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{wanted}\"");
    // This always succeeds, because the names of scopes were checked when the configuration was read.
    match HeaderValue::try_from(challenge) {
        Ok(challenge) => with_header(reply, WWW_AUTHENTICATE, challenge),
        Err(_) => reply,
    }
}

fn with_header(mut reply: Reply, name: HeaderName, value: HeaderValue) -> Reply {
    if let Reply::Full { head, .. } = &mut reply {
        *head = std::mem::replace(head, Head::new(StatusCode::OK)).with(name, value);
    }
    reply
}

/// Builds a REST error in the common form (RST-09, EX-24). `details` is a raw JSON object.
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

/// Builds the reply with a REST error without details.
pub(crate) fn rest_plain(status: StatusCode, code: &'static str, message: &str) -> Reply {
    let mut reply = rest(status, code, message, empty_object());
    if let Reply::Full { head, .. } = &mut reply {
        head.refused = Some(code);
    }
    reply
}

/// Builds the reply to a REST request for a namespace that is starting.
pub(crate) fn rest_starting(failed: &CallError) -> Reply {
    let reply = rest_plain(
        rest_status(failed.code),
        failed.code.as_str(),
        &failed.message,
    );
    with_header(reply, RETRY_AFTER, again_in(failed))
}

/// Builds the REST response for a failed call.
pub(crate) fn rest_call(error: &CallError, caller: &Caller) -> Reply {
    let reply = rest(
        rest_status(error.code),
        error.code.as_str(),
        &error.message,
        &details(error, caller),
    );
    if let Some(wanted) = scopes::wanted(error, caller, None) {
        return challenged(reply, &wanted);
    }
    let unavailable = matches!(
        error.code,
        CallErrorCode::WorkerUnavailable
            | CallErrorCode::Starting
            | CallErrorCode::Overloaded
            | CallErrorCode::RateLimited
    );
    if !unavailable {
        return reply;
    }
    with_header(reply, RETRY_AFTER, again_in(error))
}

/// Returns the value of `Retry-After` for a failed call: one second if the error states no time.
pub(crate) fn again_in(error: &CallError) -> HeaderValue {
    HeaderValue::from(retry_seconds(
        error.retry_after.unwrap_or(Duration::from_secs(1)),
    ))
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
    use serde_json::{Value, json};

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
                RequestError::MethodNotFound("x".into()),
                (200, -32601),
                (404, -32601),
            ),
            (
                RequestError::InvalidParams("x".into()),
                (200, -32602),
                (200, -32602),
            ),
            (
                RequestError::Upstream(CallError::new(CallErrorCode::RateLimited, "x")),
                (429, code::LIMITED.into()),
                (429, code::LIMITED.into()),
            ),
            (
                RequestError::Upstream(CallError::new(CallErrorCode::Overloaded, "x")),
                (200, code::UNAVAILABLE.into()),
                (200, code::UNAVAILABLE.into()),
            ),
            (
                RequestError::Upstream(CallError::new(CallErrorCode::Starting, "x")),
                (503, code::UNAVAILABLE.into()),
                (503, code::UNAVAILABLE.into()),
            ),
            (
                RequestError::ResourceNotFound("a://b".into()),
                (200, -32002),
                (200, -32602),
            ),
            (
                RequestError::MissingMeta("x".into()),
                (400, -32602),
                (400, -32602),
            ),
            (
                RequestError::HeaderMismatch("x".into()),
                (400, -32020),
                (400, -32020),
            ),
            (
                RequestError::MissingCapability(required),
                (400, -32021),
                (400, -32021),
            ),
            (RequestError::UnknownEventId, (400, -32600), (400, -32600)),
            (
                RequestError::InsufficientScope {
                    message: "x".into(),
                    wanted: "a".into(),
                },
                (403, -32011),
                (403, -32011),
            ),
            (RequestError::UnknownAnswer, (400, -32600), (400, -32600)),
            (RequestError::StreamLimit, (429, -32013), (429, -32013)),
            (RequestError::MethodNotAllowed, (405, -32600), (405, -32600)),
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
        let failure = RequestError::UnsupportedModernVersion {
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
            (RequestError::StreamLimit, RETRY_AFTER, "5"),
            (RequestError::MethodNotAllowed, ALLOW, "POST"),
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
            let failure = RequestError::missing_capability(&error).expect("it is one");
            let (_, body) = parsed(&failure.modern_reply(None));
            assert_eq!(body["error"]["data"]["requiredCapabilities"], required);
        }
        let other = CallError::new(CallErrorCode::InternalError, "no");
        assert!(RequestError::missing_capability(&other).is_none());
    }
}
