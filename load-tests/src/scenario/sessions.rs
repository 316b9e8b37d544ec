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

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::json;
use tokio::time::sleep;

use super::Run;
use crate::load::open::{Open, OpenLoad, OpenSample};
use crate::load::{Costs, Spent, Window};
use crate::message::{Envelope, Expect};
use crate::options::Options;
use crate::processes::Memory;
use crate::report::{Numbers, Section};
use crate::servers::echo::{EchoProgram, Era};
use crate::servers::gateway::{EMPTY_NAMESPACE, Gateway, Layout, Setup};
use crate::wire::Target;

use client::Clients;

/// Series of sessions that are opened and not closed, with a row for each namespace; of readings while sessions are opened; and
/// of sessions in use, with a row for each number of other sessions.
const HELD: &str = "held sessions";
const OPENING: &str = "while they are opened";
const USED: &str = "used sessions";

const STDIO_NAMESPACE: &str = "echo";
/// Number of connections on which sessions are opened.
const OPENERS: usize = 32;
/// Time between the last change and reading the memory.
const SETTLE: Duration = Duration::from_secs(1);
/// Interval of reading memory and progress while sessions are opened.
const LOOK: Duration = Duration::from_millis(250);
/// Maximum time without progress while sessions are opened.
const STANDSTILL: Duration = Duration::from_secs(30);

/// Sessions opened and closed immediately.
#[derive(Debug, Serialize)]
struct Churn {
    per_second: f64,
    #[serde(flatten)]
    costs: Costs,
    /// Latency of `initialize`, in microseconds.
    opening_p50_us: f64,
    opening_p99_us: f64,
}

pub(super) async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let options = run.options;
    let (held, held_stdio) = (
        run.count_or_quick("held")?,
        run.count_or_quick("held_stdio")?,
    );
    let pinged = run.count("pinged")?;
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
    let own = (own, opened(own, pinged, |_| ()).await?);
    let (idle, idle_stdio) = (of(&with, EMPTY_NAMESPACE), of(&with, STDIO_NAMESPACE));
    let sessions = hold(run, &with, idle, held, &mut section).await?;
    hold(run, &with, idle_stdio, held_stdio, &mut section).await?;
    let spread = (idle, client::spread(&sessions, pinged));
    for repetition in run.repetitions() {
        section.repetition = repetition;
        let n_us = run.reference().await?.map(|sample| sample.cpu_us);
        let all = (held + held_stdio).to_string();
        for (others, gateway, (envelope, pinged)) in
            [("none", &without, &own), (all.as_str(), &with, &spread)]
        {
            match used(run, gateway, *envelope, pinged, others).await {
                Ok((churn, pings)) => {
                    run.told(
                        &mut section,
                        &format!("pings, {others} other sessions"),
                        &pings,
                    );
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
    // Each namespace has one more session, opened first.
    let expected = (held + held_stdio + 2) as f64;
    all_there(
        &mut section,
        expected,
        with.metric("tooldock_sessions").await?,
    );
    Ok(section)
}

/// Compares the number of sessions at the end, as the gateway counts them, with those that were opened.
fn all_there(section: &mut Section, expected: f64, alive: Option<f64>) {
    match alive {
        Some(alive) if alive == expected => section.note(format!(
            "{expected} sessions were there in the end as they should be; none expired, none was pushed out."
        )),
        Some(alive) => section.fail(format!("{alive} sessions in the end instead of {expected}")),
        None => section.fail("the gateway does not count its sessions"),
    }
}

fn of(gateway: &Gateway, namespace: &'static str) -> Envelope<'static> {
    gateway.envelope().of(namespace)
}

/// Measures opening and closing, and then pings.
async fn used(
    run: &mut Run<'_>,
    gateway: &Gateway,
    envelope: Envelope<'static>,
    pinged: &[String],
    others: &str,
) -> anyhow::Result<(Churn, OpenSample)> {
    let options = run.options;
    let take = async || churn(options, gateway, envelope).await;
    let churn = run
        .patiently(|churn: &Churn| churn.costs.other_cores, take)
        .await?;
    run.progress(&format!(
        "{others} other sessions: {:.0} opened and closed a second, {:.1} us CPU",
        churn.per_second, churn.costs.cpu_us
    ));
    let request = |session: &String| envelope.in_session(Some(session)).ping();
    let open = Open::start(OpenLoad {
        target: Target::Http(gateway.address),
        requests: pinged.iter().map(request).collect(),
        expect: Expect::PONG,
        per_second: run.rate("pings_per_second")?,
    })
    .await?;
    sleep(options.warm_up()).await;
    let pings = run
        .watch(&open, options.measured(), &[gateway.id()])
        .await?;
    Ok((churn, pings))
}

/// Opens sessions and closes them immediately, on all connections.
async fn churn(
    options: &Options,
    gateway: &Gateway,
    envelope: Envelope<'static>,
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
    let latencies = clients.end().await?.into_iter();
    let latencies: Vec<f64> = latencies
        .map(|(_, took)| took.as_secs_f64() * 1e6)
        .collect();
    ensure!(opened > 0, "no session was opened in {seconds:.1} s");
    Ok(Churn {
        per_second: opened as f64 / seconds,
        costs,
        opening_p50_us: client::percentile(&latencies, 50.0),
        opening_p99_us: client::percentile(&latencies, 99.0),
    })
}

/// Opens `count` sessions and leaves them open; returns their ids and adds their cost to the results.
async fn hold(
    run: &mut Run<'_>,
    gateway: &Gateway,
    envelope: Envelope<'static>,
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
    let after = gateway.memory()?;
    let grown_kib = after.anonymous_kib as f64 - before.anonymous_kib as f64;
    let each = grown_kib * 1024.0 / count as f64;
    let numbers = Numbers::one("sessions", count as f64)
        .with("per_second", count as f64 / seconds)
        .with("cpu_us", costs.cpu_us)
        .with("bytes", each)
        .with("before_mib", mib(before))
        .with("after_mib", mib(after));
    section.add(HELD, [kind], numbers);
    run.progress(&format!(
        "{count} sessions of {kind} opened in {seconds:.1} s, {each:.0} bytes each"
    ));
    Ok(sessions)
}

fn mib(memory: Memory) -> f64 {
    memory.anonymous_kib as f64 / 1024.0
}

/// Opens `count` sessions on a few connections, and calls `look` from time to time with their number.
async fn opened(
    envelope: Envelope<'static>,
    count: usize,
    mut look: impl FnMut(usize),
) -> anyhow::Result<Vec<String>> {
    let connections = OPENERS.min(count);
    let clients = Clients::start(connections, envelope, Some(count)).await?;
    let (mut moved, mut last) = (Instant::now(), 0);
    while last < count && !clients.have_failed() {
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
    let sessions = clients.end().await?.into_iter();
    let sessions: Vec<String> = sessions.map(|(session, _)| session).collect();
    ensure!(
        sessions.len() == count,
        "{} of {count} sessions",
        sessions.len()
    );
    Ok(sessions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_is_there_in_the_end() {
        for (alive, failures) in [
            (Some(1025.0), 0),
            (Some(1024.0), 1),
            (Some(1026.0), 1),
            (None, 1),
        ] {
            let mut section = Section::default();
            all_there(&mut section, 1025.0, alive);
            assert_eq!(section.failures.len(), failures, "{alive:?}");
            assert_eq!(section.notes.len(), 1 - failures, "{alive:?}");
        }
    }
}
