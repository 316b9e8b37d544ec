//! Stop of a worker's processes for lack of calls (`workers.idle_stop`). All processes of a worker stop together, and the next call
//! starts all of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::member::PublishedState;

/// Number of checks for calls within `idle_stop`. A worker is stopped after that many checks without calls, so at the latest a
/// quarter of `idle_stop` too late.
const CHECKS: u32 = 4;

/// The task that stops a worker without calls. Dropping the value ends the task.
pub(super) struct IdleWatch(AbortHandle);

impl IdleWatch {
    /// Starts the task in the current runtime. It sets `wanted` to false each time no process of the worker had a call for
    /// `idle_stop`.
    pub(super) fn start(
        idle_stop: Duration,
        members: Vec<Arc<PublishedState>>,
        wanted: watch::Sender<bool>,
    ) -> Self {
        let task = tokio::spawn(async move {
            let every = (idle_stop / CHECKS).max(Duration::from_millis(1));
            let mut checks = interval_at(Instant::now() + every, every);
            checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut unused = 0;
            loop {
                checks.tick().await;
                // Each member is asked, because the question resets its mark.
                let used = members.iter().filter(|it| it.take_used()).count();
                unused = if used == 0 { unused + 1 } else { 0 };
                if unused >= CHECKS {
                    unused = 0;
                    wanted.send_replace(false);
                }
            }
        });
        Self(task.abort_handle())
    }
}

impl Drop for IdleWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}
