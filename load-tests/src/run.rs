//! The run: repetitions of all groups in turn, so that a slow minute of the machine hits every scenario alike.
//!
//! ```text
//! per repetition:  nginx ── gateway up ── its scenarios ── gateway down     (work_stealing off)
//!                  nginx ── gateway up ── its scenarios ── gateway down     (work_stealing on)
//! per repetition:  nginx ── a stdio server alone ── behind the gateway ── behind each peer
//! once:            a gateway for worker starts, a gateway without tools for memory, gateways for idle streams
//! ```
//!
//! At any time at most one gateway runs, and beside it only an nginx that waits: neither wakes up while it is not asked.

mod ask;

use std::time::Duration;

use crate::load::Sample;
use crate::machine::Machine;
use crate::once;
use crate::options::Options;
use crate::plan::{
    self, IDLE_STREAMS, Layout, MEMORY, REFERENCE, STDIO, Scenario, Server, WORKER_START,
};
use crate::quiet::Patience;
use crate::report::{Failure, Measured, Report};
use crate::servers::gateway::{Gateway, threads};
use crate::servers::nginx::{self, Nginx};
use crate::stdio;
use crate::streams;

pub(crate) use ask::reference;
use ask::{ask_gateway, ask_nginx};

/// For starts and stops, per group and for what is measured once.
const OVERHEAD: Duration = Duration::from_secs(60);
/// Once, should the base environment have to be made.
const FIRST_TIME: Duration = Duration::from_secs(600);
/// Once, for opening and holding tens of thousands of streams.
const STREAMS: Duration = Duration::from_secs(600);
/// For each repetition of the comparison at a stdio server.
const STDIO_REPETITION: Duration = Duration::from_secs(300);

/// Of one sample, when other work disturbs it and there is patience.
const ATTEMPTS: u32 = 5;

const LAYOUTS: [Layout; 2] = [Layout::Separate, Layout::Stealing];

/// When the whole run is given up: twice what it takes, and room for slow starts.
pub(crate) fn deadline(options: &Options) -> Duration {
    let scenarios: usize = LAYOUTS
        .map(|layout| plan::group(layout).len() + 1)
        .iter()
        .sum();
    let measurements = u32::try_from(scenarios * options.repetitions + 1).unwrap_or(u32::MAX);
    let groups = u32::try_from(LAYOUTS.len() * options.repetitions + 2).unwrap_or(u32::MAX);
    let attempts = if options.patience().is_zero() {
        1
    } else {
        ATTEMPTS
    };
    (options.warm_up() + options.measured()) * 2 * measurements * attempts
        + OVERHEAD * groups
        + FIRST_TIME
        + STREAMS
        + STDIO_REPETITION * u32::try_from(options.repetitions).unwrap_or(u32::MAX)
        + options.patience()
}

/// Measures everything the options ask for. What fails is in the report, and the rest goes on.
///
/// # Errors
///
/// When a server cannot be started at all.
pub(crate) async fn run(options: &Options) -> anyhow::Result<Report> {
    let mut run = Run {
        options,
        report: Report::new(options, Machine::here()),
        patience: Patience::new(options.patience()),
        nginx: None,
    };
    match nginx::program() {
        Some(program) => run.nginx = Some(Nginx::start(&program, threads()?).await?),
        None => run
            .report
            .missing
            .push("nginx is not installed: no ratios (apt-get install nginx-light)".into()),
    }
    run.patience.wait_for_quiet().await?;
    for repetition in 1..=options.repetitions {
        for layout in LAYOUTS {
            run.group(repetition, layout).await?;
        }
    }
    if options.wants(STDIO) {
        run.patience.wait_for_quiet().await?;
        let outcome = stdio::compare(options, run.nginx.as_ref(), &mut run.patience).await;
        let found = or_failure(&mut run.report, STDIO, outcome);
        let failures = found.iter().flat_map(|found| found.failures.clone());
        run.report.failures.extend(failures.map(|reason| Failure {
            scenario: STDIO,
            reason,
        }));
        run.report.stdio = found;
    }
    // An idle nginx is nothing to these, but they are about the gateway alone.
    run.nginx = None;
    let mut report = run.report;
    if options.wants(WORKER_START) {
        progress(WORKER_START);
        run.patience.wait_for_quiet().await?;
        let outcome = once::worker_start(options).await;
        report.worker_start = or_failure(&mut report, WORKER_START, outcome);
    }
    if options.wants(MEMORY) {
        progress(MEMORY);
        let outcome = once::memory(options).await;
        report.memory = or_failure(&mut report, MEMORY, outcome);
    }
    if options.wants(IDLE_STREAMS) {
        progress(IDLE_STREAMS);
        run.patience.wait_for_quiet().await?;
        let outcome = streams::idle(options).await;
        report.idle_streams = or_failure(&mut report, IDLE_STREAMS, outcome);
    }
    Ok(report)
}

/// A run and what lives as long as it.
struct Run<'a> {
    options: &'a Options,
    report: Report,
    patience: Patience,
    nginx: Option<Nginx>,
}

impl Run<'_> {
    /// The reference, then all scenarios of one layout on a gateway of their own.
    async fn group(&mut self, repetition: usize, layout: Layout) -> anyhow::Result<()> {
        let options = self.options;
        let wanted = |scenario: &&Scenario| options.wants(scenario.name);
        let scenarios: Vec<_> = plan::group(layout).iter().filter(wanted).collect();
        let only_reference =
            layout == Layout::Separate && options.only.iter().any(|name| name == REFERENCE.name);
        if scenarios.is_empty() && !only_reference {
            return Ok(());
        }
        let of = options.repetitions;
        progress(&format!("repetition {repetition} of {of}, {layout:?}"));
        let reference = self.measured(&REFERENCE, None, None).await;
        if scenarios.is_empty() {
            return Ok(());
        }
        let gateway = Gateway::with_tools(options, layout).await?;
        for scenario in scenarios {
            self.measured(scenario, reference, Some(&gateway)).await;
        }
        let dropped = gateway.metric("tooldock_audit_dropped_total").await?;
        let sum = self.report.audit_dropped.zip(dropped);
        self.report.audit_dropped = sum.map(|(sum, more)| sum + more);
        self.report.memory_after_load.push(gateway.memory()?);
        Ok(())
    }

    /// Measures a scenario, puts it into the report and says so. Nothing if its server is missing or it failed.
    async fn measured(
        &mut self,
        scenario: &Scenario,
        reference: Option<Sample>,
        gateway: Option<&Gateway>,
    ) -> Option<Sample> {
        for attempt in 1..=ATTEMPTS {
            let outcome = match (scenario.server, gateway, &self.nginx) {
                (Server::Nginx, _, Some(nginx)) => ask_nginx(self.options, scenario, nginx).await,
                (Server::Gateway | Server::Worker, Some(gateway), _) => {
                    ask_gateway(self.options, scenario, gateway).await
                }
                _ => return None,
            };
            let sample = or_failure(&mut self.report, scenario.name, outcome)?;
            progress(&format!(
                "  {:<22} {:>8.0} req/s, p50 {:>6.0} us, {:>6.1} us CPU, {:.2} cores busy with other work",
                scenario.name, sample.per_second, sample.p50_us, sample.cpu_us, sample.other_cores
            ));
            if attempt < ATTEMPTS && self.patience.repeats(&sample) {
                let waited = self.patience.wait_for_quiet().await;
                or_failure(&mut self.report, scenario.name, waited)?;
                continue;
            }
            let nginx_cpu_us = reference.map(|reference| reference.cpu_us);
            self.report.samples_of(scenario).push(Measured {
                sample,
                nginx_cpu_us,
            });
            return Some(sample);
        }
        None
    }
}

fn or_failure<T>(
    report: &mut Report,
    scenario: &'static str,
    outcome: anyhow::Result<T>,
) -> Option<T> {
    outcome
        .map_err(|error| {
            progress(&format!("  {scenario} failed: {error:#}"));
            report.failures.push(Failure {
                scenario,
                reason: format!("{error:#}"),
            });
        })
        .ok()
}

pub(crate) fn progress(line: &str) {
    eprintln!("{line}");
}
