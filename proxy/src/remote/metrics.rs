//! Metrics of the backends of remote servers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use prometheus::{IntCounter, IntGauge};
use tooldock_base::metric_table;
use tooldock_base::names::NamespaceName;
use tooldock_workers::remote::BackendId;

use super::lock;

metric_table! {
    /// Counters and gauges of the backends of remote servers.
    pub(crate) struct RemoteMetrics(registry) {
        up: IntGaugeVec["namespace", "backend"] = "tooldock_upstream_backend_up",
            "Whether a backend of a remote server is healthy: 1 or 0";
        in_flight: IntGaugeVec["namespace", "backend"] = "tooldock_upstream_backend_in_flight",
            "Requests at a backend that wait for their response or whose response is being read";
        requests: IntCounterVec["namespace", "backend", "outcome"] = "tooldock_upstream_backend_requests_total",
            "Requests to a backend by outcome: 2xx to 5xx, cut, body_timeout, or why there was no response";
        ejections: IntCounterVec["namespace", "backend"] = "tooldock_upstream_backend_ejections_total",
            "How often a backend was left out because requests to it failed";
        authorizations_ended: IntCounterVec["namespace", "reason"] = "tooldock_upstream_authorizations_ended_total",
            "Authorizations of the gateway at a remote server that count no more: issuer (the server names another authorization server), configuration, unbound or refused";
    }
    {
        /// The metrics of the backends in use. The metrics of a backend are removed when the last reference to them is dropped.
        known: Mutex<HashMap<(NamespaceName, BackendId), Weak<Series>>> = Mutex::default();
    }
}

/// The metrics of one backend. Dropping the value removes them from the output.
pub(super) struct Series {
    metrics: Weak<RemoteMetrics>,
    namespace: NamespaceName,
    backend: BackendId,
    pub(super) in_flight: IntGauge,
    pub(super) ejections: IntCounter,
}

impl RemoteMetrics {
    /// The metrics of a backend. All callers share one value for the same backend.
    pub(super) fn series(
        self: &Arc<Self>,
        namespace: &NamespaceName,
        backend: &BackendId,
    ) -> Arc<Series> {
        let key = (namespace.clone(), backend.clone());
        let mut known = lock(&self.known);
        if let Some(series) = known.get(&key).and_then(Weak::upgrade) {
            return series;
        }
        let labels = [namespace.as_str(), backend.as_str()];
        let series = Arc::new(Series {
            metrics: Arc::downgrade(self),
            namespace: namespace.clone(),
            backend: backend.clone(),
            in_flight: self.in_flight.with_label_values(&labels),
            ejections: self.ejections.with_label_values(&labels),
        });
        known.insert(key, Arc::downgrade(&series));
        series
    }
}

impl RemoteMetrics {
    /// Counts that an authorization of the gateway at a remote server has become invalid.
    pub(super) fn authorization_ended(&self, namespace: &NamespaceName, reason: &'static str) {
        let labels = [namespace.as_str(), reason];
        self.authorizations_ended.with_label_values(&labels).inc();
    }

    /// Removes a namespace's counts of invalid authorizations. Called when the namespace is no longer a remote server.
    pub(super) fn forget_ends(&self, namespace: &NamespaceName, reasons: &[&'static str]) {
        for reason in reasons {
            let labels = [namespace.as_str(), reason];
            let _ = self.authorizations_ended.remove_label_values(&labels);
        }
    }
}

/// All values of the label `outcome`, which names the outcome of a request to a backend.
pub(super) const OUTCOMES: [&str; 15] = [
    "2xx",
    "3xx",
    "4xx",
    "5xx",
    "cut",
    "body_timeout",
    "resolve",
    "connect",
    "connect_timeout",
    "tls",
    "closed",
    "head_timeout",
    "malformed",
    "request",
    "given_up",
];

impl Series {
    /// Sets the gauge for the backend's health. `None` removes the gauge.
    pub(super) fn set_healthy(&self, healthy: Option<bool>) {
        let Some(metrics) = self.metrics.upgrade() else {
            return;
        };
        let labels = [self.namespace.as_str(), self.backend.as_str()];
        match healthy {
            Some(healthy) => metrics.up.with_label_values(&labels).set(healthy.into()),
            None => {
                let _ = metrics.up.remove_label_values(&labels);
            }
        }
    }

    /// Counts a request to the backend. `outcome` must be one of [`OUTCOMES`].
    pub(super) fn count(&self, outcome: &'static str) {
        if let Some(metrics) = self.metrics.upgrade() {
            let labels = [self.namespace.as_str(), self.backend.as_str(), outcome];
            metrics.requests.with_label_values(&labels).inc();
        }
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        let Some(metrics) = self.metrics.upgrade() else {
            return;
        };
        let key = (self.namespace.clone(), self.backend.clone());
        let mut known = lock(&metrics.known);
        // If the backend's metrics are in use again, they must not be removed.
        if known.get(&key).is_some_and(|it| it.strong_count() > 0) {
            return;
        }
        known.remove(&key);
        let labels = [self.namespace.as_str(), self.backend.as_str()];
        let _ = metrics.up.remove_label_values(&labels);
        let _ = metrics.in_flight.remove_label_values(&labels);
        let _ = metrics.ejections.remove_label_values(&labels);
        for outcome in OUTCOMES {
            let labels = [labels[0], labels[1], outcome];
            let _ = metrics.requests.remove_label_values(&labels);
        }
    }
}
