//! The time of a session's last use, readable and writable without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Time of a session's last use, in nanoseconds since the session was created; 64 bits suffice for 500 years. 0 means never used.
#[derive(Debug)]
pub(super) struct LastUse {
    created: Instant,
    nanos: AtomicU64,
}

impl LastUse {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            created: now,
            nanos: AtomicU64::new(0),
        }
    }

    /// Sets the last use to `now` unless a later time is stored: two concurrent requests may report their times in either order.
    pub(super) fn touch(&self, now: Instant) {
        let nanos = now.saturating_duration_since(self.created).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX).max(1);
        self.nanos.fetch_max(nanos, Ordering::Relaxed);
    }

    pub(super) fn is_touched(&self) -> bool {
        self.nanos.load(Ordering::Relaxed) > 0
    }

    pub(super) fn at(&self) -> Instant {
        self.created + Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}
