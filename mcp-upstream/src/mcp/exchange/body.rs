//! The body of a POST that is answered as a stream.

use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::reply::{BodyError, Head, Reply};
use crate::stream::Subscription;

/// The head of every stream of events. Proxies are told to pass each event on at once and unchanged.
pub(crate) fn events_head() -> Head {
    Head::new(StatusCode::OK)
        .with(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))
        .with(
            CACHE_CONTROL,
            HeaderValue::from_static("no-cache, no-transform"),
        )
        .with(
            HeaderName::from_static("x-accel-buffering"),
            HeaderValue::from_static("no"),
        )
}

/// A stream that ends by itself, or at `until` so that its client comes back. `owned` is dropped with the body.
pub(crate) fn streamed<T: Send + 'static>(
    events: Subscription,
    until: Option<Instant>,
    owned: T,
) -> Reply {
    let body = stream::unfold((events, owned), move |(mut events, owned)| async move {
        let chunk = match until {
            // Events that wait are sent even after the time is up: at least the event to resume from.
            Some(until) => timeout_at(until, events.next()).await.ok()??,
            None => events.next().await?,
        };
        Some((Ok::<_, BodyError>(chunk), (events, owned)))
    });
    Reply::Body {
        head: events_head(),
        body: Box::pin(body),
    }
}

/// A stream whose task is aborted when the stream is dropped; `owned` is dropped with it.
pub(super) fn tied<T: Send + 'static>(
    events: Subscription,
    task: JoinHandle<()>,
    owned: T,
) -> Reply {
    streamed(events, None, (TaskGuard(task), owned))
}

/// Aborts its task when dropped.
struct TaskGuard(JoinHandle<()>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}
