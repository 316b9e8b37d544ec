//! Port to an HTTP client: pools of backends, and single requests to a backend.
//!
//! ```text
//! HttpClient::backends(server) ─▶ Backends::pick ─▶ Backend::send ─▶ BackendResponse ─▶ ResponseBody::chunk, …
//! ```
//!
//! The implementation decides which backend is healthy, adds the server's own headers and credentials, and removes hop-by-hop
//! headers. It repeats a request only with a new token after 401, and at the target of a redirect that only adds or removes a
//! slash. The layer above decides if other requests may be sent again, by [`SendError::unsent`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use smallvec::SmallVec;
use tooldock_base::answers::AnswerAccount;
use tooldock_base::names::NamespaceName;
use tooldock_workers::remote::{BackendId, RemoteServer};

/// HTTP client that reaches the backends of remote servers.
pub trait HttpClient: Send + Sync {
    /// The backends of a server. The same `Arc` of a server returns the same backends. If a server replaces another server with
    /// the same name, unchanged backends keep their health and connections, and removed ones are drained.
    fn backends(&self, server: &Arc<RemoteServer>) -> Arc<dyn Backends>;

    /// The current backends of a namespace's server; `None` if the namespace no longer has a remote server. To be used by code
    /// that runs longer than a request, since a [`Backends`] belongs to one version of the server, which a reload may replace.
    fn current(&self, name: &NamespaceName) -> Option<Arc<dyn Backends>>;
}

/// The pool of backends of a server.
pub trait Backends: Send + Sync {
    /// Picks the backend for a new session, or for a request without a session. Backends in `avoid` are not picked. Unhealthy and
    /// draining backends are skipped, and backups are used only if no other backend remains. With `balance: hash` the same `hash`
    /// selects the same backend. If no backend is healthy, one that was not picked within the last second is tried.
    fn pick(&self, avoid: &[BackendId], hash: u64) -> Option<Arc<dyn Backend>>;

    /// Returns true if [`Self::pick`] would find a backend. Unlike a pick, this does not count as a trial of an unhealthy
    /// backend.
    fn can_pick(&self, avoid: &[BackendId]) -> bool;

    /// The backend with this id, if it is configured or still being drained.
    fn get(&self, id: &BackendId) -> Option<Arc<dyn Backend>>;

    /// The states of all backends, in the order of the configuration.
    fn states(&self) -> Vec<BackendState>;
}

/// A backend of a server: an address with its health and connections.
#[async_trait]
pub trait Backend: Send + Sync {
    /// The backend's id: `host:port` or `unix:/path`.
    fn id(&self) -> &BackendId;

    /// Returns true if new sessions may be opened at the backend: it is configured, healthy, and its weight is not 0.
    fn accepts_new(&self) -> bool;

    /// Returns true if the backend is expected to answer requests.
    fn is_healthy(&self) -> bool;

    /// Sends a request and waits for the head of the response. Dropping the future cancels the request.
    ///
    /// # Errors
    ///
    /// The reason for a missing response, and whether the backend can have seen any part of the request.
    async fn send(&self, request: BackendRequest) -> Result<BackendResponse, SendError>;
}

/// A request to a backend.
#[derive(Debug, Clone)]
pub struct BackendRequest {
    /// HTTP method of the request.
    pub method: Method,
    /// Path and query of the request; `None` for those of the backend's configured URL.
    pub target: Option<String>,
    /// Headers of the request. `Host`, the framing, and headers of the server's configuration are added. `Accept-Encoding` is not
    /// sent; it decides if a compressed response is also kept undecoded ([`ResponseBody::take_coded`]).
    pub headers: RequestHeaders,
    /// The complete body of the request.
    pub body: Bytes,
    /// True for a long-lived stream of messages that belong to no request. `timeouts.call` does not apply to such a stream, it
    /// may be silent for an hour even if `timeouts.idle` is shorter, and its end after a silence is no failure of the backend.
    pub standing: bool,
    /// Handle by which the caller can cancel the request before its first byte is written.
    pub send_record: Option<SendRecord>,
    /// The principal whose personal credentials are added to the request, for servers that need them; `None` if none are added.
    pub on_behalf_of: Option<Arc<str>>,
    /// Account for a response that the backend itself buffers, such as that of an HTTP API; `None` for responses that only the
    /// caller buffers.
    pub answers: Option<AnswerAccount>,
}

impl BackendRequest {
    /// Creates a request to the configured URL, without personal credentials, that cannot be cancelled by a handle and is no
    /// long-lived stream.
    pub fn new(method: Method, headers: impl Into<RequestHeaders>, body: Bytes) -> Self {
        Self {
            method,
            target: None,
            headers: headers.into(),
            body,
            standing: false,
            send_record: None,
            on_behalf_of: None,
            answers: None,
        }
    }

    /// Marks the request as sent; called right before the first byte is written. Returns false if the request was cancelled.
    #[inline]
    pub fn mark_sending(&self) -> bool {
        self.send_record.as_ref().is_none_or(SendRecord::mark_sent)
    }
}

/// The headers of a request: headers that it shares with other requests for the same client, and its own headers. An own header
/// replaces a shared one of the same name.
#[derive(Debug, Clone, Default)]
pub struct RequestHeaders {
    shared: Arc<HeaderMap>,
    own: SmallVec<[(HeaderName, HeaderValue); 2]>,
}

impl RequestHeaders {
    /// Creates headers that consist of shared ones only.
    pub fn sharing(shared: &Arc<HeaderMap>) -> Self {
        Self {
            shared: Arc::clone(shared),
            own: SmallVec::new(),
        }
    }

    /// Adds an own header. `name` must not be present among the own headers yet.
    #[inline]
    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.own.push((name, value));
        self
    }

    /// All headers that are sent: own headers, and shared ones that they do not replace.
    pub fn iter(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        let own = self.own.iter().map(|(name, value)| (name, value));
        let replaced = |name| self.own.iter().any(|(own, _)| own == name);
        own.chain(self.shared.iter().filter(move |(name, _)| !replaced(*name)))
    }
}

impl From<HeaderMap> for RequestHeaders {
    fn from(headers: HeaderMap) -> Self {
        Self::sharing(&Arc::new(headers))
    }
}

#[cfg(any(test, feature = "testing"))]
impl RequestHeaders {
    /// Returns true if there is a header of this name.
    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The first header of this name.
    #[inline]
    pub fn get(&self, name: &str) -> Option<&HeaderValue> {
        self.iter()
            .find_map(|(it, value)| (it == name).then_some(value))
    }
}

#[cfg(any(test, feature = "testing"))]
impl std::ops::Index<&str> for RequestHeaders {
    type Output = HeaderValue;

    fn index(&self, name: &str) -> &HeaderValue {
        self.get(name).expect("a header of that name")
    }
}

/// Record of whether a request was sent or cancelled first.
#[derive(Debug, Clone, Default)]
pub struct SendRecord(Arc<OnceLock<bool>>);

impl SendRecord {
    /// Marks the request as sent. Returns false if it was cancelled before, and must not be sent.
    #[inline]
    pub fn mark_sent(&self) -> bool {
        *self.0.get_or_init(|| true)
    }

    /// Cancels the request. Returns true if it was not sent, and will not be.
    #[inline]
    pub fn give_up(&self) -> bool {
        !self.0.get_or_init(|| false)
    }

    /// Returns true if the request was sent.
    #[inline]
    pub fn has_left(&self) -> bool {
        self.0.get() == Some(&true)
    }
}

/// The head of a response, with its body. A compressed body is decoded. A redirect that the client does not follow is a response
/// like any other; its `Location` may be shown to clients.
pub struct BackendResponse {
    /// The backend that sent the response, for logs.
    pub backend: BackendId,
    /// HTTP status of the response.
    pub status: StatusCode,
    /// Headers of the response, without hop-by-hop headers.
    pub headers: HeaderMap,
    /// Body of the response.
    pub body: Box<dyn ResponseBody>,
}

impl BackendResponse {
    /// Returns true if the status concerns the gateway's own request or the backend as a whole, so that the body is not a
    /// response for the client. With other 4xx statuses, the server refuses the client's message.
    pub fn is_refusal(&self) -> bool {
        match self.status {
            StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::PROXY_AUTHENTICATION_REQUIRED
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS => true,
            status => !status.is_success() && !status.is_client_error(),
        }
    }
}

impl std::fmt::Debug for BackendResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackendResponse")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// A body that is read in pieces. Dropping it before its end closes the connection.
#[async_trait]
pub trait ResponseBody: Send {
    /// Returns the next piece; `None` after the last one. The future may be dropped while it waits, and called again.
    ///
    /// # Errors
    ///
    /// The body was cut, or took too long.
    async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError>;

    /// Returns true if the last returned chunk is known to be the end of the body; false if the next call must be awaited.
    fn is_over(&self) -> bool {
        false
    }

    /// Returns true if the body ends with its connection, so that its end cannot be distinguished from a truncation.
    fn may_be_cut(&self) -> bool {
        false
    }

    /// Takes the undecoded body with its `Content-Encoding`, after the last piece. `None` unless the body was compressed and
    /// short, and the request's `Accept-Encoding` accepts the coding.
    fn take_coded(&mut self) -> Option<(HeaderValue, Bytes)> {
        None
    }
}

/// Failure of a request without a response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SendError {
    /// Kind of the failure.
    pub kind: SendErrorKind,
    /// True if no byte of the request can have reached the backend.
    pub unsent: bool,
    /// Description for operators. It names the backend and contains no secrets.
    pub message: String,
}

/// Kind of a request's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SendErrorKind {
    /// The host name has no address, or none that may be used.
    Resolve,
    /// The connection could not be established.
    Connect,
    /// The connection was not established within its time limit.
    ConnectTimeout,
    /// The connection cannot be encrypted, or the backend's certificate is not accepted.
    Tls,
    /// The connection ended before the head of the response.
    Closed,
    /// The head of the response did not arrive in time.
    HeadTimeout,
    /// The response is not HTTP.
    Malformed,
    /// The request cannot be sent as it is.
    Request,
    /// No access token could be obtained for the request. The message contains the reason, worded to follow the server's name,
    /// and may be shown to clients.
    Authorization,
    /// The request was cancelled before it was sent.
    GivenUp,
}

impl SendErrorKind {
    /// Description for clients, without addresses of backends.
    pub fn description(self) -> &'static str {
        match self {
            Self::Resolve => "its address was not found, or may not be used",
            Self::Connect => "there is no connection",
            Self::ConnectTimeout => "no connection came about in time",
            Self::Tls => "there is no encrypted connection",
            Self::Closed => "the connection ended before the answer",
            Self::HeadTimeout => "no answer came in time",
            Self::Malformed => "what it answered is no HTTP",
            Self::Request => "the request cannot be sent as it is",
            Self::Authorization => "its token could not be fetched",
            Self::GivenUp => "the request was given up",
        }
    }

    /// Name of the kind in metrics and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect_timeout",
            Self::Tls => "tls",
            Self::Closed => "closed",
            Self::HeadTimeout => "head_timeout",
            Self::Malformed => "malformed",
            Self::Request => "request",
            Self::Authorization => "authorization",
            Self::GivenUp => "given_up",
        }
    }
}

/// Reason why a body could not be read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The connection ended in the middle of the body, or the body's framing is broken.
    #[error("the response was cut")]
    Cut,
    /// No bytes arrived for `timeouts.idle`, or the body was not complete within `timeouts.call`.
    #[error("the response took longer than {} s", .0.as_secs_f32())]
    Timeout(Duration),
    /// The body is compressed and cannot be decoded. The contained text is worded to follow "the response".
    #[error("the response {0}")]
    Coding(&'static str),
    /// The body is compressed by an unknown coding.
    #[error("the response is compressed by {0}, not by gzip, deflate, br or zstd")]
    UnknownCoding(CodingName),
}

/// The name of a coding in `Content-Encoding`, short and printable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodingName {
    name: [u8; Self::LENGTH_MAX],
    length: usize,
}

impl CodingName {
    const LENGTH_MAX: usize = 32;

    /// Builds the name: shortens it, and replaces bytes that no name of a coding has by `?`.
    pub fn new(name: &[u8]) -> Self {
        let length = name.len().min(Self::LENGTH_MAX);
        let mut shown = [b'?'; Self::LENGTH_MAX];
        for (shown, byte) in shown.iter_mut().zip(name) {
            if byte.is_ascii_alphanumeric() || b"-_.+".contains(byte) {
                *shown = *byte;
            }
        }
        Self {
            name: shown,
            length,
        }
    }
}

impl std::fmt::Display for CodingName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = std::str::from_utf8(&self.name[..self.length]);
        f.write_str(name.unwrap_or_default())
    }
}

/// State of a backend, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendState {
    /// Id of the backend.
    pub id: BackendId,
    /// True if the backend is healthy, so that requests are sent to it; false if it does not answer.
    pub healthy: bool,
    /// True if no new sessions are opened at the backend, since its weight is 0 or it is no longer configured.
    pub draining: bool,
    /// True if the backend is used only while no other backend is healthy.
    pub backup: bool,
    /// Number of requests that wait for their response, or whose response is being read.
    pub in_flight: usize,
    /// Reason why the backend is not healthy, without secrets.
    pub problem: Option<String>,
}

#[cfg(any(test, feature = "testing"))]
impl BackendState {
    /// State of a backend without requests.
    pub fn idle(id: BackendId, healthy: bool) -> Self {
        Self {
            id,
            healthy,
            draining: false,
            backup: false,
            in_flight: 0,
            problem: None,
        }
    }
}
