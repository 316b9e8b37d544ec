//! What operators see of reloads and of what is served.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use crate::registry::{Snapshot, Upstream};

/// Counters and gauges of the [`super::Reloader`].
#[derive(Debug, Clone)]
pub struct ReloadMetrics {
    reloads: IntCounterVec,
    seconds: Histogram,
    namespaces: IntGaugeVec,
    tools: IntGauge,
}

/// How a reload ended, from good to bad.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReloadOutcome {
    /// Everything is up to date.
    #[default]
    Complete,
    /// A namespace or a certificate stays as it was.
    Partial,
    /// The configuration, or all there was to reload, stays as it was.
    Rejected,
}

impl ReloadMetrics {
    /// Metrics registered with `registry`.
    ///
    /// # Errors
    ///
    /// When a metric of the same name is registered already.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            reloads: IntCounterVec::new(
                Opts::new(
                    "tooldock_reloads_total",
                    "Reloads by result: complete, partial (a namespace or a certificate stays as it was), rejected (the configuration does).",
                ),
                &["result"],
            )?,
            seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "tooldock_reload_duration_seconds",
                    "Time from scan to the last swap of a reload.",
                )
                .buckets(vec![
                    0.01, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0,
                ]),
            )?,
            namespaces: IntGaugeVec::new(
                Opts::new(
                    "tooldock_namespaces",
                    "Namespaces by state: serving, empty, failed.",
                ),
                &["state"],
            )?,
            tools: IntGauge::new("tooldock_tools", "Tools of all namespaces.")?,
        };
        registry.register(Box::new(metrics.reloads.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        registry.register(Box::new(metrics.namespaces.clone()))?;
        registry.register(Box::new(metrics.tools.clone()))?;
        Ok(metrics)
    }

    pub(super) fn reloaded(&self, outcome: ReloadOutcome, after: Duration) {
        let result = match outcome {
            ReloadOutcome::Complete => "complete",
            ReloadOutcome::Partial => "partial",
            ReloadOutcome::Rejected => "rejected",
        };
        self.reloads.with_label_values(&[result]).inc();
        self.seconds.observe(after.as_secs_f64());
    }

    pub(super) fn published(&self, snapshot: &Snapshot) {
        let (mut serving, mut empty, mut failed, mut tools) = (0, 0, 0, 0);
        for namespace in snapshot.namespaces.values() {
            match namespace.upstream {
                Upstream::Worker(_) | Upstream::External(_) => serving += 1,
                Upstream::Empty => empty += 1,
                Upstream::Failed(_) => failed += 1,
            }
            tools += namespace.tools.len();
        }
        for (state, count) in [("serving", serving), ("empty", empty), ("failed", failed)] {
            self.namespaces.with_label_values(&[state]).set(count);
        }
        self.tools.set(i64::try_from(tools).unwrap_or(i64::MAX));
    }
}
