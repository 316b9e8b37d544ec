//! Runs computations whose size depends on client input or a tool's author outside the I/O threads.
//!
//! An I/O thread serves hundreds of connections, which all wait while it computes. Computations that may take longer than some
//! milliseconds run here instead, on separate threads, at most half as many at once as the machine has cores. Further
//! computations wait in a bounded queue, for a bounded time. A request beyond these bounds is refused, and its client may retry.
//!
//! A running computation is not interrupted: each kind has a budget that limits it. Its permit is released at its end, even if
//! its client has disconnected.
//!
//! Budgets: `mcp-upstream/rest/openapi/work_budget.rs` for a document, `mcp-upstream/sessions/catalogue/arguments/effort.rs` for
//! a check of arguments, `mcp-upstream/engine/upstream/aggregate/nearness.rs` for suggestions of names.
//! `mcp-upstream/sessions/catalogue/documents.rs` caches each document as long as the list from which it was built.
//! `poll_watch.rs` detects computations that block an I/O thread nevertheless.

use std::sync::LazyLock;
use std::time::Duration;

use crate::error::{CallError, CallErrorCode};
use crate::gate::{Gate, Principal};
use tokio::time::timeout;

/// Maximum number of waiting computations of one principal. Further ones are refused.
const WAITING_MAX: usize = 64;
/// Maximum number of waiting computations of all principals together. Further ones are refused.
const WAITING_TOTAL: usize = 512;
/// Maximum time that a computation waits to be started. After it the request is refused.
const WAIT: Duration = Duration::from_secs(10);

/// Time after which a refused client should retry, as stated in the error.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Gate that limits concurrent computations in this process. Principals are served in turn.
static PLACES: LazyLock<Gate> =
    LazyLock::new(|| Gate::new(places(), WAITING_TOTAL).with_queue_of_principal(WAITING_MAX));

#[cfg(any(test, feature = "testing"))]
thread_local! {
    /// Number of computations that this thread has requested, for tests.
    pub static GIVEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Maximum number of computations that run at once: half of the cores.
pub fn places() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).max(1)
}

/// Runs a computation for a principal's request outside the I/O threads. The computation must limit its own duration.
///
/// # Errors
///
/// `overloaded`, if too many computations run and wait already.
///
/// # Panics
///
/// If the computation panics.
pub async fn run<T: Send + 'static>(
    principal: &Principal,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CallError> {
    #[cfg(any(test, feature = "testing"))]
    GIVEN.set(GIVEN.get() + 1);
    let Ok(Ok(permit)) = timeout(WAIT, PLACES.enter(principal)).await else {
        return Err(CallError::new(
            CallErrorCode::Overloaded,
            "The gateway computes too many large answers at the moment: try again later",
        )
        .retry_after(RETRY_AFTER));
    };
    let done = tokio::task::spawn_blocking(move || {
        // The computation holds the permit until it ends, even if its client has disconnected.
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
        let there = run(&None, || std::thread::current().id()).await;
        assert_ne!(there.expect("a place"), here);
    }
}
