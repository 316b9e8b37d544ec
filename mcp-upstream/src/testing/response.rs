//! Converts a reply into an ordinary response, which tests read to its end.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;

use crate::reply::{BodyError, Head, Reply};

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
                // Reported here: a response does not report if it was written.
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
            Self::Elsewhere { unreachable, .. } => {
                let length = unreachable.body.len();
                (unreachable.head, Body::from(unreachable.body), Some(length))
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        response.headers_mut().extend(head.headers);
        // A 204 has no body, so it has no length.
        if let Some(length) = length.filter(|_| head.status != StatusCode::NO_CONTENT) {
            response.headers_mut().insert(CONTENT_LENGTH, length.into());
        }
        response
    }
}

#[cfg(test)]
struct SharedGuard {
    _shared: std::sync::Arc<()>,
}

#[cfg(test)]
impl crate::reply::HeldByStream for SharedGuard {}

#[tokio::test]
async fn events_are_a_body_and_their_guards_go_with_the_stream() {
    let guard = std::sync::Arc::new(());
    let keep_alive = tooldock_sessions::stream::KeepAlive::new(std::time::Duration::from_secs(15));
    let stream = tooldock_sessions::stream::Stream::detached(&keep_alive);
    let events = stream.read();
    assert!(stream.push(Bytes::from_static(b"data: 1\n\n")));
    stream.finish();
    let reply = Reply::Events {
        head: Head::new(StatusCode::OK),
        events,
        guards: vec![Box::new(SharedGuard {
            _shared: std::sync::Arc::clone(&guard),
        })],
    };
    let body = reply.into_response().into_body();
    assert_eq!(std::sync::Arc::strong_count(&guard), 2);
    let bytes = body.collect().await.expect("the stream ends").to_bytes();
    assert_eq!(bytes, "data: 1\n\n");
    assert_eq!(std::sync::Arc::strong_count(&guard), 1);
}
