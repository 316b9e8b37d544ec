//! Combines changes that belong together into one reload, for example those of a copied folder or of a checked out branch.

use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

/// Maximum duration of a burst of changes, as a multiple of the quiet time. Without it, a file that changes all the time would
/// prevent every reload.
const LONGEST: u32 = 10;

/// Rule that decides when a burst of changes is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Burst {
    quiet: Duration,
}

impl Burst {
    /// Creates a rule: a burst is over after `quiet` without a change.
    pub(super) fn new(quiet: Duration) -> Self {
        Self { quiet }
    }

    /// Waits for a change, and then until nothing has changed for the quiet time or the maximum duration of a burst is over.
    pub(super) async fn settled(self, mark: &Notify) {
        mark.notified().await;
        let longest = Instant::now() + self.quiet * LONGEST;
        let more = async { while timeout(self.quiet, mark.notified()).await.is_ok() {} };
        let _ = timeout_at(longest, more).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const QUIET: Duration = Duration::from_millis(1500);

    #[tokio::test(start_paused = true)]
    async fn ten_quick_changes_are_one() {
        let mark = Arc::new(Notify::new());
        let changing = Arc::clone(&mark);
        let begun = Instant::now();
        tokio::spawn(async move {
            for _ in 0..10 {
                changing.notify_one();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        Burst::new(QUIET).settled(&mark).await;
        assert_eq!(begun.elapsed(), Duration::from_millis(900) + QUIET);
        let another = timeout(QUIET * 100, Burst::new(QUIET).settled(&mark));
        assert!(another.await.is_err(), "no second one");
    }

    #[tokio::test(start_paused = true)]
    async fn changes_without_end_are_told_all_the_same() {
        let mark = Arc::new(Notify::new());
        let changing = Arc::clone(&mark);
        let begun = Instant::now();
        tokio::spawn(async move {
            loop {
                changing.notify_one();
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        Burst::new(QUIET).settled(&mark).await;
        assert_eq!(begun.elapsed(), QUIET * LONGEST);
    }
}
