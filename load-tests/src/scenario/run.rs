//! State that scenarios share: options, the nginx that is the unit of every ratio, patience, and progress messages.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::{PLAN, Scenario};
use crate::load::open::{Open, OpenSample};
use crate::load::{self, Faults, Load, Sample, Window};
use crate::message::{Envelope, Expect};
use crate::options::Options;
use crate::quiet::Patience;
use crate::report::{Section, minutes};
use crate::servers::Server;
use crate::servers::gateway::{NAMESPACE, TOKEN};
use crate::wire::Target;

/// Maximum number of attempts for one sample that other work disturbs.
const ATTEMPTS: u32 = 4;

/// A run, with the servers that it starts.
pub(crate) struct Run<'a> {
    pub(crate) options: &'a Options,
    /// nginx with `return 200`, idle unless measured; `None` if nginx is not installed, so that there are no ratios.
    pub(crate) nginx: Option<Server>,
    pub(crate) patience: Patience,
    started: Instant,
    /// Expected duration of the run.
    expected: Duration,
    pub(crate) scenario: &'static Scenario,
    /// Cores busy with other work during each sample of the current scenario.
    other_cores: Vec<f64>,
    /// Each **n** measured in the current scenario, in microseconds.
    n_us: Vec<f64>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(options: &'a Options, nginx: Option<Server>) -> Self {
        Self {
            options,
            nginx,
            patience: Patience::new(options.patience()),
            started: Instant::now(),
            expected: Duration::ZERO,
            scenario: &PLAN.scenarios[0],
            other_cores: Vec::new(),
            n_us: Vec::new(),
        }
    }

    /// Begins a scenario. `left` is the expected duration of it and the following ones.
    pub(crate) fn enter(&mut self, scenario: &'static Scenario, left: Duration) {
        self.scenario = scenario;
        self.expected = self.started.elapsed() + left;
        self.other_cores.clear();
        self.n_us.clear();
    }

    /// Prints a progress message on standard error.
    pub(crate) fn progress(&self, text: &str) {
        let elapsed = self.started.elapsed();
        eprintln!(
            "[{:>5} of about {}] {}: {text}",
            minutes(elapsed),
            minutes(self.expected.max(elapsed)),
            self.scenario.name
        );
    }

    /// Measures the CPU time of a request to nginx: **n**. Must be measured within each repetition, so that a ratio
    /// compares measurements of the same state of the machine.
    pub(crate) async fn reference(&mut self) -> anyhow::Result<Option<Sample>> {
        let Some(nginx) = &self.nginx else {
            return Ok(None);
        };
        let load = at_nginx(self.options, nginx);
        let sample = self.right("nginx", &load).await?;
        self.n_us.push(sample.cpu_us);
        Ok(Some(sample))
    }

    /// Measures a closed loop patiently; wrong answers are returned apart.
    pub(crate) async fn load(
        &mut self,
        name: &str,
        load: &Load,
    ) -> anyhow::Result<(Sample, Faults)> {
        let take = async || {
            let (sample, faults) = load::tolerant(load.clone()).await?;
            let sample = sample.map_err(|error| match &faults.first {
                Some(first) => error.context(format!("{} wrong answers: {first}", faults.count)),
                None => error,
            });
            Ok((sample?, faults))
        };
        let other = |(sample, _): &(Sample, Faults)| sample.other_cores;
        let (sample, faults) = self.patiently(other, take).await?;
        self.progress(&format!("{name}: {}", sample.shown()));
        Ok((sample, faults))
    }

    /// Measures a closed loop patiently.
    pub(crate) async fn right(&mut self, name: &str, load: &Load) -> anyhow::Result<Sample> {
        let (sample, faults) = self.load(name, load).await?;
        faults.none()?;
        Ok(sample)
    }

    /// Measures a window of an open loop patiently. `front` are the processes whose CPU time counts.
    pub(crate) async fn watch(
        &mut self,
        open: &Open,
        lasts: Duration,
        front: &[u32],
    ) -> anyhow::Result<OpenSample> {
        let take = async || open.watch(lasts, front, &[]).await;
        self.patiently(|sample: &OpenSample| sample.other_cores, take)
            .await
    }

    /// Prints a window of an open loop, and adds its faults to the section.
    pub(crate) fn told(&self, section: &mut Section, name: &str, sample: &OpenSample) {
        self.progress(&format!("{name}: {}", sample.shown()));
        if let Some(fault) = sample.fault() {
            section.fail(format!("{name}: {fault}"));
        }
    }

    /// The numbers of all repetitions, from 1.
    pub(crate) fn repetitions(&self) -> RangeInclusive<usize> {
        1..=self.options.repetitions
    }

    /// A rate of the scenario in `scenarios.yaml`.
    pub(crate) fn rate(&self, name: &str) -> anyhow::Result<f64> {
        self.scenario.size(name)
    }

    /// A count of the scenario in `scenarios.yaml`.
    pub(crate) fn count(&self, name: &str) -> anyhow::Result<usize> {
        Ok(self.scenario.size(name)? as usize)
    }

    /// A count of the scenario, which has another one of the name `NAME_quick` for a quick run.
    pub(crate) fn count_or_quick(&self, name: &str) -> anyhow::Result<usize> {
        match self.options.quick {
            true => self.count(&format!("{name}_quick")),
            false => self.count(name),
        }
    }

    /// Takes a sample, and repeats it while other work disturbs it and time remains.
    pub(crate) async fn patiently<T>(
        &mut self,
        other_cores: impl Fn(&T) -> f64,
        mut take: impl AsyncFnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let mut attempt = 1;
        loop {
            let taken = take().await?;
            let other = other_cores(&taken);
            if attempt == ATTEMPTS || !self.patience.repeats(other) {
                self.disturbed_by(other);
                return Ok(taken);
            }
            attempt += 1;
            self.progress(&format!(
                "{other:.2} cores busy with other work: waiting for quiet, then again"
            ));
            self.patience.wait_for_quiet().await?;
        }
    }

    /// Records the number of cores used by other work during a sample that was not taken [`patiently`](Self::patiently).
    pub(crate) fn disturbed_by(&mut self, other_cores: f64) {
        self.other_cores.push(other_cores);
    }

    /// The cores busy with other work during each sample of the scenario so far.
    pub(crate) fn disturbances(&self) -> &[f64] {
        &self.other_cores
    }

    /// Each **n** of the scenario so far, in microseconds.
    pub(crate) fn references(&self) -> &[f64] {
        &self.n_us
    }
}

/// A load of pings to nginx on each connection, which nginx answers itself.
pub(crate) fn at_nginx(options: &Options, nginx: &Server) -> Load {
    Load {
        target: Target::Http(nginx.address),
        requests: vec![Envelope::new(nginx.address, TOKEN, NAMESPACE).ping(); options.connections],
        expect: Expect::FIXED,
        window: Window::by(options, nginx.processes()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[tokio::test]
    async fn without_patience_a_sample_is_taken_once_however_disturbed() {
        let options = Options::parse_from(["x"]);
        let mut run = Run::new(&options, None);
        run.enter(&PLAN.scenarios[2], Duration::ZERO);
        let mut taken = 0;
        let take = async || {
            taken += 1;
            Ok(2.0)
        };
        assert_eq!(run.patiently(|other| *other, take).await.unwrap(), 2.0);
        assert_eq!((taken, run.disturbances()), (1, &[2.0][..]));
        assert!(run.reference().await.unwrap().is_none(), "no nginx");
        run.enter(&PLAN.scenarios[6], Duration::ZERO);
        assert!(run.disturbances().is_empty());
    }
}
