//! What the gateway may cost, and whether it did.

use super::{Report, median};
use crate::load::Sample;
use crate::stdio::MANY;
use crate::streams::Held;

/// A cost with the limit it must keep and the one it should reach.
struct Budget {
    what: &'static str,
    unit: &'static str,
    limit: f64,
    goal: f64,
    /// Nothing if the run did not measure it.
    measured: fn(&Report) -> Option<f64>,
}

const NOT_MEASURED: &str = "not measured";

/// How a budget came out.
#[derive(Debug, PartialEq)]
pub(super) struct Verdict {
    pub(super) what: &'static str,
    pub(super) limit: String,
    pub(super) goal: String,
    pub(super) measured: String,
    pub(super) outcome: &'static str,
}

const BUDGETS: &[Budget] = &[
    ratio("ping", 2.3, 1.8, |report| report.row("ping")?.ratio()),
    ratio("ping in a session", 2.3, 1.8, |report| {
        report.row("ping-session")?.ratio()
    }),
    ratio("tools/call async: gateway", 2.8, 2.2, |report| {
        report.row("call-async")?.ratio()
    }),
    ratio("tools/call sync: gateway", 2.8, 2.2, |report| {
        report.row("call-sync")?.ratio()
    }),
    micros("tools/call async: worker", 30.0, 15.0, |report| {
        report.row("call-async")?.worker_cpu_us()
    }),
    micros("tools/call sync: worker", 35.0, 20.0, |report| {
        report.row("call-sync")?.worker_cpu_us()
    }),
    micros("added latency, p50", 40.0, 25.0, |report| {
        added(report, |sample| sample.p50_us)
    }),
    micros("added latency, p99", 100.0, 60.0, |report| {
        added(report, |sample| sample.p99_us)
    }),
    ratio(
        "tools/call to a stdio server: gateway",
        2.8,
        2.2,
        |report| report.stdio.as_ref()?.gateway_row(MANY)?.ratio(),
    ),
    micros(
        "added latency to a stdio server, p50",
        40.0,
        25.0,
        |report| report.stdio.as_ref()?.gateway_row(1)?.added_p50_us(),
    ),
    micros(
        "added latency to a stdio server, p99",
        100.0,
        60.0,
        |report| report.stdio.as_ref()?.gateway_row(1)?.added_p99_us(),
    ),
    Budget {
        what: "worker start, reload to answer",
        unit: "ms",
        limit: 300.0,
        goal: 200.0,
        measured: |report| median(report.worker_start.as_ref()?.reload_ms.iter().copied()),
    },
    Budget {
        what: "idle gateway, no worker",
        unit: "MiB",
        limit: 16.0,
        goal: 10.0,
        measured: |report| Some(report.memory.as_ref()?.started.resident_kib as f64 / 1024.0),
    },
    Budget {
        what: "idle stream with its session and log",
        unit: "KiB",
        limit: 8.0,
        goal: 4.0,
        measured: |report| most(report).map(|held| held.session_kib + held.stream_kib),
    },
    Budget {
        what: "one event to 19,000 streams",
        unit: "ms",
        limit: 250.0,
        goal: 120.0,
        measured: |report| median(most(report)?.fan_out_ms.iter().copied()),
    },
    Budget {
        what: "p99 of calls while 19,000 streams idle",
        unit: "x",
        limit: 1.5,
        goal: 1.2,
        measured: |report| most(report).map(|held| held.p99_meanwhile_us / held.p99_before_us),
    },
];

/// The scenario with the most streams.
fn most(report: &Report) -> Option<&Held> {
    report.idle_streams.as_ref()?.direct.last()
}

const fn ratio(
    what: &'static str,
    limit: f64,
    goal: f64,
    measured: fn(&Report) -> Option<f64>,
) -> Budget {
    Budget {
        what,
        unit: "n",
        limit,
        goal,
        measured,
    }
}

const fn micros(
    what: &'static str,
    limit: f64,
    goal: f64,
    measured: fn(&Report) -> Option<f64>,
) -> Budget {
    Budget {
        what,
        unit: "us",
        limit,
        goal,
        measured,
    }
}

/// What the gateway adds to a call at the worker's own socket: taken within a repetition, then the median.
fn added(report: &Report, latency: impl Fn(&Sample) -> f64) -> Option<f64> {
    let (through, direct) = (report.row("call-1")?, report.row("worker-1")?);
    let pairs = through.samples.iter().zip(&direct.samples);
    median(pairs.map(|(through, direct)| latency(&through.sample) - latency(&direct.sample)))
}

impl Verdict {
    pub(super) fn is_measured(&self) -> bool {
        self.outcome != NOT_MEASURED
    }
}

pub(super) fn verdicts(report: &Report) -> Vec<Verdict> {
    BUDGETS
        .iter()
        .map(|budget| budget.verdict((budget.measured)(report)))
        .collect()
}

impl Budget {
    fn verdict(&self, measured: Option<f64>) -> Verdict {
        let with_unit = |value: f64| match self.unit {
            "n" | "x" | "KiB" => format!("{value:.2} {}", self.unit),
            unit => format!("{value:.0} {unit}"),
        };
        Verdict {
            what: self.what,
            limit: with_unit(self.limit),
            goal: with_unit(self.goal),
            measured: measured.map_or_else(|| "-".to_owned(), with_unit),
            outcome: match measured {
                None => NOT_MEASURED,
                // A difference below zero: the noise is larger than what was to be measured.
                Some(value) if value <= 0.0 => "lost in noise",
                Some(value) if value <= self.goal => "goal reached",
                Some(value) if value <= self.limit => "hit",
                Some(_) => "miss",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{report, row};
    use super::*;

    #[test]
    fn a_budget_is_reached_hit_missed_or_not_measured() {
        let budget = ratio("ping", 2.3, 1.8, |_| None);
        for (measured, outcome) in [
            (Some(1.8), "goal reached"),
            (Some(2.3), "hit"),
            (Some(2.31), "miss"),
            (None, "not measured"),
        ] {
            assert_eq!(budget.verdict(measured).outcome, outcome, "{measured:?}");
        }
        assert_eq!(budget.verdict(Some(2.0)).measured, "2.00 n");
        assert_eq!(budget.verdict(Some(-1.0)).outcome, "lost in noise");
    }

    #[test]
    fn added_latency_is_a_difference_within_a_repetition() {
        let mut report = report();
        assert_eq!(added(&report, |sample| sample.p50_us), None);
        let direct = [(10.0, None), (50.0, None), (10.0, None)];
        let through = [(13.0, None), (51.0, None), (12.0, None)];
        report.scenarios.push(row("worker-1", &direct));
        report.scenarios.push(row("call-1", &through));
        assert_eq!(added(&report, |sample| sample.cpu_us), Some(2.0));
    }

    #[test]
    fn budgets_name_scenarios_that_exist() {
        for name in [
            "ping",
            "ping-session",
            "call-async",
            "call-sync",
            "call-1",
            "worker-1",
        ] {
            assert!(crate::plan::is_name(name), "{name}");
        }
    }
}
