//! The cost of a call: the gateway before a Python worker and a stdio server, nginx before an HTTP application, and
//! peers before the same stdio server.
//!
//! ```text
//! per repetition:  the stdio server over its pipes
//!                  nginx return 200 ── gateway up ── its cases, then one client ── gateway down
//!                  nginx return 200 ── the same with work_stealing
//!                  nginx and an HTTP application up ── likewise ── down
//!                  each peer likewise
//! ```
//!
//! Each repetition measures the fronts in another order. Errors of the gateway are failures of the run; errors of a peer are
//! results.

mod alone;
mod case;
mod found;
mod front;
mod idle;

use std::io;
use std::time::Duration;

use anyhow::Context;
use tokio::time::error::Elapsed;

use super::{Run, Scenario};
use crate::load::{self, Faults, Load, Sample, Window, pipes};
use crate::message::{Expect, pipe_call};
use crate::options::Options;
use crate::processes;
use crate::report::table::cell;
use crate::report::{Numbers, Section};
use crate::servers::echo::{Echo, EchoProgram, Era};
use crate::wire::Target;

use case::{Case, Client, MANY, Server};
use found::{ALONE, LOADS, NOTHING, labels};
use front::{Front, NGINX, Running};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "tools_call",
    question: "What does a call cost, in CPU time, in latency and in memory? `ping` and `tools/call` through the gateway with \
               everything on, with and without a session, of 2025-11-25 and 2026-07-28 (which has `server/discover` and no `ping`), small, of 16 KB and of 1 MB, to a \
               Python worker and to a stdio server; beside it nginx before an HTTP application, and the programs that put \
               HTTP in front of the same stdio server.",
    default: true,
    takes,
    run: |run| Box::pin(measure(run)),
};

/// Factor by which the warm-up of the first load on a new process is longer, for programs with a just-in-time compiler.
const FIRST_WARM_UP: u32 = 3;
fn takes(options: &Options) -> Duration {
    let fronts = Front::find(options).map_or_else(|_| Vec::new(), |(fronts, _)| fronts);
    // A load after the first one has half a warm-up.
    let load = options.measured() + options.warm_up() / 2;
    let repetition: Duration = fronts
        .iter()
        .map(|front| {
            let reference = u32::from(front.must_be_right());
            let loads = load * (front.cases().len() as u32 + reference);
            let alone = options.measured() * front.cases_alone().len() as u32;
            front.start_takes() + options.warm_up() * FIRST_WARM_UP + loads + alone
        })
        .sum();
    let pipes = options.measured() + options.warm_up();
    (repetition + pipes) * options.repetitions as u32 + idle::SETTLE * 2
}

async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let echo = EchoProgram::find()?;
    let (mut fronts, missing) = Front::find(run.options)?;
    let mut section = Section::default();
    for front in &fronts {
        if let Some(description) = front.description() {
            section.note(format!("{} {description}", front.name()));
        }
    }
    section.missing = missing;
    if run.nginx.is_none() {
        section.miss("nginx: no ratios");
    }
    match idle::memory(run.options).await {
        Ok(memory) => found::idle(&mut section, memory),
        Err(error) => section.fail(format!("an idle gateway: {error:#}")),
    }
    let mut measuring = Measuring {
        options: run.options,
        run,
        echo,
        section,
        nginx_cpu_us: None,
    };
    for repetition in 1..=measuring.options.repetitions {
        measuring.section.repetition = repetition;
        let of = measuring.options.repetitions;
        measuring
            .run
            .progress(&format!("repetition {repetition} of {of}"));
        measuring.at_the_pipes().await?;
        for front in &fronts {
            measuring.behind(front).await;
        }
        fronts.rotate_left(1);
    }
    found::tell(&mut measuring.section);
    Ok(measuring.section)
}

struct Measuring<'a, 'r> {
    options: &'a Options,
    run: &'r mut Run<'a>,
    echo: EchoProgram,
    section: Section,
    /// CPU time of a request to nginx as measured last, in microseconds.
    nginx_cpu_us: Option<f64>,
}

impl Measuring<'_, '_> {
    /// Measures the stdio server without a front.
    async fn at_the_pipes(&mut self) -> anyhow::Result<()> {
        let (options, echo) = (self.options, &self.echo);
        let take = async || {
            let (server, opened) = Echo::start(echo).await?;
            let window = Window::by(options, vec![server.id()]);
            // The server ends with its pipes, so its memory is read before they are closed.
            let memory = processes::proportional_kib(&[server.id()]);
            let expect = Expect::NUMBERED_ECHO;
            let sample = pipes::measure(opened, pipe_call(), MANY, expect, &window).await;
            Ok((sample.context("the stdio server alone")?, memory))
        };
        let (sample, memory) = self
            .run
            .patiently(|(sample, _)| sample.other_cores, take)
            .await?;
        let case = Case::new(Server::Stdio(Era::Legacy), Client::Pipes);
        let sample = self.shown(NOTHING, case, sample);
        // All CPU time is the server's, since there is no front.
        let numbers = Numbers::of(&sample)
            .without("cpu_us")
            .with("worker_cpu_us", sample.cpu_us);
        let numbers = numbers.with("servers", 1.0).with("server_mib", mib(memory));
        self.section.add(LOADS, labels(NOTHING, case), numbers);
        Ok(())
    }

    /// Measures all cases of one front.
    async fn behind(&mut self, front: &Front) {
        // A peer's cost differs by orders of magnitude, so it needs no new measurement of nginx.
        if front.must_be_right()
            && let Err(error) = self.reference().await
        {
            self.section.fail(format!("nginx: {error:#}"));
        }
        let running = match front.start(self.options, &self.echo).await {
            Ok(running) => running,
            Err(error) => return self.went_wrong(front, &format!("start: {error:#}")),
        };
        if let Some(case) = front.case_to_try() {
            self.speaks_modern(front, &running, case).await;
        }
        for (at, &case) in front.cases().iter().enumerate() {
            match self.load(front, &running, case, at == 0).await {
                Ok((numbers, faults)) => {
                    if let Some(first) = &faults.first {
                        let wrong = format!("{case}: {} wrong answers: {first}", faults.count);
                        self.went_wrong(front, &wrong);
                    }
                    self.section.add(LOADS, labels(front.name(), case), numbers);
                }
                Err(error) => self.went_wrong(front, &format!("{case}: {error:#}")),
            }
        }
        for &case in front.cases_alone() {
            match alone::measure(self.options, &self.echo, &running, case).await {
                Ok(alone) => {
                    let p50 = |of: &str| cell(alone.get(&format!("{of}.p50_us")), 0);
                    self.run.progress(&format!(
                        "{}, {case}, one client: p50 {} us, {} us without",
                        front.name(),
                        p50("through"),
                        p50("direct")
                    ));
                    self.section.add(ALONE, labels(front.name(), case), alone);
                }
                Err(error) => self.went_wrong(front, &format!("{case}, one client: {error:#}")),
            }
        }
    }

    /// Checks whether a peer supports 2026-07-28. Its row is measured with sessions, like the others.
    async fn speaks_modern(&mut self, front: &Front, running: &Running, case: Case) {
        let asked = async {
            let envelope = running.envelope();
            let requests = case.requests(envelope, running.echo_tool(), 1).await?;
            let request = requests.first().context("no client")?;
            case.once(&Target::Http(running.address()), request).await
        };
        let finding = discovered(asked.await);
        self.section.note(format!("{}: {finding}", front.name()));
    }

    /// Measures the CPU time of a request to nginx.
    async fn reference(&mut self) -> anyhow::Result<()> {
        if let Some(sample) = self.run.reference().await? {
            self.nginx_cpu_us = Some(sample.cpu_us);
            let processes = self.run.nginx.as_ref().map(|nginx| nginx.processes());
            let numbers = self.of_load(&sample, self.options.connections);
            let kib = processes::proportional_kib(&processes.unwrap_or_default());
            let case = Case::new(Server::None, Client::Sessionless);
            self.section
                .add(LOADS, labels(NGINX, case), numbers.with("mib", mib(kib)));
        }
        Ok(())
    }

    /// Measures one case of one front with many clients.
    async fn load(
        &mut self,
        front: &Front,
        running: &Running,
        case: Case,
        first: bool,
    ) -> anyhow::Result<(Numbers, Faults)> {
        let (options, echo) = (self.options, &self.echo);
        let clients = case.clients(options);
        let envelope = running.envelope();
        let requests = case
            .requests(envelope, running.echo_tool(), clients)
            .await?;
        let target = Target::Http(running.address());
        case.once(&target, requests.first().context("no client")?)
            .await?;
        let warm_up = if first {
            options.warm_up() * FIRST_WARM_UP
        } else {
            options.warm_up() / 2
        };
        let take = async || {
            let processes = running.processes(case, echo)?;
            let (sample, faults) = load::tolerant(Load {
                target: target.clone(),
                requests: requests.clone(),
                expect: case.expect(),
                window: Window {
                    warm_up,
                    workers: processes.servers,
                    ..Window::by(options, processes.front)
                },
            })
            .await?;
            let sample = sample.map_err(|error| match &faults.first {
                Some(first) => error.context(format!("{} wrong answers: {first}", faults.count)),
                None => error,
            })?;
            Ok((sample, faults))
        };
        let (sample, faults) = self
            .run
            .patiently(|(sample, _)| sample.other_cores, take)
            .await?;
        let processes = running.processes(case, echo)?;
        let sample = self.shown(front.name(), case, sample);
        let numbers = self
            .of_load(&sample, clients)
            .with("mib", mib(processes::proportional_kib(&processes.front)))
            .with("wrong", faults.count as f64)
            .with("servers", processes.servers.len() as f64)
            .with(
                "server_mib",
                mib(processes::proportional_kib(&processes.servers)),
            );
        Ok((numbers, faults))
    }

    fn of_load(&self, sample: &Sample, clients: usize) -> Numbers {
        let all = sample.cpu_us + sample.worker_cpu_us.unwrap_or_default();
        Numbers::of(sample)
            .with("clients", clients as f64)
            .with(
                "kernel_percent",
                sample.kernel_share.map(|share| share * 100.0),
            )
            .with("all_cpu_us", all)
            .with_ratio("cpu_n", "cpu_us", self.nginx_cpu_us)
    }

    fn shown(&self, front: &str, case: Case, sample: Sample) -> Sample {
        self.run
            .progress(&format!("{front}, {case}: {}", sample.shown()));
        sample
    }

    fn went_wrong(&mut self, front: &Front, what: &str) {
        let text = format!("{}: {what}", front.name());
        self.run.progress(&text);
        if front.must_be_right() {
            self.section.fail(text);
        } else {
            self.section.note(text);
        }
    }
}

/// MiB of a number of KiB; `None` for 0, where there is no process.
fn mib(kib: u64) -> Option<f64> {
    (kib > 0).then(|| kib as f64 / 1024.0)
}

/// Describes the result of `server/discover`, with the reason if there was no right answer: a peer that was not
/// reached, or took too long, may support it.
fn discovered(asked: anyhow::Result<()>) -> String {
    const ASKED: &str = "`server/discover` of 2026-07-28";
    const REASON_MAX: usize = 120;
    let Err(error) = asked else {
        return format!("answers {ASKED}");
    };
    let missed = error
        .chain()
        .any(|cause| cause.is::<io::Error>() || cause.is::<Elapsed>());
    let said = if missed {
        "could not be asked for"
    } else {
        "does not answer"
    };
    let reason = format!("{error:#}").replace(char::is_control, " ");
    let short: String = reason.chars().take(REASON_MAX).collect();
    let more = if short == reason { "" } else { "..." };
    format!("{said} {ASKED}: {short}{more}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[tokio::test]
    async fn a_peer_that_was_not_reached_has_not_refused() {
        assert!(discovered(Ok(())).starts_with("answers"));
        let status = anyhow::anyhow!("status 400 instead of 200: {}\r\n", "x".repeat(200));
        let told = discovered(Err(status.context("the first call")));
        let start = "does not answer `server/discover` of 2026-07-28: the first call: status 400 instead of 200: xxx";
        assert!(told.starts_with(start) && told.ends_with("x..."), "{told}");

        let refused = Err::<(), _>(io::Error::from(io::ErrorKind::ConnectionRefused));
        let told = discovered(refused.context("the first call"));
        assert!(
            told.starts_with("could not be asked for") && told.contains("refused"),
            "{told}"
        );
        let late = tokio::time::timeout(Duration::ZERO, std::future::pending::<()>()).await;
        let told = discovered(late.context("no answer in time"));
        assert!(
            told.starts_with("could not be asked for") && told.contains("in time"),
            "{told}"
        );
    }

    #[test]
    fn half_of_the_default_run_is_enough() {
        let of = |arguments: &[&str]| takes(&Options::parse_from(["x"].iter().chain(arguments)));
        let default = of(&[]);
        assert!(default <= Duration::from_secs(210), "{default:?}");
        assert!(of(&["--repetitions", "6"]) > default);
        assert!(of(&["--peer", "one-more=x {port} {server}"]) > default);
    }
}
