//! Bounds over all kept streams: total memory, and age.
//!
//! A [`Share`] accounts the streams of one principal. It has one entry per stream with events, in the order of the stream's
//! oldest event. An entry is not updated when that event is removed: it may be too old, and is corrected when it comes first.
//! Appending to a stream with events therefore only changes two atomics, and neither bound ever walks all streams.
//!
//! When the total is reached, the oldest event of the principal that uses the most memory is removed, even if another principal
//! appended. A principal that uses less than an equal part of the total therefore loses no events to other principals. Among
//! a principal's sessions, each may use a 64th of the total, and at least the bound of one stream; the log enforces that when
//! it appends.

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
/// Minimum number of entries that one sweep checks of each principal's share.
const SWEEP_SHARE_MIN: usize = 1000;

/// Number by which the total of all kept streams is divided to get the bound of one session's streams. A session may always use
/// as much as one stream may.
const SESSIONS_MIN: usize = 64;

type Principal = Option<Arc<str>>;

/// Accounts the memory of all kept streams.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Sequence (number of an event) that was assigned most recently.
    sequence: AtomicU64,
    bytes: AtomicUsize,
    limits: EventLogConfig,
    bounds: Bounds,
    /// Maximum memory that the streams of one session may use together, in bytes.
    session_max: usize,
    /// Accounts of the memory that each principal's kept streams use. The account of a principal without streams is removed by
    /// the next sweep. Locked before the entries of an account; never together with a stream's lock.
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

    /// Maximum memory that the streams of one session may use together, in bytes.
    pub(super) fn session_max(&self) -> usize {
        self.session_max
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Assigns the sequence for an event after `newest` of the same stream. On a stream of another process, `newest` may be
    /// higher than the sequences of this process: the stream then continues from `newest`.
    pub(super) fn next_after(&self, newest: u64) -> u64 {
        self.next_sequence().max(newest.saturating_add(1))
    }

    /// Raises the last assigned sequence to `sequence`, for tests.
    #[cfg(test)]
    pub(super) fn count_up_to(&self, sequence: u64) {
        self.sequence.fetch_max(sequence, Ordering::Relaxed);
    }

    /// Sequence (number of an event) that was assigned most recently.
    pub(super) fn newest_sequence(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the account of the memory of a principal's kept streams. It is created on first use.
    pub(super) fn share(self: &Arc<Self>, principal: Option<&Arc<str>>) -> Arc<Share> {
        let mut shares = self.shares();
        let known = shares.get(&principal.cloned()).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let share = Arc::new(Share::new(Arc::clone(self)));
            shares.insert(principal.cloned(), Arc::downgrade(&share));
            share
        })
    }

    /// Removes events until the kept streams fit into their total. Each removed event is the oldest of the principal that uses
    /// the most memory.
    pub(super) fn enforce_total(&self) {
        let total = in_memory(self.limits.total);
        while self.bytes() > total {
            // If the account has no entry, another thread is about to remove the event.
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

    /// Returns the memory account of the principal that uses the most memory. Walks all accounts: there are few principals, and
    /// this is called only when the total is reached.
    fn fullest(&self) -> Option<Arc<Share>> {
        let shares = self.shares();
        let shares = shares.values().filter_map(Weak::upgrade);
        shares.max_by_key(|share| share.bytes())
    }

    /// Number of entries of all accounts.
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

/// Converts a configured size to `usize`, at most the maximum of this machine.
pub fn in_memory(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}
