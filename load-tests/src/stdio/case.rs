//! One case of the comparison: so many clients of one kind at one front.

use anyhow::{Context, bail};
use tokio::time::timeout;

use super::front::{FIRST_CALL_LIMIT, NAMESPACE, Running};
use super::{Client, Sampled};
use crate::load::{self, Load, Sample};
use crate::message::{Envelope, Expect, FIRST_ID, Request};
use crate::options::Options;
use crate::processes::{descendants, proportional_kib};
use crate::servers::echo::EchoProgram;
use crate::servers::gateway::TOKEN;
use crate::session;
use crate::wire::{Connection, Target};

/// The first load on a new process is warmed up so much longer: those with a just-in-time compiler need it.
const FIRST_WARM_UP: u32 = 3;

/// What was measured earlier in the repetition, for differences and ratios.
pub(super) struct Against {
    /// The server alone, with one client.
    pub(super) alone: Sample,
    pub(super) nginx_cpu_us: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) client: Client,
    pub(super) clients: usize,
    /// The first load on this process.
    pub(super) first: bool,
}

impl Case {
    /// Measures it once.
    pub(super) async fn sample(
        self,
        options: &Options,
        echo: &EchoProgram,
        running: &Running,
        against: &Against,
    ) -> anyhow::Result<Sampled> {
        let requests = self.requests(running).await?;
        // A server that starts with the first call is there after it.
        called_once(running, requests.first().cloned())
            .await
            .context("the first call")?;
        let (front, workers) = processes(echo, running);
        let warm_up = if self.first {
            options.warm_up() * FIRST_WARM_UP
        } else {
            // It is warm; only its new connections have to get going.
            options.warm_up() / 2
        };
        let (sample, faults) = load::tolerant(Load {
            target: Target::Http(running.address()),
            requests,
            expect: Expect::NUMBERED_ECHO,
            warm_up,
            measured: options.measured(),
            front,
            workers,
        })
        .await?;
        let sample = sample.map_err(|error| match &faults.first {
            Some(first) => error.context(format!("{} wrong answers: {first}", faults.count)),
            None => error,
        })?;
        let added =
            |of: fn(&Sample) -> f64| (self.clients == 1).then(|| of(&sample) - of(&against.alone));
        let (front, servers) = processes(echo, running);
        Ok(Sampled {
            sample,
            added_p50_us: added(|sample| sample.p50_us),
            added_p99_us: added(|sample| sample.p99_us),
            nginx_cpu_us: against.nginx_cpu_us,
            wrong: faults.count,
            first_wrong: faults.first,
            front_kib: Some(proportional_kib(&front)),
            servers: servers.len(),
            servers_kib: proportional_kib(&servers),
        })
    }

    /// One for each client; sessions are opened for those that have one.
    async fn requests(self, running: &Running) -> anyhow::Result<Vec<Request>> {
        let envelope = Envelope {
            to: running.address(),
            token: TOKEN,
            namespace: NAMESPACE,
            session: None,
        };
        let mut requests = Vec::with_capacity(self.clients);
        for _ in 0..self.clients {
            requests.push(match self.client {
                Client::Session => {
                    let session = session::open(envelope).await?;
                    let session = Some(session.as_str());
                    Envelope {
                        session,
                        ..envelope
                    }
                    .numbered_call()
                }
                Client::Modern => envelope.modern_call(),
                Client::Pipes => bail!("nobody is at the pipes of a server behind something"),
            });
        }
        Ok(requests)
    }
}

/// What is in front, with all it started, and the servers behind it.
fn processes(echo: &EchoProgram, running: &Running) -> (Vec<u32>, Vec<u32>) {
    let (servers, others): (Vec<u32>, Vec<u32>) = descendants(running.id())
        .into_iter()
        .partition(|process| echo.is_run_by(*process));
    let front = [running.id()].into_iter().chain(others).collect();
    (front, servers)
}

async fn called_once(running: &Running, request: Option<Request>) -> anyhow::Result<()> {
    let mut request = request.context("no client")?;
    let asked = async {
        let mut connection = Connection::open(&Target::Http(running.address())).await?;
        let answer = connection.ask(request.with_id(FIRST_ID)).await?;
        match Expect::NUMBERED_ECHO.mismatch(&answer, FIRST_ID) {
            Some(fault) => bail!(fault),
            None => Ok(()),
        }
    };
    timeout(FIRST_CALL_LIMIT, asked)
        .await
        .context("no answer in time")?
}
