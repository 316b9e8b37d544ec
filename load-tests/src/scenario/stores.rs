//! Sessions in memory, on disk and in Redis: the cost of a call, of an event and of a session.
//!
//! ```text
//! per repetition:  each store in turn:  calls in live sessions
//! per repetition:  each store in turn:  calls answered by streams of events
//! once:            each store:          many sessions opened ── bytes they take
//!                  disk:                started again ── the first call of each session ── the second
//! ```
//!
//! The store that comes first changes with each repetition.

mod found;

use std::time::{Duration, Instant};

use anyhow::Context;

use super::{Run, Scenario};
use crate::load::{self, Load, Sample, Spent, Window};
use crate::message::{Envelope, Expect, Request};
use crate::options::Options;
use crate::processes;
use crate::report::{Numbers, Section};
use crate::servers::echo::{EchoProgram, Era};
use crate::servers::gateway::{Gateway, Layout, NAMESPACE, Setup};
use crate::servers::redis::{self, Redis};
use crate::session;
use crate::wire::Target;

use found::{AFTER_START, EVENTS, HELD, LIVE};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "stores",
    question: "What does it cost that sessions outlive the gateway? Calls of live sessions, and calls whose answers are streams of \
               events that are stored, with `sessions.store` in memory, on disk and in a Redis on loopback; the bytes of a \
               stored session; and the first calls after a restart.",
    default: false,
    takes,
    run: |run| Box::pin(measure(run)),
};

/// The stdio server; `conf.yaml` has its limits.
pub(super) const ECHO: &str = "echo";
/// Number of notifications in the answer to a call that is answered by a stream.
const NOTIFICATIONS: usize = 20;
/// Events of a streamed response: its notifications and its result.
const EVENTS_OF_CALL: f64 = (NOTIFICATIONS + 1) as f64;
/// Name of the tool that sends these notifications before its result.
const TALKATIVE: &str = "tell";
const HELD_SESSIONS: usize = 10_000;
const HELD_QUICK: usize = 500;
/// Number of sessions that are used again after a restart, [`AT_A_TIME`] at a time.
const USED_AGAIN: usize = 500;
const AT_A_TIME: usize = 4;

/// The store of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Store {
    Memory,
    Disk,
    Redis,
}

impl Store {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Redis => "Redis",
        }
    }
}

/// The servers and settings of the scenario.
struct Stage<'a> {
    options: &'a Options,
    echo: Vec<String>,
    redis: Option<Redis>,
}

impl Stage<'_> {
    fn stores(&self) -> Vec<Store> {
        let all = [Store::Memory, Store::Disk, Store::Redis];
        let there = |store: &Store| *store != Store::Redis || self.redis.is_some();
        all.into_iter().filter(there).collect()
    }

    async fn gateway(&self, store: Store) -> anyhow::Result<Gateway> {
        let setup = Setup::new(Layout::Separate)
            .code(NAMESPACE, talkative())
            .stdio(ECHO, self.echo.clone());
        let setup = match (store, &self.redis) {
            (Store::Redis, Some(redis)) => setup.replica("only", redis)?,
            (Store::Disk, _) => setup.config("sessions: { store: disk }"),
            _ => setup,
        };
        let gateway = Gateway::start(self.options, &setup).await?;
        gateway.has_worker(NAMESPACE).await?;
        Ok(gateway)
    }
}

fn talkative() -> String {
    format!(
        "from fastmcp import Context\nfrom fastmcp.tools import tool\n\n\n\
         @tool\nasync def {TALKATIVE}(text: str, ctx: Context) -> str:\n    \
         \"\"\"Says the text often.\"\"\"\n    \
         for _ in range({NOTIFICATIONS}):\n        await ctx.info(text)\n    return text\n"
    )
}

fn takes(options: &Options) -> Duration {
    let samples = 6 * options.repetitions as u32;
    Duration::from_secs(40) + (options.measured() + options.warm_up()) * samples
}

async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let stage = Stage {
        options: run.options,
        echo: EchoProgram::find()?.command(Era::Legacy),
        redis: Redis::start().await?,
    };
    let mut section = Section::default();
    if stage.redis.is_none() {
        section.miss(redis::MISSING);
    }
    let mut gateways = Vec::new();
    for store in stage.stores() {
        gateways.push((store, stage.gateway(store).await?));
    }
    // Calls without events come first, so that no store is still busy with writing events.
    for series in [LIVE, EVENTS] {
        for repetition in 1..=run.options.repetitions {
            section.repetition = repetition;
            for (store, gateway) in &gateways {
                calls(run, series, *store, gateway, &mut section).await?;
            }
            gateways.rotate_left(1);
        }
    }
    drop(gateways);
    section.repetition = 0;
    for store in stage.stores() {
        held(run, &stage, store, &mut section).await?;
    }
    found::tell(&mut section);
    Ok(section)
}

/// A call for each client, each in a separate session.
pub(super) async fn in_sessions(
    envelope: Envelope<'static>,
    clients: usize,
    call: impl Fn(&Envelope<'_>) -> Request,
) -> anyhow::Result<Vec<Request>> {
    let sessions = session::many(envelope, clients).await?;
    let requests = sessions.iter();
    let requests = requests.map(|session| call(&envelope.in_session(Some(session))));
    Ok(requests.collect())
}

/// Measures calls of live sessions, answered by JSON or by a stream of events.
async fn calls(
    run: &mut Run<'_>,
    series: &'static str,
    store: Store,
    gateway: &Gateway,
    section: &mut Section,
) -> anyhow::Result<()> {
    let (envelope, options) = (gateway.envelope(), run.options);
    let clients = options.connections;
    let (requests, expect) = if series == LIVE {
        let plain = in_sessions(envelope.of(ECHO), clients, |it| it.numbered_call());
        (plain.await?, Expect::NUMBERED_ECHO)
    } else {
        let talking = in_sessions(envelope, clients, |it| it.call(TALKATIVE));
        (talking.await?, Expect::ECHO)
    };
    let take = async || {
        let window = Window {
            workers: processes::descendants(gateway.id()),
            ..Window::by(options, vec![gateway.id()])
        };
        load::measure(Load {
            target: Target::Http(gateway.address),
            requests: requests.clone(),
            expect,
            window,
        })
        .await
    };
    let sample = run.patiently(|sample: &Sample| sample.other_cores, take);
    let sample = sample.await.context(store.name())?;
    run.progress(&format!("{}, {series}: {}", store.name(), sample.shown()));
    let numbers = Numbers::of(&sample)
        .with("events_per_second", sample.per_second * EVENTS_OF_CALL)
        .with("event_cpu_us", sample.cpu_us / EVENTS_OF_CALL);
    section.add(series, [store.name()], numbers);
    Ok(())
}

/// Opens many sessions and does not close them; those on disk are used again after a restart.
async fn held(
    run: &mut Run<'_>,
    stage: &Stage<'_>,
    store: Store,
    section: &mut Section,
) -> anyhow::Result<()> {
    let count = match run.options.quick {
        true => HELD_QUICK,
        false => HELD_SESSIONS,
    };
    let mut gateway = stage.gateway(store).await?;
    let envelope = gateway.envelope().of(ECHO);
    // Starts the server before anything is measured.
    session::many(envelope, 1).await?;
    let stored = async |gateway: &Gateway| match (store, &stage.redis) {
        (Store::Memory, _) => anyhow::Ok(gateway.memory()?.anonymous_kib * 1024),
        (Store::Redis, Some(redis)) => redis.used_memory().await,
        _ => gateway.session_bytes(),
    };
    let before = stored(&gateway).await?;
    let window = Window::by(run.options, vec![gateway.id()]);
    let (spent, start) = (Spent::now(&window)?, Instant::now());
    let sessions = session::many(envelope, count).await?;
    let seconds = start.elapsed().as_secs_f64();
    let costs = spent.until(&Spent::now(&window)?, count as u64, seconds);
    let bytes = stored(&gateway).await?.saturating_sub(before) as f64 / count as f64;
    run.progress(&format!(
        "{}: {count} sessions opened in {seconds:.1} s, {bytes:.0} bytes each",
        store.name()
    ));
    let numbers = Numbers::one("sessions", count as f64)
        .with("per_second", count as f64 / seconds)
        .with("cpu_us", costs.cpu_us)
        .with("bytes", bytes);
    section.add(HELD, [store.name()], numbers);
    if store == Store::Disk {
        gateway.stop().await?;
        gateway.start_again().await?;
        let envelope = gateway.envelope();
        let warm = envelope.of(ECHO).numbered_call();
        let target = Target::Http(gateway.address);
        let server = Expect::NUMBERED_ECHO.asked(&target, warm, Duration::from_secs(20));
        server.await.context("the server after the restart")?;
        let used = sessions.iter().take(USED_AGAIN);
        let call = |session: &String| {
            let envelope = envelope.of(ECHO);
            envelope.in_session(Some(session)).numbered_call()
        };
        let requests: Vec<Request> = used.map(call).collect();
        for row in [found::FIRST, found::SECOND] {
            let load = Load {
                target: target.clone(),
                requests: requests.clone(),
                expect: Expect::NUMBERED_ECHO,
                window: Window::by(run.options, vec![gateway.id()]),
            };
            let (sample, faults) = load::once(load, AT_A_TIME).await.context(row)?;
            faults.none().context(row)?;
            run.progress(&format!("{row}: {}", sample.shown()));
            section.add(AFTER_START, [row], Numbers::of(&sample));
        }
    }
    Ok(())
}
