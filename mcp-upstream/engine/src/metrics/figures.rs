//! Figures of the last minute's calls by namespace: their number, the share of failures, and the 95th percentile of their
//! duration.
//!
//! The counters never decrease. They are read every few seconds, and the figures of the last minute are the difference between
//! the current reading and the reading of a minute ago. A namespace that was never called is not read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::Metric;
use tokio::time::Instant;
use tooldock_base::names::NamespaceName;

use super::{NamespaceMetrics, UpstreamMetrics};

/// Length of the period for which the figures are computed.
const WINDOW: Duration = Duration::from_secs(60);
/// Interval at which the counters are read.
pub const EVERY: Duration = Duration::from_secs(5);

/// The counters of one namespace at one moment, or the difference of two such readings.
#[derive(Debug, Clone, Default)]
struct Counts {
    calls: u64,
    ok: u64,
    /// Cumulative numbers of calls in the duration histogram, each with its bucket's upper bound in seconds.
    buckets: Vec<(f64, u64)>,
}

type Note = BTreeMap<NamespaceName, Counts>;

/// Readings of the counters, taken during the last minute; at most `WINDOW / EVERY + 1` of them.
#[derive(Debug, Default)]
pub struct FigureNotes(Mutex<VecDeque<(Instant, Note)>>);

impl FigureNotes {
    /// Reads the counters, and drops readings that are no longer needed.
    pub fn note(&self, metrics: &UpstreamMetrics) {
        let now = Instant::now();
        let note = read(metrics);
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Keeps a single reading that is older than the window, the most recent of them: differences begin with it.
        while notes.get(1).is_some_and(|(at, _)| now - *at >= WINDOW) {
            notes.pop_front();
        }
        notes.push_back((now, note));
    }

    /// Returns the figures of the minute that ends now.
    pub fn now(&self, metrics: &UpstreamMetrics) -> Figures {
        let now = read(metrics);
        let notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = notes.iter().rev().find(|(at, _)| at.elapsed() >= WINDOW);
        let before = before.or_else(|| notes.front()).map(|(_, note)| note);
        let rates = now.into_iter().map(|(name, counts)| {
            let earlier = before.and_then(|note| note.get(&name));
            (name, counts.since(earlier))
        });
        Figures(rates.collect())
    }
}

/// The figures of the last minute's calls, by namespace.
#[derive(Debug)]
pub struct Figures(BTreeMap<NamespaceName, Counts>);

/// The figures of the last minute's calls, of one namespace or of all namespaces together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Number of calls in the last minute.
    pub calls: u64,
    /// Share of failed calls in the last minute, from 0 to 1; `None` if there were no calls.
    pub error_rate: Option<f64>,
    /// The 95th percentile of the duration of the last minute's calls, in milliseconds; `None` if there were no calls.
    pub p95_ms: Option<f64>,
}

impl Figures {
    /// Returns the rates of a namespace.
    pub fn of(&self, name: &NamespaceName) -> Rates {
        self.0
            .get(name)
            .map_or(Counts::default().rates(), Counts::rates)
    }

    /// Returns the figures of all namespaces together, without the management tools.
    pub fn of_all(&self) -> Rates {
        let mut all = Counts::default();
        for counts in self
            .0
            .iter()
            .filter(|(name, _)| !name.is_system())
            .map(|(_, it)| it)
        {
            all.add(counts);
        }
        all.rates()
    }
}

impl Counts {
    fn of(metrics: &NamespaceMetrics) -> Self {
        let metric = metrics.latency.metric();
        let buckets = metric.get_histogram().get_bucket().iter();
        Self {
            calls: metrics.latency.get_sample_count(),
            ok: metrics.ok.get(),
            buckets: buckets
                .map(|it| (it.upper_bound(), it.cumulative_count()))
                .collect(),
        }
    }

    fn since(self, earlier: Option<&Self>) -> Self {
        let Some(earlier) = earlier else {
            return self;
        };
        let old = |at: usize| earlier.buckets.get(at).map_or(0, |(_, count)| *count);
        Self {
            calls: self.calls.saturating_sub(earlier.calls),
            ok: self.ok.saturating_sub(earlier.ok),
            buckets: (self.buckets.iter().enumerate())
                .map(|(at, (bound, count))| (*bound, count.saturating_sub(old(at))))
                .collect(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.ok += other.ok;
        if self.buckets.is_empty() {
            self.buckets.clone_from(&other.buckets);
            return;
        }
        for (own, (_, count)) in self.buckets.iter_mut().zip(&other.buckets) {
            own.1 += count;
        }
    }

    fn rates(&self) -> Rates {
        let some = self.calls > 0;
        let failed = self.calls.saturating_sub(self.ok);
        let rate = failed as f64 / self.calls.max(1) as f64;
        Rates {
            calls: self.calls,
            error_rate: some.then(|| (rate * 10_000.0).round() / 10_000.0),
            p95_ms: some.then(|| self.quantile(0.95)).flatten(),
        }
    }

    /// Returns a quantile of the calls' duration in milliseconds, interpolated within its bucket. If it lies beyond the
    /// last finite bucket, that bucket's upper bound is returned.
    fn quantile(&self, quantile: f64) -> Option<f64> {
        let wanted = self.calls as f64 * quantile;
        let (mut low, mut below) = (0.0, 0);
        for (bound, count) in &self.buckets {
            if bound.is_finite() && *count as f64 >= wanted {
                let inside = (count - below).max(1) as f64;
                let seconds = low + (bound - low) * (wanted - below as f64) / inside;
                return Some((seconds * 1_000_000.0).round() / 1000.0);
            }
            if bound.is_finite() {
                (low, below) = (*bound, *count);
            }
        }
        (!self.buckets.is_empty()).then_some(low * 1000.0)
    }
}

/// Reads the counters of all namespaces that were called at least once.
fn read(metrics: &UpstreamMetrics) -> Note {
    let all = metrics.namespaces.iter();
    let called = all.filter(|it| it.latency.get_sample_count() > 0);
    called
        .map(|it| (it.key().clone(), Counts::of(it.value())))
        .collect()
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_figures_are_those_of_the_last_minute() {
        let metrics = UpstreamMetrics::new(&Registry::new()).expect("a fresh registry");
        let name: NamespaceName = "calc".parse().expect("a name");
        let of = metrics.namespace(&name);
        let called = |outcome, seconds| {
            of.count(outcome);
            of.latency.observe(seconds);
        };
        let notes = FigureNotes::default();
        notes.note(&metrics);
        let nothing = Rates {
            calls: 0,
            error_rate: None,
            p95_ms: None,
        };
        assert_eq!(notes.now(&metrics).of(&name), nothing);
        for _ in 0..3 {
            called("ok", 0.004);
        }
        called("tool_error", 0.004);
        let rates = notes.now(&metrics).of(&name);
        assert_eq!((rates.calls, rates.error_rate), (4, Some(0.25)));
        // Between 2.5 and 5 ms.
        assert_eq!(rates.p95_ms, Some(4.875));
        assert_eq!(notes.now(&metrics).of_all(), rates);
        notes.note(&metrics);
        tokio::time::advance(WINDOW).await;
        notes.note(&metrics);
        assert_eq!(notes.now(&metrics).of(&name), nothing);
    }
}
