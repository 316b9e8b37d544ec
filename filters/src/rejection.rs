//! A refusal: its status, stable code, JSON-RPC code, headers and body.
//!
//! [`Reason`] lists every refusal of the edge. A check picks a reason and describes the fault, its place and the remedy; it
//! never sets a status.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::json;
use tooldock_base::names::NamespaceName;
use tooldock_workers::registry::startup::TRY_AGAIN;

/// The reason of a refusal. [`Reason::code`] is its stable name in bodies and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The head is not HTTP as this server accepts it: Host, path, framing.
    BadRequest,
    /// Header bytes or fields above the limit.
    HeadersTooLarge,
    /// The request target is above the limit.
    UriTooLong,
    /// The listener does not accept the host of the request.
    HostNotAllowed,
    /// The client address is denied, or not in the allow-list.
    AddressNotAllowed,
    /// A limit on requests is used up.
    RateLimited,
    /// The page's origin may not use this server.
    OriginNotAllowed,
    /// The request lacks the proof that the listener's own page sent it; another page may have sent it through its user's
    /// browser.
    Csrf,
    /// The credentials are missing or wrong.
    Unauthorized,
    /// No route has this path.
    NotFound,
    /// The path does not know this method.
    MethodNotAllowed,
    /// The request names no namespace and its path needs one.
    NamespaceRequired,
    /// The request names its namespace twice.
    NamespaceAmbiguous,
    /// No namespace has the name in the request.
    NamespaceNotFound,
    /// The namespace is starting.
    Starting,
    /// The namespace exists, but not for this principal.
    NamespaceForbidden,
    /// No scope of the access token grants anything in the gateway.
    InsufficientScope,
    /// `/messages` names a session that does not exist, and no namespace.
    SessionNotFound,
    /// A check of `/reload` failed; the response does not say which.
    Forbidden,
    /// A header that must not be repeated was sent several times.
    DuplicateHeader,
    /// Duplicate header in a request of 2026-07-28, whose headers mirror its body.
    HeaderMismatch,
    /// The body is announced as something else than JSON.
    UnsupportedMediaType,
    /// The client accepts none of the possible answers.
    NotAcceptable,
    /// The body is, or is announced, above the limit.
    BodyTooLarge,
    /// The body did not arrive in time. Found by the reader of the body, not by admission.
    BodyTimeout,
    /// The request bodies in memory have reached their total limit. Detected while a body is read, not by admission.
    Overloaded,
    /// The access token cannot be validated now: its issuer was not reached, or too many unknown tokens are being asked about.
    IssuerUnavailable,
}

impl Reason {
    /// Every reason, for code that registers counters ahead of the first refusal.
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

    /// The contract of refusals, on one screen: stable code, HTTP status, JSON-RPC code.
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

    /// The stable code: `error.code` of REST, `error.data.code` of MCP, the label in metrics.
    pub const fn code(self) -> &'static str {
        self.row().0
    }

    /// The HTTP status.
    pub const fn status(self) -> StatusCode {
        self.row().1
    }

    /// The integer `error.code` of JSON-RPC.
    pub const fn rpc_code(self) -> i32 {
        self.row().2
    }

    /// Returns true if the connection ends with the response: its framing cannot be trusted, its body will not be read, or its
    /// client is refused in general.
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

/// The two kinds of error bodies; a path decides which its clients expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorShape {
    /// `{"detail", "error": {"code", "message", "details"}}`
    Rest,
    /// A JSON-RPC error object with `id: null`.
    Mcp,
}

impl ErrorShape {
    /// The shape for a path of no route, where the fault may be the path itself.
    pub fn of_path(path: &str) -> Self {
        let mcp = matches!(path, "/mcp" | "/sse" | "/messages") || path.starts_with("/mcp/");
        if mcp { Self::Mcp } else { Self::Rest }
    }

    /// The body of an error, as JSON.
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

// Structs instead of `json!`, so that the members keep the order of the documentation.
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

/// The label of all paths without a route, so that the number of metrics is bounded.
const UNKNOWN_LABEL: &str = "unknown";

/// A wrong credential, for the log and the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CredentialFailure {
    /// The sender's address.
    pub client: IpAddr,
    /// True if the credential arrived during a delay of its sender.
    pub delayed: bool,
    /// True if the first delay of its address or its user name began with this credential: further wrong credentials of these
    /// are delayed.
    pub spell_began: bool,
}

/// A refused request, complete with what its answer needs.
#[derive(Debug, Clone)]
pub struct Rejection {
    /// The reason, which determines status and codes.
    pub reason: Reason,
    /// The message for the client. Text from the request is bounded and escaped in it; never a credential.
    pub message: Cow<'static, str>,
    /// The cause for the log only, if the client must not learn it or the reason is not specific enough.
    pub cause: Option<&'static str>,
    /// The wrong credential that was the reason of the refusal.
    pub failure: Option<CredentialFailure>,
    /// The refused principal, if it was known already.
    pub principal: Option<Arc<str>>,
    /// The path's label for metrics; see [`RouteSpec::label`](crate::route::RouteSpec::label).
    pub route: &'static str,
    /// The body that the client expects.
    pub shape: ErrorShape,
    /// Headers of the answer, besides type and length.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// True when the connection has to end after the answer.
    pub close: bool,
}

impl Rejection {
    /// A refusal for this reason. The shape of its body is that of REST, and its path has no route, until the caller sets these.
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

    /// 401 with a `WWW-Authenticate: Bearer` challenge.
    pub(crate) fn unauthorized(message: &'static str) -> Self {
        Self::new(Reason::Unauthorized, message)
            .with_header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    /// 503 while the access token cannot be validated. Sent without a challenge: the token may be valid, and no other is
    /// needed.
    pub(crate) fn issuer_silent() -> Self {
        Self::new(
            Reason::IssuerUnavailable,
            "The access token cannot be verified now. Send the request again later.",
        )
        .because("the token's issuer did not give what is needed to judge the token")
        .with_header(RETRY_AFTER, HeaderValue::from_static("2"))
    }

    /// 503 for a namespace that is starting.
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

    /// 401 for a token signed by a key that its issuer does not publish.
    pub(crate) fn by_unknown_key() -> Self {
        Self::unauthorized("The bearer token is not valid.")
            .because("the token is by a key that its issuer does not publish")
    }

    /// 429 for a wrong credential that arrived during a delay.
    pub(crate) fn failed_too_often(wait: crate::rate::RetryAfter) -> Self {
        let seconds = wait.seconds();
        let message = format!(
            "Too many wrong credentials: this one is wrong, too. Retry in {seconds} s; a right credential is admitted at any time."
        );
        Self::new(Reason::RateLimited, message)
            .because("too many wrong credentials")
            .with_header(RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// Returns true if another access token could help the client.
    pub(crate) fn needs_another_token(&self) -> bool {
        matches!(
            self.reason,
            Reason::Unauthorized | Reason::InsufficientScope
        )
    }

    /// 405 with the methods of the path.
    pub(crate) fn method_not_allowed(message: String, allow: &'static str) -> Self {
        Self::new(Reason::MethodNotAllowed, message)
            .with_header(ALLOW, HeaderValue::from_static(allow))
    }

    /// 429 with the seconds to wait.
    pub(crate) fn rate_limited(wait: crate::rate::RetryAfter, limit: &str) -> Self {
        let seconds = wait.seconds();
        let message = format!(
            "Too many requests: the limit per {limit} is used up. Retry in {seconds} s, or ask the operator to raise it."
        );
        Self::new(Reason::RateLimited, message).with_header(RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// 413, for admission and for readers of a body whose length was not announced.
    pub fn body_too_large(limit_bytes: u64) -> Self {
        Self::new(
            Reason::BodyTooLarge,
            format!("The request body is larger than the {limit_bytes} bytes this server accepts."),
        )
    }

    /// 503 for a request body that exceeds the memory for all bodies together.
    pub fn bodies_full() -> Self {
        Self::new(
            Reason::Overloaded,
            "The server is reading as many request bodies as it can hold. Send the request again in a second.",
        )
        .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// 503 for an answer that exceeds the memory for all answers together.
    pub fn answers_full() -> Self {
        Self::new(
            Reason::Overloaded,
            "There is no room for the answer: clients have not read the answers before it. Send the request again in a second.",
        )
        .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// Adds a cause for the log alone.
    pub(crate) fn because(mut self, cause: &'static str) -> Self {
        self.cause = Some(cause);
        self
    }

    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.reason.status()
    }

    /// The stable code, also the label in metrics.
    pub fn code(&self) -> &'static str {
        self.reason.code()
    }

    /// The body, as JSON, in the shape that the client expects.
    pub fn body(&self) -> Bytes {
        let code = self.code();
        self.shape.body(code, self.reason.rpc_code(), &self.message)
    }
}

/// Client text longer than this is cut where a message repeats it.
const QUOTED_CHARS_MAX: usize = 64;

/// Text from a request for use in a message: quoted, control characters escaped, cut after 64 characters.
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
