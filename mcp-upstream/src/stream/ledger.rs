//! The bounds over all kept streams: memory in total, and age.
//!
//! What the streams of one principal hold is one [`Share`]. Sequences increase in the process, so the oldest event of a
//! share is the one with the smallest sequence. A share keeps one entry per stream that holds events, under the sequence of
//! an event no newer than the stream's oldest, and puts an entry that turns out to be behind where it belongs. So appending
//! to a stream that holds something touches two atomics here, and neither bound ever walks the streams.
//!
//! Where the total is reached, the principal that holds the most gives way: its oldest event goes, even where another principal appended. A
//! principal that holds less than its equal part of the total therefore loses nothing to the others. Within a principal one
//! session may hold a 64th of the total, and at least what one stream may; the log sees to that when it appends.

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

/// The most entries one sweep looks at, and of each share at least so many.
const SWEEP_MAX: usize = 100_000;
const SWEEP_SHARE_MIN: usize = 1000;

/// All sessions' streams together may hold so many times what one session's may. A session may always hold what one
/// stream may.
const SESSIONS_MIN: usize = 64;

type Principal = Option<Arc<str>>;

/// Counts what all kept streams hold.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The last sequence given out.
    sequence: AtomicU64,
    bytes: AtomicUsize,
    limits: EventLogConfig,
    bounds: Bounds,
    /// What the streams of one session may hold, in bytes.
    session_max: usize,
    /// Of the principals that have streams, and for a while of those that had. Taken before a share's entries; never
    /// together with a stream's lock.
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

    /// What the streams of one session may hold together, in bytes.
    pub(super) fn session_max(&self) -> usize {
        self.session_max
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Gives out only later sequences from now on: another process gave this one.
    pub(super) fn raise(&self, sequence: u64) {
        self.sequence.fetch_max(sequence, Ordering::Relaxed);
    }

    /// The last sequence given out.
    pub(super) fn newest_sequence(&self) -> u64 {
        self.sequence.load(Ordering::Relaxed)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The share of a principal, made when it has none.
    pub(super) fn share(self: &Arc<Self>, principal: Option<&Arc<str>>) -> Arc<Share> {
        let mut shares = self.shares();
        let known = shares.get(&principal.cloned()).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let share = Arc::new(Share::new(Arc::clone(self)));
            shares.insert(principal.cloned(), Arc::downgrade(&share));
            share
        })
    }

    /// Takes out events until all are within their total, each time the oldest of the principal that then holds the most.
    pub(super) fn enforce_total(&self) {
        let total = in_memory(self.limits.total);
        while self.bytes() > total {
            // Nothing listed: another thread is just about to take it out.
            if !self.fullest().is_some_and(|share| share.evict_oldest()) {
                return;
            }
        }
    }

    /// Takes out the events whose time is up.
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

    /// The share of the principal that holds the most. There are few principals, and this is asked only when the total is
    /// reached.
    fn fullest(&self) -> Option<Arc<Share>> {
        let shares = self.shares();
        let shares = shares.values().filter_map(Weak::upgrade);
        shares.max_by_key(|share| share.bytes())
    }

    /// Entries there are.
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

/// A configured size as one of this machine.
pub(crate) fn in_memory(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}
