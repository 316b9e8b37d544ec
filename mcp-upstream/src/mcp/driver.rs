//! Drives a call of the upstream from its start to its outcome, and yields its messages for the client before the outcome.
//!
//! The era decides how events become messages, outside this module: a session's client is asked by requests
//! (`mcp/exchange/delivery.rs`), a 2026-07-28 client by the response to its request (`mcp/modern/delivery.rs`).

use std::pin::Pin;

use tooldock_sessions::interaction::{EventReceiver, PeerEvent, Suspendable};

/// A running call, which is polled by [`Self::next`]. Dropping it cancels the call.
pub(crate) struct CallDriver<T> {
    work: Pin<Box<dyn Future<Output = T> + Send>>,
    /// Receiver of the call's events; `None` if its client cannot receive messages or questions before the outcome.
    events: Option<EventReceiver>,
    /// Outcome of the call, if it has ended while some of its events are not yet read.
    outcome: Option<T>,
}

/// Next event or outcome of a call.
pub(crate) enum DriverStep<T> {
    /// A message or a question that precedes the outcome.
    Event(PeerEvent),
    /// The outcome of the call; no events follow.
    Over(T),
}

impl<T> CallDriver<T> {
    /// Creates a driver of `work`. The messages of the call arrive at `events`.
    pub(crate) fn new(
        work: impl Future<Output = T> + Send + 'static,
        events: Option<EventReceiver>,
    ) -> Self {
        Self {
            work: Box::pin(work),
            events,
            outcome: None,
        }
    }

    /// Returns true if the call has ended. Some of its events may not be read yet.
    pub(in crate::mcp) fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    /// Waits for the next event of the call, or for its outcome once all events were returned. Cancel safe. Must not be called
    /// again after the outcome.
    pub(crate) async fn next(&mut self) -> DriverStep<T> {
        let Some(events) = &mut self.events else {
            return DriverStep::Over(self.work.as_mut().await);
        };
        let outcome = match self.outcome.take() {
            Some(outcome) => outcome,
            // event: a message or a question of the call, which is passed on.
            // outcome: the call has ended; its remaining events are returned first.
            // The order is not biased: otherwise a function that sends messages without a pause would delay its own time limit.
            None => tokio::select! {
                event = events.next() => return DriverStep::Event(event),
                outcome = self.work.as_mut() => outcome,
            },
        };
        match events.try_next() {
            Some(event) => {
                self.outcome = Some(outcome);
                DriverStep::Event(event)
            }
            None => DriverStep::Over(outcome),
        }
    }
}

impl<T: Send + 'static> Suspendable for CallDriver<T> {
    async fn go_on(&mut self) {
        if self.outcome.is_none() {
            self.outcome = Some(self.work.as_mut().await);
        }
    }
}

#[cfg(test)]
mod tests {
    use tooldock_sessions::interaction::events;

    use super::*;

    #[tokio::test]
    async fn a_call_that_ended_while_it_waited_keeps_its_outcome() {
        let (sender, events) = events();
        let work = async move {
            drop(sender);
            7
        };
        let mut driver = CallDriver::new(work, Some(events));
        driver.go_on().await;
        // Again, as the owning task may: an ended call is not polled any more.
        driver.go_on().await;
        assert!(driver.is_over());
        assert!(matches!(driver.next().await, DriverStep::Over(7)));
    }
}
