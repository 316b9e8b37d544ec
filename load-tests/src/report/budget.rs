//! What the gateway may cost, and whether it did. All budgets stand here; a scenario says what it measured of which.

use serde::{Deserialize, Serialize};

/// A cost with the limit it must keep and the one it should reach.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) what: &'static str,
    /// `n` is what a request costs nginx in the same repetition, in CPU time; `x` is times something else.
    unit: &'static str,
    limit: f64,
    goal: f64,
}

/// How a budget came out, as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) what: String,
    pub(crate) limit: String,
    pub(crate) goal: String,
    pub(crate) measured: String,
    pub(crate) outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    GoalReached,
    Hit,
    Miss,
    /// A difference below zero: the noise is larger than what was to be measured.
    LostInNoise,
    NotMeasured,
}

impl Outcome {
    pub(crate) fn shown(self) -> &'static str {
        match self {
            Self::GoalReached => "goal reached",
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::LostInNoise => "lost in noise",
            Self::NotMeasured => "not measured",
        }
    }
}

const fn budget(what: &'static str, unit: &'static str, limit: f64, goal: f64) -> Budget {
    Budget {
        what,
        unit,
        limit,
        goal,
    }
}

/// As the report lists them.
pub(crate) const ALL: [&Budget; 23] = [
    &PING,
    &PING_IN_SESSION,
    &CALL_ASYNC,
    &CALL_SYNC,
    &CALL_ASYNC_WORKER,
    &CALL_SYNC_WORKER,
    &CALL_STDIO,
    &CALL_STDIO_TO_NGINX_AND_APP,
    &ADDED_P50,
    &ADDED_P99,
    &ADDED_STDIO_P50,
    &ADDED_STDIO_P99,
    &BODY_16_KIB,
    &BODY_1_MIB,
    &REFUSAL,
    &STREAM,
    &FAN_OUT,
    &CALLS_BESIDE_STREAMS,
    &WORKER_START,
    &RELOAD,
    &IDLE_MEMORY,
    &REMOTE,
    &STREAM_TLS,
];

pub(crate) const PING: Budget = budget("`ping`", "n", 2.3, 1.8);
pub(crate) const PING_IN_SESSION: Budget = budget("`ping` in a session", "n", 2.3, 1.8);
pub(crate) const CALL_ASYNC: Budget = budget("`tools/call`, async Python: gateway", "n", 2.8, 2.2);
pub(crate) const CALL_SYNC: Budget = budget("`tools/call`, sync Python: gateway", "n", 2.8, 2.2);
pub(crate) const CALL_ASYNC_WORKER: Budget =
    budget("`tools/call`, async Python: worker", "us", 30.0, 15.0);
pub(crate) const CALL_SYNC_WORKER: Budget =
    budget("`tools/call`, sync Python: worker", "us", 35.0, 20.0);
pub(crate) const CALL_STDIO: Budget = budget("`tools/call`, stdio server: gateway", "n", 2.8, 2.2);
/// CPU time of gateway and stdio server, in those of nginx and a small HTTP application together.
pub(crate) const CALL_STDIO_TO_NGINX_AND_APP: Budget = budget(
    "`tools/call`, stdio server: all, to nginx and HTTP application",
    "x",
    0.8,
    0.65,
);
pub(crate) const ADDED_P50: Budget = budget("added latency, Python worker, p50", "us", 40.0, 25.0);
pub(crate) const ADDED_P99: Budget = budget("added latency, Python worker, p99", "us", 100.0, 60.0);
pub(crate) const ADDED_STDIO_P50: Budget =
    budget("added latency, stdio server, p50", "us", 40.0, 25.0);
pub(crate) const ADDED_STDIO_P99: Budget =
    budget("added latency, stdio server, p99", "us", 100.0, 60.0);
/// CPU time, in that of nginx passing the same bytes.
pub(crate) const BODY_16_KIB: Budget = budget("16 KB bodies, to nginx passing them", "x", 1.5, 1.3);
pub(crate) const BODY_1_MIB: Budget = budget("1 MB bodies, to nginx passing them", "x", 1.5, 1.2);
/// CPU time, in that of the HTTP library with nothing but a filter that answers 401.
pub(crate) const REFUSAL: Budget = budget("401, to a bare filter", "x", 1.3, 1.15);
pub(crate) const STREAM: Budget = budget("idle stream with its session and log", "KiB", 8.0, 4.0);
pub(crate) const FAN_OUT: Budget = budget("one event to 19,000 streams", "ms", 250.0, 120.0);
pub(crate) const CALLS_BESIDE_STREAMS: Budget =
    budget("p99 of calls while 19,000 streams idle", "x", 1.5, 1.2);
pub(crate) const WORKER_START: Budget =
    budget("worker start, reload to answer", "ms", 300.0, 200.0);
pub(crate) const RELOAD: Budget = budget(
    "reload that changes one of 200 namespaces",
    "ms",
    1000.0,
    300.0,
);
pub(crate) const IDLE_MEMORY: Budget = budget("idle gateway, no namespaces", "MiB", 16.0, 10.0);
pub(crate) const REMOTE: Budget =
    budget("remote HTTP server, to nginx `proxy_pass`", "x", 2.0, 1.6);
pub(crate) const STREAM_TLS: Budget = budget("idle stream over TLS or HTTP/2", "KiB", 28.0, 22.0);

impl Budget {
    /// `measured` is nothing where the scenario could not.
    pub(crate) fn verdict(&self, measured: Option<f64>) -> Verdict {
        let with_unit = |value: f64| match self.unit {
            "n" | "x" | "KiB" => format!("{value:.2} {}", self.unit),
            "MiB" => format!("{value:.1} MiB"),
            unit => format!("{value:.0} {unit}"),
        };
        Verdict {
            what: self.what.to_owned(),
            limit: with_unit(self.limit),
            goal: with_unit(self.goal),
            measured: measured.map_or_else(|| "-".to_owned(), with_unit),
            outcome: match measured {
                None => Outcome::NotMeasured,
                Some(value) if value <= 0.0 => Outcome::LostInNoise,
                Some(value) if value <= self.goal => Outcome::GoalReached,
                Some(value) if value <= self.limit => Outcome::Hit,
                Some(_) => Outcome::Miss,
            },
        }
    }
}

/// One for each budget, in their order: what was measured of it, or that nothing was.
pub(crate) fn all<'v>(found: impl Iterator<Item = &'v Verdict> + Clone) -> Vec<Verdict> {
    let verdict = |budget: &&Budget| {
        let found = found.clone().find(|verdict| verdict.what == budget.what);
        found.cloned().unwrap_or_else(|| budget.verdict(None))
    };
    ALL.iter().map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_reached_hit_missed_or_not_measured() {
        for (measured, outcome) in [
            (Some(1.8), Outcome::GoalReached),
            (Some(2.3), Outcome::Hit),
            (Some(2.31), Outcome::Miss),
            (Some(-1.0), Outcome::LostInNoise),
            (None, Outcome::NotMeasured),
        ] {
            assert_eq!(PING.verdict(measured).outcome, outcome, "{measured:?}");
        }
        assert_eq!(PING.verdict(Some(2.0)).measured, "2.00 n");
        assert_eq!(FAN_OUT.verdict(Some(12.6)).measured, "13 ms");
    }

    #[test]
    fn every_budget_is_listed_once_with_a_goal_below_its_limit() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|budget| budget.what).collect();
        assert_eq!(names.len(), ALL.len());
        assert!(ALL.iter().all(|budget| budget.goal < budget.limit));
    }

    #[test]
    fn the_order_of_budgets_does_not_depend_on_what_was_measured() {
        let found = [STREAM.verdict(Some(1.0)), PING.verdict(Some(2.0))];
        let all = all(found.iter());
        let order = |verdicts: &[Verdict]| -> Vec<String> {
            verdicts
                .iter()
                .map(|verdict| verdict.what.clone())
                .collect()
        };
        assert_eq!(order(&all), order(&super::all(std::iter::empty())));
        assert_eq!(all[0], found[1]);
        assert_eq!(all[1].outcome, Outcome::NotMeasured);
    }
}
