//! A rate limiter (GCRA) with a separate budget per key and bounded memory.
//!
//! A budget is stored as one number: the time at which it is full again. Each event postpones that time by the interval in which
//! one event is replenished. An event is refused if it would postpone that time beyond the one of an empty budget.
//!
//! Keys are stored as 64-bit hashes with a random seed. So no text from a client is stored, and a check allocates nothing. Two
//! keys with the same hash share a budget for a while; with a full table that happens to one key in 10⁹.
//!
//! The table contains at most [`KEYS_MAX`] keys in several shards. When a shard is full, keys whose budget is full again are
//! removed, at most once a second. Until that has made room, all new keys share one budget per shard. So a flood of invented keys
//! neither uses more memory nor evades the limit, and keys already in the table are not affected.
//!
//! A limit with a `SharedName` is shared by replicas: its local use is also recorded for the other replicas, and
//! `KeyedLimiter::move_on` applies the use by the others (`limits/shared.rs`).

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

/// Maximum number of keys with a separate budget in one limiter. Further keys share a budget.
pub const KEYS_MAX: usize = 100_000;

/// Number of shards of the table. Each has a lock of its own, so that threads rarely wait for each other.
const SHARDS: usize = 64;

/// Minimum time between two clean-ups of a full table, in nanoseconds. A clean-up removes keys whose budget is full again.
const SWEEP_EVERY_NANOS: u64 = 1_000_000_000;

/// Time after which a rate limit would admit a refused request again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RetryAfter(Duration);

impl From<Duration> for RetryAfter {
    fn from(wait: Duration) -> Self {
        Self(wait)
    }
}

impl RetryAfter {
    /// The time to wait in seconds, rounded up and at least 1. A client that waits this long is not refused by the same limit.
    pub fn seconds(self) -> u64 {
        let up = u64::from(self.0.subsec_nanos() > 0);
        (self.0.as_secs() + up).max(1)
    }

    /// The time to wait, without rounding.
    pub fn duration(self) -> Duration {
        self.0
    }
}

/// A rate limiter with a separate budget per key, which allows bursts. All times are nanoseconds since the limiter's start.
#[derive(Debug)]
pub(crate) struct KeyedLimiter<C: Clock = MonotonicClock> {
    shards: Box<[Mutex<Shard>]>,
    shard_keys_max: usize,
    /// Time in which a budget is replenished by one event, in nanoseconds.
    each: u64,
    /// Time in which an empty budget is completely replenished, in nanoseconds.
    whole: u64,
    burst: NonZeroU32,
    seed: RandomState,
    clock: C,
    start: C::Instant,
    /// True if a shard had no room for a new key since the last clean-up; then the next check starts a clean-up.
    full: AtomicBool,
    /// Earliest time of the next clean-up.
    next_sweep: AtomicU64,
    /// Name by which replicas identify the limit; `None` if the limit is not shared.
    shared: Option<SharedName>,
    /// True if there are events that have not been reported to other replicas yet.
    used: AtomicBool,
}

#[derive(Debug, Default)]
struct Shard {
    /// For each key's hash, the time at which its budget is full again.
    cells: HashMap<u64, u64, Fingerprints>,
    /// The budget that all keys without room in the full shard share: the time at which it is full again.
    overflow: u64,
    /// For each key's hash, events of a shared limit that have not been reported to other replicas yet.
    untold: HashMap<u64, UnreportedEvents, Fingerprints>,
}

/// Events of one key that have not been reported to other replicas yet.
#[derive(Debug)]
struct UnreportedEvents {
    name: [u8; 16],
    events: u64,
}

/// A key whose use is being reported to other replicas, and the time of the report.
#[derive(Debug)]
pub(crate) struct UsedBudget {
    fingerprint: u64,
    at: u64,
}

impl<C: Clock> KeyedLimiter<C> {
    /// Creates a limiter. If `shared` is given, its budgets are shared with all replicas that have a limit of that name.
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

    /// Takes one event from the key's budget. Returns the number of events that remain, or the time to wait.
    pub(crate) fn check(&self, key: impl Hash) -> Result<u32, RetryAfter> {
        self.check_n(key, NonZeroU32::MIN)
    }

    /// Takes several events from the key's budget together, or none of them. More events than the burst are always refused; the
    /// time to wait is then that of an empty budget.
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
        // The stored time may come from other replicas and can be any number, so the computation must not overflow.
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
        // The result is at most the burst, so it fits into 32 bits.
        Ok(((latest - next) / self.each) as u32)
    }

    /// Passes the use of each budget since the previous call to `each`, to be reported to other replicas.
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

    /// Applies the use of a budget by other replicas. `whole_in` is the time until the budget is full again, counted from the
    /// time of the report about its local use.
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

    /// Locks the shard of a key. The shard is chosen by the middle bits of the hash, since the map within the shard uses the low
    /// and high bits.
    fn shard(&self, fingerprint: u64) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(fingerprint >> 32) as usize % SHARDS])
    }

    /// Removes the keys whose budget is full again. Does nothing if the last clean-up was less than a second ago.
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
    /// The budget of a key. Returns `None` if the key is new and the shard is full.
    fn cell(&mut self, key: u64, keys_max: usize) -> Option<&mut u64> {
        if self.cells.len() >= keys_max && !self.cells.contains_key(&key) {
            return None;
        }
        Some(self.cells.entry(key).or_insert(0))
    }

    /// Records events that must be reported to other replicas. Events of keys that do not fit into the shard are not reported.
    fn note(&mut self, key: u64, events: u32, keys_max: usize, name: impl FnOnce() -> [u8; 16]) {
        if self.untold.len() >= keys_max && !self.untold.contains_key(&key) {
            return;
        }
        let untold = self.untold.entry(key).or_insert_with(|| UnreportedEvents {
            name: name(),
            events: 0,
        });
        untold.events += u64::from(events);
    }
}

/// Locks a shard. The lock's poisoning is ignored: a panic cannot leave a shard inconsistent.
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
