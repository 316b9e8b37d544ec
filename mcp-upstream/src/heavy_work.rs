//! Computing whose size a client or the author of a tool decides, away from the threads that carry messages.
//!
//! A message thread serves hundreds of connections, which all wait while it computes. Work that may take longer than some
//! milliseconds runs here instead: on threads of its own, at most as many at once as half of the machine has cores. Further
//! work waits in a bounded queue, for a bounded time; beyond that the request is refused, and its client may try again.
//!
//! Work that has begun ends by itself: everything that runs here has a budget of its own. Its place is free when it has
//! ended, even if its client has left.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tooldock_workers::error::{CallError, CallErrorCode};

/// How many requests of one principal may wait for a place.
const WAITING_MAX: usize = 64;
/// How many requests of all principals may wait.
const WAITING_TOTAL: usize = 512;
/// How long a request waits for a place.
const WAIT: Duration = Duration::from_secs(10);

/// When a refused request may be tried again.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// The places of the process.
static PLACES: LazyLock<Places> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Places::new((cores / 2).max(1), WAITING_MAX)
});

/// A principal; callers without one share a queue.
pub(crate) type Principal = Option<Arc<str>>;

/// The places for work, and the requests that wait for one. Principals take turns: each has at most one request in the line
/// for a place, and its further requests wait behind that one.
struct Places {
    free: Semaphore,
    queues: Mutex<HashMap<Principal, Queue>>,
    waiting_max: usize,
}

/// The waiting requests of one principal.
struct Queue {
    /// Held by the request that stands in the line.
    turn: Arc<Semaphore>,
    requests: usize,
}

/// A request in its principal's queue, until this is dropped.
struct QueuedRequest<'a> {
    places: &'a Places,
    principal: &'a Principal,
    turn: Arc<Semaphore>,
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut queue) = self.places.queues().entry(self.principal.clone()) {
            queue.get_mut().requests -= 1;
            if queue.get().requests == 0 {
                queue.remove();
            }
        }
    }
}

impl Places {
    fn new(at_once: usize, waiting_max: usize) -> Self {
        Self {
            free: Semaphore::new(at_once),
            queues: Mutex::default(),
            waiting_max,
        }
    }

    /// A place, as soon as it is the principal's turn. `None`: too many requests wait, or the wait was too long.
    async fn get(&self, principal: &Principal) -> Option<SemaphorePermit<'_>> {
        let queued = self.enter(principal)?;
        let place = async {
            let _turn = queued.turn.acquire().await.ok()?;
            self.free.acquire().await.ok()
        };
        timeout(WAIT, place).await.ok().flatten()
    }

    fn enter<'a>(&'a self, principal: &'a Principal) -> Option<QueuedRequest<'a>> {
        let mut queues = self.queues();
        let total: usize = queues.values().map(|queue| queue.requests).sum();
        let queue = queues.entry(principal.clone()).or_insert_with(|| Queue {
            turn: Arc::new(Semaphore::new(1)),
            requests: 0,
        });
        // A principal without a waiting request is not kept out by the number of others.
        let is_full = queue.requests > 0 && total >= WAITING_TOTAL;
        if queue.requests >= self.waiting_max || is_full {
            return None;
        }
        queue.requests += 1;
        Some(QueuedRequest {
            places: self,
            principal,
            turn: Arc::clone(&queue.turn),
        })
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<Principal, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs work of a principal's request on a thread that carries no messages. The work has a budget of its own.
///
/// # Errors
///
/// `overloaded`: too much of such work runs and waits already.
///
/// # Panics
///
/// Where the work does.
pub(crate) async fn run<T: Send + 'static>(
    principal: &Principal,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CallError> {
    let Some(permit) = PLACES.get(principal).await else {
        return Err(CallError::new(
            CallErrorCode::Overloaded,
            "The gateway computes too many large answers at the moment: try again later",
        )
        .retry_after(RETRY_AFTER));
    };
    let done = tokio::task::spawn_blocking(move || {
        // The place is held until the work has ended, even if its client has left.
        let _permit = permit;
        work()
    });
    match done.await {
        Ok(value) => Ok(value),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(CallError::new(
                CallErrorCode::Overloaded,
                "The gateway is about to end",
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    fn principal(name: &str) -> Principal {
        Some(name.into())
    }

    #[tokio::test]
    async fn work_runs_on_another_thread() {
        let here = std::thread::current().id();
        let there = run(&None, || std::thread::current().id()).await;
        assert_ne!(there.expect("a place"), here);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_a_place_waits_for_a_time_and_a_bounded_number_does() {
        let (places, ada) = (Places::new(1, 1), principal("ada"));
        let held = places.get(&ada).await.expect("a free place");
        let mut second = Box::pin(places.get(&ada));
        assert!(poll!(&mut second).is_pending());
        assert!(places.get(&ada).await.is_none(), "the queue is full");
        drop(held);
        let held = second.await.expect("the place that was freed");
        assert!(places.get(&ada).await.is_none(), "the wait has an end");
        drop(held);
        assert!(places.queues().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn principals_take_turns_however_many_requests_one_of_them_sends() {
        let (places, ada, bob) = (Places::new(1, 64), principal("ada"), principal("bob"));
        let held = places.get(&ada).await.expect("a free place");
        let mut many: Vec<_> = (0..64).map(|_| Box::pin(places.get(&ada))).collect();
        for waiting in &mut many {
            assert!(poll!(waiting).is_pending());
        }
        let mut other = Box::pin(places.get(&bob));
        assert!(poll!(&mut other).is_pending());
        drop(held);
        let first = many.remove(0).await.expect("the next of ada");
        drop(first);
        assert!(poll!(&mut other).is_ready(), "then it is bob's turn");
    }
}
