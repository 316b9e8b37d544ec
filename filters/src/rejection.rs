//! The response to a refused request: status, stable code, JSON-RPC code, headers and body.
//!
//! [`Reason`] lists all reasons for which the admission layer refuses. A check chooses a reason and describes the fault and the
//! remedy; the reason determines the status.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::json;
use tooldock_base::names::NamespaceName;
use tooldock_workers::registry::startup::TRY_AGAIN;

/// The reason of a refusal. Response bodies and metrics contain its stable name, [`Reason::code`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The request head is malformed or ambiguous: its Host, path or framing.
    BadRequest,
    /// The request head has too many bytes or fields.
    HeadersTooLarge,
    /// The request target is too long.
    UriTooLong,
    /// The listener does not accept the Host of the request.
    HostNotAllowed,
    /// The client's address is in a denied network, or in none of the allowed networks.
    AddressNotAllowed,
    /// A rate limit, or a limit on concurrent requests, is exhausted.
    RateLimited,
    /// The web page's origin may not use this server.
    OriginNotAllowed,
    /// The request lacks the proof that the listener's own page sent it. Another page may have sent it through its user's
    /// browser.
    Csrf,
    /// The credentials are missing or wrong.
    Unauthorized,
    /// No route of the listener matches the request's path.
    NotFound,
    /// The path does not support the request's method.
    MethodNotAllowed,
    /// The request names no namespace, but its path requires one.
    NamespaceRequired,
    /// The request names different namespaces, or sends `X-Namespace` several times.
    NamespaceAmbiguous,
    /// No namespace has the name in the request.
    NamespaceNotFound,
    /// The namespace is still starting, and has not become available in time.
    Starting,
    /// The namespace exists, but the principal may not use it.
    NamespaceForbidden,
    /// The access token has no scope that the configuration maps to a scope of the gateway.
    InsufficientScope,
    /// The request to `/messages` names a session that does not exist, and no namespace.
    SessionNotFound,
    /// The client's address or manager token does not allow this path, such as `/reload`, where the response does not reveal
    /// which of the two checks failed.
    Forbidden,
    /// A header that must not be repeated was sent several times.
    DuplicateHeader,
    /// A header was sent several times in a request of protocol version 2026-07-28, whose headers must repeat values of its body.
    HeaderMismatch,
    /// The Content-Type of the body is not JSON.
    UnsupportedMediaType,
    /// The Accept header excludes all possible types of the response.
    NotAcceptable,
    /// The body, or its announced length, is above the limit.
    BodyTooLarge,
    /// The body did not arrive in time. Detected while the body is read, not by admission.
    BodyTimeout,
    /// All request bodies in memory together have reached their limit. Detected while a body is read, not by admission.
    Overloaded,
    /// The access token cannot be validated now: its issuer could not be reached, or too many unknown tokens wait for validation.
    IssuerUnavailable,
}

impl Reason {
    /// All reasons. Used to register their counters before the first refusal.
    pub const ALL: [Self; 27] = [
        Self::BadRequest,
        Self::HeadersTooLarge,
        Self::UriTooLong,
        Self::HostNotAllowed,
        Self::AddressNotAllowed,
        Self::RateLimited,
        Self::OriginNotAllowed,
        Self::Csrf,
        Self::Unauthorized,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::NamespaceRequired,
        Self::NamespaceAmbiguous,
        Self::NamespaceNotFound,
        Self::Starting,
        Self::NamespaceForbidden,
        Self::InsufficientScope,
        Self::SessionNotFound,
        Self::Forbidden,
        Self::DuplicateHeader,
        Self::HeaderMismatch,
        Self::UnsupportedMediaType,
        Self::NotAcceptable,
        Self::BodyTooLarge,
        Self::BodyTimeout,
        Self::Overloaded,
        Self::IssuerUnavailable,
    ];

    /// The public values of each reason: stable code, HTTP status, JSON-RPC code.
    const fn row(self) -> (&'static str, StatusCode, i32) {
        match self {
            Self::BadRequest => ("bad_request", StatusCode::BAD_REQUEST, -32600),
            Self::HeadersTooLarge => (
                "headers_too_large",
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                -32600,
            ),
            Self::UriTooLong => ("uri_too_long", StatusCode::URI_TOO_LONG, -32600),
            Self::HostNotAllowed => ("host_not_allowed", StatusCode::FORBIDDEN, -32011),
            Self::AddressNotAllowed => ("address_not_allowed", StatusCode::FORBIDDEN, -32011),
            Self::RateLimited => ("rate_limited", StatusCode::TOO_MANY_REQUESTS, -32013),
            Self::OriginNotAllowed => ("origin_not_allowed", StatusCode::FORBIDDEN, -32011),
            Self::Csrf => ("csrf", StatusCode::FORBIDDEN, -32011),
            Self::Unauthorized => ("unauthorized", StatusCode::UNAUTHORIZED, -32010),
            Self::NotFound => ("not_found", StatusCode::NOT_FOUND, -32012),
            Self::MethodNotAllowed => {
                ("method_not_allowed", StatusCode::METHOD_NOT_ALLOWED, -32600)
            }
            Self::NamespaceRequired => ("namespace_required", StatusCode::BAD_REQUEST, -32600),
            Self::NamespaceAmbiguous => ("namespace_ambiguous", StatusCode::BAD_REQUEST, -32600),
            Self::NamespaceNotFound => ("namespace_not_found", StatusCode::NOT_FOUND, -32012),
            Self::Starting => ("starting", StatusCode::SERVICE_UNAVAILABLE, -32014),
            Self::NamespaceForbidden => ("namespace_forbidden", StatusCode::FORBIDDEN, -32011),
            Self::InsufficientScope => ("insufficient_scope", StatusCode::FORBIDDEN, -32011),
            Self::SessionNotFound => ("session_not_found", StatusCode::NOT_FOUND, -32012),
            Self::Forbidden => ("forbidden", StatusCode::FORBIDDEN, -32011),
            Self::DuplicateHeader => ("duplicate_header", StatusCode::BAD_REQUEST, -32600),
            Self::HeaderMismatch => ("header_mismatch", StatusCode::BAD_REQUEST, -32020),
            Self::UnsupportedMediaType => (
                "unsupported_media_type",
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                -32600,
            ),
            Self::NotAcceptable => ("not_acceptable", StatusCode::NOT_ACCEPTABLE, -32600),
            Self::BodyTooLarge => ("body_too_large", StatusCode::PAYLOAD_TOO_LARGE, -32600),
            Self::BodyTimeout => ("body_timeout", StatusCode::REQUEST_TIMEOUT, -32600),
            Self::Overloaded => ("overloaded", StatusCode::SERVICE_UNAVAILABLE, -32014),
            Self::IssuerUnavailable => (
                "issuer_unavailable",
                StatusCode::SERVICE_UNAVAILABLE,
                -32014,
            ),
        }
    }

    /// The stable code of the reason: `error.code` in REST, `error.data.code` in MCP, and the label in metrics.
    pub const fn code(self) -> &'static str {
        self.row().0
    }

    /// The HTTP status of responses with this reason.
    pub const fn status(self) -> StatusCode {
        self.row().1
    }

    /// The integer `error.code` in JSON-RPC responses with this reason.
    pub const fn rpc_code(self) -> i32 {
        self.row().2
    }

    /// Returns true if the connection must be closed after the response: the request's framing cannot be trusted, the rest of the
    /// body will not be read, or the client's address is not allowed at all.
    const fn closes(self) -> bool {
        matches!(
            self,
            Self::BadRequest
                | Self::HeadersTooLarge
                | Self::UriTooLong
                | Self::AddressNotAllowed
                | Self::BodyTooLarge
                | Self::BodyTimeout
                | Self::Overloaded
        )
    }
}

/// The format of error bodies. The request's path determines which of the two formats its clients expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorShape {
    /// REST format: `{"detail", "error": {"code", "message", "details"}}`.
    Rest,
    /// MCP format: a JSON-RPC error response with `id: null`.
    Mcp,
}

impl ErrorShape {
    /// The format for a path that no route matches, by the prefix of the path.
    pub fn of_path(path: &str) -> Self {
        let mcp = matches!(path, "/mcp" | "/sse" | "/messages") || path.starts_with("/mcp/");
        if mcp { Self::Mcp } else { Self::Rest }
    }

    /// Builds the body of an error response, as JSON.
    pub fn body(self, code: &str, rpc_code: i32, message: &str) -> Bytes {
        let body = match self {
            Self::Rest => RestError {
                detail: message,
                error: RestErrorObject {
                    code,
                    message,
                    details: json!({}),
                },
            }
            .to_bytes(),
            Self::Mcp => McpError {
                jsonrpc: "2.0",
                id: (),
                error: McpErrorObject {
                    code: rpc_code,
                    message,
                    data: McpErrorData { code },
                },
            }
            .to_bytes(),
        };
        Bytes::from(body)
    }
}

// Structs are used instead of `json!`, so that the members are written in the order of the documentation.
#[derive(serde::Serialize)]
struct RestError<'a> {
    detail: &'a str,
    error: RestErrorObject<'a>,
}

#[derive(serde::Serialize)]
struct RestErrorObject<'a> {
    code: &'a str,
    message: &'a str,
    details: serde_json::Value,
}

#[derive(serde::Serialize)]
struct McpError<'a> {
    jsonrpc: &'a str,
    id: (),
    error: McpErrorObject<'a>,
}

#[derive(serde::Serialize)]
struct McpErrorObject<'a> {
    code: i32,
    message: &'a str,
    data: McpErrorData<'a>,
}

#[derive(serde::Serialize)]
struct McpErrorData<'a> {
    code: &'a str,
}

trait ToBytes: serde::Serialize + Sized {
    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and integers always serialise")
    }
}
impl ToBytes for RestError<'_> {}
impl ToBytes for McpError<'_> {}

/// Label in metrics for all paths without a route. A label per path would make the number of metrics unbounded.
const UNKNOWN_LABEL: &str = "unknown";

/// Record of a wrong credential, for the log and the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CredentialFailure {
    /// Address of the client that sent the credential.
    pub client: IpAddr,
    /// True if the credential arrived while its sender was delayed, so that the response was 429.
    pub delayed: bool,
    /// True if this credential started the delays: from now on, wrong credentials of the same address or user name are delayed.
    pub spell_began: bool,
}

/// A refused request, with everything that the response and the log line contain.
#[derive(Debug, Clone)]
pub struct Rejection {
    /// The reason, which determines the HTTP status and the codes.
    pub reason: Reason,
    /// The message for the client. Text from the request is shortened and escaped in it. It never contains a credential.
    pub message: Cow<'static, str>,
    /// The cause, for the log only: a detail that the client must not learn, or that the reason does not express.
    pub cause: Option<&'static str>,
    /// Record of the wrong credential because of which the request is refused, if there was one.
    pub failure: Option<CredentialFailure>,
    /// Name of the refused principal; `None` if the request was refused before its principal was known.
    pub principal: Option<Arc<str>>,
    /// Label of the request's path in metrics; see [`RouteSpec::label`](crate::route::RouteSpec::label).
    pub route: &'static str,
    /// Format of the error body, which depends on the path.
    pub shape: ErrorShape,
    /// Headers of the response, except those for the body's type and length.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// True if the connection must be closed after the response.
    pub close: bool,
}

impl Rejection {
    /// Creates a refusal for this reason. Until the caller sets them, the body has the REST format and the path counts as
    /// unknown.
    pub fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            message: message.into(),
            cause: None,
            failure: None,
            principal: None,
            route: UNKNOWN_LABEL,
            shape: ErrorShape::Rest,
            headers: Vec::new(),
            close: reason.closes(),
        }
    }

    /// Creates a 401 response with a `WWW-Authenticate: Bearer` challenge.
    pub(crate) fn unauthorized(message: &'static str) -> Self {
        Self::new(Reason::Unauthorized, message)
            .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    /// Creates the 503 response for an access token that cannot be validated now. It has no challenge: the token may be valid, so
    /// the client should not request another one.
    pub(crate) fn issuer_silent() -> Self {
        Self::new(
            Reason::IssuerUnavailable,
            "The access token cannot be verified now. Send the request again later.",
        )
        .because("the token's issuer did not give what is needed to judge the token")
        .with_header(RETRY_AFTER, HeaderValue::from_static("2"))
    }

    /// Creates the 503 response for a namespace that is still starting.
    pub(crate) fn starting(name: &NamespaceName) -> Self {
        let seconds = TRY_AGAIN.as_secs();
        Self::new(
            Reason::Starting,
            format!(
                "The namespace {} is starting: send the request again in {seconds} s.",
                quoted(name.as_str())
            ),
        )
        .with_header(RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// Creates the 401 response for a token that is signed by a key which its issuer does not publish.
    pub(crate) fn by_unknown_key() -> Self {
        Self::unauthorized("The bearer token is not valid.")
            .because("the token is by a key that its issuer does not publish")
    }

    /// Creates the 429 response for a wrong credential that arrived while its sender was delayed.
    pub(crate) fn failed_too_often(wait: crate::rate::RetryAfter) -> Self {
        let seconds = wait.seconds();
        let message = format!(
            "Too many wrong credentials: this one is wrong, too. Retry in {seconds} s; a right credential is admitted at any time."
        );
        Self::new(Reason::RateLimited, message)
            .because("too many wrong credentials")
            .with_header(RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// Returns true if the request could succeed with another access token.
    pub(crate) fn needs_another_token(&self) -> bool {
        matches!(
            self.reason,
            Reason::Unauthorized | Reason::InsufficientScope
        )
    }

    /// Creates the 405 response, which lists the methods that the path supports.
    pub(crate) fn method_not_allowed(message: String, allow: &'static str) -> Self {
        Self::new(Reason::MethodNotAllowed, message)
            .with_header(ALLOW, HeaderValue::from_static(allow))
    }

    /// Creates the 429 response of a rate limit, with the seconds to wait.
    pub(crate) fn rate_limited(wait: crate::rate::RetryAfter, limit: &str) -> Self {
        let seconds = wait.seconds();
        let message = format!(
            "Too many requests: the limit per {limit} is used up. Retry in {seconds} s, or ask the operator to raise it."
        );
        Self::new(Reason::RateLimited, message).with_header(RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// Creates the 413 response. Used by admission, and while a body without an announced length is read.
    pub fn body_too_large(limit_bytes: u64) -> Self {
        Self::new(
            Reason::BodyTooLarge,
            format!("The request body is larger than the {limit_bytes} bytes this server accepts."),
        )
    }

    /// Creates the 503 response for a request body that does not fit into the memory for all request bodies.
    pub fn bodies_full() -> Self {
        Self::new(
            Reason::Overloaded,
            "The server is reading as many request bodies as it can hold. Send the request again in a second.",
        )
        .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// Creates the 503 response for an answer that does not fit into the memory for all answers.
    pub fn answers_full() -> Self {
        Self::new(
            Reason::Overloaded,
            "There is no room for the answer: clients have not read the answers before it. Send the request again in a second.",
        )
        .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// Adds a cause, which is only logged.
    pub(crate) fn because(mut self, cause: &'static str) -> Self {
        self.cause = Some(cause);
        self
    }

    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The HTTP status of the response.
    pub fn status(&self) -> StatusCode {
        self.reason.status()
    }

    /// The stable code of the refusal, which is also its label in metrics.
    pub fn code(&self) -> &'static str {
        self.reason.code()
    }

    /// Builds the body of the response, as JSON in the format of the path.
    pub fn body(&self) -> Bytes {
        let code = self.code();
        self.shape.body(code, self.reason.rpc_code(), &self.message)
    }
}

/// Maximum length of a client's text in a message, in characters. Longer texts are cut.
const QUOTED_CHARS_MAX: usize = 64;

/// Prepares a text from a request for a message: in quotes, with control characters escaped, cut after 64 characters.
pub(crate) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_reason_is_documented_with_its_status_and_code() {
        let page = include_str!("../../docs/http.md");
        for reason in Reason::ALL {
            let (code, status, rpc) = reason.row();
            let row = format!("| `{code}` | {} | {rpc} | ", status.as_u16());
            assert!(page.contains(&row), "docs/http.md has no row {row}");
        }
    }

    #[test]
    fn every_reason_has_its_own_code() {
        let codes: HashSet<_> = Reason::ALL.iter().map(|reason| reason.code()).collect();
        assert_eq!(codes.len(), Reason::ALL.len());
    }

    #[test]
    fn json_rpc_codes_follow_the_status() {
        for reason in Reason::ALL {
            let expected = match reason.status().as_u16() {
                // This reason has a code of the specification's own.
                400 if reason == Reason::HeaderMismatch => -32020,
                401 => -32010,
                403 => -32011,
                404 => -32012,
                429 => -32013,
                503 => -32014,
                _ => -32600,
            };
            assert_eq!(reason.rpc_code(), expected, "{reason:?}");
        }
    }

    #[test]
    fn the_rest_body_keeps_the_documented_shape() {
        let rejection = Rejection::new(Reason::NamespaceNotFound, "Unknown namespace \"x\".");
        assert_eq!(
            rejection.body(),
            r#"{"detail":"Unknown namespace \"x\".","error":{"code":"namespace_not_found","message":"Unknown namespace \"x\".","details":{}}}"#
        );
    }

    #[test]
    fn the_mcp_body_is_a_json_rpc_error_without_an_id() {
        let mut rejection = Rejection::new(Reason::HostNotAllowed, "No.");
        rejection.shape = ErrorShape::Mcp;
        assert_eq!(
            rejection.body(),
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32011,"message":"No.","data":{"code":"host_not_allowed"}}}"#
        );
    }

    #[test]
    fn the_shape_comes_from_the_path() {
        for path in ["/mcp", "/mcp/", "/mcp/a", "/mcp/a/b"] {
            assert_eq!(ErrorShape::of_path(path), ErrorShape::Mcp, "{path}");
        }
        for path in ["/", "/mcpx", "/tools/mcp", "/MCP"] {
            assert_eq!(ErrorShape::of_path(path), ErrorShape::Rest, "{path}");
        }
    }

    #[test]
    fn quoted_text_is_bounded_and_escaped() {
        assert_eq!(quoted("a\r\n\"b\u{7}"), r#""a\r\n\"b\u{7}""#);
        let long = quoted(&"ä".repeat(1000));
        assert_eq!(long.chars().count(), QUOTED_CHARS_MAX + 3);
        assert!(long.ends_with("…\""));
    }
}
