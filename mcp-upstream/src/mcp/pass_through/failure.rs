//! Failures of messages in pass-through mode, as clients get them: an error object with a stable code, and an HTTP status that
//! the gateway chooses.
//!
//! Responses that concern the gateway's own request to the server (401, 403, redirects, 5xx) are never forwarded to the client.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;
use tooldock_servers::http::port::{BodyError, SendError, SendErrorKind};
use tooldock_sessions::call_error::CallCause;
use tooldock_workers::remote::BackendId;

use crate::error::ToReply as _;
use crate::jsonrpc::RequestError;
use crate::protocol::Era;
use crate::reply::{Head, Reply};

/// Value of `Retry-After` for the client if the server sent none.
const RETRY: Duration = Duration::from_secs(1);

/// Reason why a message got no answer that can be forwarded to the client.
#[derive(Debug)]
pub(super) enum PassThroughFailure {
    /// No backend is available at present.
    NoBackend,
    /// The message could not be sent to the backend, or the backend did not respond.
    Send(SendError),
    /// The backend answered with a status that is not forwarded, such as 401 or 500. The second field is its `Retry-After`.
    Status(StatusCode, Option<HeaderValue>),
    /// The backend answered with a redirect. The text describes the target and follows the words "a redirect" in the message.
    Redirect(StatusCode, String),
    /// The server's answer is not a valid MCP message.
    Malformed(&'static str),
    /// The server's answer is neither JSON nor a stream of events. The text names its media type.
    MediaType(String),
    /// The server's answer to `initialize` names no supported protocol version. The text is the reason and follows the words "the
    /// server's answer to initialize" in the message.
    Version(String),
    /// The server's answer has the id of another request. The text describes the answer.
    Foreign(String),
    /// The server sent a message that is not a response. The text describes the message.
    NoAnswer(String),
    /// The body of the answer broke off, or was not complete in time.
    Body(BodyError),
    /// A limit of the gateway was reached, so the message was not sent.
    Refused(CallError),
    /// The session has ended, since its state was at a backend that no longer exists.
    SessionEnded,
    /// The gateway itself refused the client's message.
    Request(RequestError),
}

impl From<RequestError> for PassThroughFailure {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl PassThroughFailure {
    /// Returns the error code under which the failed call is counted.
    pub(super) fn code(&self) -> CallErrorCode {
        match self {
            Self::NoBackend | Self::SessionEnded | Self::Foreign(_) => {
                CallErrorCode::WorkerUnavailable
            }
            Self::Send(error) => match error.kind {
                SendErrorKind::HeadTimeout => CallErrorCode::ExecutionTimeout,
                SendErrorKind::Malformed
                | SendErrorKind::Request
                | SendErrorKind::Authorization => CallErrorCode::UpstreamError,
                _ => CallErrorCode::WorkerUnavailable,
            },
            Self::Status(StatusCode::TOO_MANY_REQUESTS, _) => CallErrorCode::RateLimited,
            Self::Status(StatusCode::SERVICE_UNAVAILABLE, _) => CallErrorCode::WorkerUnavailable,
            Self::Body(BodyError::Timeout(_)) => CallErrorCode::ExecutionTimeout,
            Self::Status(..)
            | Self::Redirect(..)
            | Self::Malformed(_)
            | Self::MediaType(_)
            | Self::Version(_)
            | Self::NoAnswer(_)
            | Self::Body(_) => CallErrorCode::UpstreamError,
            Self::Refused(error) => error.code,
            Self::Request(_) => CallErrorCode::InvalidArguments,
        }
    }

    fn status(&self) -> StatusCode {
        match (self, self.code()) {
            (Self::Send(error), CallErrorCode::WorkerUnavailable) if !error.unsent => {
                StatusCode::BAD_GATEWAY
            }
            (Self::Foreign(_), _) => StatusCode::BAD_GATEWAY,
            (_, CallErrorCode::WorkerUnavailable) => StatusCode::SERVICE_UNAVAILABLE,
            (_, CallErrorCode::RateLimited) => StatusCode::TOO_MANY_REQUESTS,
            (_, CallErrorCode::MissingCredential) => StatusCode::FORBIDDEN,
            (_, CallErrorCode::ExecutionTimeout) => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    /// Returns the error message for the client. It names the namespace, but neither backend nor credential.
    fn message(&self, namespace: &NamespaceName) -> String {
        let what = match self {
            Self::NoBackend => "has no healthy backend; try again shortly".into(),
            Self::Send(error) if error.kind == SendErrorKind::Authorization => {
                format!("was not asked: {}", error.message)
            }
            Self::Send(error) if error.unsent => {
                format!("could not be reached ({})", error.kind.as_str())
            }
            Self::Send(error) => format!("gave no answer ({})", error.kind.as_str()),
            Self::Status(status, _) => match status.as_u16() {
                401 | 403 | 407 => {
                    format!("refused the gateway's credentials ({})", status.as_u16())
                }
                429 => "takes no more requests now; try again later".into(),
                code => format!("answered with status {code}"),
            },
            Self::Redirect(status, target) => format!(
                "answered with a redirect ({}){target}, which is not followed",
                status.as_u16()
            ),
            Self::Malformed(reason) => format!("gave an answer that is none of MCP: {reason}"),
            Self::MediaType(received) => {
                format!("answered with {received}, which is neither JSON nor a stream of events")
            }
            Self::Version(why) => format!("cannot be used: its answer to initialize {why}"),
            Self::Foreign(received) | Self::NoAnswer(received) => {
                format!("answered with {received}")
            }
            Self::Body(error @ (BodyError::Coding(_) | BodyError::UnknownCoding(_))) => {
                format!("sent an answer that cannot be read: {error}")
            }
            Self::Body(error) => format!("did not finish its answer: {error}"),
            Self::Refused(error) => return error.message.clone(),
            Self::SessionEnded => "ended the session".into(),
            Self::Request(error) => return error.message().into_owned(),
        };
        format!("The server of {namespace} {what}")
    }

    /// Returns the cause for the logs, with the backend that answered, if any.
    pub(super) fn cause(
        &self,
        namespace: &NamespaceName,
        backend: Option<&BackendId>,
    ) -> CallCause {
        let error = CallError::new(self.code(), self.message(namespace));
        CallCause::of(&match (self, backend) {
            (Self::Send(failed), _) => error.caused_by(failed.kind.as_str(), &*failed.message),
            (Self::Refused(refused), _) => refused.clone(),
            (_, Some(backend)) => {
                let (code, detail) = (error.code, format!("{backend}: {}", error.message));
                error.caused_by(code.as_str(), detail)
            }
            (_, None) => error,
        })
    }

    fn error(&self, namespace: &NamespaceName) -> RequestError {
        RequestError::Upstream(CallError::new(self.code(), self.message(namespace)))
    }

    /// Returns the failure as a JSON-RPC error response. `id`: raw id of the request.
    pub(super) fn body(&self, namespace: &NamespaceName, era: Era, id: Option<&str>) -> Vec<u8> {
        let error = self.error(namespace);
        match era {
            Era::Legacy => error.body(id),
            Era::Modern => error.modern_body(id),
        }
    }

    /// Builds the reply to a request that failed before any byte of an answer was forwarded.
    pub(super) fn reply(&self, namespace: &NamespaceName, era: Era, id: Option<&str>) -> Reply {
        let refused = match self {
            Self::SessionEnded => Some(&RequestError::SessionNotFound),
            Self::Request(error) => Some(error),
            _ => None,
        };
        if let Some(error) = refused {
            return match era {
                Era::Legacy => error.reply(id),
                Era::Modern => error.modern_reply(id),
            };
        }
        if let Self::Send(error) = self {
            tracing::debug!(%namespace, %error, "a remote server was not reached");
        }
        tracing::debug!(%namespace, code = self.code().as_str(), message = %self.message(namespace), "not passed through");
        let mut head = Head::json(self.status());
        let told = match self {
            Self::Status(_, retry_after) => retry_after.clone(),
            Self::Refused(error) => error.retry_after.map(|after| {
                HeaderValue::from(tooldock_sessions::call_error::retry_seconds(after))
            }),
            _ => None,
        };
        let again = matches!(
            self.status(),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        if again {
            let after = told.unwrap_or_else(|| HeaderValue::from(RETRY.as_secs()));
            head = head.with(RETRY_AFTER, after);
        }
        Reply::Full {
            head,
            body: self.body(namespace, era, id).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parts;

    #[test]
    fn a_failure_has_a_status_of_ours_a_code_and_no_words_of_the_server() {
        let name: NamespaceName = "search".parse().expect("a name");
        let send = |kind, unsent| {
            PassThroughFailure::Send(SendError {
                kind,
                unsent,
                message: "words".into(),
            })
        };
        let status = |code: u16| {
            PassThroughFailure::Status(StatusCode::from_u16(code).expect("a status"), None)
        };
        for (failure, expected, code) in [
            (PassThroughFailure::NoBackend, 503, "worker_unavailable"),
            (
                send(SendErrorKind::Connect, true),
                503,
                "worker_unavailable",
            ),
            (
                send(SendErrorKind::Closed, false),
                502,
                "worker_unavailable",
            ),
            (
                send(SendErrorKind::HeadTimeout, false),
                504,
                "execution_timeout",
            ),
            (
                PassThroughFailure::Redirect(StatusCode::FOUND, " to /x".into()),
                502,
                "upstream_error",
            ),
            (status(401), 502, "upstream_error"),
            (status(403), 502, "upstream_error"),
            (status(500), 502, "upstream_error"),
            (status(503), 503, "worker_unavailable"),
            (status(429), 429, "rate_limited"),
            (
                PassThroughFailure::Malformed("its type is none"),
                502,
                "upstream_error",
            ),
            (
                PassThroughFailure::Foreign("{}".into()),
                502,
                "worker_unavailable",
            ),
            (
                PassThroughFailure::Body(BodyError::Cut),
                502,
                "upstream_error",
            ),
            (PassThroughFailure::SessionEnded, 404, "session_not_found"),
        ] {
            for era in [Era::Legacy, Era::Modern] {
                let reply = failure.reply(&name, era, Some("7"));
                let (status, body) = parts(&reply);
                assert_eq!(status.as_u16(), expected, "{failure:?}");
                assert_eq!(body["error"]["data"]["code"], code, "{failure:?}");
                assert_eq!(body["id"], 7);
                let waits = reply
                    .head()
                    .headers
                    .iter()
                    .any(|(name, _)| *name == RETRY_AFTER);
                assert_eq!(waits, matches!(expected, 429 | 503), "{failure:?}");
            }
        }
    }

    #[test]
    fn the_servers_own_word_of_when_to_come_back_is_passed_on() {
        let name: NamespaceName = "search".parse().expect("a name");
        let after = HeaderValue::from_static("17");
        let failure =
            PassThroughFailure::Status(StatusCode::TOO_MANY_REQUESTS, Some(after.clone()));
        let reply = failure.reply(&name, Era::Legacy, Some("1"));
        let mut headers = reply.head().headers.iter();
        assert!(headers.any(|(name, value)| *name == RETRY_AFTER && *value == after));
    }
}
