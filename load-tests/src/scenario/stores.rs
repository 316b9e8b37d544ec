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

use std::time::{Duration, Instant};

use anyhow::Context;

use super::Run;
use crate::load::{self, Load, Spent, Window};
use crate::message::{Envelope, Expect, Request};
use crate::options::Options;
use crate::processes;
use crate::report::{Numbers, Section};
use crate::servers::echo::{EchoProgram, Era};
use crate::servers::gateway::{Gateway, Layout, NAMESPACE, Setup};
use crate::servers::redis::{self, Redis};
use crate::session;
use crate::wire::Target;

/// Series of calls of live sessions, of calls that are answered by streams of events, of sessions that are opened and not
/// closed, and of calls after a restart.
const LIVE: &str = "calls of live sessions";
const EVENTS: &str = "calls answered by events";
const HELD: &str = "sessions";
const AFTER_START: &str = "calls after a restart";
const FIRST: &str = "first call of each session after the restart";
const SECOND: &str = "second call of each";

/// The stdio server; `conf.yaml` has its limits.
pub(super) const ECHO: &str = "echo";
/// Number of notifications in the answer to a call that is answered by a stream.
const NOTIFICATIONS: usize = 20;
/// Events of a streamed response: its notifications and its result.
const EVENTS_OF_CALL: f64 = (NOTIFICATIONS + 1) as f64;
/// Name of the tool that sends these notifications before its result.
const TALKATIVE: &str = "tell";
/// Number of sessions that are used again after a restart at a time.
const AT_A_TIME: usize = 4;

/// The stores of sessions.
const MEMORY: &str = "memory";
const DISK: &str = "disk";
const REDIS: &str = "Redis";

/// The servers and settings of the scenario.
struct Stage<'a> {
    options: &'a Options,
    echo: Vec<String>,
    redis: Option<Redis>,
}

impl Stage<'_> {
    fn stores(&self) -> Vec<&'static str> {
        let redis = self.redis.as_ref().map(|_| REDIS);
        [MEMORY, DISK].into_iter().chain(redis).collect()
    }

    async fn gateway(&self, store: &str) -> anyhow::Result<Gateway> {
        let setup = Setup::new(Layout::Separate)
            .code(
                NAMESPACE,
                include_str!("../../tools/talkative.py").to_owned(),
            )
            .stdio(ECHO, self.echo.clone());
        let setup = match (store, &self.redis) {
            (REDIS, Some(redis)) => setup.replica("only", redis)?,
            (DISK, _) => setup.config("sessions: { store: disk }"),
            _ => setup,
        };
        let gateway = Gateway::start(self.options, &setup).await?;
        gateway.has_worker(NAMESPACE).await?;
        Ok(gateway)
    }
}

pub(super) async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
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
        for repetition in run.repetitions() {
            section.repetition = repetition;
            for (store, gateway) in &gateways {
                calls(run, series, store, gateway, &mut section).await?;
            }
            gateways.rotate_left(1);
        }
    }
    drop(gateways);
    section.repetition = 0;
    for store in stage.stores() {
        held(run, &stage, store, &mut section).await?;
    }
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
    series: &str,
    store: &str,
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
    let load = Load {
        target: Target::Http(gateway.address),
        requests,
        expect,
        window: Window {
            workers: processes::descendants(gateway.id()),
            ..Window::by(options, vec![gateway.id()])
        },
    };
    let sample = run.right(&format!("{store}, {series}"), &load).await?;
    let numbers = Numbers::of(&sample)
        .with("events_per_second", sample.per_second * EVENTS_OF_CALL)
        .with("event_cpu_us", sample.cpu_us / EVENTS_OF_CALL);
    section.add(series, [store], numbers);
    Ok(())
}

/// Opens many sessions and does not close them; those on disk are used again after a restart.
async fn held(
    run: &mut Run<'_>,
    stage: &Stage<'_>,
    store: &str,
    section: &mut Section,
) -> anyhow::Result<()> {
    let count = run.count_or_quick("held")?;
    let mut gateway = stage.gateway(store).await?;
    let envelope = gateway.envelope().of(ECHO);
    // Starts the server before anything is measured.
    session::many(envelope, 1).await?;
    let stored = async |gateway: &Gateway| match (store, &stage.redis) {
        (MEMORY, _) => anyhow::Ok(gateway.memory()?.anonymous_kib * 1024),
        (REDIS, Some(redis)) => redis.used_memory().await,
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
        "{store}: {count} sessions opened in {seconds:.1} s, {bytes:.0} bytes each"
    ));
    let numbers = Numbers::one("sessions", count as f64)
        .with("per_second", count as f64 / seconds)
        .with("cpu_us", costs.cpu_us)
        .with("bytes", bytes);
    section.add(HELD, [store], numbers);
    if store == DISK {
        gateway.stop().await?;
        gateway.start_again().await?;
        after_restart(run, &gateway, &sessions, section).await?;
    }
    Ok(())
}

/// Measures the first and the second call of some sessions.
async fn after_restart(
    run: &mut Run<'_>,
    gateway: &Gateway,
    sessions: &[String],
    section: &mut Section,
) -> anyhow::Result<()> {
    let envelope = gateway.envelope().of(ECHO);
    let target = Target::Http(gateway.address);
    let warm = envelope.numbered_call();
    let server = Expect::NUMBERED_ECHO.asked(&target, warm, Duration::from_secs(20));
    server.await.context("the server after the restart")?;
    let used = sessions.iter().take(run.count("used_again")?);
    let call = |session: &String| envelope.in_session(Some(session)).numbered_call();
    let load = Load {
        target,
        requests: used.map(call).collect(),
        expect: Expect::NUMBERED_ECHO,
        window: Window::by(run.options, vec![gateway.id()]),
    };
    let mut samples = Vec::new();
    for row in [FIRST, SECOND] {
        let (sample, faults) = load::once(load.clone(), AT_A_TIME).await.context(row)?;
        faults.none().context(row)?;
        run.progress(&format!("{row}: {}", sample.shown()));
        samples.push((row, sample));
    }
    let (_, second) = &samples[1];
    let second_p99_us = second.p99_us;
    for (row, sample) in samples {
        let added = (row == FIRST).then(|| (sample.p99_us - second_p99_us) / 1e3);
        section.add(
            AFTER_START,
            [row],
            Numbers::of(&sample).with("added_p99_ms", added),
        );
    }
    Ok(())
}
