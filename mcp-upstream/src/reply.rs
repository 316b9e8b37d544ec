//! Replies to clients, built by the service and written by the edge.
//!
//! `Full` is a complete reply of known length, and so is `Opening`, which opens a new session. `Body` is streamed chunk by chunk.
//! `Events` is a long stream of events; its guards (limits, gauges, audit) are dropped with the stream. `Content-Length` is not
//! among the headers: the edge sets it from the body.

use std::fmt;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use smallvec::SmallVec;
use tooldock_sessions::replicas::ReplicaId;
pub use tooldock_sessions::session::UnclaimedSession;
pub use tooldock_sessions::stream::{HeldByStream, Subscription};

/// The media type `application/json`.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Error of a body that could not be read or sent to its end.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body in chunks. After an error the connection is closed without a proper end of the body, so that the client sees that the
/// body is incomplete.
pub type BodyStream = Pin<Box<dyn Stream<Item = Result<Bytes, BodyError>> + Send>>;

/// Guards of a reply. They are dropped when the reply's stream ends.
pub type ReplyGuards = Vec<Box<dyn HeldByStream>>;

/// Status and headers of a reply.
#[derive(Debug, Clone)]
pub struct Head {
    /// The HTTP status of the reply.
    pub status: StatusCode,
    /// The headers of the reply, without `Content-Length`.
    pub headers: SmallVec<[(HeaderName, HeaderValue); 2]>,
    /// The error code of a request that was refused before it became a call, for the access log; `None` for other replies.
    pub refused: Option<&'static str>,
}

impl Head {
    /// Creates a head with this status and without headers.
    pub fn new(status: StatusCode) -> Self {
        Self {
            status,
            headers: SmallVec::new(),
            refused: None,
        }
    }

    /// Creates a head with this status and the `Content-Type` of JSON.
    pub fn json(status: StatusCode) -> Self {
        Self::new(status).with(CONTENT_TYPE, JSON)
    }

    /// Adds a header to the head.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// A reply to a request of a client, which the edge writes.
pub enum Reply {
    /// A complete reply of known length.
    Full {
        /// Status and headers of the reply.
        head: Head,
        /// The complete body; may be empty.
        body: Bytes,
    },
    /// A complete reply to a request that opens a session. The edge must report the delivery ([`UnclaimedSession::delivered`]);
    /// otherwise the session ends.
    Opening {
        /// Status and headers of the reply.
        head: Head,
        /// The complete body.
        body: Bytes,
        /// Guard that ends the new session unless the reply is delivered.
        session: UnclaimedSession,
    },
    /// A reply whose length is not known, or whose body is too large to buffer.
    Body {
        /// Status and headers of the reply.
        head: Head,
        /// The body of the reply, in chunks.
        body: BodyStream,
    },
    /// An event stream that stays open until the client or the gateway ends it.
    Events {
        /// Status and headers of the reply.
        head: Head,
        /// The events of the stream, framed for the body.
        events: Subscription,
        /// Guards that are dropped when the stream has ended: permits, gauges, audit records.
        guards: ReplyGuards,
    },
    /// No reply: the request belongs to another replica, to which the edge forwards it.
    Elsewhere {
        /// The replica to which the edge forwards the request.
        replica: ReplicaId,
        /// The reply to the client if the request cannot be forwarded.
        unreachable: Refusal,
        /// The reply to the client if the other replica may have run the request but ended before it replied.
        lost: Box<Refusal>,
    },
}

/// A reply that refuses a request.
#[derive(Debug)]
pub struct Refusal {
    /// Status and headers of the refusal.
    pub head: Head,
    /// The complete body of the refusal.
    pub body: Bytes,
}

impl From<Refusal> for Reply {
    fn from(Refusal { head, body }: Refusal) -> Self {
        Self::Full { head, body }
    }
}

impl Reply {
    /// Creates a JSON reply with this status.
    pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self::Full {
            head: Head::json(status),
            body: body.into(),
        }
    }

    /// Creates a reply without a body.
    pub fn empty(status: StatusCode) -> Self {
        Self::Full {
            head: Head::new(status),
            body: Bytes::new(),
        }
    }

    /// Returns status and headers of the reply; for [`Reply::Elsewhere`], those of the reply `unreachable`.
    pub fn head(&self) -> &Head {
        match self {
            Self::Full { head, .. }
            | Self::Opening { head, .. }
            | Self::Body { head, .. }
            | Self::Events { head, .. } => head,
            Self::Elsewhere { unreachable, .. } => &unreachable.head,
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Full { .. } => "Full",
            Self::Opening { .. } => "Opening",
            Self::Body { .. } => "Body",
            Self::Events { .. } => "Events",
            Self::Elsewhere { .. } => "Elsewhere",
        };
        f.debug_struct(kind)
            .field("status", &self.head().status)
            .finish_non_exhaustive()
    }
}
