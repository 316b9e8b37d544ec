//! Metrics of hooks. Their labels are names from the configuration.

use std::time::Duration;

use tooldock_base::metric_table;

use super::HookEvent;

/// Upper bounds of the histogram's buckets, in seconds, up to the maximum time limit of a hook.
const SECONDS: [f64; 11] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0, 60.0,
];

metric_table! {
    /// Counts and times of requests to hooks.
    #[derive(Debug, Clone)]
    pub struct HookMetrics(registry) {
        requests: IntCounterVec["hook", "on", "outcome"] = "tooldock_hook_requests_total",
            "Requests to hooks by outcome: passed, changed, refused, timeout, busy, unreachable, invalid";
        seconds: HistogramVec["hook", "on"] = "tooldock_hook_seconds",
            "Time of requests to hooks, the wait for their turn included", SECONDS;
    }
}

impl HookMetrics {
    /// Counts a request that has ended.
    pub(super) fn count(&self, hook: &str, on: HookEvent, outcome: &str, time: Duration) {
        let on = on.as_str();
        let labels = [hook, on, outcome];
        self.requests.with_label_values(&labels).inc();
        let seconds = self.seconds.with_label_values(&[hook, on]);
        seconds.observe(time.as_secs_f64());
    }
}
