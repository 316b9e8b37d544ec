//! The proxy's runtimes, which run the I/O of the message path.
//!
//! A hop between runtimes costs more than the rest of a call at low load, so worker connections are opened and driven in the
//! runtimes that serve clients. Those exist only after the listening service has started; until then [`Runtimes::pick`] waits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;

/// Interval of each runtime's standing timer. Calls may take longer than this, so their timers are never the next.
const STANDING_TIMER: Duration = Duration::from_secs(1);

/// Selects runtimes in turn, once they are known.
pub struct Runtimes {
    handles: watch::Sender<Option<Arc<[Handle]>>>,
    next: AtomicUsize,
}

impl Runtimes {
    /// Creates an empty list, for runtimes that are not known yet.
    pub fn new() -> Self {
        Self {
            handles: watch::Sender::new(None),
            next: AtomicUsize::new(0),
        }
    }

    /// Sets the runtimes, once. Later calls and an empty list have no effect.
    pub fn provide(&self, handles: Vec<Handle>) {
        self.handles.send_if_modified(|current| {
            let first = current.is_none() && !handles.is_empty();
            if first {
                for handle in &handles {
                    // The task ends with its runtime.
                    handle.spawn(keep_a_timer());
                }
                *current = Some(handles.into());
            }
            first
        });
    }

    /// The next runtime in turn. Waits until there is one; the caller bounds the wait.
    pub async fn pick(&self) -> Handle {
        let handles = self.all().await;
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        handles[turn % handles.len()].clone()
    }

    /// All runtimes, at least one. Waits until they are known; the caller bounds the wait.
    pub async fn all(&self) -> Arc<[Handle]> {
        let mut known = self.handles.subscribe();
        loop {
            if let Some(handles) = known.borrow_and_update().as_ref() {
                return Arc::clone(handles);
            }
            // The sender is `self`, so this returns only when runtimes were provided.
            let _ = known.changed().await;
        }
    }
}

/// Keeps a timer pending in the current runtime. A timer that becomes the next one of its runtime makes the runtime wake
/// itself: a write, and a useless iteration of its loop. The time limit of every call would be that timer if a client waits for
/// each response before its next call.
async fn keep_a_timer() {
    loop {
        sleep(STANDING_TIMER).await;
    }
}

impl Default for Runtimes {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Runtimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.handles.borrow().as_ref().map_or(0, |all| all.len());
        f.debug_struct("Runtimes").field("known", &known).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_runtimes_and_takes_them_in_turn_from_the_first_provider() {
        let build = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .expect("a runtime can be built")
        };
        let (one, two, late) = (build(), build(), build());
        let runtimes = Arc::new(Runtimes::new());
        let ids = one.block_on(async {
            let waiting = tokio::spawn({
                let runtimes = Arc::clone(&runtimes);
                async move { runtimes.pick().await.id() }
            });
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            runtimes.provide(Vec::new());
            runtimes.provide(vec![one.handle().clone(), two.handle().clone()]);
            runtimes.provide(vec![late.handle().clone()]);
            [
                waiting.await.expect("not cancelled"),
                runtimes.pick().await.id(),
                runtimes.pick().await.id(),
            ]
        });
        assert_eq!(
            ids,
            [one.handle().id(), two.handle().id(), one.handle().id()]
        );
        // Each runtime that serves has its standing timer, and no other.
        let timers = [&two, &late].map(|runtime| runtime.metrics().num_alive_tasks());
        assert_eq!(timers, [1, 0]);
    }
}
