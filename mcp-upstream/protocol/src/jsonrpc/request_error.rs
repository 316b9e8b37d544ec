//! Refusals of MCP messages as JSON-RPC errors: code, message and data. Some codes differ between the eras. HTTP statuses and
//! headers are assigned elsewhere.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};

use super::Response;
use crate::version::code;

/// The reason why an MCP message is refused.
#[derive(Debug, Clone)]
pub enum RequestError {
    /// The body is not JSON. The text describes the fault and is returned in `data`; the message is the one of the specification.
    Parse(Cow<'static, str>),
    /// The message is valid JSON, but violates the rules for messages, for headers or for batches. The text describes the fault.
    Shape(Cow<'static, str>),
    /// The version in `MCP-Protocol-Version` is not supported. The text lists the supported versions.
    UnsupportedVersion(String),
    /// The version in `MCP-Protocol-Version` differs from the session's version.
    VersionMismatch {
        /// Protocol version of the session.
        session: &'static str,
    },
    /// The `Accept` header does not list the media types that the protocol version requires.
    NotAcceptable(&'static str),
    /// The request has no session id, which its protocol version requires.
    SessionRequired,
    /// The session is unknown, expired, ended, or belongs to another namespace or principal.
    SessionNotFound,
    /// The path requires a namespace, but the request names none.
    NamespaceRequired,
    /// The namespace with this name no longer exists.
    NamespaceNotFound(String),
    /// The session is not initialized yet: the client has not sent `notifications/initialized`.
    NotInitialized,
    /// The method with this name is unknown.
    MethodNotFound(String),
    /// The parameters are not valid for the method. The text describes the fault.
    InvalidParams(Cow<'static, str>),
    /// A member of `_meta` that 2026-07-28 requires is missing or malformed.
    MissingMeta(Cow<'static, str>),
    /// A header contradicts the body or is repeated, in a request of 2026-07-28.
    HeaderMismatch(Cow<'static, str>),
    /// The call needs capabilities that its client did not declare. Contains the missing ones as a JSON object.
    MissingCapability(Box<RawValue>),
    /// The protocol version in `_meta` is not supported.
    UnsupportedModernVersion {
        /// Protocol version that the client requested.
        requested: String,
        /// Supported protocol versions of both eras.
        supported: Vec<&'static str>,
    },
    /// The resource with this URI does not exist in the namespace.
    ResourceNotFound(Arc<str>),
    /// The scopes of the caller's access token do not allow the tool.
    InsufficientScope {
        /// Message of the error for the client.
        message: Box<str>,
        /// Scopes that would allow the tool, separated by spaces.
        wanted: Box<str>,
    },
    /// The event in `Last-Event-ID` does not belong to this session.
    UnknownEventId,
    /// The principal already has the maximum number of open streams.
    StreamLimit,
    /// The HTTP method is GET or DELETE, which 2026-07-28 does not have.
    MethodNotAllowed,
    /// The client sent an answer to a question that it was not asked.
    UnknownAnswer,
    /// The namespace could not be started, or a call failed that is not a tool call.
    Upstream(CallError),
    /// The MCP server answered with an error, which is forwarded unchanged.
    Forwarded {
        /// The server's complete response.
        answer: Box<Response>,
        /// The code of the server's error; 0 if the error has none.
        code: i64,
    },
    /// The session or the suspended call belongs to the replica with this number. The edge forwards the request there; only if
    /// that fails does the client receive this error.
    Elsewhere(u32),
    /// The replica to which the request was forwarded ended before it answered.
    ReplicaLost,
    /// The session store cannot be reached, but the request needs the session's record or stored events.
    StoreAway,
    /// The gateway itself failed. The cause is logged.
    Internal,
}

impl RequestError {
    /// Creates the error for a failed call that is not a tool call. It becomes a JSON-RPC error and never a result, since the
    /// client would take a result for a resource or a prompt.
    pub fn of_call(error: CallError, subject: &str) -> Self {
        match error.code {
            CallErrorCode::ResourceNotFound => Self::ResourceNotFound(subject.into()),
            CallErrorCode::PromptNotFound | CallErrorCode::InvalidArguments => {
                Self::InvalidParams(error.message.into())
            }
            _ => Self::Upstream(error),
        }
    }

    /// Creates the error for an error response of a server, which is forwarded with its code.
    pub fn forwarded(answer: Response) -> Self {
        #[derive(serde::Deserialize)]
        struct CodeField {
            #[serde(default)]
            code: i64,
        }
        let code =
            serde_json::from_slice::<CodeField>(answer.payload()).map_or(0, |coded| coded.code);
        let answer = Box::new(answer);
        Self::Forwarded { answer, code }
    }

    /// Creates the error for a call that failed because the client did not declare certain capabilities; `None` if the call
    /// failed for another reason.
    pub fn missing_capability(error: &CallError) -> Option<Self> {
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
            Self::InsufficientScope { .. } => code::FORBIDDEN,
            Self::Upstream(error) => match error.code {
                CallErrorCode::RateLimited => code::LIMITED,
                CallErrorCode::WorkerUnavailable
                | CallErrorCode::Starting
                | CallErrorCode::Overloaded => code::UNAVAILABLE,
                CallErrorCode::HookRefused => code::FORBIDDEN,
                _ => code::INTERNAL,
            },
            Self::Elsewhere(_) | Self::ReplicaLost | Self::StoreAway => code::UNAVAILABLE,
            Self::Forwarded { .. } | Self::Internal => code::INTERNAL,
        }
    }

    fn modern_rpc_code(&self) -> i32 {
        match self {
            // The code -32002 exists only in earlier protocol versions.
            Self::ResourceNotFound(_) => code::INVALID_PARAMS,
            _ => self.rpc_code(),
        }
    }

    /// The stable code of the error, for `error.data.code`.
    pub fn code(&self) -> &'static str {
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
            Self::InsufficientScope { .. } => CallErrorCode::InsufficientScope.as_str(),
            Self::MethodNotAllowed => "method_not_allowed",
            Self::UnknownAnswer => "unknown_answer",
            Self::Upstream(error) => error.code.as_str(),
            Self::Forwarded { .. } => "upstream_error",
            Self::Elsewhere(_) => "replica_unavailable",
            Self::ReplicaLost => "replica_lost",
            Self::StoreAway => "session_store_unavailable",
            Self::Internal => "internal_error",
        }
    }

    /// The message for the client.
    pub fn message(&self) -> Cow<'_, str> {
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
            Self::InsufficientScope { message, .. } => (&**message).into(),
            Self::MethodNotAllowed => "2026-07-28 takes POST alone".into(),
            Self::UnknownAnswer => "No question with this id waits for an answer".into(),
            Self::Upstream(error) => (&*error.message).into(),
            Self::Forwarded { .. } => "The server answered with an error".into(),
            Self::Elsewhere(_) => {
                "The session lives on another replica that cannot be reached now: try again in a few seconds".into()
            }
            Self::StoreAway => {
                "The session store cannot be reached, and nothing was done: try again in a few seconds".into()
            }
            Self::ReplicaLost => {
                "The replica of this session ended before it answered: the request may have been carried out".into()
            }
            Self::Internal => "Internal error".into(),
        }
    }

    /// The `error.data` object: the stable code and the members that the specification requires.
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
                // The object contains only names of capabilities. So decoding it changes nothing, as it could with numbers.
                let required = serde_json::from_str(required.get());
                data["requiredCapabilities"] = required.unwrap_or_else(|_| serde_json::json!({}));
            }
            _ => {}
        }
        data
    }

    fn error(&self, id: Option<&str>, rpc_code: i32) -> Vec<u8> {
        if let Self::Forwarded { answer, .. } = self {
            return answer.with_id(id.unwrap_or("null"));
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

    /// Builds the JSON-RPC error response in the legacy format. `id` is raw JSON; `None` becomes `null`.
    pub fn body(&self, id: Option<&str>) -> Vec<u8> {
        self.error(id, self.rpc_code())
    }

    /// Builds the JSON-RPC error response in the format of 2026-07-28. `id` is raw JSON; `None` becomes `null`.
    pub fn modern_body(&self, id: Option<&str>) -> Vec<u8> {
        self.error(id, self.modern_rpc_code())
    }
}

fn empty_object() -> &'static RawValue {
    serde_json::from_str("{}").expect("an empty object is JSON")
}
