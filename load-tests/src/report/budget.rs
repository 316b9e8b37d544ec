//! The budgets: maximum costs of the gateway, and verdicts on whether they were kept. `scenarios.yaml` contains all budgets,
//! each with the number that it judges, and `load-tests/README.md` shows the same table.

use serde::{Deserialize, Serialize};

use super::show::Figure;
use super::{Section, Table};
use crate::scenario::PLAN;

/// A cost, the limit that it must keep, and the goal that it should reach.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Budget {
    pub(crate) what: String,
    unit: Unit,
    limit: f64,
    goal: f64,
    /// True for a rate, which must be at least the limit; other costs must be at most the limit.
    #[serde(default)]
    at_least: bool,
    /// The number that is judged; `None` if no scenario measures it.
    judged: Option<Judged>,
}

/// A number of a row of a scenario.
#[derive(Debug, Deserialize)]
struct Judged {
    scenario: String,
    series: String,
    row: Vec<String>,
    #[serde(flatten)]
    figure: Figure,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Unit {
    /// CPU time as a multiple of that of a request to nginx in the same repetition.
    #[serde(rename = "n")]
    N,
    /// Multiple of another measurement of the same repetition.
    #[serde(rename = "x")]
    Times,
    #[serde(rename = "us")]
    Microseconds,
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "KiB")]
    Kibibytes,
    #[serde(rename = "MB")]
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

/// The verdicts on the budgets that a scenario measures, in the order of the budgets.
pub(crate) fn verdicts(scenario: &str, section: &Section) -> Vec<Verdict> {
    let judged = |budget: &Budget| {
        let judged = budget.judged.as_ref()?;
        (judged.scenario == scenario).then(|| budget.verdict(judged.measured(section)))
    };
    PLAN.budgets.iter().filter_map(judged).collect()
}

impl Judged {
    fn measured(&self, section: &Section) -> Option<f64> {
        let series = section.of(&self.series);
        self.figure.value(series.row(&self.row)?, series)
    }
}

/// The verdict on each budget in their order; not measured if `found` has none.
pub(crate) fn all<'v>(found: impl Iterator<Item = &'v Verdict> + Clone) -> Vec<Verdict> {
    let verdict = |budget: &Budget| {
        let found = found.clone().find(|verdict| verdict.what == budget.what);
        found.cloned().unwrap_or_else(|| budget.verdict(None))
    };
    PLAN.budgets.iter().map(verdict).collect()
}

/// The table of all budgets.
pub(super) fn table() -> Table {
    let mut table = Table::new(["budget", "limit", "goal"]);
    for budget in &PLAN.budgets {
        let (limit, goal) = budget.shown();
        table.row([budget.what.clone(), limit, goal]);
    }
    table
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The budget of this name.
    pub(crate) fn budget(what: &str) -> &'static Budget {
        let mut budgets = PLAN.budgets.iter();
        budgets.find(|budget| budget.what == what).unwrap()
    }

    const PING: &str = "`ping`";
    const RATE: &str = "`tools/call`, stdio server: rate, to agentgateway's";
    const STREAM: &str = "idle stream with its session and log";

    #[test]
    fn a_budget_is_reached_hit_missed_or_not_measured() {
        for (measured, outcome) in [
            (Some(1.5), Outcome::GoalReached),
            (Some(2.0), Outcome::Hit),
            (Some(2.01), Outcome::Miss),
            (Some(-1.0), Outcome::LostInNoise),
            (None, Outcome::NotMeasured),
        ] {
            assert_eq!(
                budget(PING).verdict(measured).outcome,
                outcome,
                "{measured:?}"
            );
        }
        assert_eq!(budget(PING).verdict(Some(2.0)).measured, "2.00 n");
        assert_eq!(
            budget("one event to 19,000 streams")
                .verdict(Some(12.6))
                .measured,
            "13 ms"
        );
    }

    #[test]
    fn a_rate_must_be_as_large_as_its_limit() {
        let fast = budget(RATE).verdict(Some(3.5));
        assert_eq!(fast.limit, "at least 3.00 x");
        assert_eq!(fast.outcome, Outcome::GoalReached);
        assert_eq!(budget(RATE).verdict(Some(2.9)).outcome, Outcome::Miss);
    }

    #[test]
    fn times_are_not_judged_on_a_noisy_machine_and_memory_is() {
        let noisy = |budget: &Budget, measured| budget.verdict(measured).on_a_noisy_machine();
        for what in [
            PING,
            RATE,
            "`tools/call`, async Python: worker",
            "reload that changes one of 200 namespaces",
        ] {
            let budget = budget(what);
            for measured in [0.1, 1e6] {
                let verdict = noisy(budget, Some(measured));
                assert_eq!(verdict.outcome, Outcome::NotJudged, "{}", budget.what);
            }
        }
        assert_eq!(
            noisy(budget(PING), Some(2.0)).measured,
            "2.00 n",
            "but shown"
        );
        assert_eq!(noisy(budget(PING), None).outcome, Outcome::NotMeasured);
        assert_eq!(noisy(budget(STREAM), Some(8.1)).outcome, Outcome::Miss);
        assert_eq!(
            noisy(budget("idle gateway, no namespaces"), Some(9.0)).outcome,
            Outcome::GoalReached
        );
    }

    #[test]
    fn every_budget_is_listed_once_with_a_goal_within_its_limit() {
        let names: std::collections::BTreeSet<_> =
            PLAN.budgets.iter().map(|budget| &budget.what).collect();
        assert_eq!(names.len(), PLAN.budgets.len());
        for budget in &PLAN.budgets {
            assert!(budget.keeps(budget.goal, budget.limit), "{}", budget.what);
        }
    }

    #[test]
    fn the_order_of_budgets_does_not_depend_on_what_was_measured() {
        let found = [
            budget(STREAM).verdict(Some(1.0)),
            budget(PING).verdict(Some(2.0)),
        ];
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
