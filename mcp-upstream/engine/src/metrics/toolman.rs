//! Metrics of aggregates; their calls are counted elsewhere.

use prometheus::IntGauge;
use tooldock_base::metric_table;

metric_table! {
    /// Metric families of aggregates.
    #[derive(Debug, Clone)]
    pub struct ToolmanMetrics(registry) {
        pub(crate) toolsets: IntGauge = "tooldock_toolman_toolsets",
            "Sessions, principals and processes that have a set of tools of their own";
        pub(crate) activations: IntCounterVec["namespace", "form"] = "tooldock_toolman_activations_total",
            "Successful calls of toolman_activate, by where the changed set is kept: session, handle, principal, process";
        pub(crate) calls: IntCounterVec["namespace"] = "tooldock_toolman_calls_total",
            "Calls that came through toolman_call";
    }
}

/// Guard that counts a stored toolset in a gauge until the guard is dropped.
#[derive(Debug)]
pub(crate) struct KeptToolset(IntGauge);

impl KeptToolset {
    pub(crate) fn new(metrics: &ToolmanMetrics) -> Self {
        metrics.toolsets.inc();
        Self(metrics.toolsets.clone())
    }
}

impl Drop for KeptToolset {
    fn drop(&mut self) {
        self.0.dec();
    }
}
