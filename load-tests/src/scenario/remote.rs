//! The cost of a front for an MCP server over HTTP: nginx `proxy_pass` with the same checks, and the gateway, in pass-through
//! mode or as a client of the server.
//!
//! ```text
//! the server ── per repetition:  nginx return 200 ── nginx up ── its cases ── down
//!                                gateway up ── its cases, passed on ── its cases in client mode ── down
//!            └─ idle streams:    through nginx ── passed on ── in client mode
//! ```

mod found;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use tokio::time::sleep;

use super::{Run, Scenario};
use crate::load::{self, Load, Sample, Window};
use crate::message::{EchoCall, Envelope, Expect, Request};
use crate::options::Options;
use crate::report::{Numbers, Section};
use crate::servers::echo::{App, EchoProgram};
use crate::servers::gateway::{EMPTY_NAMESPACE, Gateway, Layout, Setup, TOKEN, threads};
use crate::servers::nginx::{self, Nginx};
use crate::session;
use crate::streams::Crowd;
use crate::wire::Target;

use found::{LOADS, STREAMS, labels};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "remote",
    question: "What does it cost to stand before an MCP server that speaks HTTP? Calls that are small, of 16 KB, of 1 MB and answered \
               by a stream, in sessions and of 2026-07-28, through nginx `proxy_pass` with the same checks (Host, Origin, \
               addresses, tokens, rates, a log), through the gateway with `mode: pass_through`, and with `mode: client`; and \
               what an idle `GET` stream takes of each.",
    // The scenario would make the run of all scenarios too long.
    default: false,
    takes,
    run: |run| Box::pin(measure(run)),
};

/// Number of concurrent idle streams. Each takes two descriptors of the front, and a port to the server.
const IDLE: usize = 4_000;
/// Time between the last change and reading the memory.
const SETTLE: Duration = Duration::from_secs(1);
/// Numbers of clients: for small calls, and for calls with a mebibyte.
const CLIENTS: usize = 32;
const FEW: usize = 4;
/// Time limit for the first call of a case.
const FIRST_CALL: Duration = Duration::from_secs(20);

/// The program in front of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Front {
    Nginx,
    PassThrough,
    Client,
}

impl Front {
    const ALL: [Self; 3] = [Self::Nginx, Self::PassThrough, Self::Client];

    fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::PassThrough => "tooldock, passed on",
            Self::Client => "tooldock, client mode",
        }
    }

    /// The gateway's namespace; ignored by nginx.
    fn namespace(self) -> &'static str {
        match self {
            Self::Nginx | Self::PassThrough => "passed",
            Self::Client => "client",
        }
    }
}

/// The kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Small,
    Kb16,
    Mb1,
    /// A small call whose answer is a stream of two events.
    Stream,
    /// A small call of 2026-07-28. The other cases are in a session of 2025-11-25.
    Modern,
}

impl Case {
    const ALL: [Self; 5] = [
        Self::Small,
        Self::Kb16,
        Self::Mb1,
        Self::Stream,
        Self::Modern,
    ];

    fn clients(self) -> usize {
        match self {
            Self::Mb1 => FEW,
            _ => CLIENTS,
        }
    }

    async fn requests(self, envelope: Envelope<'_>) -> anyhow::Result<Vec<Request>> {
        let call = EchoCall {
            tool: match self {
                Self::Stream => "echo_stream",
                _ => EchoCall::SMALL.tool,
            },
            length: match self {
                Self::Kb16 => 16 * 1024,
                Self::Mb1 => 1024 * 1024,
                _ => 0,
            },
        };
        let mut requests = Vec::new();
        for _ in 0..self.clients() {
            requests.push(match self {
                Self::Modern => envelope.modern_echo(call),
                _ => {
                    let session = session::open(envelope).await?;
                    envelope.in_session(Some(&session)).echo(call)
                }
            });
        }
        Ok(requests)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Small => "small",
            Self::Kb16 => "16 KB",
            Self::Mb1 => "1 MB",
            Self::Stream => "small, answered by a stream",
            Self::Modern => "small, 2026-07-28",
        })
    }
}

fn takes(options: &Options) -> Duration {
    let samples = (Front::ALL.len() * Case::ALL.len() + 1) as u32;
    let repetition = (options.measured() + options.warm_up()) * samples + Duration::from_secs(5);
    repetition * options.repetitions as u32 + Duration::from_secs(15)
}

/// The server behind all fronts, and the settings.
struct Stage<'a> {
    options: &'a Options,
    nginx: Option<&'a Path>,
    app: App,
}

impl Stage<'_> {
    async fn gateway(&self) -> anyhow::Result<Gateway> {
        let remote = |mode: &str| {
            json!({
                "backends": [format!("http://{}/mcp", self.app.address)], "mode": mode, "keepalive": 256,
                "limits": {"max_concurrency": 64},
            })
        };
        let servers = json!({"upstreams": {"remote": {
            Front::PassThrough.namespace(): remote("pass_through"),
            Front::Client.namespace(): remote("client"),
        }}});
        let setup = Setup::new(Layout::Separate)
            .empty(EMPTY_NAMESPACE)
            .config(&servers.to_string());
        Gateway::start(self.options, &setup).await
    }

    async fn nginx(&self) -> anyhow::Result<Option<Nginx>> {
        let Some(program) = self.nginx else {
            return Ok(None);
        };
        let started = Nginx::checking(program, threads()?, self.app.address, CLIENTS).await;
        started.map(Some)
    }
}

async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let app = App::start(&EchoProgram::find()?).await?;
    let program = nginx::program();
    let stage = Stage {
        options: run.options,
        nginx: program.as_deref(),
        app,
    };
    let mut section = Section::default();
    if stage.nginx.is_none() {
        section.miss("nginx is not installed: nothing to compare with");
    }
    for repetition in 1..=run.options.repetitions {
        section.repetition = repetition;
        let of = run.options.repetitions;
        run.progress(&format!("repetition {repetition} of {of}"));
        let n_us = run.reference().await?.map(|sample| sample.cpu_us);
        if let Some(nginx) = stage.nginx().await? {
            let to = (nginx.address, nginx.processes());
            behind(run, &stage, Front::Nginx, to, n_us, &mut section).await?;
        }
        let gateway = stage.gateway().await?;
        for front in [Front::PassThrough, Front::Client] {
            let to = (gateway.address, vec![gateway.id()]);
            behind(run, &stage, front, to, n_us, &mut section).await?;
        }
    }
    section.repetition = 0;
    idle_streams(run, &stage, &mut section).await?;
    found::tell(&mut section);
    Ok(section)
}

/// Measures all cases of one front.
async fn behind(
    run: &mut Run<'_>,
    stage: &Stage<'_>,
    front: Front,
    (address, processes): (SocketAddr, Vec<u32>),
    n_us: Option<f64>,
    section: &mut Section,
) -> anyhow::Result<()> {
    let envelope = Envelope::new(address, TOKEN, front.namespace());
    for case in Case::ALL {
        let target = Target::Http(address);
        let requests = case.requests(envelope).await?;
        let expect = Expect::NUMBERED_ECHO;
        let first = requests.first().context("no client")?.clone();
        let asked = expect.asked(&target, first, FIRST_CALL).await;
        asked.with_context(|| format!("{}, {case}: the first call", front.name()))?;
        let take = async || {
            load::measure(Load {
                target: target.clone(),
                requests: requests.clone(),
                expect,
                window: Window {
                    workers: vec![stage.app.id()],
                    ..Window::by(stage.options, processes.clone())
                },
            })
            .await
        };
        let sample = run.patiently(|sample: &Sample| sample.other_cores, take);
        match sample.await {
            Ok(sample) => {
                run.progress(&format!("{}, {case}: {}", front.name(), sample.shown()));
                let numbers = Numbers::of(&sample).with("clients", case.clients() as f64);
                let numbers = numbers.with_ratio("cpu_n", "cpu_us", n_us);
                let kernel = sample.kernel_share.map(|share| share * 100.0);
                section.add(
                    LOADS,
                    labels(front, case),
                    numbers.with("kernel_percent", kernel),
                );
            }
            Err(error) => section.fail(format!("{}, {case}: {error:#}", front.name())),
        }
    }
    Ok(())
}

/// Measures the memory of an idle stream in each front.
async fn idle_streams(
    run: &mut Run<'_>,
    stage: &Stage<'_>,
    section: &mut Section,
) -> anyhow::Result<()> {
    for front in Front::ALL {
        run.progress(&format!("{}: {IDLE} idle streams", front.name()));
        let memory: Box<dyn Fn() -> anyhow::Result<u64>>;
        let address;
        if front == Front::Nginx {
            let Some(program) = stage.nginx else { continue };
            let nginx = Nginx::in_front_of(program, threads()?, stage.app.address, IDLE).await?;
            address = nginx.address;
            memory = Box::new(move || nginx.anonymous_kib());
        } else {
            let gateway = stage.gateway().await?;
            address = gateway.address;
            memory = Box::new(move || Ok(gateway.memory()?.anonymous_kib));
        }
        let settled = async || {
            sleep(SETTLE).await;
            anyhow::Ok(memory()? as f64)
        };
        let envelope = Envelope::new(address, TOKEN, front.namespace());
        let mut crowd = Crowd::new(envelope)?;
        let empty = settled().await?;
        crowd.sign_up(IDLE).await?;
        let with_sessions = settled().await?;
        crowd.open_up_to(IDLE, address).await?;
        let with_streams = settled().await?;
        let lost = crowd.tally().ended();
        if lost > 0 {
            section.fail(format!("{}: {lost} of {IDLE} streams ended", front.name()));
        }
        let each = |kib: f64| kib / IDLE as f64;
        let numbers = Numbers::one("session_kib", each(with_sessions - empty))
            .with("stream_kib", each(with_streams - with_sessions));
        section.add(STREAMS, [front.name()], numbers);
        // The clients' connections are closed first, so that the front ends immediately.
        crowd.leave().await;
    }
    Ok(())
}
