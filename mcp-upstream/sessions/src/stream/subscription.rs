//! Reader of a stream.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::{Ending, Stream, StreamPhase, StreamState, frame};

/// Value that a stream holds until it ends. Dropping the value frees a permit, lowers a gauge, ends a subscription or stops a
/// task.
pub trait HeldByStream: Send {}

/// Reads a stream. Dropping it detaches the reader.
pub struct Subscription {
    pub(super) stream: Arc<Stream>,
    pub(super) reader: u32,
}

impl Subscription {
    /// The number of the stream.
    pub fn number(&self) -> u32 {
        self.stream.number()
    }

    /// Returns the next formatted chunk: an event, a keep-alive comment, or the retry time; `None` when the stream is over for
    /// this reader. Cancel safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Returns true if the stream ended before its writer finished it: a client that waits for further events should reconnect.
    pub fn is_broken(&self) -> bool {
        self.stream.lock().broken
    }

    /// Polls for the next chunk; see [`Subscription::next`].
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.stream.lock();
        if state.reader != self.reader || state.cut || state.phase == StreamPhase::Closed {
            return Poll::Ready(None);
        }
        match self.stream.next_chunk(&mut state) {
            SubscriptionStep::Chunk(chunk) => {
                state.wrote = self.stream.keep_alive.now();
                state.comment = false;
                let paced = std::mem::take(&mut state.paced);
                drop(state);
                if paced {
                    self.stream.moved.notify_waiters();
                }
                Poll::Ready(Some(chunk))
            }
            SubscriptionStep::End => Poll::Ready(None),
            SubscriptionStep::Wait => {
                match &mut state.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

enum SubscriptionStep {
    Chunk(Bytes),
    End,
    Wait,
}

impl Stream {
    fn next_chunk(&self, state: &mut StreamState) -> SubscriptionStep {
        if state.ending == Ending::Said {
            // Events after the last frame are kept for the reader that resumes the stream.
            return SubscriptionStep::End;
        }
        if let Some(priming) = state.priming.take() {
            return SubscriptionStep::Chunk(frame::priming(self.event_id(priming.get())));
        }
        let event = if self.share.is_some() {
            state.window.read()
        } else {
            let before = state.window.cost();
            let event = state.window.take();
            self.account(before, state.window.cost());
            event
        };
        if let Some(event) = event {
            return SubscriptionStep::Chunk(event);
        }
        if state.phase == StreamPhase::Finished {
            return SubscriptionStep::End;
        }
        if state.ending == Ending::Wanted {
            state.ending = Ending::Said;
            let farewell = state.farewell.as_deref().cloned();
            return SubscriptionStep::Chunk(farewell.unwrap_or_else(|| self.place.last_frame()));
        }
        if state.comment {
            return SubscriptionStep::Chunk(Bytes::from_static(frame::PING));
        }
        SubscriptionStep::Wait
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.stream.detach(self.reader);
    }
}

impl futures_util::Stream for Subscription {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        Subscription::poll_next(self.get_mut(), context)
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(&self.stream).finish()
    }
}
