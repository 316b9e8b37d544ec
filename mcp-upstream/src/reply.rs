//! Replies to clients. Made here, written by the edge.
//!
//! `Full` is one write with a known length, and so is `Opening`, which names a new session. `Body` is streamed chunk by chunk.
//! `Events` is a long stream of framed chunks whose guards (limits, gauges, audit) live exactly as long as it does.
//! `Content-Length` is not among the headers: the writer of the reply sets it from the body.

use std::any::Any;
use std::fmt;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use smallvec::SmallVec;

use crate::replicas::ReplicaId;
pub use crate::session::UnclaimedSession;
pub use crate::stream::Subscription;

/// `application/json`.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The failure of a body or of its source.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body in chunks. An error breaks off the connection without a proper end of the body.
pub type BodyStream = Pin<Box<dyn Stream<Item = Result<Bytes, BodyError>> + Send>>;

/// Guards that live as long as a stream: permits, gauges, audit records.
pub type Guards = Vec<Box<dyn Any + Send>>;

/// Status and headers of a reply.
#[derive(Debug, Clone)]
pub struct Head {
    /// The status.
    pub status: StatusCode,
    /// The headers, without `Content-Length`.
    pub headers: SmallVec<[(HeaderName, HeaderValue); 2]>,
    /// The stable code of a request that was refused before it became a call, for the access log.
    pub refused: Option<&'static str>,
}

impl Head {
    /// A head without headers.
    pub fn new(status: StatusCode) -> Self {
        Self {
            status,
            headers: SmallVec::new(),
            refused: None,
        }
    }

    /// A head that announces JSON.
    pub fn json(status: StatusCode) -> Self {
        Self::new(status).with(CONTENT_TYPE, JSON)
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// An answer to a request.
pub enum Reply {
    /// A complete answer.
    Full {
        /// Status and headers.
        head: Head,
        /// The whole body; may be empty.
        body: Bytes,
    },
    /// Like [`Reply::Full`], and names a new session. Its writer must report the delivery ([`UnclaimedSession::delivered`]).
    Opening {
        /// Status and headers.
        head: Head,
        /// The whole body.
        body: Bytes,
        /// Ends the session unless the client learns of it.
        session: UnclaimedSession,
    },
    /// An answer of unknown length, or too large to buffer.
    Body {
        /// Status and headers.
        head: Head,
        /// The chunks.
        body: BodyStream,
    },
    /// A stream that stays open until one side ends it.
    Events {
        /// Status and headers.
        head: Head,
        /// The framed chunks.
        events: Subscription,
        /// Guards that are dropped when the stream has ended.
        guards: Guards,
    },
    /// Nothing was done: the request belongs to another replica, and the edge forwards it there.
    Elsewhere {
        /// The replica.
        replica: ReplicaId,
        /// The answer if the request cannot be forwarded.
        unreachable: Refusal,
        /// The answer if the other replica may have carried out the request, and ends before its answer.
        lost: Box<Refusal>,
    },
}

/// An answer that refuses a request.
#[derive(Debug)]
pub struct Refusal {
    /// Status and headers.
    pub head: Head,
    /// The whole body.
    pub body: Bytes,
}

impl From<Refusal> for Reply {
    fn from(Refusal { head, body }: Refusal) -> Self {
        Self::Full { head, body }
    }
}

impl Reply {
    /// A JSON answer with this status.
    pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self::Full {
            head: Head::json(status),
            body: body.into(),
        }
    }

    /// An answer without a body.
    pub fn empty(status: StatusCode) -> Self {
        Self::Full {
            head: Head::new(status),
            body: Bytes::new(),
        }
    }

    /// The head of any kind of reply.
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
