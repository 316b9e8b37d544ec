//! The async runtimes of the proxy, which perform all I/O of requests.
//!
//! At low load, moving a request to another runtime costs more than the rest of a call. So connections to workers are opened
//! and driven in the runtimes that serve clients. Those exist only after the listening service has started; until then
//! [`Runtimes::pick`] waits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;

/// Interval of the timer that each runtime always has. It is shorter than the time limits of calls, so the next timer to expire
/// is always this one, and never the time limit of a call.
const STANDING_TIMER: Duration = Duration::from_secs(1);

/// Selects the proxy's runtimes in turn. The list is empty until the proxy has started.
pub struct Runtimes {
    handles: watch::Sender<Option<Arc<[Handle]>>>,
    next: AtomicUsize,
}

impl Runtimes {
    /// Creates an empty list; the runtimes are added by [`Runtimes::provide`].
    pub fn new() -> Self {
        Self {
            handles: watch::Sender::new(None),
            next: AtomicUsize::new(0),
        }
    }

    /// Sets the runtimes. Only the first call with a non-empty list has an effect.
    pub fn provide(&self, handles: Vec<Handle>) {
        self.handles.send_if_modified(|current| {
            let first = current.is_none() && !handles.is_empty();
            if first {
                for handle in &handles {
                    // The task ends when its runtime is shut down.
                    handle.spawn(keep_a_timer());
                }
                *current = Some(handles.into());
            }
            first
        });
    }

    /// Returns the next runtime in turn. Waits until the runtimes are set; the caller must limit the wait.
    pub async fn pick(&self) -> Handle {
        let handles = self.all().await;
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        handles[turn % handles.len()].clone()
    }

    /// Returns all runtimes, at least one. Waits until they are set; the caller must limit the wait.
    pub async fn all(&self) -> Arc<[Handle]> {
        let mut known = self.handles.subscribe();
        loop {
            if let Some(handles) = known.borrow_and_update().as_ref() {
                return Arc::clone(handles);
            }
            // Cannot fail: `self` owns the sender, so the channel stays open. The call returns when the runtimes are set.
            let _ = known.changed().await;
        }
    }
}

/// Keeps a timer pending in the current runtime; the timer expires before the time limits of calls. If a timer is set that
/// expires before all others of its runtime, the runtime wakes itself, which costs a system call and an iteration of the event
/// loop. Without this timer, that would happen for the time limit of every call of a client that sends one call at a time.
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
