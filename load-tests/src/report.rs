//! What a run found: every sample for JSON, medians for the table.

mod budgets;
mod stdio;
pub(crate) mod table;

use serde::Serialize;

use crate::load::Sample;
use crate::machine::Machine;
use crate::once::{IdleMemory, WorkerStart};
use crate::options::Options;
use crate::plan::Scenario;
use crate::processes::Memory;
use crate::stdio::Stdio;
use crate::streams::IdleStreams;

/// Everything a run found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) command: Vec<String>,
    pub(crate) machine: Machine,
    pub(crate) seconds: f64,
    pub(crate) repetitions: usize,
    pub(crate) connections: usize,
    /// The scenarios asked for; all if there are none.
    pub(crate) only: Vec<String>,
    /// What could not be compared with because it is not there.
    pub(crate) missing: Vec<String>,
    pub(crate) scenarios: Vec<Row>,
    pub(crate) worker_start: Option<WorkerStart>,
    pub(crate) memory: Option<IdleMemory>,
    pub(crate) idle_streams: Option<IdleStreams>,
    pub(crate) stdio: Option<Stdio>,
    /// Of each gateway with tools, when its scenarios were over.
    pub(crate) memory_after_load: Vec<Memory>,
    /// Audit lines not written because the disk did not keep up; their cost is not in the numbers. Nothing if one of the
    /// gateways did not say.
    pub(crate) audit_dropped: Option<f64>,
    pub(crate) failures: Vec<Failure>,
}

/// A scenario and its samples, one per repetition; the reference has one per group.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) question: &'static str,
    pub(crate) samples: Vec<Measured>,
}

/// A sample and what a request cost nginx just before.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Measured {
    #[serde(flatten)]
    pub(crate) sample: Sample,
    pub(crate) nginx_cpu_us: Option<f64>,
}

/// A scenario that could not be measured.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    pub(crate) scenario: &'static str,
    pub(crate) reason: String,
}

impl Report {
    pub(crate) fn new(options: &Options, machine: Machine) -> Self {
        Self {
            command: std::env::args().collect(),
            machine,
            seconds: options.seconds,
            repetitions: options.repetitions,
            connections: options.connections,
            only: options.only.clone(),
            missing: Vec::new(),
            scenarios: Vec::new(),
            worker_start: None,
            memory: None,
            idle_streams: None,
            stdio: None,
            memory_after_load: Vec::new(),
            audit_dropped: Some(0.0),
            failures: Vec::new(),
        }
    }

    pub(crate) fn samples_of(&mut self, scenario: &Scenario) -> &mut Vec<Measured> {
        let known = self
            .scenarios
            .iter()
            .position(|row| row.name == scenario.name);
        let at = known.unwrap_or_else(|| {
            self.scenarios.push(Row {
                name: scenario.name,
                question: scenario.question,
                samples: Vec::new(),
            });
            self.scenarios.len() - 1
        });
        &mut self.scenarios[at].samples
    }

    fn wants_all(&self) -> bool {
        self.only.is_empty()
    }

    fn row(&self, name: &str) -> Option<&Row> {
        self.scenarios.iter().find(|row| row.name == name)
    }
}

impl Report {
    /// How many cores were busy with other work, in the middle and at worst.
    fn other_cores(&self) -> Option<(f64, f64)> {
        let samples = self.scenarios.iter().flat_map(|row| &row.samples);
        let cores: Vec<f64> = samples
            .map(|measured| measured.sample.other_cores)
            .collect();
        let worst = cores.iter().copied().fold(0.0, f64::max);
        Some((median(cores.into_iter())?, worst))
    }
}

impl Row {
    /// The median of something all samples have.
    fn median(&self, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        median(self.samples.iter().map(|measured| of(&measured.sample)))
    }

    fn worker_cpu_us(&self) -> Option<f64> {
        median(
            self.samples
                .iter()
                .filter_map(|measured| measured.sample.worker_cpu_us),
        )
    }

    /// CPU time of a request in units of nginx's. The ratio of each sample to the nginx just before it is taken first,
    /// then the median: both moved with the same minute of the machine.
    fn ratio(&self) -> Option<f64> {
        median(self.ratios())
    }

    /// The least and the greatest ratio.
    fn ratio_spread(&self) -> Option<(f64, f64)> {
        let least = self.ratios().min_by(f64::total_cmp)?;
        Some((least, self.ratios().max_by(f64::total_cmp)?))
    }

    fn ratios(&self) -> impl Iterator<Item = f64> {
        self.samples
            .iter()
            .filter_map(|measured| Some(measured.sample.cpu_us / measured.nginx_cpu_us?))
    }
}

/// The middle value, or the mean of the two.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 {
        upper
    } else {
        (sorted[middle - 1] + upper) / 2.0
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    pub(super) fn report() -> Report {
        Report::new(&Options::parse_from(["x"]), Machine::here())
    }

    pub(super) fn sample(cpu_us: f64) -> Sample {
        Sample {
            requests: 1000,
            per_second: 500.0,
            p50_us: cpu_us * 10.0,
            p99_us: cpu_us * 20.0,
            cpu_us,
            worker_cpu_us: None,
            client_cpu_us: 1.0,
            other_cores: 0.25,
            closed: 0,
        }
    }

    pub(super) fn row(name: &'static str, samples: &[(f64, Option<f64>)]) -> Row {
        let samples = samples.iter().map(|&(cpu, nginx_cpu_us)| Measured {
            sample: sample(cpu),
            nginx_cpu_us,
        });
        Row {
            name,
            question: "?",
            samples: samples.collect(),
        }
    }

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn a_ratio_is_taken_within_a_repetition() {
        // The machine was twice as slow in the second one; the gateway was not.
        let row = row(
            "ping",
            &[(14.0, Some(7.0)), (28.0, Some(14.0)), (21.0, Some(7.0))],
        );
        assert_eq!(row.ratio(), Some(2.0));
        assert_eq!(row.ratio_spread(), Some((2.0, 3.0)));
    }

    #[test]
    fn without_nginx_there_is_no_ratio() {
        assert_eq!(row("ping", &[(14.0, None)]).ratio(), None);
        assert_eq!(row("ping", &[(14.0, None)]).ratio_spread(), None);
    }
}
