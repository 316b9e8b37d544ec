//! Counts the outcomes of the requests that were due in one window.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::sync::Notify;

use super::super::curve::{curve, micros};
use super::super::shared::{Costs, Spent, latencies};

/// A request counts as late if it is sent this long after its due time. Shorter delays are due to the client's clock.
const LATE: Duration = Duration::from_millis(1);
/// Length of the slices of [`OpenSample::worst`].
const SLICE: Duration = Duration::from_millis(100);

/// The result of one window of an open loop.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct OpenSample {
    /// The scheduled rate.
    pub(crate) per_second: f64,
    pub(crate) seconds: f64,
    /// Requests that were due within the window. Each of them was answered, wrong or unanswered.
    pub(crate) due: u64,
    pub(crate) answered: u64,
    /// Requests with a wrong answer, or whose connection failed.
    pub(crate) wrong: u64,
    pub(crate) first_wrong: Option<String>,
    /// Requests not sent, or not answered within ten seconds after the window. Percentiles do not contain them.
    pub(crate) unanswered: u64,
    /// Requests sent more than a millisecond after they were due, since all connections were busy or the client had no
    /// CPU. Their latency counts from the due time, too.
    pub(crate) late: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    #[serde(flatten)]
    pub(crate) costs: Costs,
    /// Latency in microseconds by percentile.
    pub(crate) curve: Vec<(f64, f64)>,
    /// The largest latency in microseconds of the requests due in each tenth of a second: (seconds since the window
    /// began, latency).
    pub(crate) worst: Vec<(f64, f64)>,
}

impl std::ops::Deref for OpenSample {
    type Target = Costs;

    fn deref(&self) -> &Costs {
        &self.costs
    }
}

impl OpenSample {
    /// Describes answers that were wrong or missing; `None` if there were none.
    pub(crate) fn fault(&self) -> Option<String> {
        let wrong = self
            .first_wrong
            .as_ref()
            .map(|first| format!("{} wrong answers, the first one: {first}", self.wrong));
        let unanswered = (self.unanswered > 0)
            .then(|| format!("{} of {} requests unanswered", self.unanswered, self.due));
        match (wrong, unanswered) {
            (Some(wrong), Some(unanswered)) => Some(format!("{unanswered}; {wrong}")),
            (wrong, unanswered) => wrong.or(unanswered),
        }
    }

    /// Formats the sample as a line of progress.
    pub(crate) fn shown(&self) -> String {
        format!(
            "{:.0}/s for {:.1} s, p50 {:.0} us, p99 {:.0} us, worst {:.0} us, {} late, {} wrong, {} unanswered",
            self.per_second,
            self.seconds,
            self.p50_us,
            self.p99_us,
            self.max_us,
            self.late,
            self.wrong,
            self.unanswered
        )
    }
}

pub(super) struct Tally {
    start: Instant,
    counts: Mutex<Counts>,
    progress: Notify,
}

struct Counts {
    due: u64,
    late: u64,
    wrong: u64,
    first_wrong: Option<String>,
    latencies: Histogram<u64>,
    worst: Vec<Duration>,
}

impl Counts {
    fn done(&self) -> u64 {
        self.latencies.len() + self.wrong
    }
}

impl Tally {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            start: Instant::now(),
            counts: Mutex::new(Counts {
                due: 0,
                late: 0,
                wrong: 0,
                first_wrong: None,
                latencies: latencies()?,
                worst: Vec::new(),
            }),
            progress: Notify::new(),
        })
    }

    fn locked(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Returns true if a request due at this time belongs to the window.
    pub(super) fn counts(&self, due: Instant) -> bool {
        due >= self.start
    }

    pub(super) fn due(&self) {
        self.locked().due += 1;
    }

    pub(super) fn answered(&self, due: Instant, sent: Instant, outcome: anyhow::Result<()>) {
        let took = due.elapsed();
        let mut counts = self.locked();
        if sent.saturating_duration_since(due) > LATE {
            counts.late += 1;
        }
        let since = due.saturating_duration_since(self.start);
        let slice = (since.as_nanos() / SLICE.as_nanos()) as usize;
        if counts.worst.len() <= slice {
            counts.worst.resize(slice + 1, Duration::ZERO);
        }
        counts.worst[slice] = counts.worst[slice].max(took);
        match outcome {
            Ok(()) => {
                let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                counts.latencies.saturating_record(took);
            }
            Err(error) => {
                counts.wrong += 1;
                counts
                    .first_wrong
                    .get_or_insert_with(|| format!("{error:#}"));
            }
        }
        self.progress.notify_one();
    }

    /// Waits until all requests that were due have an outcome.
    pub(super) async fn all_answered(&self) {
        while {
            let counts = self.locked();
            counts.done() < counts.due
        } {
            self.progress.notified().await;
        }
    }

    pub(super) fn sample(
        &self,
        per_second: f64,
        seconds: f64,
        before: &Spent,
        after: &Spent,
    ) -> anyhow::Result<OpenSample> {
        let counts = self.locked();
        let answered = counts.latencies.len();
        let costs = before.until(after, answered, seconds);
        let slice = |(at, worst): (usize, &Duration)| {
            let seconds = at as f64 * SLICE.as_secs_f64();
            (seconds, worst.as_nanos() as f64 / 1e3)
        };
        Ok(OpenSample {
            per_second,
            seconds,
            due: counts.due,
            answered,
            wrong: counts.wrong,
            first_wrong: counts.first_wrong.clone(),
            unanswered: counts.due.saturating_sub(counts.done()),
            late: counts.late,
            p50_us: micros(&counts.latencies, 50.0),
            p99_us: micros(&counts.latencies, 99.0),
            p999_us: micros(&counts.latencies, 99.9),
            max_us: counts.latencies.max() as f64 / 1e3,
            costs,
            curve: curve(&counts.latencies),
            worst: counts.worst.iter().enumerate().map(slice).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_was_due_is_answered_wrong_or_unanswered() {
        let tally = Tally::new().unwrap();
        let now = Instant::now();
        for _ in 0..4 {
            tally.due();
        }
        tally.answered(now, now, Ok(()));
        tally.answered(now, now + LATE * 2, Err(anyhow::Error::msg("status 503")));
        tally.answered(now, now, Err(anyhow::Error::msg("status 504")));
        let window = super::super::Window {
            front: vec![std::process::id()],
            ..Default::default()
        };
        let spent = Spent::now(&window).unwrap();
        let sample = tally.sample(10.0, 0.4, &spent, &spent).unwrap();
        assert_eq!(
            (sample.due, sample.answered, sample.wrong, sample.unanswered),
            (4, 1, 2, 1)
        );
        assert_eq!(sample.late, 1);
        let fault = sample.fault().unwrap();
        assert_eq!(
            fault,
            "1 of 4 requests unanswered; 2 wrong answers, the first one: status 503"
        );
    }
}
