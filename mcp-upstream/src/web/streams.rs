//! Event streams of the API. A task writes the events of each stream and ends when the client disconnects. A client that reads
//! too slowly is disconnected.

use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;
use tokio::task::JoinHandle;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::stream::{Stream, frame};

use super::answer::{Answer, WebFailure};
use crate::mcp::exchange::events_head;
use crate::mcp::{Core, stream_place};
use crate::reply::{HeldByStream, Reply, ReplyGuards};

/// Handle by which a task sends the events of a stream.
pub(super) struct StreamEvents(Arc<Stream>);

impl StreamEvents {
    /// Adds an event to the stream. Returns false if the stream's client has disconnected.
    pub(super) fn event(&self, name: &'static str, data: &Value) -> bool {
        self.0.push(frame::named(name, &data.to_string()))
    }
}

/// Guard of the task that writes a stream's events; dropping it at the end of the stream aborts the task.
struct EventTask(JoinHandle<()>);

impl HeldByStream for EventTask {}

impl Drop for EventTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Opens a stream whose events `feed` writes. The stream is counted against the principal's limit on long streams.
pub(super) fn open<F: Future<Output = ()> + Send + 'static>(
    core: &Arc<Core>,
    caller: &Caller,
    feed: impl FnOnce(StreamEvents) -> F,
) -> Answer {
    let place = stream_place(core, caller, 0).map_err(|_| {
        WebFailure::new(
            StatusCode::TOO_MANY_REQUESTS,
            "stream_limit",
            "You have as many streams open as are allowed; close one, and try again in a moment.",
        )
    })?;
    let stream = Stream::listening(&core.keep_alive);
    let finishing = stream.finish_on_drop();
    let events = StreamEvents(Arc::clone(&stream));
    let feeding = feed(events);
    let task = tokio::spawn(async move {
        let _finishing = finishing;
        feeding.await;
    });
    let guards: ReplyGuards = vec![Box::new(place), Box::new(EventTask(task))];
    Ok(Reply::Events {
        head: events_head(),
        events: stream.read(),
        guards,
    })
}
