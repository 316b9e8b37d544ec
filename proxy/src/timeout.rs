//! A time limit that costs almost nothing for futures that are ready immediately.

use std::future::{Pending, pending};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use pingora_timeout::fast_timeout::FastOrTokioTimeout;
use pingora_timeout::{Elapsed, Timeout};

pin_project! {
    /// A future with a time limit. It is not an `async fn`, because such a function would store its argument twice, and each
    /// caller that awaits it would have to move all of that.
    #[must_use = "futures do nothing unless polled"]
    pub(crate) struct FastTimeout<F> {
        #[pin]
        future: F,
        limit: Duration,
        // The timer, which is created only when the future has to wait, because Pingora reads the clock to create a timer.
        #[pin]
        timer: Option<Timeout<Pending<()>, FastOrTokioTimeout>>,
    }
}

/// Runs a future with a time limit, using Pingora's timers. The future is polled before a timer is created, because most bodies,
/// calls and writes complete immediately.
///
/// # Errors
///
/// [`Elapsed`] after the time limit; the future is dropped together with the returned one.
pub(crate) fn fast_timeout<F: Future>(limit: Duration, future: F) -> FastTimeout<F> {
    FastTimeout {
        future,
        limit,
        timer: None,
    }
}

impl<F: Future> Future for FastTimeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(output) = this.future.poll(context) {
            return Poll::Ready(Ok(output));
        }
        if this.timer.is_none() {
            let timer = pingora_timeout::fast_timeout::fast_timeout(*this.limit, pending());
            this.timer.set(Some(timer));
        }
        match this.timer.as_pin_mut().map(|timer| timer.poll(context)) {
            Some(Poll::Ready(_)) => Poll::Ready(Err(Elapsed)),
            Some(Poll::Pending) | None => Poll::Pending,
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
