//! What it costs to reach a stdio server over HTTP: through the gateway, through others that do that job, and not at all.
//!
//! ```text
//! per repetition:  nginx ── the echo server over its pipes ── gateway up ── its rows ── gateway down ── each peer likewise
//! ```
//!
//! Everybody is put in front of the same compiled server, which costs next to nothing. Who comes first changes with each
//! repetition. What goes wrong with the gateway is a failure of the run; what goes wrong with a peer is a finding.

mod case;
mod front;
mod results;

use anyhow::Context;

use crate::load::{Sample, Window, pipes};
use crate::message::{Expect, pipe_call};
use crate::options::Options;
use crate::processes;
use crate::quiet::Patience;
use crate::run::{progress, reference};
use crate::servers::echo::{Echo, EchoProgram, Era};
use crate::servers::nginx::Nginx;
use crate::servers::peers;

use case::{Against, Case};
use front::{Front, Running};
pub(crate) use results::{Client, DIRECT, GATEWAY, Row, Sampled, Stdio};

/// Clients at once where they are many.
pub(crate) const MANY: usize = 64;
/// Of one sample, when other work disturbs it and there is patience.
const ATTEMPTS: u32 = 3;

/// Measures all of it.
///
/// # Errors
///
/// When the echo server is not there or cannot be measured alone.
pub(crate) async fn compare(
    options: &Options,
    nginx: Option<&Nginx>,
    patience: &mut Patience,
) -> anyhow::Result<Stdio> {
    let echo = EchoProgram::find()?;
    let target = options.target_folder()?;
    let mut found = Stdio::new(MANY);
    let mut fronts = vec![Front::Gateway];
    for kind in peers::Kind::ALL {
        match peers::Peer::find(kind, &target) {
            Some(peer) => fronts.push(Front::Peer(peer)),
            None => found.missing.push(kind.name()),
        }
    }
    for front in &fronts {
        found.describe(front.name(), front.version(), front.mode());
    }
    let mut comparison = Comparison {
        options,
        echo,
        patience,
        found,
    };
    for repetition in 1..=options.repetitions {
        progress(&format!(
            "stdio: repetition {repetition} of {}",
            options.repetitions
        ));
        let nginx_cpu_us = match nginx {
            Some(nginx) => Some(reference(options, nginx).await?.cpu_us),
            None => None,
        };
        let against = comparison.direct(nginx_cpu_us).await?;
        for front in &fronts {
            for (era, clients) in front.setups() {
                comparison.behind(front, *era, clients, &against).await;
            }
        }
        fronts.rotate_left(1);
    }
    Ok(comparison.found)
}

struct Comparison<'a> {
    options: &'a Options,
    echo: EchoProgram,
    patience: &'a mut Patience,
    found: Stdio,
}

impl Comparison<'_> {
    /// The server with nothing in front of it.
    async fn direct(&mut self, nginx_cpu_us: Option<f64>) -> anyhow::Result<Against> {
        let mut alone = None;
        for in_flight in [MANY, 1] {
            let mut attempt = 1;
            let (sample, memory) = loop {
                let (sample, memory) = self.directly(in_flight).await?;
                if attempt == ATTEMPTS || !self.patience.repeats(&sample) {
                    break (sample, memory);
                }
                attempt += 1;
                self.patience.wait_for_quiet().await?;
            };
            // All the CPU time is the server's: nothing is in front of it.
            let shown = Sample {
                cpu_us: 0.0,
                worker_cpu_us: Some(sample.cpu_us),
                ..sample
            };
            self.keep(
                DIRECT,
                Client::Pipes,
                Era::Legacy,
                in_flight,
                Sampled {
                    sample: shown,
                    added_p50_us: None,
                    added_p99_us: None,
                    nginx_cpu_us,
                    wrong: 0,
                    first_wrong: None,
                    front_kib: None,
                    servers: 1,
                    servers_kib: memory,
                },
            );
            alone = Some(sample);
        }
        Ok(Against {
            alone: alone.context("the server alone was not measured")?,
            nginx_cpu_us,
        })
    }

    async fn directly(&self, in_flight: usize) -> anyhow::Result<(Sample, u64)> {
        let (server, opened) = Echo::start(&self.echo).await?;
        let window = Window {
            warm_up: self.options.warm_up(),
            measured: self.options.measured(),
            front: vec![server.id()],
            workers: Vec::new(),
        };
        let expect = Expect::NUMBERED_ECHO;
        // The server ends with its pipes, so its memory is read before they are closed.
        let memory = processes::proportional_kib(&[server.id()]);
        let sample = pipes::measure(opened, pipe_call(), in_flight, expect, &window).await;
        Ok((sample.context("the echo server alone")?, memory))
    }

    /// All cases of one front before one kind of server.
    async fn behind(&mut self, front: &Front, era: Era, clients: &[Client], against: &Against) {
        let running = match front.start(self.options, &self.echo, era).await {
            Ok(running) => running,
            Err(error) => return self.not_measured(front, &format!("start: {error:#}")),
        };
        let mut first = true;
        for &client in clients {
            for clients in [MANY, 1] {
                let case = Case {
                    client,
                    clients,
                    first,
                };
                first = false;
                match self.patiently(&running, case, against).await {
                    Ok(sampled) => {
                        if let (Front::Gateway, Some(wrong)) = (front, &sampled.first_wrong) {
                            let why = format!("{} wrong answers: {wrong}", sampled.wrong);
                            self.found.failures.push(why);
                        }
                        self.keep(front.name(), client, era, clients, sampled);
                    }
                    Err(error) => {
                        let case = format!("{clients} clients, {}: ", client.name());
                        self.not_measured(front, &format!("{case}{error:#}"));
                    }
                }
            }
        }
    }

    async fn patiently(
        &mut self,
        running: &Running,
        case: Case,
        against: &Against,
    ) -> anyhow::Result<Sampled> {
        let mut attempt = 1;
        loop {
            let sampled = case
                .sample(self.options, &self.echo, running, against)
                .await?;
            if attempt == ATTEMPTS || !self.patience.repeats(&sampled.sample) {
                return Ok(sampled);
            }
            attempt += 1;
            self.patience.wait_for_quiet().await?;
        }
    }

    fn keep(
        &mut self,
        front: &'static str,
        client: Client,
        server: Era,
        clients: usize,
        sampled: Sampled,
    ) {
        let sample = &sampled.sample;
        progress(&format!(
            "  {front:<20} {:<10} {:<6} {clients:>2}  {:>7.0} calls/s, p50 {:>6.0} us, {:>7.1} + {:.1} us CPU, {} wrong, {:.2} cores busy with other work",
            client.name(),
            server.name(),
            sample.per_second,
            sample.p50_us,
            sample.cpu_us,
            sample.worker_cpu_us.unwrap_or_default(),
            sampled.wrong,
            sample.other_cores
        ));
        self.found
            .samples_of(front, client, server, clients)
            .push(sampled);
    }

    fn not_measured(&mut self, front: &Front, why: &str) {
        progress(&format!("  {}: {why}", front.name()));
        let text = format!("{}: {why}", front.name());
        match front {
            Front::Gateway => self.found.failures.push(text),
            Front::Peer(_) if !self.found.not_measured.contains(&text) => {
                self.found.not_measured.push(text);
            }
            Front::Peer(_) => {}
        }
    }
}
