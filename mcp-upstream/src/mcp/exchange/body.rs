//! The response body of a POST that is answered with a stream.

use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tooldock_sessions::stream::Subscription;

use crate::reply::{BodyError, Head, Reply};

/// Head of a response that is a stream of events. Its headers make proxies forward each event at once and unchanged.
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

/// Builds a streamed response that ends when its events end, or at `until`: the client then polls for the remaining events.
/// `owned` is dropped with the body.
pub(crate) fn streamed<T: Send + 'static>(
    events: Subscription,
    until: Option<Instant>,
    owned: T,
) -> Reply {
    let body = stream::unfold((events, owned), move |(mut events, owned)| async move {
        let chunk = match until {
            // Events that are ready are sent even after `until`, at least the event from which the client can resume.
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

/// Builds a streamed response whose task is aborted when the response is dropped. `owned` is dropped with the response.
pub(super) fn tied<T: Send + 'static>(
    events: Subscription,
    task: JoinHandle<()>,
    owned: T,
) -> Reply {
    streamed(events, None, (TaskGuard(task), owned))
}

/// Guard of a task. Dropping it aborts the task.
struct TaskGuard(JoinHandle<()>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}
