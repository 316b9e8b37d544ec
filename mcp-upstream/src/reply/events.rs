//! The two ends of a long stream: a publisher that never waits and a subscription the edge drains.
//!
//! The queue between them is bounded. A reader that lets it fill up is closed: it reads what is queued and then the end.
//! Framing (SSE) happens once, before publishing, so that one event for many streams is one `Bytes`.

use bytes::Bytes;
use tokio::sync::mpsc;

/// The sending end. Dropping it ends the stream.
#[derive(Debug)]
pub struct Publisher {
    chunks: Option<mpsc::Sender<Bytes>>,
}

/// The receiving end. Dropping it tells the publisher at its next chunk.
#[derive(Debug)]
pub struct Subscription {
    chunks: mpsc::Receiver<Bytes>,
}

/// A stream that holds at most `capacity` chunks (at least one) its reader has not taken.
pub fn channel(capacity: usize) -> (Publisher, Subscription) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    (
        Publisher {
            chunks: Some(sender),
        },
        Subscription { chunks: receiver },
    )
}

impl Publisher {
    /// Queues a chunk without waiting. `false` means the stream is over: the reader left, or was too slow and is closed.
    pub fn publish(&mut self, chunk: Bytes) -> bool {
        let sent = self
            .chunks
            .as_ref()
            .is_some_and(|chunks| chunks.try_send(chunk).is_ok());
        if !sent {
            self.chunks = None;
        }
        sent
    }
}

impl Subscription {
    /// The next chunk; `None` when the stream is over. Cancel safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.chunks.recv().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_reader_is_closed_and_reads_what_was_queued() {
        let (mut publisher, mut subscription) = channel(1);
        assert!(publisher.publish(Bytes::from_static(b"1")));
        assert!(!publisher.publish(Bytes::from_static(b"2")));
        assert!(!publisher.publish(Bytes::from_static(b"3")));
        assert_eq!(subscription.next().await.as_deref(), Some(&b"1"[..]));
        assert_eq!(subscription.next().await, None);
    }

    #[tokio::test]
    async fn a_reader_that_left_ends_the_publisher() {
        let (mut publisher, subscription) = channel(8);
        drop(subscription);
        assert!(!publisher.publish(Bytes::from_static(b"1")));
    }
}
