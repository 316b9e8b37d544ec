//! A keyed GCRA limiter whose memory is bounded, on top of `governor`.
//!
//! Keys are stored as 64-bit hashes under a random seed: no text of a client is kept, checking allocates nothing, and
//! a collision (one in 10⁹ with a full table) makes two keys share a budget for a moment.
//!
//! The table holds at most [`KEYS_MAX`] keys. When a part of it is full, the keys that are as good as new are dropped, at
//! most once a second; until that made room, keys that found no place share one budget per part. So a flood of made-up
//! keys costs neither memory nor lets its keys pass unlimited, and keys already in the table do not notice.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ahash::RandomState;
use governor::clock::{Clock, MonotonicClock, Reference};
use governor::middleware::{NoOpMiddleware, StateInformationMiddleware, StateSnapshot};
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::state::keyed::ShrinkableKeyedStateStore;
use governor::{NotUntil, Quota, RateLimiter};

use crate::fingerprint::Fingerprints;

/// How many keys one limiter remembers.
pub const KEYS_MAX: usize = 100_000;

/// Parts of the table, each under its own lock, so that requests on several threads rarely meet.
const SHARDS: usize = 64;

/// How long to wait before a full table is looked through for stale keys again.
const SWEEP_EVERY_NANOS: u64 = 1_000_000_000;

/// How long until a refused key has budget again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RetryAfter(Duration);

impl From<Duration> for RetryAfter {
    fn from(wait: Duration) -> Self {
        Self(wait)
    }
}

impl RetryAfter {
    /// The wait in whole seconds, rounded up and never 0: a client that waits so long is not refused for the same cause.
    pub fn seconds(self) -> u64 {
        let up = u64::from(self.0.subsec_nanos() > 0);
        (self.0.as_secs() + up).max(1)
    }

    /// The exact wait.
    pub fn duration(self) -> Duration {
        self.0
    }
}

/// So many events per second and key, with bursts.
#[derive(Debug)]
pub(crate) struct KeyedLimiter<C: Clock = MonotonicClock> {
    limiter: RateLimiter<u64, Cells, C, StateInformationMiddleware>,
    seed: RandomState,
    /// Set by the table when a key found no place; `governor` keeps the table itself to itself.
    full: Arc<AtomicBool>,
    /// How long an empty budget takes to be whole again.
    whole: Duration,
    start: C::Instant,
    /// Nanoseconds since `start` before which no sweep happens.
    next_sweep: AtomicU64,
}

impl<C: Clock> KeyedLimiter<C> {
    pub(crate) fn new(rate: NonZeroU32, burst: NonZeroU32, clock: C) -> Self {
        Self::with_capacity(rate, burst, clock, KEYS_MAX)
    }

    fn with_capacity(rate: NonZeroU32, burst: NonZeroU32, clock: C, keys_max: usize) -> Self {
        let full = Arc::new(AtomicBool::new(false));
        let start = clock.now();
        let quota = Quota::per_second(rate).allow_burst(burst);
        Self {
            whole: quota.burst_size_replenished_in(),
            limiter: RateLimiter::<_, _, _, NoOpMiddleware<C::Instant>>::new(
                quota,
                Cells::new(keys_max, Arc::clone(&full)),
                clock,
            )
            .with_middleware(),
            seed: RandomState::new(),
            full,
            start,
            next_sweep: AtomicU64::new(0),
        }
    }

    /// Takes one event from the key's budget: how many are left at once, or how long to wait.
    pub(crate) fn check(&self, key: impl Hash) -> Result<u32, RetryAfter> {
        let outcome = self.limiter.check_key(&self.seed.hash_one(key));
        self.taken(outcome)
    }

    /// Takes so many events at once, or none. More than the burst never fit; such a weight waits as long as a whole budget
    /// takes to fill.
    pub(crate) fn check_n(&self, key: impl Hash, events: NonZeroU32) -> Result<u32, RetryAfter> {
        let fingerprint = self.seed.hash_one(key);
        match self.limiter.check_key_n(&fingerprint, events) {
            Ok(outcome) => self.taken(outcome),
            Err(_) => Err(RetryAfter(self.whole)),
        }
    }

    /// What came of taking: what is left, or how long to wait.
    fn taken(
        &self,
        outcome: Result<StateSnapshot, NotUntil<C::Instant>>,
    ) -> Result<u32, RetryAfter> {
        if self.full.load(Ordering::Relaxed) {
            self.sweep();
        }
        match outcome {
            Ok(state) => Ok(state.remaining_burst_capacity()),
            Err(until) => Err(RetryAfter(until.wait_time_from(self.limiter.clock().now()))),
        }
    }

    /// Drops the keys whose budget is whole again. One caller a second does it, the others go on.
    fn sweep(&self) {
        let now = self.limiter.clock().now().duration_since(self.start);
        let now = now.as_u64();
        let due = self.next_sweep.load(Ordering::Relaxed);
        let next = now.saturating_add(SWEEP_EVERY_NANOS);
        let mine = now >= due
            && self
                .next_sweep
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if mine {
            self.full.store(false, Ordering::Relaxed);
            self.limiter.retain_recent();
        }
    }
}

/// The table: per key the moment its budget is whole again, as `governor` counts it.
#[derive(Debug)]
struct Cells {
    shards: Box<[Mutex<Shard>]>,
    shard_keys_max: usize,
    full: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Shard {
    cells: HashMap<u64, Nanos, Fingerprints>,
    /// The budget of the keys that found no place.
    overflow: Option<Nanos>,
}

impl Cells {
    fn new(keys_max: usize, full: Arc<AtomicBool>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_keys_max: keys_max.div_ceil(SHARDS),
            full,
        }
    }
}

/// A shard is consistent between any two statements, so a panic elsewhere does not spoil it.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StateStore for Cells {
    type Key = u64;

    fn measure_and_replace<T, F, E>(&self, key: &u64, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        // The map below uses the low and high bits of the fingerprint; the shard takes bits between them.
        let shard = &mut *lock(&self.shards[(key >> 32) as usize % SHARDS]);
        if let Some(cell) = shard.cells.get_mut(key) {
            let (outcome, next) = f(Some(*cell))?;
            *cell = next;
            Ok(outcome)
        } else if shard.cells.len() < self.shard_keys_max {
            let (outcome, next) = f(None)?;
            shard.cells.insert(*key, next);
            Ok(outcome)
        } else {
            self.full.store(true, Ordering::Relaxed);
            let (outcome, next) = f(shard.overflow)?;
            shard.overflow = Some(next);
            Ok(outcome)
        }
    }
}

impl ShrinkableKeyedStateStore<u64> for Cells {
    fn retain_recent(&self, drop_below: Nanos) {
        for shard in &self.shards {
            lock(shard).cells.retain(|_, cell| *cell > drop_below);
        }
    }

    fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| lock(shard).cells.len())
            .sum()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
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
        assert!(limiter.limiter.len() <= SHARDS);
        // One key and one shared budget per part.
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
        assert!(limiter.limiter.len() < SHARDS / 2);
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
