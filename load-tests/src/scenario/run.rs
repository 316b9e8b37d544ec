//! What scenarios share: options, the nginx that is the unit of every ratio, patience, and what is said meanwhile.

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

/// How often one sample is taken at most, when other work disturbs it and there is patience.
const ATTEMPTS: u32 = 4;

/// A run and what lives as long as it.
pub(crate) struct Run<'a> {
    pub(crate) options: &'a Options,
    /// `return 200`, idle unless asked. Nothing where nginx is not installed: there are no ratios then.
    pub(crate) nginx: Option<Nginx>,
    pub(crate) patience: Patience,
    started: Instant,
    /// What the run takes as far as can be said.
    expected: Duration,
    scenario: &'static str,
    /// Cores busy with other work during each sample of the scenario.
    other_cores: Vec<f64>,
    /// Each **n** of the scenario, in microseconds.
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

    /// Begins a scenario. `left` is what it and those after it take.
    pub(crate) fn enter(&mut self, scenario: &'static str, left: Duration) {
        self.scenario = scenario;
        self.expected = self.started.elapsed() + left;
        self.other_cores.clear();
        self.n_us.clear();
    }

    /// Says on stderr what is going on.
    pub(crate) fn progress(&self, text: &str) {
        let elapsed = self.started.elapsed();
        eprintln!(
            "[{:>5} of about {}] {}: {text}",
            minutes(elapsed),
            minutes(self.expected.max(elapsed)),
            self.scenario
        );
    }

    /// What a request costs nginx now: **n**. To be measured within each repetition, so that a ratio compares the same
    /// minute of the machine.
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

    /// Takes a sample, and takes it again while other work disturbs it and there is patience.
    ///
    /// # Errors
    ///
    /// Those of `take`.
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

    /// Cores that were busy with other work during a sample that was not taken [`patiently`](Self::patiently).
    pub(crate) fn disturbed_by(&mut self, other_cores: f64) {
        self.other_cores.push(other_cores);
    }

    /// All of the scenario so far.
    pub(crate) fn disturbances(&self) -> &[f64] {
        &self.other_cores
    }

    /// Each **n** of the scenario so far, in microseconds.
    pub(crate) fn references(&self) -> &[f64] {
        &self.n_us
    }
}

/// A ping on each connection, which nginx answers by itself.
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
