//! Metrics of external servers by namespace; the resources of their operating-system processes are measured elsewhere.
//! When the last pool of a namespace ends, the namespace's series are removed.

use std::sync::Arc;
use std::time::Duration;

use prometheus::{Histogram, IntGauge};
use tooldock_base::metric_table;
use tooldock_base::metric_table::forget;
use tooldock_base::names::NamespaceName;
use tooldock_protocol::jsonrpc::ProtocolViolation;

use super::breaker::BreakerState;

/// Upper bounds of the buckets of waiting times, in seconds. They range from a pooled process to a slow start.
const WAIT_SECONDS: [f64; 9] = [0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0];
/// Upper bounds of the buckets of call durations, in seconds. They range from a cache hit to the highest time limit of a call
/// that is allowed by default.
const CALL_SECONDS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0,
];
/// Kind of a stored response that clients get while the server is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastGood {
    /// The server's description of itself, from the opening of a connection.
    Opening,
    /// A page of one of the server's lists of tools, prompts or resources.
    List,
}

impl LastGood {
    /// Returns the value of the metric label `what`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::List => "list",
        }
    }
}

metric_table! {
    /// Metric families of external servers.
    #[derive(Debug, Clone)]
    pub struct StdioMetrics(registry) {
        waits: HistogramVec["namespace"] = "tooldock_server_wait_seconds",
            "Time a request waited for a process of an external server that was not there", WAIT_SECONDS;
        calls: HistogramVec["namespace"] = "tooldock_server_call_seconds",
            "Time external servers took to answer", CALL_SECONDS;
        waiting: IntGaugeVec["namespace"] = "tooldock_server_waiting",
            "Requests that wait for a process of an external server";
        breaker: IntGaugeVec["namespace"] = "tooldock_server_breaker",
            "Circuit breaker of an external server: 0 closed, 1 half open, 2 open";
        refused: IntCounterVec["namespace", "reason"] = "tooldock_server_refused_total",
            "Requests that got no process of an external server";
        last_good: IntCounterVec["namespace", "what"] = "tooldock_server_last_good_total",
            "Answers from what an external server last said, while it was away";
        violations: IntCounterVec["namespace", "kind"] = "tooldock_server_oddities_total",
            "What external servers sent that was ignored, and results that do not fit their outputSchema";
    }
}

/// The time series of a namespace's external server. They are removed with the namespace's last pool.
#[derive(Debug)]
pub(crate) struct ServerMetrics {
    namespace: NamespaceName,
    /// Histogram of the time that requests waited for a process that was not running.
    pub(crate) waits: Histogram,
    /// Histogram of the time from a request to its response, as the server's clients experience it.
    pub(crate) calls: Histogram,
    waiting: IntGauge,
    breaker: IntGauge,
    all: StdioMetrics,
}

impl StdioMetrics {
    /// Creates metrics that are not exported, for tests.
    #[cfg(test)]
    pub(crate) fn unregistered() -> Self {
        Self::new(&prometheus::Registry::new()).expect("a fresh registry holds no such names")
    }

    pub(super) fn server(&self, namespace: &NamespaceName) -> Arc<ServerMetrics> {
        let label = &[namespace.as_str()];
        Arc::new(ServerMetrics {
            namespace: namespace.clone(),
            waits: self.waits.with_label_values(label),
            calls: self.calls.with_label_values(label),
            waiting: self.waiting.with_label_values(label),
            breaker: self.breaker.with_label_values(label),
            all: self.clone(),
        })
    }

    /// Removes the series of a namespace that is no longer served.
    pub(super) fn forget(&self, namespace: &NamespaceName) {
        let name = namespace.as_str();
        forget(&self.waits, name);
        forget(&self.calls, name);
        forget(&self.waiting, name);
        forget(&self.breaker, name);
        for family in [&self.refused, &self.last_good, &self.violations] {
            forget(family, name);
        }
    }
}

impl ServerMetrics {
    #[cfg(test)]
    pub(super) fn unregistered(namespace: &str) -> Arc<Self> {
        StdioMetrics::unregistered().server(&namespace.parse().expect("a name"))
    }

    /// Records the time that a request waited for a process.
    pub(super) fn waited(&self, time: Duration) {
        self.waits.observe(time.as_secs_f64());
    }

    pub(super) fn refused(&self, reason: &'static str) {
        let labels = &[self.namespace.as_str(), reason];
        self.all.refused.with_label_values(labels).inc();
    }

    /// Counts a request that was answered from a stored response, because the server is unavailable.
    pub(super) fn fell_back(&self, what: LastGood) {
        let labels = &[self.namespace.as_str(), what.as_str()];
        self.all.last_good.with_label_values(labels).inc();
    }

    /// Sets the gauge of requests that wait for a process.
    pub(super) fn waiting(&self, requests: usize) {
        self.waiting
            .set(i64::try_from(requests).unwrap_or(i64::MAX));
    }

    pub(super) fn violation(&self, violation: ProtocolViolation) {
        let labels = &[self.namespace.as_str(), violation.as_str()];
        self.all.violations.with_label_values(labels).inc();
    }

    pub(super) fn breaker(&self, state: BreakerState) {
        self.breaker.set(match state {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        });
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    #[test]
    fn the_series_of_a_namespace_go_when_it_is_forgotten() {
        let registry = Registry::new();
        let metrics = StdioMetrics::new(&registry).expect("a fresh registry");
        assert!(StdioMetrics::new(&registry).is_err());
        let name = "git".parse().expect("a name");
        let server = metrics.server(&name);
        server.waited(Duration::from_millis(3));
        server.refused("max_processes");
        server.fell_back(LastGood::List);
        server.violation(ProtocolViolation::Late);
        server.breaker(BreakerState::Open);
        let series = || {
            registry
                .gather()
                .iter()
                .map(|it| it.get_metric().len())
                .sum::<usize>()
        };
        assert_eq!(series(), 7);
        metrics.forget(&name);
        assert_eq!(series(), 0);
    }
}
