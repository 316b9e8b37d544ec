//! Budgets of rate limits: the remaining budget, which the response's head reports to the client, and its use, which is
//! reported to other replicas.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The remaining budget of a rate limit for one caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    /// Name of the limit by its kind: `principal`, or several kinds with `+` between them.
    pub limit: Arc<str>,
    /// Number of uses that are possible at a time after a pause.
    pub quota: u32,
    /// Number of uses that are replenished each second.
    pub rate: NonZeroU32,
    /// Uses that are possible now.
    pub left: u32,
}

/// The use of a budget in this replica, as reported to the other replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetUse {
    /// A digest of the limit and of its key; equal in all replicas.
    pub name: [u8; 16],
    /// The time in which the use since the last exchange is replenished.
    pub taken: Duration,
    /// The time until the budget is full again, as far as this replica knows.
    pub whole_in: Duration,
    /// The time in which an empty budget is replenished completely.
    pub window: Duration,
}

/// The tightest budget that counted a request. Limits on requests and on tool calls are counted by different modules.
#[derive(Debug, Default)]
pub struct BudgetNote(Mutex<Option<Budget>>);

impl Budget {
    /// The seconds in which an empty budget is replenished completely, rounded up.
    pub fn window(&self) -> u32 {
        self.quota.div_ceil(self.rate.get())
    }

    /// The seconds until the budget is full again, rounded up.
    pub fn reset(&self) -> u32 {
        let used = self.quota.saturating_sub(self.left);
        used.div_ceil(self.rate.get())
    }

    /// Returns true if this budget has the smaller remaining fraction.
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
    /// Stores a budget, unless a tighter one is stored already.
    pub fn write(&self, budget: Budget) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *noted = Some(Budget::tighter(noted.take(), budget));
    }

    /// The tightest budget so far.
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
