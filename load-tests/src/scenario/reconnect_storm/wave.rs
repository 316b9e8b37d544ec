//! One wave: the streams are lost, all clients reconnect, and the events that each has received are compared with the published
//! ones.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::queue;
use crate::chart::Points;
use crate::load::open::OpenSample;
use crate::options::Options;
use crate::processes::CpuTimes;
use crate::servers::gateway::Gateway;
use crate::streams::{Crowd, Deliveries, Publisher, calls_beside};

/// Rate of tool calls per second on other connections: at most a quarter of the capacity of two cores, so that calls do
/// not disturb the measurement.
const CALLS_PER_SECOND: f64 = 1_000.0;
/// Time between two events, if the gateway keeps up.
const PACE: Duration = Duration::from_millis(100);
/// Number of events before the sockets are lost, so that each client has an id to return with.
const BEFORE: usize = 2;
/// Number of events after all clients have returned.
const AFTER: usize = 2;
/// Time limit for the last events to reach the last stream, and for old sockets to be closed.
const LAST_LIMIT: Duration = Duration::from_secs(20);
/// Text in the description of a call that got no answer in time.
const UNANSWERED: &str = "no answer within";
/// Distance of two points of the recovery curve, in percent of the streams.
const STEP: usize = 2;

/// How the clients lose their sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// The client closes its socket before it returns.
    Closed,
    /// The client returns on a new socket while the gateway still considers the old stream open.
    LeftOpen,
}

/// The results of a wave.
#[derive(Debug, Serialize)]
pub(super) struct Wave {
    pub(super) streams: usize,
    pub(super) way: Way,
    /// Time in which this program closed the sockets, in milliseconds.
    pub(super) closing_ms: f64,
    /// Milliseconds from the first lost socket until half of the streams are open again, and until all are.
    pub(super) half_back_ms: f64,
    pub(super) all_back_ms: f64,
    /// Number of failed attempts to return, and the reason of the first.
    pub(super) turned_away: usize,
    pub(super) first_turned_away: Option<String>,
    /// Number of connections that found the gateway's queue full until all clients had returned; `None` if the kernel
    /// does not report it.
    pub(super) queue_full: Option<u64>,
    /// Number of events published after the first socket was lost.
    pub(super) events: usize,
    pub(super) deliveries: Deliveries,
    /// Milliseconds from the publication of the last event until the last stream received it.
    pub(super) last_event_ms: f64,
    /// Number of old streams that the gateway had not ended at the end.
    pub(super) old_left: usize,
    /// CPU time of the gateway until all clients had returned, in milliseconds, including calls and events.
    pub(super) cpu_ms: f64,
    /// Calls on other connections: before the wave, and after the first socket was lost.
    pub(super) before: OpenSample,
    pub(super) meanwhile: OpenSample,
    /// Points of the recovery curve: percent of the streams, and seconds from the first lost socket until that many are
    /// open again.
    pub(super) back: Points,
}

impl Wave {
    pub(super) async fn run(
        options: &Options,
        gateway: &Gateway,
        publisher: &mut Publisher,
        crowd: &mut Crowd,
        way: Way,
    ) -> anyhow::Result<Self> {
        let streams = crowd.open();
        let known = publisher.published().len();
        crowd.forget_events();
        for _ in 0..BEFORE {
            publisher.publish().await?;
        }
        crowd.each_has(publisher.last(), LAST_LIMIT).await;
        let (front, window) = ([gateway.id()], options.measured());
        // Started anew, so that no request from an earlier wave is waiting.
        let calls = calls_beside(gateway, CALLS_PER_SECOND).await?;
        sleep(options.warm_up()).await;
        let before = calls.watch(window, &front, &[]).await?;

        let (over, mut is_over) = watch::channel(false);
        let lost = Instant::now();
        let cpu = CpuTimes::of(&front)?;
        let first = publisher.published().len();
        let full = queue::found_full();
        let storm = async {
            if way == Way::Closed {
                crowd.leave().await;
            }
            let closing = lost.elapsed();
            crowd.return_at_once();
            crowd.all_back().await?;
            let cpu = CpuTimes::of(&front)?.since(&cpu);
            let full = queue::found_full().zip(full).map(|(now, then)| now - then);
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
        let mut last = Instant::now();
        for _ in 0..AFTER {
            last = publisher.publish().await?;
        }
        let published = &publisher.published()[known..];
        crowd.each_has(publisher.last(), LAST_LIMIT).await;
        let last_event = crowd.tally().last_event().saturating_duration_since(last);
        let old_left = match way {
            Way::Closed => 0,
            Way::LeftOpen => crowd.old_ones_ended(LAST_LIMIT).await,
        };
        let mut deliveries = Deliveries::default();
        for client in crowd.clients() {
            deliveries.add(published, &client.events());
        }
        let since = |at: &Instant| at.saturating_duration_since(lost).as_secs_f64();
        let mut back: Vec<f64> = crowd.tally().opened_at().iter().map(since).collect();
        back.sort_by(f64::total_cmp);
        let (turned_away, first_turned_away) = crowd.tally().turned_away();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let at = |place: usize| back.get(place).map_or(f64::NAN, |seconds| seconds * 1e3);
        Ok(Self {
            streams,
            way,
            closing_ms: ms(closing),
            half_back_ms: at(streams / 2),
            all_back_ms: at(streams - 1),
            turned_away,
            first_turned_away,
            queue_full,
            events: publisher.published().len() - first,
            deliveries,
            last_event_ms: ms(last_event),
            old_left,
            cpu_ms: cpu as f64 / 1e6,
            before,
            meanwhile,
            back: curve(&back),
        })
    }

    /// CPU time per stream in microseconds, without that of the calls, estimated from their cost before the wave.
    pub(super) fn cpu_us_a_stream(&self) -> f64 {
        let calls = self.before.cpu_us * self.meanwhile.answered as f64;
        (self.cpu_ms * 1e3 - calls).max(0.0) / self.streams as f64
    }

    pub(super) fn name(&self) -> String {
        self.way.name(self.streams)
    }

    /// Formats the wave as a line of progress.
    pub(super) fn shown(&self) -> String {
        let fault = self.deliveries.fault();
        format!(
            "{}: back after {:.0} ms, {} turned away, {} events, {}; calls p99 {:.0} us, before {:.0} us",
            self.name(),
            self.all_back_ms,
            self.turned_away,
            self.deliveries.events,
            fault.unwrap_or_else(|| "all once".to_owned()),
            self.meanwhile.p99_us,
            self.before.p99_us,
        )
    }

    /// Describes wrong answers and events; `None` if there were none.
    pub(super) fn fault(&self) -> Option<String> {
        let old = (self.old_left > 0).then(|| format!("{} old streams not ended", self.old_left));
        // Unanswered calls are a result, and shown in the table. Wrong answers are a fault.
        let wrong = self.meanwhile.first_wrong.as_ref();
        let wrong = wrong
            .filter(|first| !first.starts_with(UNANSWERED))
            .cloned();
        let calls = self.before.fault().into_iter().chain(wrong);
        let faults: Vec<String> = self
            .deliveries
            .fault()
            .into_iter()
            .chain(old)
            .chain(calls)
            .collect();
        (!faults.is_empty()).then(|| format!("{}: {}", self.name(), faults.join(", ")))
    }
}

impl Way {
    pub(super) fn name(self, streams: usize) -> String {
        let way = match self {
            Self::Closed => "closed",
            Self::LeftOpen => "left open",
        };
        format!("{streams} streams, {way}")
    }
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
}
