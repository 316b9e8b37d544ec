//! Replies to clients, built by the service and written by the edge.
//!
//! `Full` is one write of known length, and so is `Opening`, which names a new session. `Body` is streamed chunk by chunk.
//! `Events` is a long stream of framed chunks; its guards (limits, gauges, audit) are dropped with the stream. `Content-Length`
//! is not among the headers: the edge sets it from the body.

use std::any::Any;
use std::fmt;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use smallvec::SmallVec;
use tooldock_sessions::replicas::ReplicaId;
pub use tooldock_sessions::session::UnclaimedSession;
pub use tooldock_sessions::stream::Subscription;

/// The media type `application/json`.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The failure of a body or of its source.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body in chunks. An error breaks the connection off without a proper end of the body.
pub type BodyStream = Pin<Box<dyn Stream<Item = Result<Bytes, BodyError>> + Send>>;

/// Guards that are dropped with a stream: permits, gauges, audit records.
pub type Guards = Vec<Box<dyn Any + Send>>;

/// Status and headers of a reply.
#[derive(Debug, Clone)]
pub struct Head {
    /// The HTTP status.
    pub status: StatusCode,
    /// The headers, without `Content-Length`.
    pub headers: SmallVec<[(HeaderName, HeaderValue); 2]>,
    /// The stable code of a request that was refused before it became a call, for the access log.
    pub refused: Option<&'static str>,
}

impl Head {
    /// A head with this status and without headers.
    pub fn new(status: StatusCode) -> Self {
        Self {
            status,
            headers: SmallVec::new(),
            refused: None,
        }
    }

    /// A head with this status, whose `Content-Type` is JSON.
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

/// A reply to a request.
pub enum Reply {
    /// A complete reply.
    Full {
        /// Status and headers of the reply.
        head: Head,
        /// The complete body; may be empty.
        body: Bytes,
    },
    /// Like [`Reply::Full`], for a request that opens a session. Its writer must report the delivery
    /// ([`UnclaimedSession::delivered`]).
    Opening {
        /// Status and headers of the reply.
        head: Head,
        /// The complete body.
        body: Bytes,
        /// Guard that ends the session unless the reply is delivered.
        session: UnclaimedSession,
    },
    /// A reply of unknown length, or one too large to buffer.
    Body {
        /// Status and headers of the reply.
        head: Head,
        /// The body of the reply, in chunks.
        body: BodyStream,
    },
    /// A stream that is open until one side ends it.
    Events {
        /// Status and headers of the reply.
        head: Head,
        /// The events of the stream, framed for the body.
        events: Subscription,
        /// Guards that are dropped when the stream has ended.
        guards: Guards,
    },
    /// No reply: the request belongs to another replica, to which the edge forwards it.
    Elsewhere {
        /// The replica to which the edge forwards the request.
        replica: ReplicaId,
        /// The reply if the request cannot be forwarded.
        unreachable: Refusal,
        /// The reply if the other replica may have run the request, and ends before its reply.
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
    /// A JSON reply with this status.
    pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self::Full {
            head: Head::json(status),
            body: body.into(),
        }
    }

    /// A reply without a body.
    pub fn empty(status: StatusCode) -> Self {
        Self::Full {
            head: Head::new(status),
            body: Bytes::new(),
        }
    }

    /// Status and headers of the reply, of the `unreachable` one for [`Reply::Elsewhere`].
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
