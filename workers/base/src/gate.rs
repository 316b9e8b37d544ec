//! Limits the number of concurrent calls of one namespace, and the number of calls that wait (WRK-14, Q-11).
//!
//! The queue is shared fairly: it contains at most one call of each principal. Further calls of that principal wait until its
//! call has left the queue. So a principal with many slow calls delays the calls of others by at most one call each time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Name of a principal. All calls without a principal are treated as those of one principal.
pub type Principal = Option<Arc<str>>;

/// Lets a bounded number of calls run and a bounded number wait.
///
/// Waiting has no separate time limit: the time limit of the call includes it.
#[derive(Debug)]
pub struct Gate {
    /// Permits of the running calls. Waiting calls get permits in the order in which they joined the queue of this semaphore.
    running: Arc<Semaphore>,
    queues: Mutex<Queues>,
    max_concurrency: usize,
    queue: usize,
    /// Maximum number of calls of one principal that may wait. Further ones are refused.
    of_principal: usize,
}

/// The waiting calls of all principals.
#[derive(Debug, Default)]
struct Queues {
    by_principal: HashMap<Principal, PrincipalQueue>,
    calls: usize,
}

/// The waiting calls of one principal.
#[derive(Debug)]
struct PrincipalQueue {
    /// Semaphore with one permit. The principal's call that is in the common queue has the permit; its other calls wait for it.
    turn: Arc<Semaphore>,
    calls: usize,
}

/// A waiting call. Dropping it removes the call from the counts.
struct WaitingCall<'a> {
    gate: &'a Gate,
    principal: &'a Principal,
    turn: Arc<Semaphore>,
}

/// The permission to run one call. Dropping it lets the next waiting call run.
#[derive(Debug)]
pub struct Permit {
    _running: OwnedSemaphorePermit,
}

/// The maximum numbers of running and of waiting calls are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the namespace's queue is full")]
pub struct QueueFull;

impl Gate {
    /// Creates a gate for `max_concurrency` running and `queue` waiting calls.
    pub fn new(max_concurrency: usize, queue: usize) -> Self {
        Self {
            running: Arc::new(Semaphore::new(max_concurrency)),
            queues: Mutex::default(),
            max_concurrency,
            queue,
            of_principal: queue,
        }
    }

    /// Limits the number of waiting calls of each principal to `of_principal`.
    #[must_use]
    pub fn with_queue_of_principal(self, of_principal: usize) -> Self {
        Self {
            of_principal,
            ..self
        }
    }

    /// Waits until the call may run. Dropping the future cancels the wait.
    ///
    /// # Errors
    ///
    /// [`QueueFull`] immediately if too many calls wait. Exception: a principal without waiting calls may wait nevertheless,
    /// until twice the maximum number of calls wait.
    pub async fn enter(&self, principal: &Principal) -> Result<Permit, QueueFull> {
        if let Ok(running) = Arc::clone(&self.running).try_acquire_owned() {
            return Ok(Permit { _running: running });
        }
        let waiting = self.wait(principal, |queues, queue| {
            let is_alone = queue.calls == 0 && queues < self.queue.saturating_mul(2);
            queue.calls < self.of_principal && (queues < self.queue || is_alone)
        });
        Ok(self.turn(waiting.ok_or(QueueFull)?).await)
    }

    /// Waits for a new permit for a call that returned its permit while it waited for its client. The call is never refused,
    /// because its work would be lost. The number of calls that wait for their clients is limited elsewhere.
    pub async fn resume(&self, principal: &Principal) -> Permit {
        if let Ok(running) = Arc::clone(&self.running).try_acquire_owned() {
            return Permit { _running: running };
        }
        let waiting = self.wait(principal, |_, _| true);
        self.turn(waiting.expect("every call is let in")).await
    }

    /// Registers a waiting call if `may` returns true. `may` gets the number of all waiting calls and the principal's waiting
    /// calls.
    fn wait<'a>(
        &'a self,
        principal: &'a Principal,
        may: impl FnOnce(usize, &PrincipalQueue) -> bool,
    ) -> Option<WaitingCall<'a>> {
        let mut queues = self.queues();
        let all = queues.calls;
        let queue = queues.by_principal.entry(principal.clone());
        let queue = queue.or_insert_with(|| PrincipalQueue {
            turn: Arc::new(Semaphore::new(1)),
            calls: 0,
        });
        if !may(all, queue) {
            if queue.calls == 0 {
                queues.by_principal.remove(principal);
            }
            return None;
        }
        queue.calls += 1;
        let turn = Arc::clone(&queue.turn);
        queues.calls += 1;
        Some(WaitingCall {
            gate: self,
            principal,
            turn,
        })
    }

    async fn turn(&self, waiting: WaitingCall<'_>) -> Permit {
        let _turn = waiting.turn.acquire().await;
        let running = Arc::clone(&self.running).acquire_owned().await;
        Permit {
            _running: running.expect("nothing closes the semaphore"),
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of calls that are running now.
    pub fn in_flight(&self) -> usize {
        self.max_concurrency - self.running.available_permits()
    }

    /// Returns true if the gate was created with these limits.
    pub fn has_limits(&self, max_concurrency: usize, queue: usize) -> bool {
        self.max_concurrency == max_concurrency && self.queue == queue
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        let mut queues = self.gate.queues();
        queues.calls -= 1;
        if let Entry::Occupied(mut queue) = queues.by_principal.entry(self.principal.clone()) {
            queue.get_mut().calls -= 1;
            if queue.get().calls == 0 {
                queue.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn runs_up_to_the_limit_queues_up_to_the_bound_and_refuses_the_rest() {
        let gate = Arc::new(Gate::new(1, 1));
        let first = gate.enter(&None).await.expect("the gate is empty");
        let waiting = {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move { gate.enter(&None).await })
        };
        tokio::task::yield_now().await;
        assert_eq!(gate.in_flight(), 1);
        assert_eq!(gate.enter(&None).await.unwrap_err(), QueueFull);
        drop(first);
        assert!(waiting.await.expect("not cancelled").is_ok());
        assert_eq!(gate.in_flight(), 0);
    }

    #[tokio::test]
    async fn a_place_in_the_queue_is_free_again_when_its_call_leaves() {
        let gate = Gate::new(1, 1);
        let _first = gate.enter(&None).await.expect("the gate is empty");
        for _ in 0..3 {
            let mut waiting = Box::pin(gate.enter(&None));
            let polled =
                std::future::poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context)));
            assert!(polled.await.is_pending());
            assert_eq!(gate.enter(&None).await.unwrap_err(), QueueFull);
        }
    }

    #[tokio::test]
    async fn a_call_that_had_its_turn_waits_for_another_even_where_the_queue_is_full() {
        let gate = Gate::new(1, 0);
        let first = gate.enter(&None).await.expect("the gate is empty");
        let mut resumed = Box::pin(gate.resume(&None));
        let polled = std::future::poll_fn(|context| Poll::Ready(resumed.as_mut().poll(context)));
        assert!(polled.await.is_pending());
        assert_eq!(gate.enter(&None).await.unwrap_err(), QueueFull);
        drop(first);
        drop(resumed.await);
        assert!(gate.enter(&None).await.is_ok());
    }

    fn principal(name: &str) -> Principal {
        Some(name.into())
    }

    async fn is_waiting(
        waiting: &mut (impl Future<Output = Result<Permit, QueueFull>> + Unpin),
    ) -> bool {
        let polled = std::future::poll_fn(|context| {
            Poll::Ready(std::pin::Pin::new(&mut *waiting).poll(context).is_pending())
        });
        polled.await
    }

    #[tokio::test]
    async fn principals_take_turns_however_many_calls_one_of_them_makes() {
        let (gate, ada, bob) = (Gate::new(1, 8), principal("ada"), principal("bob"));
        let held = gate.enter(&ada).await.expect("the gate is empty");
        let mut many: Vec<_> = (0..8).map(|_| Box::pin(gate.enter(&ada))).collect();
        for waiting in &mut many {
            assert!(is_waiting(waiting).await);
        }
        assert_eq!(gate.enter(&ada).await.unwrap_err(), QueueFull);
        // The queue is full of the calls of another principal.
        let mut other = Box::pin(gate.enter(&bob));
        assert!(is_waiting(&mut other).await);
        assert_eq!(gate.enter(&bob).await.unwrap_err(), QueueFull);
        drop(held);
        drop(many.remove(0).await.expect("the next of ada"));
        drop(other.await.expect("then it is the turn of bob"));
        for waiting in many {
            drop(waiting.await.expect("the rest of ada"));
        }
        assert_eq!((gate.in_flight(), gate.queues().calls), (0, 0));
        assert!(gate.queues().by_principal.is_empty());
    }

    #[tokio::test]
    async fn one_principal_has_no_more_than_its_part_of_the_queue() {
        let gate = Gate::new(1, 8).with_queue_of_principal(1);
        let (ada, bob) = (principal("ada"), principal("bob"));
        let _held = gate.enter(&ada).await.expect("the gate is empty");
        let mut first = Box::pin(gate.enter(&ada));
        assert!(is_waiting(&mut first).await);
        assert_eq!(gate.enter(&ada).await.unwrap_err(), QueueFull);
        assert!(is_waiting(&mut Box::pin(gate.enter(&bob))).await);
    }
}
