//! State that scenarios share: options, the nginx that is the unit of every ratio, patience, and progress messages.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::load::{self, Load, Sample, Window};
use crate::message::{Envelope, Expect};
use crate::options::Options;
use crate::quiet::Patience;
use crate::report::minutes;
use crate::servers::gateway::{NAMESPACE, TOKEN};
use crate::servers::nginx::Nginx;
use crate::wire::Target;

/// Maximum number of attempts for one sample that other work disturbs.
const ATTEMPTS: u32 = 4;

/// A run, with the servers that it starts.
pub(crate) struct Run<'a> {
    pub(crate) options: &'a Options,
    /// nginx with `return 200`, idle unless measured; `None` if nginx is not installed, so that there are no ratios.
    pub(crate) nginx: Option<Nginx>,
    pub(crate) patience: Patience,
    started: Instant,
    /// Expected duration of the run.
    expected: Duration,
    scenario: &'static str,
    /// Cores busy with other work during each sample of the current scenario.
    other_cores: Vec<f64>,
    /// Each **n** measured in the current scenario, in microseconds.
    n_us: Vec<f64>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(options: &'a Options, nginx: Option<Nginx>) -> Self {
        Self {
            options,
            nginx,
            patience: Patience::new(options.patience()),
            started: Instant::now(),
            expected: Duration::ZERO,
            scenario: "",
            other_cores: Vec::new(),
            n_us: Vec::new(),
        }
    }

    /// Begins a scenario. `left` is the expected duration of it and the following ones.
    pub(crate) fn enter(&mut self, scenario: &'static str, left: Duration) {
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
            self.scenario
        );
    }

    /// Measures the CPU time of a request to nginx: **n**. Must be measured within each repetition, so that a ratio
    /// compares measurements of the same state of the machine.
    ///
    /// # Errors
    ///
    /// When nginx answers wrongly or not at all.
    pub(crate) async fn reference(&mut self) -> anyhow::Result<Option<Sample>> {
        let Some(nginx) = &self.nginx else {
            return Ok(None);
        };
        let (to, processes) = (nginx.address, nginx.processes());
        let options = self.options;
        let take = async || load::measure(at_nginx(options, to, processes.clone())).await;
        let sample = self.patiently(|sample| sample.other_cores, take).await?;
        self.progress(&format!("nginx {}", sample.shown()));
        self.n_us.push(sample.cpu_us);
        Ok(Some(sample))
    }

    /// Takes a sample, and repeats it while other work disturbs it and time remains.
    ///
    /// # Errors
    ///
    /// The errors of `take`.
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
pub(crate) fn at_nginx(options: &Options, to: SocketAddr, processes: Vec<u32>) -> Load {
    Load {
        target: Target::Http(to),
        requests: vec![Envelope::new(to, TOKEN, NAMESPACE).ping(); options.connections],
        expect: Expect::FIXED,
        window: Window::by(options, processes),
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
        run.enter("refuse", Duration::ZERO);
        let mut taken = 0;
        let take = async || {
            taken += 1;
            Ok(2.0)
        };
        assert_eq!(run.patiently(|other| *other, take).await.unwrap(), 2.0);
        assert_eq!((taken, run.disturbances()), (1, &[2.0][..]));
        assert!(run.reference().await.unwrap().is_none(), "no nginx");
        run.enter("reload", Duration::ZERO);
        assert!(run.disturbances().is_empty());
    }
}
