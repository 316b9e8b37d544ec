//! A future that runs to its end even if its caller drops it.
//!
//! The future is polled in place, so it usually costs one allocation and no task. When it is dropped early, it becomes a task of
//! the current runtime. A time limit or abort handle that is to end it must therefore be part of the future.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Owner of the future until it has ended. If this is dropped earlier, the runtime continues the future in a task.
pub struct DetachedFuture<F>(Option<Pin<Box<F>>>)
where
    F: Future + Send + 'static,
    F::Output: Send + 'static;

impl<F> DetachedFuture<F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    /// Wraps a future that goes on when its caller goes away.
    pub fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F> Future for DetachedFuture<F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = &mut self.0 else {
            return Poll::Pending;
        };
        let output = std::task::ready!(future.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<F> Drop for DetachedFuture<F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn drop(&mut self) {
        if let Some(future) = self.0.take() {
            go_on(future);
        }
    }
}

/// Runs a future to its end on the current runtime.
pub fn go_on(future: impl Future<Output: Send> + Send + 'static) {
    // A future that panicked cannot be polled again, and without a runtime the future cannot continue.
    if !std::thread::panicking()
        && let Ok(runtime) = Handle::try_current()
    {
        runtime.spawn(future);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_dropped_future_runs_to_its_end() {
        let (go, gone) = oneshot::channel::<()>();
        let (done, mut finished) = oneshot::channel();
        let mut waiting = Box::pin(DetachedFuture::new(async move {
            let _ = gone.await;
            let _ = done.send(());
        }));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(waiting);
        assert!(finished.try_recv().is_err());
        go.send(()).expect("the future lives");
        finished.await.expect("the future ended");
    }

    #[tokio::test]
    async fn an_awaited_future_gives_its_output_in_place() {
        assert_eq!(DetachedFuture::new(async { 7 }).await, 7);
    }
}
