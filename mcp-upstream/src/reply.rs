//! What goes back to the client. Produced here, written by the edge; tests see it as an ordinary response.
//!
//! `Full` is one write with a known length, and so is `Opening`, which names a new session. `Body` is streamed chunk by chunk. `Events` is a long stream of framed
//! chunks whose guards (limits, gauges, audit) live exactly as long as it does. `Content-Length` is not among the
//! headers: whoever writes the reply sets it from the body.

use std::any::Any;
use std::fmt;
use std::pin::Pin;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, stream};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use smallvec::SmallVec;

pub use crate::session::Unclaimed;
pub use crate::stream::Subscription;

/// `application/json`.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The failure of a body or of its source.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body in chunks. An error ends the connection without a proper end of the body.
pub type BodyStream = Pin<Box<dyn Stream<Item = Result<Bytes, BodyError>> + Send>>;

/// Things that live as long as a stream: permits, gauges, audit records.
pub type Guards = Vec<Box<dyn Any + Send>>;

/// Status and headers of a reply.
#[derive(Debug, Clone)]
pub struct Head {
    /// The status.
    pub status: StatusCode,
    /// The headers, without `Content-Length`.
    pub headers: SmallVec<[(HeaderName, HeaderValue); 2]>,
}

impl Head {
    /// A head without headers.
    pub fn new(status: StatusCode) -> Self {
        Self {
            status,
            headers: SmallVec::new(),
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

/// An answer.
pub enum Reply {
    /// Everything is there.
    Full {
        /// Status and headers.
        head: Head,
        /// The whole body; may be empty.
        body: Bytes,
    },
    /// As [`Reply::Full`], and names a new session. Whoever has written it says so ([`Unclaimed::delivered`]).
    Opening {
        /// Status and headers.
        head: Head,
        /// The whole body.
        body: Bytes,
        /// Ends the session if the client does not get to know of it.
        session: Unclaimed,
    },
    /// The length is not known, or the body is too large to hold.
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
        /// Dropped when the stream has ended.
        guards: Guards,
    },
}

impl Reply {
    /// JSON with a status.
    pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self::Full {
            head: Head::json(status),
            body: body.into(),
        }
    }

    /// A status alone.
    pub fn empty(status: StatusCode) -> Self {
        Self::Full {
            head: Head::new(status),
            body: Bytes::new(),
        }
    }

    /// The head, whichever the kind of body.
    pub fn head(&self) -> &Head {
        match self {
            Self::Full { head, .. }
            | Self::Opening { head, .. }
            | Self::Body { head, .. }
            | Self::Events { head, .. } => head,
        }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let (head, body, length) = match self {
            Self::Full { head, body } => {
                let length = body.len();
                (head, Body::from(body), Some(length))
            }
            Self::Opening {
                head,
                body,
                session,
            } => {
                // A response is not told whether it was written.
                session.delivered();
                let length = body.len();
                (head, Body::from(body), Some(length))
            }
            Self::Body { head, body } => (head, Body::from_stream(body), None),
            Self::Events {
                head,
                events,
                guards,
            } => {
                let chunks = stream::unfold((events, guards), |(mut events, guards)| async {
                    let chunk = events.next().await?;
                    Some((Ok::<_, BodyError>(chunk), (events, guards)))
                });
                (head, Body::from_stream(chunks), None)
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        response.headers_mut().extend(head.headers);
        // A 204 has no body to have a length of.
        if let Some(length) = length.filter(|_| head.status != StatusCode::NO_CONTENT) {
            response.headers_mut().insert(CONTENT_LENGTH, length.into());
        }
        response
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Full { .. } => "Full",
            Self::Opening { .. } => "Opening",
            Self::Body { .. } => "Body",
            Self::Events { .. } => "Events",
        };
        f.debug_struct(kind)
            .field("status", &self.head().status)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_full_reply_keeps_its_bytes_through_a_response() {
        let response = Reply::json(StatusCode::OK, "{}").into_response();
        assert_eq!(response.headers()[CONTENT_LENGTH], "2");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()[CONTENT_TYPE], JSON);
        let body = response.into_body().collect().await.expect("a body");
        assert_eq!(body.to_bytes(), "{}");
    }

    #[tokio::test]
    async fn events_are_a_body_and_their_guards_go_with_the_stream() {
        let guard = Arc::new(());
        let pulse = crate::stream::Pulse::new(std::time::Duration::from_secs(15));
        let stream = crate::stream::Stream::detached(&pulse);
        let events = stream.read();
        assert!(stream.push(Bytes::from_static(b"data: 1\n\n")));
        stream.finish();
        let reply = Reply::Events {
            head: Head::new(StatusCode::OK),
            events,
            guards: vec![Box::new(Arc::clone(&guard))],
        };
        let body = reply.into_response().into_body();
        assert_eq!(Arc::strong_count(&guard), 2);
        let bytes = body.collect().await.expect("the stream ends").to_bytes();
        assert_eq!(bytes, "data: 1\n\n");
        assert_eq!(Arc::strong_count(&guard), 1);
    }
}
