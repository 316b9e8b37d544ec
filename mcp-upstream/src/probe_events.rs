//! The event stream by which `tooldock doctor` detects proxies in front of the gateway that buffer events.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;

use crate::mcp::events_head;
use crate::reply::{BodyError, Reply};

/// Number of events in a stream for `tooldock doctor`.
const EVENTS: usize = 4;
/// Pause between two events of a stream for `tooldock doctor`.
pub const PAUSE: Duration = Duration::from_millis(400);
/// Maximum time for which a stream for `tooldock doctor` sends no event.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Returns a stream of events with the same headers as all event streams of the gateway: a few events with pauses of [`PAUSE`],
/// or, with a `silence`, one event before and one after it.
pub fn events(silence: Option<Duration>) -> Reply {
    let (number, pause) = match silence {
        Some(silence) => (2, silence.min(SILENCE_MAX)),
        None => (EVENTS, PAUSE),
    };
    let body = stream::unfold(0, move |sent| async move {
        if sent == number {
            return None;
        }
        if sent > 0 {
            tokio::time::sleep(pause).await;
        }
        let event = Bytes::from(format!("data: {{\"event\":{}}}\n\n", sent + 1));
        Some((Ok::<_, BodyError>(event), sent + 1))
    });
    Reply::Body {
        head: events_head(),
        body: Box::pin(body),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn events_come_with_pauses_and_silence_has_a_bound() {
        let ran = async |silence| {
            let Reply::Body { head, body } = events(silence) else {
                panic!("a stream");
            };
            let names: Vec<_> = head.headers.iter().map(|(name, _)| name.as_str()).collect();
            assert!(names.contains(&"x-accel-buffering"), "{names:?}");
            let began = Instant::now();
            (body.count().await, began.elapsed())
        };
        assert_eq!(ran(None).await, (EVENTS, PAUSE * 3));
        let long = Some(SILENCE_MAX * 2);
        assert_eq!(ran(long).await, (2, SILENCE_MAX));
    }
}
