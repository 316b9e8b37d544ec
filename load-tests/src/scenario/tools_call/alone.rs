//! Tool calls of a single client on one connection: to the server itself, then through each front.

use anyhow::{Context, bail};
use serde_json::json;

use super::case::{Case, Server};
use super::front::Running;
use crate::load::one_by_one::{self, Latencies, Plan};
use crate::message::{Envelope, Expect, Request, pipe_call, worker_call};
use crate::options::Options;
use crate::processes::{CpuTimes, time_of_ended_children};
use crate::report::Numbers;
use crate::servers::echo::{Echo, EchoProgram};
use crate::wire::{Connection, Target};

/// Number of connections. Servers with several threads assign a connection to one of them; peers have one thread, and
/// are slow.
const CONNECTIONS: u32 = 20;
const CONNECTIONS_OF_PEERS: u32 = 10;
const CALLS: u64 = 100;
/// Time of one connection, as a fraction of the seconds of a measurement.
const SHARE: f64 = 0.15;

/// The number of connections and calls for these options.
fn plan(options: &Options, running: &Running) -> Plan {
    let connections = match running {
        Running::Peer(_) => CONNECTIONS_OF_PEERS,
        Running::Gateway(_) | Running::Nginx { .. } => CONNECTIONS,
    };
    Plan {
        connections,
        calls: CALLS,
        limit: options.measured().mul_f64(SHARE),
    }
}

pub(super) async fn measure(
    options: &Options,
    echo: &EchoProgram,
    running: &Running,
    case: Case,
) -> anyhow::Result<Numbers> {
    let plan = plan(options, running);
    let direct = direct(plan, echo, running, case)
        .await
        .context("the server by itself")?;
    let target = Target::Http(running.address());
    let request = one(case, running.envelope(), running.echo_tool()).await?;
    case.once(&target, &request).await?;
    let processes = running.processes(case, echo)?;
    let spent = || -> anyhow::Result<_> {
        let ended = time_of_ended_children(&processes.front);
        let front = CpuTimes::of_first(&processes.front)?;
        Ok((front, CpuTimes::of_those_left(&processes.servers), ended))
    };
    let before = spent()?;
    let through = by_connections(plan, &target, request, case.expect()).await?;
    let after = spent()?;
    let each = |nanoseconds: u64| nanoseconds as f64 / 1e3 / through.sent as f64;
    let ended = after.2.saturating_sub(before.2);
    let added = (
        through.p50_us - direct.p50_us,
        through.p99_us - direct.p99_us,
    );
    Ok(Numbers::of(&json!({"direct": direct, "through": through}))
        .with("added_p50_us", added.0)
        .with("added_p99_us", added.1)
        .with("cpu_us", each(after.0.since(&before.0)))
        .with("server_cpu_us", each(after.1.since(&before.1) + ended)))
}

async fn direct(
    plan: Plan,
    echo: &EchoProgram,
    running: &Running,
    case: Case,
) -> anyhow::Result<Latencies> {
    match case.server {
        // Each connection is a separate server process, which has a single pair of pipes.
        Server::Stdio(_) => {
            let open = async || {
                let (server, pipes) = Echo::start(echo).await?;
                Ok((Connection::from(pipes), server))
            };
            one_by_one::measure(plan, pipe_call(), Expect::NUMBERED_ECHO, open).await
        }
        Server::Async => {
            let target = Target::Lines(running.worker_socket()?);
            let request = worker_call(crate::servers::gateway::ASYNC_TOOL);
            by_connections(plan, &target, request, Expect::ECHO).await
        }
        Server::App => {
            let to = running.app()?;
            let request = one(case, running.envelope().at(to), running.echo_tool()).await?;
            by_connections(plan, &Target::Http(to), request, case.expect()).await
        }
        Server::None | Server::Sync => bail!("not measured alone"),
    }
}

async fn by_connections(
    plan: Plan,
    target: &Target,
    request: Request,
    expect: Expect,
) -> anyhow::Result<Latencies> {
    let open = async || Ok((Connection::open(target).await?, ()));
    one_by_one::measure(plan, request, expect, open).await
}

async fn one(
    case: Case,
    envelope: Envelope<'_>,
    echo_tool: &'static str,
) -> anyhow::Result<Request> {
    let mut requests = case.requests(envelope, echo_tool, 1).await?;
    requests.pop().context("no client")
}
