//! All streams are lost at the same time: all clients reconnect with `Last-Event-ID` while events are being published.
//!
//! ```text
//! everybody has a stream ── calls ──┬─ sockets closed, or left open ── everybody back ──┬── everybody has everything?
//!                                   └─ calls on their schedule, an event every 100 ms ──┘
//! ```

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::Run;
use crate::chart::Points;
use crate::processes::CpuTimes;
use crate::report::{Numbers, Section};
use crate::servers::gateway::{Gateway, Layout};
use crate::streams::{Crowd, Deliveries, Publisher, calls_beside};

/// Series with a row for each number of streams and way of losing them.
const WAVES: &str = "waves";
/// Factor of the expected time of all waves after which no further wave begins.
const SLOWNESS: u32 = 2;
/// Time between two events, if the gateway keeps up.
const PACE: Duration = Duration::from_millis(100);
/// Number of events before the sockets are lost, so that each client has an id to return with, and after all have returned.
const EVENTS: usize = 2;
/// Time limit for the last events to reach the last stream, and for old sockets to be closed.
const LAST_LIMIT: Duration = Duration::from_secs(20);
/// Text in the description of a call that got no answer in time.
const UNANSWERED: &str = "no answer within";
/// Distance of two points of the recovery curve, in percent of the streams.
const STEP: usize = 2;

/// How the clients lose their sockets: the client closes its socket before it returns, or returns on a new one while the gateway
/// still considers the old stream open.
const CLOSED: &str = "closed";
const LEFT_OPEN: &str = "left open";

pub(super) async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let start = Instant::now();
    let gateway = Gateway::with_tools(run.options, Layout::Separate).await?;
    let mut publisher = Publisher::open(gateway.envelope()).await?;
    let mut crowd = Crowd::new(gateway.envelope())?;
    let (fewer, most) = (run.count("streams")?, run.count("most")?);
    let waves = [CLOSED, LEFT_OPEN].repeat(run.options.repetitions);
    let waves = waves.into_iter().map(|way| (fewer, way));
    // With the sockets left open, the old and the new ones would exceed the limit of a process.
    let mut waves = waves.chain([(most, CLOSED)]);
    let mut section = Section::default();
    let limit = run.scenario.takes(run.options) * SLOWNESS;
    while start.elapsed() < limit
        && let Some((streams, way)) = waves.next()
    {
        if crowd.open() < streams {
            run.progress(&format!("{streams} streams"));
            crowd.sign_up(streams).await?;
            crowd.open_up_to(streams, gateway.address).await?;
        }
        wave(run, &gateway, &mut publisher, &mut crowd, way, &mut section).await?;
    }
    for (streams, way) in waves {
        section.miss(format!(
            "a wave of {streams} streams, {way}: the machine is too slow"
        ));
    }
    Ok(section)
}

/// Runs one wave: the streams are lost, all clients reconnect, and the events that each has received are compared with the
/// published ones.
async fn wave(
    run: &mut Run<'_>,
    gateway: &Gateway,
    publisher: &mut Publisher,
    crowd: &mut Crowd,
    way: &str,
    section: &mut Section,
) -> anyhow::Result<()> {
    let streams = crowd.open();
    let name = format!("{streams} streams, {way}");
    let known = publisher.published().len();
    crowd.forget_events();
    for _ in 0..EVENTS {
        publisher.publish().await?;
    }
    crowd.each_has(publisher.last(), LAST_LIMIT).await;
    let (front, window) = ([gateway.id()], run.options.measured());
    // Started anew, so that no request from an earlier wave is waiting.
    let calls = calls_beside(gateway, run.rate("calls_per_second")?).await?;
    sleep(run.options.warm_up()).await;
    let before = calls.watch(window, &front, &[]).await?;
    run.disturbed_by(before.other_cores);

    let (over, mut is_over) = watch::channel(false);
    let lost = Instant::now();
    let cpu = CpuTimes::of(&front)?;
    let first = publisher.published().len();
    let full = queue_overflows();
    let storm = async {
        if way == CLOSED {
            crowd.leave().await;
        }
        let closing = lost.elapsed();
        crowd.return_at_once();
        crowd.all_back().await?;
        let cpu = CpuTimes::of(&front)?.since(&cpu);
        let full = queue_overflows().zip(full).map(|(now, then)| now - then);
        anyhow::Ok((closing, cpu, full))
    };
    let watched = calls.during(&front, &[], async {
        let (storm, ()) = tokio::join!(storm, sleep(window));
        // Publishing stops, whatever the outcome.
        let _ = over.send(true);
        storm
    });
    let (watched, published) = tokio::join!(watched, publish(publisher, &mut is_over));
    let (storm, meanwhile) = watched?;
    let (closing, cpu, queue_full) = storm?;
    published?;
    let events = publisher.published().len() + EVENTS - first;
    let mut last = Instant::now();
    for _ in 0..EVENTS {
        last = publisher.publish().await?;
    }
    crowd.each_has(publisher.last(), LAST_LIMIT).await;
    let last_event = crowd
        .counts()
        .last_event
        .map_or(Duration::ZERO, |at| at.saturating_duration_since(last));
    let old_left = match way {
        LEFT_OPEN => crowd.old_ones_ended(LAST_LIMIT).await,
        _ => 0,
    };
    let deliveries = Deliveries::of(crowd, &publisher.published()[known..]);
    let since = |at: &Instant| at.saturating_duration_since(lost).as_secs_f64();
    let mut back: Vec<f64> = crowd.counts().opened_at.iter().map(since).collect();
    back.sort_by(f64::total_cmp);
    let (turned_away, first_turned_away) = crowd.counts().turned_away.clone();
    let back_ms = |place: usize| back.get(place).map(|seconds| seconds * 1e3);
    let cpu_ms = cpu as f64 / 1e6;
    // The CPU time of the calls is estimated from their cost before the wave.
    let of_calls = before.cpu_us * meanwhile.answered as f64;
    let numbers = json!({
        "streams": streams,
        "closing_ms": closing.as_secs_f64() * 1e3,
        "half_back_ms": back_ms(streams / 2),
        "all_back_ms": back_ms(streams - 1),
        "turned_away": turned_away,
        // Connections that found the gateway's queue full until all clients had returned.
        "queue_full": queue_full,
        "events": events,
        "deliveries": deliveries,
        "last_event_ms": last_event.as_secs_f64() * 1e3,
        "old_left": old_left,
        "cpu_ms": cpu_ms,
        "cpu_us_a_stream": (cpu_ms * 1e3 - of_calls).max(0.0) / streams as f64,
        "before": before,
        "meanwhile": meanwhile,
        "back": curve(&back),
    });
    section.add(WAVES, [&*name], Numbers::of(&numbers));
    run.progress(&format!(
        "{name}: back after {:.0} ms, {turned_away} turned away; calls {}",
        back_ms(streams - 1).unwrap_or(f64::NAN),
        meanwhile.shown()
    ));
    if let Some(why) = first_turned_away {
        section.note(format!("The first that was turned away: {why}"));
    }
    let old = (old_left > 0).then(|| format!("{old_left} old streams not ended"));
    // Unanswered calls are a result, and shown in the table. Wrong answers are a fault.
    let wrong = meanwhile
        .first_wrong
        .filter(|first| !first.starts_with(UNANSWERED));
    for fault in [deliveries.fault(), old, before.fault(), wrong]
        .into_iter()
        .flatten()
    {
        section.fail(format!("{name}: {fault}"));
    }
    Ok(())
}

/// Publishes events one after another until `over` changes.
async fn publish(
    publisher: &mut Publisher,
    over: &mut watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Two arms: the next event is due; publishing is over.
        tokio::select! {
            _ = pace.tick() => publisher.publish().await.map(drop)?,
            _ = over.changed() => return Ok(()),
        };
    }
}

/// Points (percent of the streams, time at which that many were open again), from the sorted times `back`.
fn curve(back: &[f64]) -> Points {
    let Some(last) = back.len().checked_sub(1) else {
        return Vec::new();
    };
    let percents = (0..=100).step_by(STEP);
    percents
        .map(|percent| (percent as f64, back[last * percent / 100]))
        .collect()
}

/// Number of connections that found a full queue since the machine was booted; `None` if the kernel does not report it.
fn queue_overflows() -> Option<u64> {
    let text = fs::read_to_string("/proc/net/netstat").ok()?;
    value(&text, "ListenOverflows")
}

/// Parses a value: a line of names is followed by a line of values, and both begin with `TcpExt:`.
fn value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|known| known == name)?;
    values.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_ends_with_the_last_stream() {
        let back: Vec<f64> = (1..=1000).map(f64::from).collect();
        let points = curve(&back);
        assert_eq!((points[0], points[25]), ((0.0, 1.0), (50.0, 500.0)));
        assert_eq!(points.last(), Some(&(100.0, 1000.0)));
        assert!(curve(&[]).is_empty());
        assert_eq!(curve(&[0.5]).last(), Some(&(100.0, 0.5)));
    }

    #[test]
    fn a_counter_is_found_below_its_name() {
        let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 23 4\nIpExt: InNoRoutes\nIpExt: 7\n";
        assert_eq!(value(text, "ListenOverflows"), Some(23));
        assert_eq!(value(text, "InNoRoutes"), None);
        assert_eq!(value("", "ListenOverflows"), None);
    }
}
