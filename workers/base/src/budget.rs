//! Budgets of rate limits: the remaining budget, which is sent to the client in response headers, and the use of a budget, which
//! is reported to other replicas.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The remaining budget of a rate limit for one caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Name of the limit by the kind of its key: `principal`, or several kinds with `+` between them.
    pub limit: Arc<str>,
    /// Maximum number of uses of the limit at once, after a long enough pause.
    pub quota: u32,
    /// Number of uses of the limit that are replenished each second.
    pub rate: NonZeroU32,
    /// Number of uses of the limit that are possible now.
    pub left: u32,
}

/// The use of a budget by this replica, as it is reported to the other replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetUse {
    /// Digest of the limit and of the key to which it applies. It is the same in all replicas.
    pub name: [u8; 16],
    /// The use since the last exchange with the other replicas, as the time that is needed to replenish it.
    pub taken: Duration,
    /// Time until the budget is full again, as far as this replica can tell.
    pub whole_in: Duration,
    /// Time in which an empty budget is replenished completely.
    pub window: Duration,
}

/// The tightest of the budgets that counted a request. A shared value is needed because different modules count requests and tool
/// calls.
#[derive(Debug, Default)]
pub struct BudgetNote(Mutex<Option<Budget>>);

impl Budget {
    /// Number of seconds in which an empty budget is replenished completely, rounded up.
    pub fn window(&self) -> u32 {
        self.quota.div_ceil(self.rate.get())
    }

    /// Number of seconds until the budget is full again, rounded up.
    pub fn reset(&self) -> u32 {
        let used = self.quota.saturating_sub(self.left);
        used.div_ceil(self.rate.get())
    }

    /// Returns true if a smaller fraction of this budget remains than of the budget `other`.
    pub fn is_tighter_than(&self, other: &Self) -> bool {
        let part = |left: u32, of: u32| u64::from(left) * u64::from(of);
        part(self.left, other.quota) < part(other.left, self.quota)
    }

    /// The tighter of two budgets.
    #[must_use]
    pub fn tighter(one: Option<Self>, other: Self) -> Self {
        match one {
            Some(one) if !other.is_tighter_than(&one) => one,
            _ => other,
        }
    }
}

impl BudgetNote {
    /// Stores a budget if no tighter one is stored.
    pub fn write(&self, budget: Budget) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *noted = Some(Budget::tighter(noted.take(), budget));
    }

    /// The tightest budget that was stored; `None` if none was.
    pub fn read(&self) -> Option<Budget> {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(left: u32, quota: u32) -> Budget {
        Budget {
            limit: "principal".into(),
            quota,
            rate: NonZeroU32::MIN,
            left,
        }
    }

    #[test]
    fn the_budget_with_the_smaller_part_left_is_noted() {
        let note = BudgetNote::default();
        assert_eq!(note.read(), None);
        for (left, quota, noted) in [
            (50, 100, (50, 100)),
            (9, 10, (50, 100)),
            (1, 10, (1, 10)),
            (10, 100, (1, 10)),
            (0, 1000, (0, 1000)),
        ] {
            note.write(budget(left, quota));
            assert_eq!(note.read(), Some(budget(noted.0, noted.1)));
        }
    }
}
