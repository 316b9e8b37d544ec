//! The budgets: maximum costs of the gateway, and verdicts on whether they were kept. The table in this file contains all
//! budgets; a scenario reports its measurements for some of them, and `load-tests/README.md` shows the same table.

use serde::{Deserialize, Serialize};

use super::Table;

/// A cost, the limit that it must keep, and the goal that it should reach.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) what: &'static str,
    unit: Unit,
    limit: f64,
    goal: f64,
    /// True for a rate, which must be at least the limit; other costs must be at most the limit.
    at_least: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// CPU time as a multiple of that of a request to nginx in the same repetition.
    N,
    /// Multiple of another measurement of the same repetition.
    Times,
    Microseconds,
    Milliseconds,
    Kibibytes,
    Megabytes,
}

impl Unit {
    /// Returns true if other work on the machine changes the result: for all units except memory.
    fn is_of_time(self) -> bool {
        !matches!(self, Self::Kibibytes | Self::Megabytes)
    }

    fn shown(self, value: f64) -> String {
        match self {
            Self::N => format!("{value:.2} n"),
            Self::Times => format!("{value:.2} x"),
            Self::Microseconds => format!("{value:.0} us"),
            Self::Milliseconds => format!("{value:.0} ms"),
            Self::Kibibytes => format!("{value:.2} KiB"),
            Self::Megabytes => format!("{value:.1} MB"),
        }
    }
}

/// The outcome of a budget, formatted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) what: String,
    pub(crate) limit: String,
    pub(crate) goal: String,
    pub(crate) measured: String,
    pub(crate) outcome: Outcome,
    /// True if the outcome is only conclusive on a quiet machine.
    #[serde(default)]
    needs_quiet: bool,
}

impl Verdict {
    /// The verdict on a machine that was not quiet: times and ratios of times are not judged, memory is.
    pub(crate) fn on_a_noisy_machine(mut self) -> Self {
        if self.needs_quiet && self.outcome != Outcome::NotMeasured {
            self.outcome = Outcome::NotJudged;
        }
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    GoalReached,
    Hit,
    Miss,
    /// The difference is below zero: the noise is larger than the measured cost.
    LostInNoise,
    /// The machine was busy with other work.
    NotJudged,
    NotMeasured,
}

impl Outcome {
    pub(crate) fn shown(self) -> &'static str {
        match self {
            Self::GoalReached => "goal reached",
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::LostInNoise => "lost in noise",
            Self::NotJudged => "not judged",
            Self::NotMeasured => "not measured",
        }
    }
}

const fn budget(what: &'static str, unit: Unit, limit: f64, goal: f64) -> Budget {
    Budget {
        what,
        unit,
        limit,
        goal,
        at_least: false,
    }
}

/// Declares a constant for each row of the table, and the list of all rows.
macro_rules! budgets {
    ($($(#[$doc:meta])* $name:ident = $what:literal, $unit:ident, $limit:literal, $goal:literal $(, $at_least:ident)?;)*) => {
        $($(#[$doc])* pub(crate) const $name: Budget = Budget {
            $($at_least: true,)?
            ..budget($what, Unit::$unit, $limit, $goal)
        };)*
        /// All budgets, in the order of the report.
        pub(crate) const ALL: &[&Budget] = &[$(&$name),*];
    };
}

// Each line is a row.
#[rustfmt::skip]
budgets! {
    PING = "`ping`", N, 2.0, 1.5;
    PING_IN_SESSION = "`ping` in a session", N, 2.0, 1.5;
    CALL_STDIO = "`tools/call`, stdio server: gateway", N, 2.6, 2.0;
    CALL_STDIO_RATE = "`tools/call`, stdio server: rate, to agentgateway's", Times, 3.0, 3.0, at_least;
    /// CPU time of gateway and stdio server, as a multiple of that of nginx and a small HTTP application together.
    CALL_STDIO_TO_NGINX_AND_APP = "`tools/call`, stdio server: all, to nginx and HTTP application", Times, 0.75, 0.6;
    /// CPU time, as a multiple of that with sessions in memory.
    CALL_DISK = "`tools/call` of a live session, on disk to in memory", Times, 1.05, 1.02;
    CALL_REDIS = "`tools/call` of a live session, in Redis to in memory", Times, 1.05, 1.02;
    /// Difference between the times of a first call and the next one.
    FIRST_CALL = "first call of a session on disk after a restart, added p99", Milliseconds, 100.0, 20.0;
    CALL_ASYNC = "`tools/call`, async Python: gateway", N, 2.6, 2.0;
    CALL_SYNC = "`tools/call`, sync Python: gateway", N, 2.6, 2.0;
    CALL_ASYNC_WORKER = "`tools/call`, async Python: worker", Microseconds, 25.0, 12.0;
    CALL_SYNC_WORKER = "`tools/call`, sync Python: worker", Microseconds, 30.0, 18.0;
    REMOTE = "remote HTTP server, to nginx `proxy_pass` with the same checks", Times, 2.0, 1.6;
    /// CPU time, as a multiple of that of the HTTP library with a filter that only answers 401.
    REFUSAL = "401, to a bare filter", Times, 1.3, 1.15;
    ADDED_P50 = "added latency, Python worker, p50", Microseconds, 40.0, 25.0;
    ADDED_P99 = "added latency, Python worker, p99", Microseconds, 100.0, 60.0;
    ADDED_STDIO_P50 = "added latency, stdio server, p50", Microseconds, 40.0, 25.0;
    ADDED_STDIO_P99 = "added latency, stdio server, p99", Microseconds, 100.0, 60.0;
    /// CPU time, as a multiple of that of nginx passing the same bytes.
    BODY_16_KIB = "16 KB bodies, to nginx passing them", Times, 1.5, 1.3;
    BODY_1_MIB = "1 MB bodies, to nginx passing them", Times, 1.5, 1.2;
    STREAM = "idle stream with its session and log", Kibibytes, 8.0, 4.0;
    STREAM_TLS = "idle stream over TLS or HTTP/2", Kibibytes, 28.0, 22.0;
    FAN_OUT = "one event to 19,000 streams", Milliseconds, 250.0, 120.0;
    CALLS_BESIDE_STREAMS = "p99 of calls while 19,000 streams idle", Times, 1.5, 1.2;
    WORKER_START = "worker start without dependencies, reload to answer", Milliseconds, 300.0, 200.0;
    RELOAD = "reload that changes one of 200 namespaces", Milliseconds, 1000.0, 300.0;
    /// p99 while a repository is cloned and analysed, code is checked, and packages are installed.
    CALLS_BESIDE_MANAGEMENT = "p99 of calls beside clone, analysis and build", Times, 1.2, 1.1;
    IDLE_MEMORY = "idle gateway, no namespaces", Megabytes, 16.0, 10.0;
}

impl Budget {
    /// Judges a measurement; `None` if the scenario could not measure.
    pub(crate) fn verdict(&self, measured: Option<f64>) -> Verdict {
        let (limit, goal) = self.shown();
        Verdict {
            what: self.what.to_owned(),
            limit,
            goal,
            measured: measured.map_or_else(|| "-".to_owned(), |value| self.unit.shown(value)),
            outcome: match measured {
                None => Outcome::NotMeasured,
                Some(value) if value <= 0.0 => Outcome::LostInNoise,
                Some(value) if self.keeps(value, self.goal) => Outcome::GoalReached,
                Some(value) if self.keeps(value, self.limit) => Outcome::Hit,
                Some(_) => Outcome::Miss,
            },
            needs_quiet: self.unit.is_of_time(),
        }
    }

    fn keeps(&self, value: f64, bound: f64) -> bool {
        match self.at_least {
            true => value >= bound,
            false => value <= bound,
        }
    }

    /// Limit and goal, formatted.
    fn shown(&self) -> (String, String) {
        let least = if self.at_least { "at least " } else { "" };
        let bound = |value: f64| format!("{least}{}", self.unit.shown(value));
        (bound(self.limit), bound(self.goal))
    }
}

/// The verdict on each budget in their order; not measured if `found` has none.
pub(crate) fn all<'v>(found: impl Iterator<Item = &'v Verdict> + Clone) -> Vec<Verdict> {
    let verdict = |budget: &&Budget| {
        let found = found.clone().find(|verdict| verdict.what == budget.what);
        found.cloned().unwrap_or_else(|| budget.verdict(None))
    };
    ALL.iter().map(verdict).collect()
}

/// The table of all budgets.
pub(super) fn table() -> Table {
    let mut table = Table::new(["budget", "limit", "goal"]);
    for budget in ALL {
        let (limit, goal) = budget.shown();
        table.row([budget.what.to_owned(), limit, goal]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_reached_hit_missed_or_not_measured() {
        for (measured, outcome) in [
            (Some(1.5), Outcome::GoalReached),
            (Some(2.0), Outcome::Hit),
            (Some(2.01), Outcome::Miss),
            (Some(-1.0), Outcome::LostInNoise),
            (None, Outcome::NotMeasured),
        ] {
            assert_eq!(PING.verdict(measured).outcome, outcome, "{measured:?}");
        }
        assert_eq!(PING.verdict(Some(2.0)).measured, "2.00 n");
        assert_eq!(FAN_OUT.verdict(Some(12.6)).measured, "13 ms");
    }

    #[test]
    fn a_rate_must_be_as_large_as_its_limit() {
        let fast = CALL_STDIO_RATE.verdict(Some(3.5));
        assert_eq!(fast.limit, "at least 3.00 x");
        assert_eq!(fast.outcome, Outcome::GoalReached);
        assert_eq!(CALL_STDIO_RATE.verdict(Some(2.9)).outcome, Outcome::Miss);
    }

    #[test]
    fn times_are_not_judged_on_a_noisy_machine_and_memory_is() {
        let noisy = |budget: &Budget, measured| budget.verdict(measured).on_a_noisy_machine();
        for budget in [&PING, &REFUSAL, &CALL_ASYNC_WORKER, &RELOAD] {
            for measured in [0.1, 1e6] {
                let verdict = noisy(budget, Some(measured));
                assert_eq!(verdict.outcome, Outcome::NotJudged, "{}", budget.what);
            }
        }
        assert_eq!(noisy(&PING, Some(2.0)).measured, "2.00 n", "but shown");
        assert_eq!(noisy(&PING, None).outcome, Outcome::NotMeasured);
        assert_eq!(noisy(&STREAM, Some(8.1)).outcome, Outcome::Miss);
        assert_eq!(noisy(&IDLE_MEMORY, Some(9.0)).outcome, Outcome::GoalReached);
    }

    #[test]
    fn every_budget_is_listed_once_with_a_goal_within_its_limit() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|budget| budget.what).collect();
        assert_eq!(names.len(), ALL.len());
        for budget in ALL {
            assert!(budget.keeps(budget.goal, budget.limit), "{}", budget.what);
        }
    }

    #[test]
    fn the_order_of_budgets_does_not_depend_on_what_was_measured() {
        let found = [STREAM.verdict(Some(1.0)), PING.verdict(Some(2.0))];
        let all = all(found.iter());
        let none = super::all(std::iter::empty());
        assert!(
            all.iter()
                .zip(&none)
                .all(|(one, other)| one.what == other.what)
        );
        assert_eq!(all[0], found[1]);
        assert_eq!(all[1].outcome, Outcome::NotMeasured);
    }
}
