//! The cost of a call, in the scenarios `tools_call` and `remote`: programs in front of a server, and the cases of
//! `scenarios.yaml` in which each is measured.
//!
//! ```text
//! tools_call, per repetition:  the stdio server over its pipes
//!                              nginx return 200 ── gateway up ── its cases, then one client ── gateway down
//!                              nginx return 200 ── the same with work_stealing
//!                              nginx and an HTTP application up ── likewise ── down
//!                              each peer likewise
//! remote, per repetition:      nginx return 200 ── nginx with the gateway's checks ── its cases
//!                              gateway ── its cases, passed on ── its cases in client mode
//!         once:                idle streams through each of them
//! ```
//!
//! Each repetition of `tools_call` measures the fronts in another order. Errors of the gateway are failures of the run; errors
//! of a peer are results.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::json;
use tokio::time::error::Elapsed;
use tokio::time::sleep;

use super::Run;
use crate::load::one_by_one::{self, Latencies, Plan};
use crate::load::{Faults, Load, Sample, Spent, Window, pipes};
use crate::message::{EchoCall, Envelope, Expect, Request, pipe_call, worker_call};
use crate::options::Options;
use crate::processes::{self, descendants};
use crate::report::{Numbers, Section};
use crate::servers::Server;
use crate::servers::echo::{Echo, EchoProgram, Era};
use crate::servers::gateway::{
    ASYNC_TOOL, EMPTY_NAMESPACE, Gateway, Layout, NAMESPACE, Setup, TOKEN,
};
use crate::servers::nginx::{self, Task};
use crate::servers::peers::Peer;
use crate::session;
use crate::streams::Crowd;
use crate::wire::{Connection, Target};

/// A load of many clients: a row for each of its fronts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// Names of the programs that are measured; `peer` stands for each peer.
    fronts: Vec<String>,
    /// Labels of the row, after the name of the front.
    labels: Vec<String>,
    #[serde(default)]
    send: Message,
    #[serde(default)]
    client: Client,
    /// The gateway's namespace, if it is not that of the front.
    namespace: Option<String>,
    /// The tool, if it is not the echo server's.
    tool: Option<String>,
    /// Length of the text that is sent and returned; 0 for a few words.
    #[serde(default)]
    length: usize,
    /// Number of concurrent clients, if it is not that of the options.
    clients: Option<usize>,
    #[serde(default)]
    server: Executor,
    /// True if the latency of a single client is measured, too, with and without the front.
    #[serde(default)]
    alone: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    /// A call of a tool that returns its text.
    #[default]
    Call,
    Ping,
    /// `server/discover` of 2026-07-28, which has no ping.
    Discover,
}

/// The protocol of the client.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Client {
    /// Each client has a session of 2025-11-25, if the server offers them.
    #[default]
    Session,
    /// Messages of 2025-11-25 and before, without a session.
    Sessionless,
    /// 2026-07-28, which has no sessions.
    Modern,
}

/// The server that executes the call.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Executor {
    /// The front answers by itself.
    #[default]
    None,
    /// The Python worker of the namespace under load.
    Worker,
    /// The stdio echo server, which supports versions with `initialize` only.
    Legacy,
    /// The stdio echo server with support of 2026-07-28 added.
    Dual,
    /// The echo server over HTTP.
    App,
}

const TOOLDOCK: &str = "tooldock";
const STEALING: &str = "tooldock, work_stealing";
const NGINX: &str = "nginx";
const PEER: &str = "peer";
const PASSED_ON: &str = "tooldock, passed on";
const CLIENT_MODE: &str = "tooldock, client mode";
/// Name of the front of a server without one.
const NOTHING: &str = "nothing";
/// The gateway's namespaces of the stdio echo server. `conf.yaml` has their limits.
const LEGACY: &str = "echo";
const DUAL: &str = "dual";
/// Number of requests in flight to a stdio server without a front.
const MANY: usize = 64;

/// Factor by which the warm-up of the first load on a new process is longer, for programs with a just-in-time compiler.
const FIRST_WARM_UP: u32 = 3;
const FIRST_CALL_LIMIT: Duration = Duration::from_secs(20);
/// Time between the last change and reading the memory, so that memory that is freed late counts as freed.
const SETTLE: Duration = Duration::from_secs(2);

/// Number of connections of a single client, one after the other. Servers with several threads assign a connection to one of
/// them; peers have one thread, and are slow.
const CONNECTIONS: u32 = 20;
const CONNECTIONS_OF_PEERS: u32 = 10;

/// Series of loads from many clients, from one client, and of a gateway without tools.
const LOADS: &str = "many clients";
const ALONE: &str = "one client";
const IDLE: &str = "idle";
/// Series of calls and of idle streams of `remote`.
const CALLS: &str = "calls";
const STREAMS: &str = "idle streams";

/// A running program in front of a server.
struct Front<'a> {
    name: &'a str,
    /// The name in the cases.
    kind: &'a str,
    envelope: Envelope<'a>,
    /// The name of the echo server's tool.
    tool: &'a str,
    program: Program<'a>,
    app: Option<&'a Server>,
}

#[derive(Clone, Copy)]
enum Program<'a> {
    Gateway(&'a Gateway),
    Server(&'a Server),
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.labels.join(", "))
    }
}

impl Case {
    fn clients(&self, options: &Options) -> usize {
        self.clients.unwrap_or(options.connections)
    }

    fn expect(&self) -> Expect {
        match self.send {
            Message::Call => Expect::NUMBERED_ECHO,
            Message::Ping => Expect::PONG,
            Message::Discover => Expect::DISCOVERED,
        }
    }

    fn labels(&self, front: &str) -> Vec<String> {
        [&[front.to_owned()], &self.labels[..]].concat()
    }

    /// A request for each client, in a separate session if the case has sessions.
    async fn requests(
        &self,
        envelope: Envelope<'_>,
        tool: &str,
        count: usize,
    ) -> anyhow::Result<Vec<Request>> {
        let envelope = envelope.of(self.namespace.as_deref().unwrap_or(envelope.namespace));
        let call = EchoCall {
            tool: self.tool.as_deref().unwrap_or(tool),
            length: self.length,
        };
        let mut requests = Vec::with_capacity(count);
        for _ in 0..count {
            let session = match self.client {
                Client::Session => session::offered(envelope).await?,
                Client::Sessionless | Client::Modern => None,
            };
            let envelope = envelope.in_session(session.as_deref());
            requests.push(match (self.send, self.client) {
                (Message::Ping, _) => envelope.ping(),
                (Message::Discover, _) => envelope.discover(),
                (Message::Call, Client::Modern) => envelope.modern_echo(call),
                (Message::Call, _) => envelope.echo(call),
            });
        }
        Ok(requests)
    }

    /// Sends the request once, so that a server that starts with its first call is running afterwards.
    async fn once(&self, to: std::net::SocketAddr, request: &Request) -> anyhow::Result<()> {
        let target = Target::Http(to);
        let asked = self
            .expect()
            .asked(&target, request.clone(), FIRST_CALL_LIMIT);
        asked.await.context("the first call")
    }
}

impl<'a> Front<'a> {
    /// A front for the echo server's namespace, with its own name in the cases.
    fn new(name: &'a str, program: Program<'a>, app: Option<&'a Server>) -> Self {
        let to = match program {
            Program::Gateway(gateway) => gateway.address,
            Program::Server(server) => server.address,
        };
        Self {
            name,
            kind: name,
            envelope: Envelope::new(to, TOKEN, LEGACY),
            tool: EchoCall::SMALL.tool,
            program,
            app,
        }
    }

    fn is_peer(&self) -> bool {
        self.kind == PEER
    }

    /// The processes of a case for CPU time: the front with all that it started except the servers, and the servers.
    fn processes(&self, case: &Case, echo: &EchoProgram) -> anyhow::Result<(Vec<u32>, Vec<u32>)> {
        Ok(match (self.program, self.app) {
            (Program::Gateway(gateway), Some(app)) => (vec![gateway.id()], vec![app.id()]),
            // The other processes that it started are idle: a worker has a guard, and so has a stdio server.
            (Program::Gateway(gateway), None) => (
                vec![gateway.id()],
                match case.server {
                    Executor::None | Executor::App => Vec::new(),
                    Executor::Worker => vec![gateway.worker(NAMESPACE)?.0],
                    Executor::Legacy => echo.run_below(gateway.id(), Era::Legacy),
                    Executor::Dual => echo.run_below(gateway.id(), Era::Dual),
                },
            ),
            (Program::Server(nginx), Some(app)) => (nginx.processes(), vec![app.id()]),
            (Program::Server(peer), None) => {
                let all = peer.processes().into_iter();
                let (servers, front) = all.partition(|process| echo.is_run_by(*process));
                (front, servers)
            }
        })
    }
}

/// Measures one case of one front with many clients.
async fn load(
    run: &mut Run<'_>,
    front: &Front<'_>,
    case: &Case,
    echo: &EchoProgram,
    warm_up: Duration,
    n_us: Option<f64>,
) -> anyhow::Result<(Numbers, Faults)> {
    let (clients, to) = (case.clients(run.options), front.envelope.to);
    let requests = case.requests(front.envelope, front.tool, clients).await?;
    case.once(to, requests.first().context("no client")?)
        .await?;
    let (processes, workers) = front.processes(case, echo)?;
    let load = Load {
        target: Target::Http(to),
        requests,
        expect: case.expect(),
        window: Window {
            warm_up,
            workers,
            ..Window::by(run.options, processes)
        },
    };
    let name = format!("{}, {case}", front.name);
    let (sample, faults) = run.load(&name, &load).await?;
    let (processes, servers) = front.processes(case, echo)?;
    let numbers = of_load(&sample, clients, n_us, &processes)
        .with("wrong", faults.count as f64)
        .with("servers", servers.len() as f64)
        .with("server_mib", mib(processes::proportional_kib(&servers)));
    Ok((numbers, faults))
}

fn of_load(sample: &Sample, clients: usize, n_us: Option<f64>, front: &[u32]) -> Numbers {
    let all = sample.cpu_us + sample.worker_cpu_us.unwrap_or_default();
    let kernel = sample.kernel_share.map(|share| share * 100.0);
    Numbers::of(sample)
        .with("clients", clients as f64)
        .with("kernel_percent", kernel)
        .with("all_cpu_us", all)
        .with_ratio("cpu_n", "cpu_us", n_us)
        .with("mib", mib(processes::proportional_kib(front)))
}

/// MiB of a number of KiB; `None` for 0, where there is no process.
fn mib(kib: u64) -> Option<f64> {
    (kib > 0).then(|| kib as f64 / 1024.0)
}

/// A program that `tools_call` starts in front of a server.
enum Kind {
    Nginx,
    Gateway(&'static str, Layout),
    Peer(Box<Peer>),
}

impl Kind {
    fn name(&self) -> &str {
        match self {
            Self::Nginx => NGINX,
            Self::Gateway(name, _) => name,
            Self::Peer(peer) => &peer.name,
        }
    }
}

pub(super) async fn tools_call(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let (peers, missing) = Peer::all(run.options)?;
    let mut kinds = Vec::new();
    let mut section = Section::default();
    section.note(format!(
        "{TOOLDOCK} {} with its defaults and load-tests/conf.yaml: tokens, every filter, audit log and metrics on",
        env!("CARGO_PKG_VERSION")
    ));
    if run.nginx.is_some() {
        section.note("nginx `return 200` is the unit n; before the HTTP application it checks the token and keeps connections");
        kinds.push(Kind::Nginx);
    } else {
        section
            .miss("nginx, and so ratios and a front of an HTTP application: it is not installed");
    }
    kinds.push(Kind::Gateway(TOOLDOCK, Layout::Separate));
    kinds.push(Kind::Gateway(STEALING, Layout::Stealing));
    for peer in &peers {
        section.note(format!("{} {}", peer.name, peer.description()));
    }
    kinds.extend(peers.into_iter().map(Box::new).map(Kind::Peer));
    for peer in missing {
        section.miss(format!("{peer} (make load-peers)"));
    }
    if let Err(error) = idle_memory(run.options, &mut section).await {
        section.fail(format!("an idle gateway: {error:#}"));
    }
    let mut measuring = Measuring {
        echo: EchoProgram::find()?,
        run,
        section,
        n_us: None,
    };
    for repetition in measuring.run.repetitions() {
        measuring.section.repetition = repetition;
        measuring.at_the_pipes().await?;
        for kind in &kinds {
            if let Err(error) = measuring.behind(kind).await {
                let of_peer = matches!(kind, Kind::Peer(_));
                measuring.went_wrong(of_peer, &format!("{}: {error:#}", kind.name()));
            }
        }
        kinds.rotate_left(1);
    }
    let mut section = measuring.section;
    // Connections that were closed after a response are reported, since each costs a new one.
    let closed = section
        .of(LOADS)
        .rows
        .iter()
        .filter(|row| row.sum("closed") > 0.0);
    let closed = closed.map(|row| {
        let (row, closed) = (row.labels.join(", "), row.sum("closed"));
        format!("{row}: {closed} connections closed after an answer")
    });
    let closed: Vec<String> = closed.collect();
    section.notes.extend(closed);
    Ok(section)
}

/// Measures the memory of an idle gateway.
async fn idle_memory(options: &Options, section: &mut Section) -> anyhow::Result<()> {
    let gateway = Gateway::start(
        options,
        &Setup::new(Layout::Separate).empty(EMPTY_NAMESPACE),
    )
    .await?;
    ensure!(
        descendants(gateway.id()).is_empty(),
        "a gateway without tools has child processes"
    );
    sleep(SETTLE).await;
    let memory = gateway.memory()?;
    let (resident, own) = (memory.resident_kib as f64, memory.anonymous_kib as f64);
    let numbers = Numbers::of(&memory).with("resident_mb", resident * 1024.0 / 1e6);
    section.add(IDLE, [TOOLDOCK], numbers);
    section.note(format!(
        "an idle gateway, one namespace with nothing in it: {:.1} MiB resident, {:.1} of them its own",
        resident / 1024.0,
        own / 1024.0
    ));
    Ok(())
}

struct Measuring<'a, 'r> {
    run: &'r mut Run<'a>,
    echo: EchoProgram,
    section: Section,
    /// CPU time of a request to nginx as measured last, in microseconds.
    n_us: Option<f64>,
}

impl Measuring<'_, '_> {
    /// Measures the stdio server without a front.
    async fn at_the_pipes(&mut self) -> anyhow::Result<()> {
        let (options, echo) = (self.run.options, &self.echo);
        let take = async || {
            let (server, opened) = Echo::start(echo).await?;
            let window = Window::by(options, vec![server.id()]);
            // The server ends with its pipes, so its memory is read before they are closed.
            let memory = processes::proportional_kib(&[server.id()]);
            let expect = Expect::NUMBERED_ECHO;
            let sample = pipes::measure(opened, pipe_call(), MANY, expect, &window).await;
            Ok((sample.context("the stdio server alone")?, memory))
        };
        let other = |(sample, _): &(Sample, u64)| sample.other_cores;
        let (sample, memory) = self.run.patiently(other, take).await?;
        self.run
            .progress(&format!("the stdio server alone: {}", sample.shown()));
        // All CPU time is the server's, since there is no front.
        let numbers = Numbers::of(&sample)
            .without("cpu_us")
            .with("worker_cpu_us", sample.cpu_us)
            .with("servers", 1.0)
            .with("server_mib", mib(memory));
        self.section
            .add(LOADS, [NOTHING, "stdio", "its pipes", "small"], numbers);
        Ok(())
    }

    /// Starts a front, and measures all of its cases.
    async fn behind(&mut self, kind: &Kind) -> anyhow::Result<()> {
        // A peer's cost differs by orders of magnitude, so it needs no new measurement of nginx.
        if !matches!(kind, Kind::Peer(_)) {
            self.reference().await.context("nginx")?;
        }
        let name = kind.name();
        match kind {
            Kind::Gateway(name, layout) => {
                let setup = Setup::new(*layout)
                    .python(NAMESPACE)
                    .stdio(LEGACY, self.echo.command(Era::Legacy))
                    .stdio(DUAL, self.echo.command(Era::Dual));
                let gateway = Gateway::start(self.run.options, &setup).await?;
                let front = Front::new(name, Program::Gateway(&gateway), None);
                self.cases(&front).await;
            }
            Kind::Nginx => {
                let app = self.echo.over_http().await?;
                let clients = MANY.max(self.run.options.connections);
                let started = nginx::start(Task::InFrontOfApp(app.address), clients).await?;
                let nginx = started.context("it is not installed")?;
                let front = Front::new(NGINX, Program::Server(&nginx), Some(&app));
                self.cases(&front).await;
            }
            Kind::Peer(peer) => {
                let running = peer.start(&self.echo).await?;
                let mut front = Front::new(name, Program::Server(&running.0), None);
                (front.kind, front.tool, front.envelope.path) = (PEER, &peer.tool, &peer.path);
                let discover = front.envelope.discover();
                let limit = FIRST_CALL_LIMIT / 2;
                let target = Target::Http(front.envelope.to);
                let asked = Expect::DISCOVERED.asked(&target, discover, limit);
                // Its row is measured with sessions, like the others.
                let finding = discovered(asked.await);
                self.section.note(format!("{name}: {finding}"));
                self.cases(&front).await;
            }
        }
        Ok(())
    }

    /// Measures all cases of a running front.
    async fn cases(&mut self, front: &Front<'_>) {
        let of_front = |case: &&Case| case.fronts.iter().any(|kind| kind == front.kind);
        let cases: Vec<&Case> = self.run.scenario.cases.iter().filter(of_front).collect();
        let warm_up = self.run.options.warm_up();
        for (at, case) in cases.iter().enumerate() {
            let warm_up = match at {
                0 => warm_up * FIRST_WARM_UP,
                _ => warm_up / 2,
            };
            let name = format!("{}, {case}", front.name);
            let measured = load(self.run, front, case, &self.echo, warm_up, self.n_us).await;
            let outcome = measured.and_then(|(numbers, faults)| {
                let labels = case.labels(front.name);
                self.section.add(LOADS, labels, numbers);
                faults.none()
            });
            if let Err(error) = outcome {
                self.went_wrong(front.is_peer(), &format!("{name}: {error:#}"));
            }
        }
        for case in cases.iter().filter(|case| case.alone) {
            let name = format!("{}, {case}, one client", front.name);
            match alone(self.run.options, &self.echo, front, case).await {
                Ok((direct, through, numbers)) => {
                    let p50 = format!("p50 {through:.0} us, {direct:.0} us without");
                    self.run.progress(&format!("{name}: {p50}"));
                    self.section.add(ALONE, case.labels(front.name), numbers);
                }
                Err(error) => self.went_wrong(front.is_peer(), &format!("{name}: {error:#}")),
            }
        }
    }

    /// Measures the CPU time of a request to nginx.
    async fn reference(&mut self) -> anyhow::Result<()> {
        let Some(sample) = self.run.reference().await? else {
            return Ok(());
        };
        self.n_us = Some(sample.cpu_us);
        let processes = self
            .run
            .nginx
            .as_ref()
            .map(Server::processes)
            .unwrap_or_default();
        let numbers = of_load(&sample, self.run.options.connections, self.n_us, &processes);
        let labels = [NGINX, "none: `return 200`", "no session", "small"];
        self.section.add(LOADS, labels, numbers);
        Ok(())
    }

    /// Reports a fault: a result if it is a peer's, otherwise a failure of the run.
    fn went_wrong(&mut self, of_peer: bool, what: &str) {
        self.run.progress(what);
        match of_peer {
            true => self.section.note(what),
            false => self.section.fail(what),
        }
    }
}

/// Measures calls of a single client on one connection after the other: to the server itself, then through the front. Returns
/// both medians, and all numbers.
async fn alone(
    options: &Options,
    echo: &EchoProgram,
    front: &Front<'_>,
    case: &Case,
) -> anyhow::Result<(f64, f64, Numbers)> {
    let plan = Plan {
        connections: if front.is_peer() {
            CONNECTIONS_OF_PEERS
        } else {
            CONNECTIONS
        },
        calls: 100,
        limit: options.measured().mul_f64(0.15),
    };
    let direct = direct(plan, echo, front, case)
        .await
        .context("the server by itself")?;
    let to = front.envelope.to;
    let request = case
        .requests(front.envelope, front.tool, 1)
        .await?
        .remove(0);
    case.once(to, &request).await?;
    let (processes, workers) = front.processes(case, echo)?;
    let window = Window {
        workers,
        ..Window::by(options, processes)
    };
    let (before, start) = (Spent::now(&window)?, Instant::now());
    let through = by_connections(plan, &Target::Http(to), request, case.expect()).await?;
    let seconds = start.elapsed().as_secs_f64();
    let costs = before.until(&Spent::now(&window)?, through.sent, seconds);
    let numbers = Numbers::of(&json!({"direct": direct, "through": through}))
        .with("added_p50_us", through.p50_us - direct.p50_us)
        .with("added_p99_us", through.p99_us - direct.p99_us)
        .with("cpu_us", costs.cpu_us)
        .with("server_cpu_us", costs.worker_cpu_us.unwrap_or_default());
    Ok((direct.p50_us, through.p50_us, numbers))
}

async fn direct(
    plan: Plan,
    echo: &EchoProgram,
    front: &Front<'_>,
    case: &Case,
) -> anyhow::Result<Latencies> {
    match (case.server, front.program, front.app) {
        // Each connection is a separate server process, which has a single pair of pipes.
        (Executor::Legacy, ..) => {
            let open = async || {
                let (server, pipes) = Echo::start(echo).await?;
                Ok((Connection::from(pipes), server))
            };
            one_by_one::measure(plan, pipe_call(), Expect::NUMBERED_ECHO, open).await
        }
        (Executor::Worker, Program::Gateway(gateway), _) => {
            let target = Target::Lines(gateway.worker(NAMESPACE)?.1);
            by_connections(plan, &target, worker_call(ASYNC_TOOL), Expect::ECHO).await
        }
        (Executor::App, _, Some(app)) => {
            let envelope = front.envelope.at(app.address);
            let request = case.requests(envelope, front.tool, 1).await?.remove(0);
            by_connections(plan, &Target::Http(app.address), request, case.expect()).await
        }
        _ => bail!("{case} is not measured with one client"),
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

pub(super) async fn remote(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let echo = EchoProgram::find()?;
    let app = echo.over_http().await?;
    let clients = run.count("clients")?;
    let mut section = Section::default();
    if run.nginx.is_none() {
        section.miss("nginx is not installed: nothing to compare with");
    }
    for repetition in run.repetitions() {
        section.repetition = repetition;
        let n_us = run.reference().await?.map(|sample| sample.cpu_us);
        let nginx = nginx::start(Task::Checking(app.address), clients).await?;
        let gateway = before_remote(run.options, &app).await?;
        let nginx = nginx.as_ref().map(|nginx| (NGINX, Program::Server(nginx)));
        let gateway = [PASSED_ON, CLIENT_MODE].map(|name| (name, Program::Gateway(&gateway)));
        for (name, program) in nginx.into_iter().chain(gateway) {
            let mut front = Front::new(name, program, Some(&app));
            front.envelope = front.envelope.of(namespace_of(name));
            for case in &run.scenario.cases {
                let warm_up = run.options.warm_up();
                let measured = load(run, &front, case, &echo, warm_up, n_us).await;
                match measured.and_then(|(numbers, faults)| faults.none().map(|()| numbers)) {
                    Ok(numbers) => section.add(CALLS, case.labels(name), numbers),
                    Err(error) => section.fail(format!("{name}, {case}: {error:#}")),
                }
            }
        }
    }
    section.repetition = 0;
    for name in [NGINX, PASSED_ON, CLIENT_MODE] {
        idle_streams(run, name, &app, &mut section).await?;
    }
    Ok(section)
}

/// A gateway with two namespaces of the same server: passed on, and as its client.
async fn before_remote(options: &Options, app: &Server) -> anyhow::Result<Gateway> {
    let remote = |mode: &str| {
        json!({
            "backends": [format!("http://{}/mcp", app.address)], "mode": mode, "keepalive": 256,
            "limits": {"max_concurrency": 64},
        })
    };
    let servers = json!({"upstreams": {"remote": {"passed": remote("pass_through"), "client": remote("client")}}});
    let setup = Setup::new(Layout::Separate).empty(EMPTY_NAMESPACE);
    Gateway::start(options, &setup.config(&servers.to_string())).await
}

/// The gateway's namespace of a front of `remote`; ignored by nginx.
fn namespace_of(front: &str) -> &'static str {
    match front {
        CLIENT_MODE => "client",
        _ => "passed",
    }
}

/// Measures the memory of an idle stream in a front of its own.
async fn idle_streams(
    run: &mut Run<'_>,
    name: &str,
    app: &Server,
    section: &mut Section,
) -> anyhow::Result<()> {
    let idle = run.count("idle")?;
    run.progress(&format!("{name}: {idle} idle streams"));
    let (nginx, gateway) = match name {
        NGINX => (
            nginx::start(Task::InFrontOf(app.address), idle).await?,
            None,
        ),
        _ => (None, Some(before_remote(run.options, app).await?)),
    };
    let settled = async || {
        sleep(SETTLE / 2).await;
        let kib = match (&nginx, &gateway) {
            (_, Some(gateway)) => gateway.memory()?.anonymous_kib,
            (Some(nginx), None) => nginx.anonymous_kib()?,
            (None, None) => 0,
        };
        anyhow::Ok(kib as f64)
    };
    let nginx_address = nginx.as_ref().map(|nginx| nginx.address);
    let Some(to) = gateway
        .as_ref()
        .map(|gateway| gateway.address)
        .or(nginx_address)
    else {
        return Ok(());
    };
    let mut crowd = Crowd::new(Envelope::new(to, TOKEN, namespace_of(name)))?;
    let empty = settled().await?;
    crowd.sign_up(idle).await?;
    let with_sessions = settled().await?;
    crowd.open_up_to(idle, to).await?;
    let with_streams = settled().await?;
    let lost = crowd.counts().ended;
    if lost > 0 {
        section.fail(format!("{name}: {lost} of {idle} streams ended"));
    }
    let each = |kib: f64| kib / idle as f64;
    let numbers = Numbers::one("session_kib", each(with_sessions - empty))
        .with("stream_kib", each(with_streams - with_sessions));
    section.add(STREAMS, [name], numbers);
    // The clients' connections are closed first, so that the front ends immediately.
    crowd.leave().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::message::FIRST_ID;
    use crate::scenario::{PLAN, Scenario};

    fn scenario(name: &str) -> &'static Scenario {
        let mut all = PLAN.scenarios.iter();
        all.find(|scenario| scenario.name == name).unwrap()
    }

    fn case(labels: &[&str]) -> &'static Case {
        let mut all = scenario("tools_call").cases.iter();
        all.find(|case| case.labels == labels).unwrap()
    }

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
    fn more_repetitions_and_more_peers_take_longer() {
        let of = |arguments: &[&str]| {
            let options = Options::parse_from(["x"].iter().chain(arguments));
            scenario("tools_call").takes(&options)
        };
        let default = of(&[]);
        assert!(default <= Duration::from_secs(210), "{default:?}");
        assert!(of(&["--repetitions", "6"]) > default);
        assert!(of(&["--peer", "one-more=x {port} {server}"]) > default);
    }

    #[test]
    fn large_bodies_are_sent_by_few_and_small_ones_by_many() {
        let options = Options::parse_from(["x"]);
        for (server, small) in [("stdio", MANY), ("Python, async", options.connections)] {
            let clients = |text| case(&[server, "session", text]).clients(&options);
            assert_eq!(clients("small"), small);
            assert_eq!(clients("16 KB"), options.connections);
            assert_eq!(clients("1 MB"), 4);
        }
    }

    #[tokio::test]
    async fn requests_without_a_session_need_no_server() {
        let envelope = Envelope::new("127.0.0.1:1".parse().unwrap(), "t", LEGACY);
        for (labels, parts) in [
            (
                ["none: `ping`", "no session", "small"],
                [r#""ping""#, "X-Namespace: load"],
            ),
            (
                ["none: `server/discover`", "2026-07-28", "small"],
                [r#""server/discover""#, "X-Namespace: load"],
            ),
            (
                ["Python, async", "2026-07-28", "small"],
                ["Mcp-Name: echo_async", "2026-07-28"],
            ),
            (
                ["stdio, 2026-07-28", "2026-07-28", "small"],
                ["Mcp-Name: echo\r\n", "X-Namespace: dual"],
            ),
            (
                ["stdio", "no session", "small"],
                [r#""name":"echo""#, "X-Namespace: echo"],
            ),
        ] {
            let mut all = case(&labels).requests(envelope, "echo", 2).await.unwrap();
            let text = String::from_utf8(all[1].with_id(FIRST_ID).to_vec()).unwrap();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
        let long = case(&["HTTP", "no session", "1 MB"]);
        let mut requests = long.requests(envelope, "echo", 1).await.unwrap();
        assert!(requests[0].with_id(FIRST_ID).len() > 1024 * 1024);
    }

    #[test]
    fn every_peer_is_there_or_named_as_missing() {
        let options = Options::parse_from(["x", "--peer", "mine=x {port} {server}"]);
        let (peers, missing) = Peer::all(&options).unwrap();
        assert_eq!(peers.last().unwrap().name, "mine");
        for known in &PLAN.peers {
            let found = peers.iter().any(|peer| peer.name == known.name);
            assert!(found != missing.contains(&&*known.name), "{}", known.name);
        }
    }

    #[test]
    fn every_front_is_measured_in_cases_that_can_be_told_apart() {
        let names = [
            ("tools_call", &[NGINX, TOOLDOCK, STEALING, PEER][..]),
            ("remote", &[NGINX, PASSED_ON, CLIENT_MODE]),
        ];
        for (name, fronts) in names {
            for front in fronts {
                let cases = scenario(name).cases.iter();
                let labels = cases.filter(|case| case.fronts.iter().any(|kind| kind == front));
                let labels: Vec<_> = labels.map(|case| &case.labels).collect();
                let unique: std::collections::BTreeSet<_> = labels.iter().collect();
                assert!(
                    !labels.is_empty() && unique.len() == labels.len(),
                    "{front}"
                );
            }
        }
        for case in scenario("tools_call")
            .cases
            .iter()
            .chain(&scenario("remote").cases)
        {
            for front in &case.fronts {
                let known = names.iter().any(|(_, fronts)| fronts.contains(&&**front));
                assert!(known, "{front}");
            }
        }
    }
}
