//! Restarts loops that must continue after a panic.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

/// Pause before a loop that panicked is restarted. It keeps a loop that panics at once from filling the log.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs a loop until it ends by itself. A panic is logged, and the loop is restarted.
pub async fn supervise<F: Future<Output = ()>>(name: &'static str, mut begin: impl FnMut() -> F) {
    // Unwind safe: state that a panic leaves behind is protected by locks that ignore poisoning.
    while AssertUnwindSafe(async { begin().await })
        .catch_unwind()
        .await
        .is_err()
    {
        tracing::error!("{name} failed and goes on in {PAUSE:?}");
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_panics_is_begun_again_until_it_ends() {
        let mut begun = 0;
        supervise("a test", || {
            begun += 1;
            let round = begun;
            async move { assert!(round > 2, "round {round} fails") }
        })
        .await;
        assert_eq!(begun, 3);
    }
}
