//! Sessions: the rate at which they are opened and closed, and the cost of idle ones.
//!
//! ```text
//! once:            two gateways; in one of them 200,000 opened ── memory ── 20,000 of a stdio server opened ── memory
//! per repetition:  nginx
//!                  the gateway without others:  opened and closed ── pings in sessions
//!                  the one with all of them:    opened and closed ── pings in sessions spread over all
//! once:            whether all are still there
//! ```
//!
//! The other gateway is idle while one is measured.

mod client;
mod found;

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::json;
use tokio::time::sleep;

use super::{Run, Scenario};
use crate::load::open::{self, OpenLoad, OpenSample};
use crate::load::{Spent, Window};
use crate::message::{Envelope, Expect};
use crate::options::Options;
use crate::processes::Memory;
use crate::report::table::cell;
use crate::report::{Numbers, Section};
use crate::servers::echo::{EchoProgram, Era};
use crate::servers::gateway::{EMPTY_NAMESPACE, Gateway, Layout, Setup};
use crate::wire::Target;

use client::Clients;
use found::{HELD, OPENING, USED, bytes_each};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "sessions",
    question: "How many sessions a second can be opened and closed, and what do 200,000 sessions cost that nobody uses: memory, the \
        time to open one more, the latency of those who do something? Sessions are opened (`initialize`, \
        `notifications/initialized`) and closed (`DELETE`) at full speed, and pings come at a fixed rate, with no other session \
        and with all of them.",
    default: true,
    takes,
    run: |run| Box::pin(measure(run)),
};

/// Number of held sessions of a namespace without a server, which shows the cost of a bare session.
const HELD_EMPTY: usize = 200_000;
const HELD_QUICK: usize = 10_000;
/// Number of held sessions of a stdio server, which has state for each session, too.
const HELD_STDIO: usize = 20_000;
const HELD_STDIO_QUICK: usize = 2_000;
const STDIO_NAMESPACE: &str = "echo";
const PINGS_PER_SECOND: f64 = 2000.0;
/// Number of sessions that get pings, each on a separate connection.
const PINGED: usize = 256;
/// Number of connections on which sessions are opened.
const OPENERS: usize = 32;
/// Time between the last change and reading the memory.
const SETTLE: Duration = Duration::from_secs(1);
/// Interval of reading memory and progress while sessions are opened.
const LOOK: Duration = Duration::from_millis(250);
/// Maximum time without progress while sessions are opened.
const STANDSTILL: Duration = Duration::from_secs(30);
/// Number of measurements in a repetition: nginx, and two kinds at each gateway.
const MEASUREMENTS: u32 = 5;
/// Minimum rate of opening sessions on a machine without other work, per second.
const OPENED_PER_SECOND: u32 = 10_000;

/// Results of opening sessions and closing them immediately.
#[derive(Debug, Serialize)]
struct Churn {
    per_second: f64,
    /// CPU time of the gateway for opening and closing one session, in microseconds.
    cpu_us: f64,
    client_cpu_us: f64,
    other_cores: f64,
    /// Latency of `initialize`, in microseconds.
    opening_p50_us: f64,
    opening_p99_us: f64,
}

fn counts(options: &Options) -> (usize, usize) {
    if options.quick {
        (HELD_QUICK, HELD_STDIO_QUICK)
    } else {
        (HELD_EMPTY, HELD_STDIO)
    }
}

fn takes(options: &Options) -> Duration {
    let repetitions = u32::try_from(options.repetitions).unwrap_or(u32::MAX);
    let (held, stdio) = counts(options);
    let opening = u32::try_from(held + stdio).unwrap_or(u32::MAX) / OPENED_PER_SECOND;
    let starts = Duration::from_secs(2) + SETTLE * 3;
    let each = options.warm_up() + options.measured();
    starts + Duration::from_secs(opening.into()) + each * MEASUREMENTS * repetitions
}

async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let options = run.options;
    let (held, held_stdio) = counts(options);
    let echo = EchoProgram::find()?.command(Era::Legacy);
    let setup = Setup::new(Layout::Separate)
        .empty(EMPTY_NAMESPACE)
        .stdio(STDIO_NAMESPACE, echo);
    let (without, with) = (
        Gateway::start(options, &setup).await?,
        Gateway::start(options, &setup).await?,
    );
    let mut section = Section::default();

    let own = of(&without, EMPTY_NAMESPACE);
    let own = (own, opened(own, PINGED, |_| ()).await?);
    let (idle, idle_stdio) = (of(&with, EMPTY_NAMESPACE), of(&with, STDIO_NAMESPACE));
    let sessions = hold(run, &with, idle, held, &mut section).await?;
    hold(run, &with, idle_stdio, held_stdio, &mut section).await?;
    let spread = (idle, client::spread(&sessions, PINGED));
    for _ in 0..options.repetitions {
        let n_us = run.reference().await?.map(|sample| sample.cpu_us);
        let all = (held + held_stdio).to_string();
        for (others, gateway, (envelope, pinged)) in
            [("none", &without, &own), (all.as_str(), &with, &spread)]
        {
            match used(run, gateway, *envelope, pinged, others).await {
                Ok((churn, pings)) => {
                    if let Some(fault) = pings.fault() {
                        let fault = format!("pings, {others} other sessions: {fault}");
                        section.fail(fault);
                    }
                    let numbers = Numbers::of(&json!({"churn": churn, "pings": pings}))
                        .with_ratio("churn_n", "churn.cpu_us", n_us)
                        .with_ratio("pings_n", "pings.cpu_us", n_us);
                    section.add(USED, [others], numbers);
                }
                Err(error) => section.fail(format!("{others} other sessions: {error:#}")),
            }
        }
    }
    // These sessions have not been used since they were opened.
    for session in sessions.get(1).into_iter().chain(sessions.last()) {
        let pong = client::ping(idle, session).await;
        pong.context("a session that had been idle")?;
    }
    let alive = with.metric("tooldock_sessions").await?;
    for (what, series) in [
        ("expired", "tooldock_sessions_expired_total"),
        ("were pushed out", "tooldock_sessions_evicted_total"),
    ] {
        let ended = with.metric(series).await?;
        let ended = ended.with_context(|| format!("the gateway has no {series}"))?;
        if ended > 0.0 {
            section.fail(format!("{ended} sessions {what}"));
        }
    }
    found::tell(&mut section, alive);
    Ok(section)
}

fn of(gateway: &Gateway, namespace: &'static str) -> Envelope<'static> {
    gateway.envelope().of(namespace)
}

/// Measures opening and closing, and then pings.
async fn used(
    run: &mut Run<'_>,
    gateway: &Gateway,
    envelope: Envelope<'_>,
    pinged: &[String],
    others: &str,
) -> anyhow::Result<(Churn, OpenSample)> {
    let options = run.options;
    let take = async || churn(options, gateway, envelope).await;
    let churn = run
        .patiently(|churn: &Churn| churn.other_cores, take)
        .await?;
    run.progress(&format!(
        "{others} other sessions: {:.0} opened and closed a second, {:.1} us CPU",
        churn.per_second, churn.cpu_us
    ));
    let take = async || pings(options, gateway, envelope, pinged).await;
    let pings = run
        .patiently(|pings: &OpenSample| pings.other_cores, take)
        .await?;
    run.progress(&format!("{others} other sessions: pings {}", pings.shown()));
    Ok((churn, pings))
}

/// Opens sessions and closes them immediately, on all connections.
async fn churn(
    options: &Options,
    gateway: &Gateway,
    envelope: Envelope<'_>,
) -> anyhow::Result<Churn> {
    let clients = Clients::start(options.connections, envelope, None).await?;
    sleep(options.warm_up()).await;
    let window = Window::by(options, vec![gateway.id()]);
    let before = Spent::now(&window)?;
    let (start, opened_before) = (Instant::now(), clients.opened());
    sleep(options.measured()).await;
    let (seconds, opened) = (
        start.elapsed().as_secs_f64(),
        clients.opened() - opened_before,
    );
    let costs = before.until(&Spent::now(&window)?, opened as u64, seconds);
    let latencies = clients.end().await?.latencies_us;
    ensure!(opened > 0, "no session was opened in {seconds:.1} s");
    Ok(Churn {
        per_second: opened as f64 / seconds,
        cpu_us: costs.cpu_us,
        client_cpu_us: costs.client_cpu_us,
        other_cores: costs.other_cores,
        opening_p50_us: client::percentile(&latencies, 50.0),
        opening_p99_us: client::percentile(&latencies, 99.0),
    })
}

async fn pings(
    options: &Options,
    gateway: &Gateway,
    envelope: Envelope<'_>,
    sessions: &[String],
) -> anyhow::Result<OpenSample> {
    let request = |session: &String| envelope.in_session(Some(session)).ping();
    let load = OpenLoad {
        target: Target::Http(gateway.address),
        requests: sessions.iter().map(request).collect(),
        expect: Expect::PONG,
        per_second: PINGS_PER_SECOND,
    };
    let window = Window::by(options, vec![gateway.id()]);
    open::measure(load, &window).await
}

/// Opens `count` sessions and leaves them open; returns their ids and adds their cost to the results.
async fn hold(
    run: &mut Run<'_>,
    gateway: &Gateway,
    envelope: Envelope<'_>,
    count: usize,
    section: &mut Section,
) -> anyhow::Result<Vec<String>> {
    // The first session of a namespace may allocate more than its own memory.
    opened(envelope, 1, |_| ()).await?;
    sleep(SETTLE).await;
    let before = gateway.memory()?;
    let window = Window::by(run.options, vec![gateway.id()]);
    let (spent, start) = (Spent::now(&window)?, Instant::now());
    let kind = match envelope.namespace {
        STDIO_NAMESPACE => "a stdio server",
        _ => "a namespace without server",
    };
    let mut last = (0.0, 0);
    let look = |opened: usize| {
        if let Ok(memory) = gateway.memory() {
            let now = (start.elapsed().as_secs_f64(), opened);
            // The rate between two readings.
            let rate = opened.saturating_sub(last.1) as f64 / (now.0 - last.0);
            let numbers = Numbers::one("seconds", now.0).with("per_second", rate);
            let numbers = numbers.with("opened", opened as f64);
            section.add(OPENING, [kind], numbers.with("mib", mib(memory)));
            last = now;
        }
    };
    let sessions = opened(envelope, count, look).await?;
    let seconds = start.elapsed().as_secs_f64();
    let costs = spent.until(&Spent::now(&window)?, count as u64, seconds);
    run.disturbed_by(costs.other_cores);
    sleep(SETTLE).await;
    let numbers = Numbers::one("sessions", count as f64)
        .with("per_second", count as f64 / seconds)
        .with("cpu_us", costs.cpu_us)
        .with("before_mib", mib(before))
        .with("after_mib", mib(gateway.memory()?));
    section.add(HELD, [kind], numbers);
    let each = section.of(HELD).row(&[kind]).and_then(bytes_each);
    run.progress(&format!(
        "{count} sessions of {kind} opened in {seconds:.1} s, {} bytes each",
        cell(each, 0)
    ));
    Ok(sessions)
}

fn mib(memory: Memory) -> f64 {
    memory.anonymous_kib as f64 / 1024.0
}

/// Opens `count` sessions on a few connections, and calls `look` from time to time with their number.
async fn opened(
    envelope: Envelope<'_>,
    count: usize,
    mut look: impl FnMut(usize),
) -> anyhow::Result<Vec<String>> {
    let connections = OPENERS.min(count);
    let clients = Clients::start(connections, envelope, Some(count)).await?;
    let (mut moved, mut last) = (Instant::now(), 0);
    while !clients.have_ended() {
        sleep(LOOK).await;
        let opened = clients.opened();
        look(opened);
        if opened > last {
            (moved, last) = (Instant::now(), opened);
        }
        ensure!(
            moved.elapsed() < STANDSTILL,
            "{opened} of {count} sessions, and no more for {STANDSTILL:?}"
        );
    }
    let sessions = clients.end().await?.sessions;
    ensure!(
        sessions.len() == count,
        "{} of {count} sessions",
        sessions.len()
    );
    Ok(sessions)
}
