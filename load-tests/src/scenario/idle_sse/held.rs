//! Opening so many streams and looking at what they cost.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;

use crate::load::open::OpenSample;
use crate::options::Options;
use crate::processes::{CpuTimes, Memory};
use crate::scenario::Run;
use crate::servers::gateway::{Gateway, threads};
use crate::servers::nginx::Nginx;
use crate::streams::{Crowd, Publisher, calls_beside};

/// Events sent to all of them; the median counts.
const EVENTS: usize = 5;
/// How long one event may take to reach the last stream.
const EVENT_LIMIT: Duration = Duration::from_secs(30);
/// Between the last change and a look at the memory: what is freed late counts as freed.
const SETTLE: Duration = Duration::from_secs(1);

/// Tool calls a second, on a fixed schedule: few enough that keepalives and calls, and not calls and calls, meet.
const CALLS_PER_SECOND: f64 = 200.0;
/// At the default of a second, a sample has the latencies of 1,000 calls: its p99 is not that of two of them. Three samples
/// last as long as it takes for each stream to have its keepalive.
const SECONDS_OF_CALLS: u32 = 5;

/// How long one sample of calls takes.
pub(super) fn calls_take(options: &Options) -> Duration {
    options.measured() * SECONDS_OF_CALLS
}

/// Everything the scenario found.
#[derive(Debug, Default, Serialize)]
pub(super) struct Found {
    /// Calls without a stream.
    pub(super) before: Vec<OpenSample>,
    pub(super) direct: Vec<Held>,
    /// Anonymous memory of the gateway when all streams had closed, for each that there was, beyond what their sessions took.
    pub(super) left_kib: f64,
    /// Calls without a stream again.
    pub(super) after: Vec<OpenSample>,
    pub(super) behind_nginx: Option<Proxied>,
    pub(super) missing: Option<String>,
}

/// So many streams held by the gateway alone.
#[derive(Debug, Serialize)]
pub(super) struct Held {
    pub(super) streams: usize,
    /// Growth of the gateway's anonymous memory for a session, before any stream.
    pub(super) session_kib: f64,
    /// The same for a stream on top of its session.
    pub(super) stream_kib: f64,
    /// From sending the call that announces a change to the event on the last stream, in the order measured.
    pub(super) fan_out_ms: Vec<f64>,
    /// CPU time of the gateway for one of these events.
    pub(super) fan_out_cpu_ms: f64,
    pub(super) calls: Vec<OpenSample>,
    /// Streams that had ended by themselves.
    pub(super) lost: usize,
}

/// The same streams through nginx.
#[derive(Debug, Serialize)]
pub(super) struct Proxied {
    pub(super) streams: usize,
    /// Anonymous memory of nginx's processes for a stream.
    pub(super) nginx_kib: f64,
    pub(super) fan_out_ms: Vec<f64>,
    pub(super) fan_out_cpu_ms: f64,
}

impl Found {
    /// Says what is left when all streams have closed.
    pub(super) fn left(&mut self, empty: Memory, after: Memory) {
        if let Some(most) = self.direct.last() {
            let grown = grown_kib(after, empty) - most.session_kib * most.streams as f64;
            self.left_kib = grown / most.streams as f64;
        }
    }
}

impl Held {
    /// One line of progress.
    pub(super) fn shown(&self) -> String {
        format!(
            "{:.2} KiB a session, {:.2} KiB a stream, an event to all in {:.0} ms",
            self.session_kib,
            self.stream_kib,
            crate::report::median(self.fan_out_ms.iter().copied()).unwrap_or(f64::NAN)
        )
    }
}

/// Memory of the gateway a moment after the last change.
pub(super) async fn settled(gateway: &Gateway) -> anyhow::Result<Memory> {
    sleep(SETTLE).await;
    gateway.memory()
}

fn grown_kib(now: Memory, then: Memory) -> f64 {
    now.anonymous_kib as f64 - then.anonymous_kib as f64
}

/// Opens streams until there are `count`; `earlier` is what those there are already took.
pub(super) async fn held(
    run: &mut Run<'_>,
    gateway: &Gateway,
    publisher: &mut Publisher,
    crowd: &mut Crowd,
    count: usize,
    earlier: Option<&Held>,
) -> anyhow::Result<Held> {
    let then = settled(gateway).await?;
    crowd.sign_up(count).await?;
    let with_sessions = settled(gateway).await?;
    crowd.open_up_to(count, gateway.address).await?;
    let with_streams = settled(gateway).await?;
    let of_all = |grown: f64, each: fn(&Held) -> f64| {
        let before = earlier.map_or(0.0, |held| each(held) * held.streams as f64);
        (before + grown) / count as f64
    };
    let (fan_out_ms, fan_out_cpu_ms) = fan_out(gateway.id(), publisher, crowd).await?;
    let calls = calls(run, gateway).await?;
    Ok(Held {
        streams: count,
        session_kib: of_all(grown_kib(with_sessions, then), |held| held.session_kib),
        stream_kib: of_all(grown_kib(with_streams, with_sessions), |held| {
            held.stream_kib
        }),
        fan_out_ms,
        fan_out_cpu_ms,
        calls,
        lost: crowd.tally().ended(),
    })
}

/// So many of the same sessions get a stream through nginx each.
pub(super) async fn behind_nginx(
    program: &Path,
    gateway: &Gateway,
    publisher: &mut Publisher,
    crowd: &mut Crowd,
    streams: usize,
) -> anyhow::Result<Proxied> {
    let nginx = Nginx::in_front_of(program, threads()?, gateway.address, streams).await?;
    let before = nginx.anonymous_kib()?;
    crowd.open_up_to(streams, nginx.address).await?;
    sleep(SETTLE).await;
    let after = nginx.anonymous_kib()?;
    let (fan_out_ms, fan_out_cpu_ms) = fan_out(gateway.id(), publisher, crowd).await?;
    // The connections of the clients first, so that nginx ends at once.
    crowd.leave().await;
    Ok(Proxied {
        streams,
        nginx_kib: (after as f64 - before as f64) / streams as f64,
        fan_out_ms,
        fan_out_cpu_ms,
    })
}

/// Announces a change, several times, each after the last one has reached every stream.
async fn fan_out(
    gateway: u32,
    publisher: &mut Publisher,
    crowd: &Crowd,
) -> anyhow::Result<(Vec<f64>, f64)> {
    let mut times = Vec::new();
    let before = CpuTimes::of(&[gateway])?;
    for _ in 0..EVENTS {
        let target = crowd.tally().events() + crowd.open();
        let start = publisher.publish().await?;
        crowd.have_together(target, EVENT_LIMIT).await?;
        let took = crowd.tally().last_event().saturating_duration_since(start);
        times.push(took.as_secs_f64() * 1e3);
    }
    let cpu = CpuTimes::of(&[gateway])?.since(&before);
    Ok((times, cpu as f64 / 1e6 / EVENTS as f64))
}

/// Tool calls on a fixed schedule, as often as there are repetitions.
pub(super) async fn calls(run: &mut Run<'_>, gateway: &Gateway) -> anyhow::Result<Vec<OpenSample>> {
    let open = calls_beside(gateway, CALLS_PER_SECOND).await?;
    sleep(run.options.warm_up()).await;
    let mut samples = Vec::new();
    for _ in 0..run.options.repetitions {
        let lasts = calls_take(run.options);
        let take = async || open.watch(lasts, &[gateway.id()], &[]).await;
        let sample = run
            .patiently(|sample: &OpenSample| sample.other_cores, take)
            .await?;
        samples.push(sample);
    }
    Ok(samples)
}
