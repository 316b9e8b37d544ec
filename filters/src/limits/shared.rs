//! Rate limits that all replicas of the gateway share.
//!
//! Each replica decides by its local budgets, like a gateway without replicas. Many times a second, independently of requests,
//! it reports the use of its budgets ([`LimitUse`]) to a store that all replicas share. The store answers with the time until
//! each budget is full again, including the use of all replicas, and the replica adjusts its local budgets to that. So no
//! request waits for another replica, and requests can exceed a limit only until the next answer of the store.

use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, MonotonicClock};
use tooldock_base::budget::BudgetUse;

use super::Rule;
use crate::rate::UsedBudget;

/// The budgets that were used since the last report to the store, and how much was used of each.
pub struct LimitUse<C: Clock = MonotonicClock> {
    used: Vec<BudgetUse>,
    /// For each entry of `used`, in the same order: the limit, and its local budget that the entry reports.
    budgets: Vec<(Arc<Rule<C>>, UsedBudget)>,
}

impl<C: Clock> LimitUse<C> {
    pub(crate) fn of(rules: impl Iterator<Item = Arc<Rule<C>>>) -> Self {
        let (mut used, mut budgets) = (Vec::new(), Vec::new());
        for rule in rules {
            rule.limiter().take_use(|budget, taken| {
                used.push(taken);
                budgets.push((Arc::clone(&rule), budget));
            });
        }
        Self { used, budgets }
    }

    /// The use of each budget, in the form in which it is reported to the store.
    pub fn used(&self) -> &[BudgetUse] {
        &self.used
    }

    /// Adjusts local budgets to an answer of the store: the time until each budget is full again, counting the use of all
    /// replicas. The answer is about the budgets from index `from` on.
    pub fn move_on(&self, from: usize, whole_in: &[Duration]) {
        for ((rule, budget), whole_in) in self.budgets.iter().skip(from).zip(whole_in) {
            rule.limiter().move_on(budget, *whole_in);
        }
    }
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use governor::clock::FakeRelativeClock;

    use crate::config::RateLimitConfig;
    use crate::limits::{CountedBy, RateLimits, Subject};

    use super::*;

    /// A limit of four calls at once, and one call each second.
    fn rule() -> RateLimitConfig {
        let rule = r#"{"key": "principal", "rate": 1, "burst": 4, "unit": "tool_call"}"#;
        serde_json::from_str(rule).unwrap()
    }

    fn replica(rules: &[RateLimitConfig]) -> (FakeRelativeClock, RateLimits<FakeRelativeClock>) {
        let clock = FakeRelativeClock::default();
        let limits = RateLimits::new(rules, &clock).shared(rules);
        (clock, limits)
    }

    fn admits(limits: &RateLimits<FakeRelativeClock>, principal: &str) -> bool {
        let own = ["1/2:tool_call".parse().unwrap()];
        let subject = Subject {
            principal,
            client: "192.0.2.1".parse().unwrap(),
            namespace: None,
            tool: Some("add"),
            own: if principal.starts_with("key:") {
                &own
            } else {
                &[]
            },
            key: principal.strip_prefix("key:"),
        };
        limits.check_tool_call(subject, CountedBy::All).is_ok()
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_was_taken_is_told_once_and_under_the_same_name_by_all_replicas() {
        let ((clock, one), (_, two)) = (replica(&[rule()]), replica(&[rule()]));
        assert!(one.take_use().used().is_empty());
        assert!(admits(&one, "ci") && admits(&one, "ci") && admits(&one, "dev"));
        assert!(admits(&two, "ci"));
        let (told, other) = (one.take_use(), two.take_use());
        let mut told = told.used().to_vec();
        told.sort_by_key(|it| it.taken);
        let [dev, ci] = <[_; 2]>::try_from(told).unwrap();
        let [other] = <[_; 1]>::try_from(other.used().to_vec()).unwrap();
        assert_eq!(
            (ci.taken, ci.whole_in, ci.window),
            (seconds(2), seconds(2), seconds(4))
        );
        assert_eq!((dev.taken, other.taken), (seconds(1), seconds(1)));
        assert_eq!(ci.name, other.name);
        assert_ne!(ci.name, dev.name);
        assert!(one.take_use().used().is_empty());
        // Use that was reported before is not reported again, but counts in the time until the budget is whole.
        clock.advance(seconds(1));
        assert!(admits(&one, "ci"));
        let again = one.take_use();
        assert_eq!(again.used()[0].taken, seconds(1));
        assert_eq!(again.used()[0].whole_in, seconds(2));
    }

    #[test]
    fn what_others_took_is_missing_here_until_it_comes_back() {
        let (clock, limits) = replica(&[rule()]);
        assert!(admits(&limits, "ci"));
        limits.take_use().move_on(0, &[seconds(4)]);
        assert!(!admits(&limits, "ci"));
        clock.advance(seconds(1));
        assert!(admits(&limits, "ci"));
        // An answer that is older than the use of this replica gives no calls back.
        limits.take_use().move_on(0, &[Duration::ZERO]);
        assert!(!admits(&limits, "ci"));
        // The answer is as old as the reported use.
        clock.advance(seconds(4));
        assert!(admits(&limits, "ci"));
        let told = limits.take_use();
        clock.advance(seconds(2));
        told.move_on(0, &[seconds(5)]);
        assert!(admits(&limits, "ci") && !admits(&limits, "ci"));
    }

    #[test]
    fn answers_that_come_in_parts_meet_their_budgets() {
        let (_, limits) = replica(&[rule()]);
        for principal in 0..10 {
            assert!(admits(&limits, &principal.to_string()));
        }
        let told = limits.take_use();
        for at in [0, 4, 8] {
            let part = &told.used()[at..10.min(at + 4)];
            told.move_on(at, &vec![seconds(4); part.len()]);
        }
        assert!((0..10).all(|principal| !admits(&limits, &principal.to_string())));
    }

    #[test]
    fn limits_of_keys_are_shared_and_equal_rules_have_names_of_their_own() {
        let (_, limits) = replica(&[rule(), rule()]);
        assert!(admits(&limits, "key:a"));
        let told = limits.take_use();
        let names: std::collections::HashSet<_> = told.used().iter().map(|it| it.name).collect();
        assert_eq!(names.len(), 3);
        let other = RateLimitConfig {
            burst: NonZeroU32::new(5).unwrap(),
            ..rule()
        };
        let (_, limits) = replica(&[other]);
        assert!(admits(&limits, "key:a"));
        let others = limits.take_use();
        let shared = others
            .used()
            .iter()
            .filter(|it| names.contains(&it.name))
            .count();
        assert_eq!(shared, 1, "the limit of the key");
    }

    #[test]
    fn a_limit_of_one_process_notes_nothing() {
        let clock = FakeRelativeClock::default();
        let limits = RateLimits::new(&[rule()], &clock);
        assert!(admits(&limits, "key:a"));
        assert!(limits.take_use().used().is_empty());
    }
}
