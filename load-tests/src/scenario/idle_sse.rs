//! Many idle event streams: the memory of each, the time in which one event reaches all of them, and the effect on
//! calls.
//!
//! ```text
//! calls ── memory ── sessions ── memory ── a GET stream in each ── memory ── calls ── five events ── …
//!   … the same with more … ── closed ── memory ── calls ── the same streams through nginx ── memory ── five events
//! ```
//!
//! Calls are measured without streams before and after, to detect if the machine became slower meanwhile.

mod found;

use std::path::Path;
use std::time::Duration;

use tokio::time::sleep;

use super::{Run, Scenario};
use crate::load::open::OpenSample;
use crate::options::Options;
use crate::processes::CpuTimes;
use crate::report::table::cell;
use crate::report::{Numbers, Section};
use crate::servers::gateway::{Gateway, Layout, threads};
use crate::servers::nginx::{self, Nginx};
use crate::streams::{Crowd, Publisher, calls_beside};

use found::{AFTER, BEFORE, CALLS, STREAMS};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "idle_sse",
    question: "5,000, then 19,000 `GET` streams are open (a process here may hold 20,000 descriptors), each in a session of its \
               own, and idle but for their keepalives: how much memory does one take, how long until one event is on the last of \
               them, do calls on other connections get slower, and what stays when all have closed? 5,000 are then held through \
               nginx (`proxy_pass`, unbuffered) in front.",
    default: true,
    takes,
    run: |run| Box::pin(measure(run)),
};

/// Numbers of concurrent streams, in the order of measurement.
const COUNTS: [usize; 2] = [5_000, 19_000];
/// Number of streams through nginx. Each takes two descriptors of one of its processes, and a port to the gateway, so
/// fewer than 19,000.
const BEHIND_NGINX: usize = 5_000;
/// Number of events sent to all streams; their median counts.
const EVENTS: usize = 5;
/// Time limit for one event to reach the last stream.
const EVENT_LIMIT: Duration = Duration::from_secs(30);
/// Time between the last change and reading the memory, so that memory that is freed late counts as freed.
const SETTLE: Duration = Duration::from_secs(1);
/// Rate of tool calls per second, on a fixed schedule: so low that calls coincide with keepalives and not with each
/// other.
const CALLS_PER_SECOND: f64 = 200.0;
/// Duration of a sample in multiples of the measured time. With the default of a second, a sample has the latencies of
/// 1,000 calls, so that two calls do not decide its p99. During three samples each stream gets a keepalive.
const SECONDS_OF_CALLS: u32 = 5;

/// Duration of one sample of calls.
fn calls_take(options: &Options) -> Duration {
    options.measured() * SECONDS_OF_CALLS
}

fn takes(options: &Options) -> Duration {
    let windows = u32::try_from(options.repetitions * (COUNTS.len() + 2)).unwrap_or(u32::MAX);
    Duration::from_secs(32) + calls_take(options) * windows
}

async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let gateway = Gateway::with_tools(run.options, Layout::Separate).await?;
    let mut publisher = Publisher::open(gateway.envelope()).await?;
    let mut crowd = Crowd::new(gateway.envelope())?;
    let mut section = Section::default();
    calls(run, &gateway, BEFORE, &mut section).await?;
    let empty = settled(&gateway).await?;
    // Memory of all sessions and streams so far.
    let (mut sessions_kib, mut streams_kib) = (0.0, 0.0);
    for count in COUNTS {
        run.progress(&format!("{count} streams"));
        let name = count.to_string();
        let then = settled(&gateway).await?;
        crowd.sign_up(count).await?;
        let with_sessions = settled(&gateway).await?;
        crowd.open_up_to(count, gateway.address).await?;
        sessions_kib += with_sessions - then;
        streams_kib += settled(&gateway).await? - with_sessions;
        let each = |kib: f64| kib / count as f64;
        let kib = Numbers::one("session_kib", each(sessions_kib));
        section.add(STREAMS, [&*name], kib.with("stream_kib", each(streams_kib)));
        events(&gateway, &mut publisher, &crowd, &name, &mut section).await?;
        calls(run, &gateway, &name, &mut section).await?;
        let lost = crowd.tally().ended();
        if lost > 0 {
            section.fail(format!("{lost} of {count} streams ended by themselves"));
        }
        run.progress(&format!(
            "{:.2} KiB a session, {:.2} KiB a stream, an event to all in {} ms",
            each(sessions_kib),
            each(streams_kib),
            cell(section.of(STREAMS).median(&[name], "event_ms"), 0)
        ));
    }
    let most = COUNTS[COUNTS.len() - 1];
    crowd.start_over().await;
    let left = settled(&gateway).await? - empty - sessions_kib;
    let left = Numbers::one("left_kib", left / most as f64);
    section.add(STREAMS, [most.to_string()], left);
    calls(run, &gateway, AFTER, &mut section).await?;
    match nginx::program() {
        None => section.miss("nginx is not installed: no streams behind it"),
        Some(program) => {
            run.progress("the same behind nginx");
            behind_nginx(&program, &gateway, &mut publisher, &mut crowd, &mut section).await?;
        }
    }
    found::tell(&mut section, most);
    Ok(section)
}

/// The gateway's anonymous memory in KiB, after [`SETTLE`].
async fn settled(gateway: &Gateway) -> anyhow::Result<f64> {
    sleep(SETTLE).await;
    Ok(gateway.memory()?.anonymous_kib as f64)
}

/// Opens a stream through nginx for some of the same sessions.
async fn behind_nginx(
    program: &Path,
    gateway: &Gateway,
    publisher: &mut Publisher,
    crowd: &mut Crowd,
    section: &mut Section,
) -> anyhow::Result<()> {
    let nginx = Nginx::in_front_of(program, threads()?, gateway.address, BEHIND_NGINX).await?;
    let before = nginx.anonymous_kib()? as f64;
    crowd.open_up_to(BEHIND_NGINX, nginx.address).await?;
    sleep(SETTLE).await;
    let each = (nginx.anonymous_kib()? as f64 - before) / BEHIND_NGINX as f64;
    let name = found::behind_nginx();
    section.add(STREAMS, [&*name], Numbers::one("nginx_kib", each));
    events(gateway, publisher, crowd, &name, section).await?;
    // The clients' connections are closed first, so that nginx ends immediately.
    crowd.leave().await;
    Ok(())
}

/// Publishes several events, each after the previous one has reached every stream.
async fn events(
    gateway: &Gateway,
    publisher: &mut Publisher,
    crowd: &Crowd,
    name: &str,
    section: &mut Section,
) -> anyhow::Result<()> {
    let before = CpuTimes::of(&[gateway.id()])?;
    for _ in 0..EVENTS {
        let target = crowd.tally().events() + crowd.open();
        let start = publisher.publish().await?;
        crowd.have_together(target, EVENT_LIMIT).await?;
        let took = crowd.tally().last_event().saturating_duration_since(start);
        let ms = took.as_secs_f64() * 1e3;
        section.add(STREAMS, [name], Numbers::one("event_ms", ms));
    }
    let cpu_ms = CpuTimes::of(&[gateway.id()])?.since(&before) as f64 / 1e6;
    let each = Numbers::one("event_cpu_ms", cpu_ms / EVENTS as f64);
    section.add(STREAMS, [name], each);
    Ok(())
}

/// Measures tool calls on a fixed schedule, once per repetition.
async fn calls(
    run: &mut Run<'_>,
    gateway: &Gateway,
    name: &str,
    section: &mut Section,
) -> anyhow::Result<()> {
    let open = calls_beside(gateway, CALLS_PER_SECOND).await?;
    sleep(run.options.warm_up()).await;
    for _ in 0..run.options.repetitions {
        let lasts = calls_take(run.options);
        let take = async || open.watch(lasts, &[gateway.id()], &[]).await;
        let sample = run
            .patiently(|sample: &OpenSample| sample.other_cores, take)
            .await?;
        if let Some(fault) = sample.fault() {
            section.fail(format!("calls, streams {name}: {fault}"));
        }
        section.add(CALLS, [name], Numbers::of(&sample));
    }
    Ok(())
}
