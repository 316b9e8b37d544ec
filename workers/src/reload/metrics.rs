//! Metrics of reloads and of the served namespaces.

use std::time::Duration;

use tooldock_base::metric_table;

/// Buckets of a reload's duration, in seconds: from a reload that changes nothing to one that installs many environments.
const RELOAD_SECONDS: [f64; 11] = [
    0.01, 0.05, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0,
];

metric_table! {
    /// Counters and gauges of the [`super::Reloader`].
    #[derive(Debug, Clone)]
    pub struct ReloadMetrics(registry) {
        reloads: IntCounterVec["result"] = "tooldock_reloads_total",
            "Reloads by result: complete, partial (a namespace or a certificate stays as it was), rejected (the configuration does).";
        seconds: Histogram = "tooldock_reload_duration_seconds",
            "Time from scan to the last swap of a reload.", RELOAD_SECONDS;
    }
}

/// Outcome of a reload; a greater value is worse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReloadOutcome {
    /// All namespaces are up to date.
    #[default]
    Complete,
    /// At least one namespace or certificate was not updated.
    Partial,
    /// Nothing was reloaded, or the configuration was rejected.
    Rejected,
}

impl ReloadOutcome {
    /// The outcome as text, for metrics and operators.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Partial => "partial",
            Self::Rejected => "rejected",
        }
    }
}

impl ReloadMetrics {
    pub(super) fn reloaded(&self, outcome: ReloadOutcome, after: Duration) {
        self.reloads.with_label_values(&[outcome.as_str()]).inc();
        self.seconds.observe(after.as_secs_f64());
    }
}
