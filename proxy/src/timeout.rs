//! A time limit that costs nothing where nobody has to wait.

use std::future::pending;
use std::time::Duration;

use pingora_timeout::Elapsed;

/// Runs a future under a time limit, by Pingora's timers.
///
/// # Errors
///
/// [`Elapsed`] when the time is up; the future is dropped.
pub(crate) async fn fast_timeout<F: Future>(
    limit: Duration,
    future: F,
) -> Result<F::Output, Elapsed> {
    // Two arms: the future is done; its time is up. It is asked first: most bodies, calls and writes are done at once, and
    // then there is no timer, which Pingora would look at the clock for.
    tokio::select! {
        biased;
        output = future => Ok(output),
        _ = async { pingora_timeout::fast_timeout::fast_timeout(limit, pending::<()>()).await } => {
            Err(Elapsed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_done_in_time_is_given_back() {
        let done = fast_timeout(Duration::ZERO, async { 1 }).await;
        assert_eq!(done.ok(), Some(1));
        let later = tokio::task::yield_now();
        assert!(fast_timeout(Duration::from_secs(60), later).await.is_ok());
    }

    #[tokio::test]
    async fn what_takes_longer_is_dropped() {
        let held = std::sync::Arc::new(());
        let hold = std::sync::Arc::clone(&held);
        let never = async move {
            let _hold = hold;
            pending::<()>().await;
        };
        let limit = Duration::from_millis(1);
        assert!(fast_timeout(limit, never).await.is_err());
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
    }
}
