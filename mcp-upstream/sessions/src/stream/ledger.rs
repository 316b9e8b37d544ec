//! Bounds over all kept streams: total memory, and age.
//!
//! A [`Share`] accounts the streams of one principal. It has one entry per stream with events, ordered by the time and the
//! sequence of an event no newer than the stream's oldest, and moves an outdated entry to its correct place when it encounters
//! one. So appending to a stream with events touches two atomics, and neither bound ever walks the streams.
//!
//! When the total is reached, the oldest event of the principal that uses the most memory is removed, even if another principal
//! appended. A principal that uses less than its equal part of the total therefore loses no events to other principals. Within
//! a principal one session may use a 64th of the total, and at least the bound of one stream; the log enforces that when it
//! appends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytesize::ByteSize;
use tokio::time::Instant;

use super::StreamMetrics;
use super::config::EventLogConfig;
use super::window::Bounds;

mod share;

pub(super) use share::Share;

/// Maximum number of entries that one sweep checks.
const SWEEP_MAX: usize = 100_000;
/// Minimum number of entries that one sweep checks of each share.
const SWEEP_SHARE_MIN: usize = 1000;

/// Ratio of the total for the streams of all sessions to the bound for the streams of one session. A session may always hold as
/// much as one stream may.
const SESSIONS_MIN: usize = 64;

type Principal = Option<Arc<str>>;

/// Accounts the memory of all kept streams.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The last assigned sequence.
    sequence: AtomicU64,
    bytes: AtomicUsize,
    limits: EventLogConfig,
    bounds: Bounds,
    /// Maximum memory that the streams of one session may hold together, in bytes.
    session_max: usize,
    /// Shares of the principals that have streams, and until the next sweep of principals that had some. Locked before a share's
    /// entries; never together with a stream's lock.
    shares: Mutex<HashMap<Principal, Weak<Share>>>,
    pub(super) metrics: Arc<StreamMetrics>,
}

impl Ledger {
    pub(super) fn new(limits: EventLogConfig, metrics: Arc<StreamMetrics>) -> Self {
        let bounds = Bounds {
            events: limits.events,
            bytes: in_memory(limits.bytes),
        };
        Self {
            sequence: AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
            session_max: (in_memory(limits.total) / SESSIONS_MIN).max(bounds.max_cost()),
            bounds,
            limits,
            shares: Mutex::default(),
            metrics,
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Maximum memory that the streams of one session may hold together, in bytes.
    pub(super) fn session_max(&self) -> usize {
        self.session_max
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The sequence for an event after `newest` of its stream. A stream of another process may be ahead of this process: its
    /// sequences then continue from `newest`, so that they do not depend on other sessions of the process.
    pub(super) fn next_after(&self, newest: u64) -> u64 {
        self.next_sequence().max(newest.saturating_add(1))
    }

    /// Counts events that are nowhere else, up to `sequence`.
    #[cfg(test)]
    pub(super) fn count_up_to(&self, sequence: u64) {
        self.sequence.fetch_max(sequence, Ordering::Relaxed);
    }

    /// The last assigned sequence.
    pub(super) fn newest_sequence(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The share of a principal, created on first use.
    pub(super) fn share(self: &Arc<Self>, principal: Option<&Arc<str>>) -> Arc<Share> {
        let mut shares = self.shares();
        let known = shares.get(&principal.cloned()).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let share = Arc::new(Share::new(Arc::clone(self)));
            shares.insert(principal.cloned(), Arc::downgrade(&share));
            share
        })
    }

    /// Removes events until the kept streams fit their total, each time the oldest event of the principal that uses the most
    /// memory.
    pub(super) fn enforce_total(&self) {
        let total = in_memory(self.limits.total);
        while self.bytes() > total {
            // There is no entry: another thread is about to remove the event.
            if !self.fullest().is_some_and(|share| share.evict_oldest()) {
                return;
            }
        }
    }

    /// Removes expired events.
    pub(super) fn sweep(&self, now: Instant) {
        let bytes = i64::try_from(self.bytes()).unwrap_or(i64::MAX);
        self.metrics.log_bytes.set(bytes);
        let shares: Vec<_> = {
            let mut shares = self.shares();
            shares.retain(|_, share| share.strong_count() > 0);
            shares.values().filter_map(Weak::upgrade).collect()
        };
        let Some(since) = now.checked_sub(self.limits.age) else {
            return;
        };
        let each = SWEEP_MAX / shares.len().max(1);
        for share in shares {
            share.sweep(since, each.max(SWEEP_SHARE_MIN));
        }
    }

    /// The share of the principal that uses the most memory; walks all shares. There are few principals, and this is called
    /// only when the total is reached.
    fn fullest(&self) -> Option<Arc<Share>> {
        let shares = self.shares();
        let shares = shares.values().filter_map(Weak::upgrade);
        shares.max_by_key(|share| share.bytes())
    }

    /// The number of entries of all shares.
    #[cfg(test)]
    pub(super) fn listed(&self) -> usize {
        let shares = self.shares();
        let shares = shares.values().filter_map(Weak::upgrade);
        shares.map(|share| share.listed()).sum()
    }

    fn shares(&self) -> MutexGuard<'_, HashMap<Principal, Weak<Share>>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A configured size as a `usize` of this machine.
pub fn in_memory(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}
