//! Computing whose size a client or the author of a tool decides, away from the threads that carry messages.
//!
//! A message thread serves hundreds of connections, which all wait while it computes. Work that may take longer than some
//! milliseconds runs here instead: on threads of its own, at most as many at once as half of the machine has cores. Further
//! work waits in a bounded queue, for a bounded time; beyond that the request is refused, and its client may try again.
//!
//! Work that has begun ends by itself: everything that runs here has a budget of its own. Its place is free when it has
//! ended, even if its client has left.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tooldock_workers::error::{CallError, CallErrorCode};

/// How many requests may wait for a place.
const WAITING_MAX: usize = 64;
/// How long a request waits for a place.
const WAIT: Duration = Duration::from_secs(10);

/// When a refused request may be tried again.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// The places of the process.
static PLACES: LazyLock<Places> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Places::new((cores / 2).max(1), WAITING_MAX)
});

/// How much runs and waits.
struct Places {
    free: Semaphore,
    waiting: AtomicUsize,
    waiting_max: usize,
}

/// A request in the queue, until this is dropped.
struct QueuedRequest<'a>(&'a AtomicUsize);

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Places {
    fn new(at_once: usize, waiting_max: usize) -> Self {
        Self {
            free: Semaphore::new(at_once),
            waiting: AtomicUsize::new(0),
            waiting_max,
        }
    }

    /// A place, as soon as one is free. `None`: the queue is full, or the wait was too long.
    async fn get(&self) -> Option<SemaphorePermit<'_>> {
        if let Ok(permit) = self.free.try_acquire() {
            return Some(permit);
        }
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _queued = QueuedRequest(&self.waiting);
        if before >= self.waiting_max {
            return None;
        }
        let permit = timeout(WAIT, self.free.acquire()).await;
        permit.ok().and_then(Result::ok)
    }
}

/// Runs work that has a budget of its own on a thread that carries no messages.
///
/// # Errors
///
/// `overloaded`: too much of such work runs and waits already.
///
/// # Panics
///
/// Where the work does.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CallError> {
    let Some(permit) = PLACES.get().await else {
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
    use super::*;

    #[tokio::test]
    async fn work_runs_on_another_thread() {
        let here = std::thread::current().id();
        let there = run(|| std::thread::current().id()).await.expect("a place");
        assert_ne!(here, there);
    }

    #[tokio::test(start_paused = true)]
    async fn what_finds_no_place_waits_for_a_time_and_only_so_many_do() {
        let places = Places::new(1, 1);
        let held = places.get().await.expect("a free place");
        let mut second = Box::pin(places.get());
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(places.get().await.is_none(), "the queue is full");
        drop(held);
        let held = second.await.expect("the place that was freed");
        assert!(places.get().await.is_none(), "the wait has an end");
        drop(held);
        assert_eq!(places.waiting.load(Ordering::Relaxed), 0);
    }
}
