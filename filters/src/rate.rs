//! A keyed GCRA rate limiter with bounded memory.
//!
//! A budget is one number: the moment at which it is full again. An event postpones that moment by the time in which one event
//! is replenished, and is refused if the moment would then be further away than a full budget.
//!
//! Keys are stored as 64-bit hashes under a random seed: no text of a client is stored, checking allocates nothing, and a
//! collision (one in 10⁹ with a full table) makes two keys share a budget for a moment.
//!
//! The table contains at most [`KEYS_MAX`] keys. When a shard of it is full, keys whose budget is full again are removed, at
//! most once a second; until that has made room, new keys share one budget per shard. So a flood of invented keys neither costs
//! memory nor evades the limit, and keys already in the table are not affected.
//!
//! Replicas share a limit that has a `SharedName`: its local use is recorded in addition to the budgets, and
//! `KeyedLimiter::move_on` adds its use by others (`limits/shared.rs`).

mod shared_name;

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use governor::clock::{Clock, MonotonicClock, Reference};
use tooldock_base::budget::BudgetUse;

pub(crate) use self::shared_name::SharedName;
use crate::fingerprint::Fingerprints;

/// Maximum number of keys that one limiter remembers.
pub const KEYS_MAX: usize = 100_000;

/// Number of shards of the table, each under its own lock, so that threads rarely contend.
const SHARDS: usize = 64;

/// Nanoseconds between two sweeps of a full table for keys whose budget is full again.
const SWEEP_EVERY_NANOS: u64 = 1_000_000_000;

/// The time until the limit admits a refused key again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RetryAfter(Duration);

impl From<Duration> for RetryAfter {
    fn from(wait: Duration) -> Self {
        Self(wait)
    }
}

impl RetryAfter {
    /// The wait in seconds, rounded up and never 0: a client that waits so long is not refused for the same cause.
    pub fn seconds(self) -> u64 {
        let up = u64::from(self.0.subsec_nanos() > 0);
        (self.0.as_secs() + up).max(1)
    }

    /// The remaining time without rounding.
    pub fn duration(self) -> Duration {
        self.0
    }
}

/// A rate of events per key, with bursts. Moments are nanoseconds since the limiter's start.
#[derive(Debug)]
pub(crate) struct KeyedLimiter<C: Clock = MonotonicClock> {
    shards: Box<[Mutex<Shard>]>,
    shard_keys_max: usize,
    /// The nanoseconds after which the budget allows one more event.
    each: u64,
    /// The nanoseconds after which an empty budget is full again.
    whole: u64,
    burst: NonZeroU32,
    seed: RandomState,
    clock: C,
    start: C::Instant,
    /// True if a shard had no room for a key since the last sweep.
    full: AtomicBool,
    /// The moment before which no sweep happens.
    next_sweep: AtomicU64,
    /// The limit's name among replicas; `None` for a limit of this process alone.
    shared: Option<SharedName>,
    /// True if events were taken that were not reported to the other replicas.
    used: AtomicBool,
}

#[derive(Debug, Default)]
struct Shard {
    /// The moment at which each budget is full again.
    cells: HashMap<u64, u64, Fingerprints>,
    /// The shared budget of the keys that the full shard has no room for.
    overflow: u64,
    /// Events of a shared limit that were not reported to the other replicas.
    untold: HashMap<u64, Untold, Fingerprints>,
}

/// Events of one key that were not reported to the other replicas.
#[derive(Debug)]
struct Untold {
    name: [u8; 16],
    events: u64,
}

/// The budget of one key, with the moment at which its use was reported to the other replicas.
#[derive(Debug)]
pub(crate) struct UsedBudget {
    fingerprint: u64,
    at: u64,
}

impl<C: Clock> KeyedLimiter<C> {
    /// A limit, shared with the replicas that have a limit of the name `shared`; `None`: not shared.
    pub(crate) fn new(
        rate: NonZeroU32,
        burst: NonZeroU32,
        clock: C,
        shared: Option<SharedName>,
    ) -> Self {
        Self {
            shared,
            ..Self::with_capacity(rate, burst, clock, KEYS_MAX)
        }
    }

    fn with_capacity(rate: NonZeroU32, burst: NonZeroU32, clock: C, keys_max: usize) -> Self {
        let each = (1_000_000_000 / u64::from(rate.get())).max(1);
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_keys_max: keys_max.div_ceil(SHARDS),
            each,
            whole: each * u64::from(burst.get()),
            burst,
            seed: RandomState::new(),
            start: clock.now(),
            clock,
            full: AtomicBool::new(false),
            next_sweep: AtomicU64::new(0),
            shared: None,
            used: AtomicBool::new(false),
        }
    }

    /// Takes one event from the key's budget: returns the number that remains available, or the time to wait.
    pub(crate) fn check(&self, key: impl Hash) -> Result<u32, RetryAfter> {
        self.check_n(key, NonZeroU32::MIN)
    }

    /// Takes that number of events together, or none. More events than the burst are always refused, with the time in which an
    /// empty budget is replenished.
    pub(crate) fn check_n(&self, key: impl Hash, events: NonZeroU32) -> Result<u32, RetryAfter> {
        if events > self.burst {
            return Err(RetryAfter(Duration::from_nanos(self.whole)));
        }
        let fingerprint = self.seed.hash_one(&key);
        let taken = self.take(fingerprint, events.get(), &key);
        if self.full.load(Ordering::Relaxed) {
            self.sweep();
        }
        taken
    }

    fn take(&self, fingerprint: u64, events: u32, key: &impl Hash) -> Result<u32, RetryAfter> {
        let mut shard = self.shard(fingerprint);
        let now = self.now();
        let cell = match shard.cell(fingerprint, self.shard_keys_max) {
            Some(cell) => cell,
            None => {
                self.full.store(true, Ordering::Relaxed);
                &mut shard.overflow
            }
        };
        // A moment from other replicas can be any number, so the computation must not overflow.
        let taken = self.each.saturating_mul(u64::from(events));
        let next = (*cell).max(now).saturating_add(taken);
        let latest = now.saturating_add(self.whole);
        if next > latest {
            return Err(RetryAfter(Duration::from_nanos(next - latest)));
        }
        *cell = next;
        if let Some(name) = &self.shared {
            shard.note(fingerprint, events, self.shard_keys_max, || name.of(key));
            self.used.store(true, Ordering::Release);
        }
        // At most the burst, so it fits into 32 bits.
        Ok(((latest - next) / self.each) as u32)
    }

    /// Returns the use of each budget since the last call, for the other replicas.
    pub(crate) fn take_use(&self, mut each: impl FnMut(UsedBudget, BudgetUse)) {
        if !self.used.swap(false, Ordering::Acquire) {
            return;
        }
        let at = self.now();
        for shard in &self.shards {
            let shard = &mut *lock(shard);
            for (fingerprint, untold) in shard.untold.drain() {
                let known = shard.cells.get(&fingerprint).map_or(0, |cell| *cell);
                let budget = UsedBudget { fingerprint, at };
                let used = BudgetUse {
                    name: untold.name,
                    taken: Duration::from_nanos(self.each.saturating_mul(untold.events)),
                    whole_in: Duration::from_nanos(known.saturating_sub(at)),
                    window: Duration::from_nanos(self.whole),
                };
                each(budget, used);
            }
        }
    }

    /// Adds the use of a budget by other replicas. `whole_in` is the time until the budget is full again, from the moment at
    /// which its local use was reported.
    pub(crate) fn move_on(&self, budget: &UsedBudget, whole_in: Duration) {
        let whole_in = u64::try_from(whole_in.as_nanos()).unwrap_or(u64::MAX);
        let whole_at = budget.at.saturating_add(whole_in);
        let mut shard = self.shard(budget.fingerprint);
        if let Some(cell) = shard.cell(budget.fingerprint, self.shard_keys_max) {
            *cell = whole_at.max(*cell);
        }
    }

    fn now(&self) -> u64 {
        self.clock.now().duration_since(self.start).as_u64()
    }

    /// The shard of a key. The map in it uses the low and high bits of the fingerprint; the shard is chosen by bits between.
    fn shard(&self, fingerprint: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(fingerprint >> 32) as usize % SHARDS])
    }

    /// Removes the keys whose budget is full again. One caller a second does so; all others return immediately.
    fn sweep(&self) {
        let now = self.now();
        let due = self.next_sweep.load(Ordering::Relaxed);
        let next = now.saturating_add(SWEEP_EVERY_NANOS);
        let mine = now >= due
            && self
                .next_sweep
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if mine {
            self.full.store(false, Ordering::Relaxed);
            for shard in &self.shards {
                lock(shard).cells.retain(|_, cell| *cell > now);
            }
        }
    }

    #[cfg(test)]
    fn keys(&self) -> usize {
        let shards = self.shards.iter();
        shards.map(|shard| lock(shard).cells.len()).sum()
    }
}

impl Shard {
    /// The budget of a key; `None` if the shard has no room for a new key.
    fn cell(&mut self, key: u64, keys_max: usize) -> Option<&mut u64> {
        if self.cells.len() >= keys_max && !self.cells.contains_key(&key) {
            return None;
        }
        Some(self.cells.entry(key).or_insert(0))
    }

    /// Counts events for the report to other replicas. Events of keys that the shard has no room for are not reported.
    fn note(&mut self, key: u64, events: u32, keys_max: usize, name: impl FnOnce() -> [u8; 16]) {
        if self.untold.len() >= keys_max && !self.untold.contains_key(&key) {
            return;
        }
        let untold = self.untold.entry(key).or_insert_with(|| Untold {
            name: name(),
            events: 0,
        });
        untold.events += u64::from(events);
    }
}

/// Locks a shard. A shard is consistent between any two statements, so a panic elsewhere does not spoil it.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use governor::clock::FakeRelativeClock;

    use super::*;

    fn limiter(
        rate: u32,
        burst: u32,
        keys_max: usize,
    ) -> (FakeRelativeClock, KeyedLimiter<FakeRelativeClock>) {
        let clock = FakeRelativeClock::default();
        let limiter = KeyedLimiter::with_capacity(
            NonZeroU32::new(rate).unwrap(),
            NonZeroU32::new(burst).unwrap(),
            clock.clone(),
            keys_max,
        );
        (clock, limiter)
    }

    #[test]
    fn a_burst_passes_and_the_rate_refills_it() {
        let (clock, limiter) = limiter(5, 10, KEYS_MAX);
        assert!((0..10).all(|_| limiter.check("a").is_ok()));
        let wait = limiter.check("a").unwrap_err();
        assert_eq!(wait.duration(), Duration::from_millis(200));
        clock.advance(Duration::from_millis(200));
        assert!(limiter.check("a").is_ok());
        assert!(limiter.check("a").is_err());
    }

    #[test]
    fn what_is_left_is_told_and_events_are_taken_together_or_not_at_all() {
        let (clock, limiter) = limiter(1, 10, KEYS_MAX);
        let five = NonZeroU32::new(5).unwrap();
        assert_eq!(limiter.check("a"), Ok(9));
        assert_eq!(limiter.check_n("a", five), Ok(4));
        let wait = limiter.check_n("a", five).unwrap_err();
        assert_eq!(wait.duration(), Duration::from_secs(1));
        assert_eq!(limiter.check("a"), Ok(3));
        clock.advance(Duration::from_secs(2));
        assert_eq!(limiter.check_n("a", five), Ok(0));
        let never = limiter.check_n("a", NonZeroU32::new(11).unwrap());
        assert_eq!(never.unwrap_err().duration(), Duration::from_secs(10));
    }

    #[test]
    fn keys_do_not_share_a_budget() {
        let (_, limiter) = limiter(1, 1, KEYS_MAX);
        assert!(limiter.check("a").is_ok());
        assert!(limiter.check("b").is_ok());
        assert!(limiter.check("a").is_err());
    }

    #[test]
    fn the_wait_is_rounded_up_to_whole_seconds_and_never_zero() {
        for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (59_999, 60)] {
            assert_eq!(RetryAfter(Duration::from_millis(millis)).seconds(), seconds);
        }
    }

    #[test]
    fn a_full_table_stays_bounded_and_lets_nobody_pass_unlimited() {
        let (_, limiter) = limiter(1, 1, SHARDS);
        let admitted = (0..10_000)
            .filter(|key| limiter.check(*key).is_ok())
            .count();
        assert!(limiter.keys() <= SHARDS);
        // A key and a shared budget per part.
        assert!(admitted <= 2 * SHARDS, "{admitted}");
    }

    #[test]
    fn stale_keys_make_room_for_new_ones() {
        let (clock, limiter) = limiter(1, 2, SHARDS);
        for key in 0..10_000 {
            let _ = limiter.check(key);
        }
        clock.advance(Duration::from_secs(10));
        // Finds its part full, takes from the shared budget, and has the table swept.
        assert!(limiter.check("first").is_ok());
        assert!(limiter.keys() < SHARDS / 2);
        assert!(limiter.check("second").is_ok());
        assert!(limiter.check("second").is_ok());
        assert!(limiter.check("second").is_err());
    }

    #[test]
    fn known_keys_keep_their_own_budget_while_the_table_is_full() {
        let (_, limiter) = limiter(1, 5, SHARDS);
        assert!(limiter.check("known").is_ok());
        for key in 0..10_000 {
            let _ = limiter.check(key);
        }
        assert!((0..4).all(|_| limiter.check("known").is_ok()));
        assert!(limiter.check("known").is_err());
    }
}
