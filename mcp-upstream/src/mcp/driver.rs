//! One call of the upstream from its start to its outcome, and what it says to its client before the outcome.
//!
//! How the events become messages differs by era, and is not decided here: a session's client is asked by requests
//! (`mcp/exchange/delivery.rs`), a 2026-07-28 client by the answer to its request (`mcp/modern/delivery.rs`).

use std::pin::Pin;

use crate::interaction::{EventReceiver, PeerEvent, Waiting};

/// A call that runs while it is driven. Dropping it cancels it.
pub(crate) struct CallDriver<T> {
    work: Pin<Box<dyn Future<Output = T> + Send>>,
    /// There where its client can be told and asked something before the outcome.
    events: Option<EventReceiver>,
    /// What the call ended with, while events that came before may still wait.
    outcome: Option<T>,
}

/// What a call came to.
pub(crate) enum Next<T> {
    /// It says or asks something.
    Event(PeerEvent),
    /// It is over, and has said everything.
    Over(T),
}

impl<T> CallDriver<T> {
    /// Drives `work`, which says what it has to say to `events`.
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

    /// Whether the call itself is over.
    pub(in crate::mcp) fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    /// Goes on until the call says something, or is over and has said everything. Cancel safe; not to be called again
    /// after the outcome.
    pub(crate) async fn next(&mut self) -> Next<T> {
        let Some(events) = &mut self.events else {
            return Next::Over(self.work.as_mut().await);
        };
        let outcome = match self.outcome.take() {
            Some(outcome) => outcome,
            // event: the call said or asked something; passed on.
            // outcome: the call is over; what it said before is taken up first.
            // In no order, so that a function that never stops talking cannot keep its call from its time limit.
            None => tokio::select! {
                event = events.next() => return Next::Event(event),
                outcome = self.work.as_mut() => outcome,
            },
        };
        match events.try_next() {
            Some(event) => {
                self.outcome = Some(outcome);
                Next::Event(event)
            }
            None => Next::Over(outcome),
        }
    }
}

impl<T: Send + 'static> Waiting for CallDriver<T> {
    async fn go_on(&mut self) {
        if self.outcome.is_none() {
            self.outcome = Some(self.work.as_mut().await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interaction::events;

    #[tokio::test]
    async fn a_call_that_ended_while_it_waited_keeps_its_outcome() {
        let (sender, events) = events();
        let work = async move {
            drop(sender);
            7
        };
        let mut driver = CallDriver::new(work, Some(events));
        driver.go_on().await;
        // Again, as the task that keeps it may: what is over is not polled any more.
        driver.go_on().await;
        assert!(driver.is_over());
        assert!(matches!(driver.next().await, Next::Over(7)));
    }
}
