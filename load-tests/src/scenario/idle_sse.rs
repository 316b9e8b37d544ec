//! Many idle event streams: the memory of each, the time in which one event reaches all of them, and the effect on
//! calls.
//!
//! ```text
//! calls ── memory ── sessions ── memory ── a GET stream in each ── memory ── calls ── five events ── …
//!   … the same with more … ── closed ── memory ── calls ── the same streams through nginx ── memory ── five events
//! ```
//!
//! Calls are measured without streams before and after, to detect if the machine became slower meanwhile.

use std::time::Duration;

use tokio::time::sleep;

use super::Run;
use crate::processes::CpuTimes;
use crate::report::table::cell;
use crate::report::{Numbers, Section};
use crate::servers::gateway::{Gateway, Layout};
use crate::servers::nginx::{self, Task};
use crate::streams::{Crowd, Publisher, calls_beside};

/// Names of the rows for calls before any stream was opened, and after all were closed.
const BEFORE: &str = "none, before";
const AFTER: &str = "none, after";
/// Series with a row for each number of streams, and of calls during the streams.
const STREAMS: &str = "streams";
const CALLS: &str = "calls";

/// Time limit for one event to reach the last stream.
const EVENT_LIMIT: Duration = Duration::from_secs(30);
/// Time between the last change and reading the memory, so that memory that is freed late counts as freed.
const SETTLE: Duration = Duration::from_secs(1);
/// Duration of a sample in multiples of the measured time. With the default of a second, a sample has the latencies of
/// 1,000 calls, so that two calls do not decide its p99. During three samples each stream gets a keepalive.
const SECONDS_OF_CALLS: u32 = 5;

pub(super) async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let gateway = Gateway::with_tools(run.options, Layout::Separate).await?;
    let mut publisher = Publisher::open(gateway.envelope()).await?;
    let mut crowd = Crowd::new(gateway.envelope())?;
    let mut section = Section::default();
    calls(run, &gateway, BEFORE, &mut section).await?;
    let empty = settled(&gateway).await?;
    // Memory of all sessions and streams so far.
    let (mut sessions_kib, mut streams_kib) = (0.0, 0.0);
    let (fewer, most) = (run.count("streams")?, run.count("most")?);
    for count in [fewer, most] {
        run.progress(&format!("{count} streams"));
        let name = count.to_string();
        let then = settled(&gateway).await?;
        crowd.sign_up(count).await?;
        let with_sessions = settled(&gateway).await?;
        crowd.open_up_to(count, gateway.address).await?;
        sessions_kib += with_sessions - then;
        streams_kib += settled(&gateway).await? - with_sessions;
        let each = |kib: f64| kib / count as f64;
        let kib = Numbers::one("session_kib", each(sessions_kib))
            .with("stream_kib", each(streams_kib))
            .with("both_kib", each(sessions_kib + streams_kib));
        section.add(STREAMS, [&*name], kib);
        events(run, &gateway, &mut publisher, &crowd, &name, &mut section).await?;
        calls(run, &gateway, &name, &mut section).await?;
        let lost = crowd.counts().ended;
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
    crowd.start_over().await;
    let left = settled(&gateway).await? - empty - sessions_kib;
    let left = Numbers::one("left_kib", left / most as f64);
    section.add(STREAMS, [most.to_string()], left);
    calls(run, &gateway, AFTER, &mut section).await?;
    // Each stream takes two descriptors of a process of nginx, and a port to the gateway, so these are the fewer streams.
    match nginx::start(Task::InFrontOf(gateway.address), fewer).await? {
        None => section.miss("nginx is not installed: no streams behind it"),
        Some(nginx) => {
            let name = format!("{fewer} behind nginx");
            run.progress(&name);
            let before = nginx.anonymous_kib()? as f64;
            crowd.open_up_to(fewer, nginx.address).await?;
            sleep(SETTLE).await;
            let each = (nginx.anonymous_kib()? as f64 - before) / fewer as f64;
            section.add(STREAMS, [&*name], Numbers::one("nginx_kib", each));
            events(run, &gateway, &mut publisher, &crowd, &name, &mut section).await?;
            // The clients' connections are closed first, so that nginx ends immediately.
            crowd.leave().await;
        }
    }
    let p99 = |name| section.of(CALLS).median(&[name], "p99_us");
    if let Some((after, before)) = p99(AFTER).zip(p99(BEFORE)) {
        section.note(format!(
            "p99 without streams was {:.2} times as long after them as before: the ratios are worth no more than that.",
            after / before
        ));
    }
    Ok(section)
}

/// The gateway's anonymous memory in KiB, after [`SETTLE`].
async fn settled(gateway: &Gateway) -> anyhow::Result<f64> {
    sleep(SETTLE).await;
    Ok(gateway.memory()?.anonymous_kib as f64)
}

/// Publishes several events, each after the previous one has reached every stream.
async fn events(
    run: &Run<'_>,
    gateway: &Gateway,
    publisher: &mut Publisher,
    crowd: &Crowd,
    name: &str,
    section: &mut Section,
) -> anyhow::Result<()> {
    let (before, events) = (CpuTimes::of(&[gateway.id()])?, run.count("events")?);
    for _ in 0..events {
        let target = crowd.counts().events + crowd.open();
        let start = publisher.publish().await?;
        crowd.have_together(target, EVENT_LIMIT).await?;
        let took = crowd
            .counts()
            .last_event
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(start));
        let ms = took.as_secs_f64() * 1e3;
        section.add(STREAMS, [name], Numbers::one("event_ms", ms));
    }
    let cpu_ms = CpuTimes::of(&[gateway.id()])?.since(&before) as f64 / 1e6;
    let each = Numbers::one("event_cpu_ms", cpu_ms / events as f64);
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
    let open = calls_beside(gateway, run.rate("calls_per_second")?).await?;
    sleep(run.options.warm_up()).await;
    let lasts = run.options.measured() * SECONDS_OF_CALLS;
    for _ in run.repetitions() {
        let sample = run.watch(&open, lasts, &[gateway.id()]).await?;
        run.told(section, &format!("calls, streams {name}"), &sample);
        section.add(CALLS, [name], Numbers::of(&sample));
    }
    Ok(())
}
