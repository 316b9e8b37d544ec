//! How many calls of one namespace run at once, and how many may wait (WRK-14, Q-11).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Lets a bounded number of calls through and a bounded number wait in order.
///
/// Waiting has no time limit of its own: the caller's clock covers it.
#[derive(Debug)]
pub struct Gate {
    /// One permit per call that may run. Who waits gets the next one: nobody overtakes.
    running: Arc<Semaphore>,
    /// Calls that run or wait for their turn.
    admitted: Arc<AtomicUsize>,
    max_concurrency: usize,
    queue: usize,
}

/// The right to run one call; dropping it lets the next one in.
#[derive(Debug)]
pub struct Permit {
    // Given back first: whoever comes when the turn is free finds room, too.
    _place: Option<Place>,
    _running: OwnedSemaphorePermit,
}

/// A place among those that run or wait.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

/// The namespace runs and queues as many calls as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the namespace's queue is full")]
pub struct QueueFull;

impl Gate {
    /// A gate for `max_concurrency` running and `queue` waiting calls.
    pub fn new(max_concurrency: usize, queue: usize) -> Self {
        Self {
            running: Arc::new(Semaphore::new(max_concurrency)),
            admitted: Arc::default(),
            max_concurrency,
            queue,
        }
    }

    /// Waits for a turn. Dropping the future gives up the place in the queue.
    ///
    /// # Errors
    ///
    /// [`QueueFull`] at once when as many calls wait already as may.
    pub async fn enter(&self) -> Result<Permit, QueueFull> {
        let place = self.place()?;
        Ok(self.turn(Some(place)).await)
    }

    /// Waits for a turn of a call that had one and gave it back while it asked its client. It is never refused: what it
    /// did is not lost to a full queue, and how many calls ask is bounded elsewhere. It counts in the queue where there
    /// is room.
    pub async fn resume(&self) -> Permit {
        self.turn(self.place().ok()).await
    }

    async fn turn(&self, place: Option<Place>) -> Permit {
        let running = match Arc::clone(&self.running).try_acquire_owned() {
            Ok(running) => running,
            Err(_) => Arc::clone(&self.running)
                .acquire_owned()
                .await
                .expect("nothing closes the semaphore"),
        };
        Permit {
            _place: place,
            _running: running,
        }
    }

    fn place(&self) -> Result<Place, QueueFull> {
        let room = self.max_concurrency.saturating_add(self.queue);
        let one_more = |admitted| (admitted < room).then_some(admitted + 1);
        self.admitted
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .map(|_| Place(Arc::clone(&self.admitted)))
            .map_err(|_| QueueFull)
    }

    /// Calls running now.
    pub fn in_flight(&self) -> usize {
        self.max_concurrency - self.running.available_permits()
    }

    /// Whether a gate of these limits would be the same as this one.
    pub fn has_limits(&self, max_concurrency: usize, queue: usize) -> bool {
        self.max_concurrency == max_concurrency && self.queue == queue
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn runs_up_to_the_limit_queues_up_to_the_bound_and_refuses_the_rest() {
        let gate = Arc::new(Gate::new(1, 1));
        let first = gate.enter().await.expect("the gate is empty");
        let waiting = {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move { gate.enter().await })
        };
        tokio::task::yield_now().await;
        assert_eq!(gate.in_flight(), 1);
        assert_eq!(gate.enter().await.unwrap_err(), QueueFull);
        drop(first);
        assert!(waiting.await.expect("not cancelled").is_ok());
        assert_eq!(gate.in_flight(), 0);
    }

    #[tokio::test]
    async fn a_place_in_the_queue_is_free_again_when_its_call_leaves() {
        let gate = Gate::new(1, 1);
        let _first = gate.enter().await.expect("the gate is empty");
        for _ in 0..3 {
            let mut waiting = Box::pin(gate.enter());
            let polled =
                std::future::poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context)));
            assert!(polled.await.is_pending());
            assert_eq!(gate.enter().await.unwrap_err(), QueueFull);
        }
    }

    #[tokio::test]
    async fn a_call_that_had_its_turn_waits_for_another_even_where_the_queue_is_full() {
        let gate = Gate::new(1, 0);
        let first = gate.enter().await.expect("the gate is empty");
        let mut resumed = Box::pin(gate.resume());
        let polled = std::future::poll_fn(|context| Poll::Ready(resumed.as_mut().poll(context)));
        assert!(polled.await.is_pending());
        assert_eq!(gate.enter().await.unwrap_err(), QueueFull);
        drop(first);
        drop(resumed.await);
        assert!(gate.enter().await.is_ok());
    }
}
