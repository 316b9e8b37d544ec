//! Counts wrong credentials by their origin, and delays clients that try many.
//!
//! A key of the table is a client's address, a user name, or the user of a local process. The first failures of a key cause no
//! delay. After them a *spell* begins: each failure starts a delay, twice as long as the previous one, and further failures
//! within the delay are answered with its remaining time. A key without failures for [`FailureLimits::window`] after its delay is
//! reset.
//!
//! Only failures are counted. Callers check a credential first and count only wrong ones, so a valid credential is never
//! delayed, whatever its origin.
//!
//! Keys are stored as hashes under a random seed. Their number is bounded: if a shard of the table is full of active spells, all
//! further keys of that shard share one entry.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hash};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Maximum number of keys in one table of failures.
const KEYS_MAX: usize = 16_384;
/// Number of shards of the table. Each has a separate lock.
const SHARDS: usize = 16;
/// Maximum number of doublings of the delay. The delay has then reached its maximum in any case.
const DOUBLINGS_MAX: u32 = 20;
/// The delay after the first failure that starts one. Each later delay is twice as long as the one before it, up to the
/// maximum.
const FIRST_DELAY: Duration = Duration::from_secs(1);

/// The number of failures without a delay, and the limits of the delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureLimits {
    /// Number of failures of one key that are refused without a delay; at least 1. Later failures are delayed.
    pub free: u32,
    /// Time without failures after which the count of a key is reset.
    pub window: Duration,
    /// Maximum length of a delay that failures cause.
    pub max_delay: Duration,
}

/// The consequence of a failure for the answer to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureOutcome {
    /// The wrong credential is refused immediately.
    Answered,
    /// The wrong credential is refused immediately. It is the failure that starts the first delay of its key.
    SpellBegan,
    /// The wrong credential was sent during the delay that earlier failures of its key have caused. Contains the rest of that
    /// delay.
    Delayed(Duration),
}

impl FailureOutcome {
    /// The stricter of two outcomes. Used for a failure that is counted for two keys.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Delayed(one), Self::Delayed(other)) => Self::Delayed(one.max(other)),
            (delayed @ Self::Delayed(_), _) | (_, delayed @ Self::Delayed(_)) => delayed,
            (Self::SpellBegan, _) | (_, Self::SpellBegan) => Self::SpellBegan,
            (Self::Answered, Self::Answered) => Self::Answered,
        }
    }
}

/// The failures of all keys of one kind.
#[derive(Debug)]
pub struct FailureTable {
    limits: FailureLimits,
    seed: RandomState,
    /// The shards of the table. A panic while a lock is held does not make a shard unusable.
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug, Default)]
struct Shard {
    spells: HashMap<u64, FailureStreak>,
    /// The failures and delays that are counted together for all keys for which this shard has no free entry.
    overflow: FailureStreak,
    /// Earliest time of the next search for entries that can be removed.
    next_sweep: Duration,
}

/// The failures of one key. Times are measured from the start of the caller's clock.
#[derive(Debug, Clone, Copy, Default)]
struct FailureStreak {
    failures: u32,
    /// The end of the delay. If there is no delay, the time of the last failure.
    until: Duration,
}

impl FailureStreak {
    fn is_over(&self, limits: &FailureLimits, now: Duration) -> bool {
        now >= self.until.saturating_add(limits.window)
    }

    fn note(&mut self, limits: &FailureLimits, now: Duration) -> FailureOutcome {
        if self.is_over(limits, now) {
            *self = Self::default();
        }
        if self.failures >= limits.free && now < self.until {
            return FailureOutcome::Delayed(self.until - now);
        }
        self.failures = self.failures.saturating_add(1);
        let Some(doublings) = self.failures.checked_sub(limits.free) else {
            self.until = now;
            return FailureOutcome::Answered;
        };
        let delay = FIRST_DELAY * 2_u32.pow(doublings.min(DOUBLINGS_MAX));
        self.until = now + delay.min(limits.max_delay);
        match doublings {
            0 => FailureOutcome::SpellBegan,
            _ => FailureOutcome::Answered,
        }
    }
}

impl FailureTable {
    /// Creates a table without failures.
    pub fn new(limits: FailureLimits) -> Self {
        Self {
            limits,
            seed: RandomState::new(),
            shards: Default::default(),
        }
    }

    /// The limits that the table applies.
    pub fn limits(&self) -> FailureLimits {
        self.limits
    }

    /// Counts a failure. `now` is the time since a fixed moment that must be the same for all calls.
    pub fn note(&self, key: impl Hash, now: Duration) -> FailureOutcome {
        let hash = self.seed.hash_one(key);
        let shard = &self.shards[(hash >> 32) as usize % SHARDS];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let shard = &mut *shard;
        if let Some(spell) = shard.spells.get_mut(&hash) {
            return spell.note(&self.limits, now);
        }
        if shard.spells.len() >= KEYS_MAX / SHARDS && now >= shard.next_sweep {
            shard.next_sweep = now + Duration::from_secs(1);
            shard
                .spells
                .retain(|_, spell| !spell.is_over(&self.limits, now));
        }
        match shard.spells.len() < KEYS_MAX / SHARDS {
            true => shard.spells.entry(hash).or_default(),
            false => &mut shard.overflow,
        }
        .note(&self.limits, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: FailureLimits = FailureLimits {
        free: 3,
        window: Duration::from_secs(60),
        max_delay: Duration::from_secs(8),
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_spell_begins_after_the_free_failures_and_its_delays_grow_to_the_longest() {
        let table = FailureTable::new(LIMITS);
        let note = |now: u64| table.note("a", at(now));
        assert_eq!(note(0), FailureOutcome::Answered);
        assert_eq!(note(0), FailureOutcome::Answered);
        assert_eq!(note(0), FailureOutcome::SpellBegan);
        assert_eq!(note(0), FailureOutcome::Delayed(at(1)));
        let mut now = 1;
        for delay in [2, 4, 8, 8, 8] {
            assert_eq!(note(now), FailureOutcome::Answered);
            assert_eq!(note(now), FailureOutcome::Delayed(at(delay)));
            assert_eq!(note(now + delay - 1), FailureOutcome::Delayed(at(1)));
            now += delay;
        }
        assert_eq!(table.note("b", at(now)), FailureOutcome::Answered);
    }

    #[test]
    fn a_key_starts_anew_after_a_window_without_failures() {
        let table = FailureTable::new(LIMITS);
        for _ in 0..4 {
            table.note("a", at(0));
        }
        assert_eq!(table.note("a", at(61)), FailureOutcome::Answered);
        assert_eq!(table.note("a", at(61)), FailureOutcome::Answered);
        assert_eq!(table.note("a", at(61)), FailureOutcome::SpellBegan);
        // Slow failures never begin a spell.
        let slow = FailureTable::new(LIMITS);
        for minute in 1..20 {
            assert_eq!(slow.note("a", at(minute * 60)), FailureOutcome::Answered);
        }
    }

    #[test]
    fn made_up_keys_take_bounded_room_and_no_spell_of_others() {
        let table = FailureTable::new(LIMITS);
        for _ in 0..4 {
            table.note("known", at(0));
        }
        for number in 0..100_000_u32 {
            table.note(number, at(0));
        }
        let kept = |table: &FailureTable| -> usize {
            let shards = table.shards.iter();
            shards.map(|it| it.lock().unwrap().spells.len()).sum()
        };
        assert!(kept(&table) <= KEYS_MAX);
        assert_eq!(table.note("known", at(0)), FailureOutcome::Delayed(at(1)));
        // Later there is room again.
        for number in 0..100_u32 {
            table.note(("later", number), at(200));
        }
        assert!(kept(&table) < KEYS_MAX);
    }

    #[test]
    fn of_two_keys_the_stricter_decides() {
        use FailureOutcome::{Answered, Delayed, SpellBegan};
        assert_eq!(Delayed(at(1)).stricter(Delayed(at(2))), Delayed(at(2)));
        assert_eq!(SpellBegan.stricter(Delayed(at(2))), Delayed(at(2)));
        assert_eq!(Answered.stricter(SpellBegan), SpellBegan);
        assert_eq!(Answered.stricter(Answered), Answered);
    }
}
