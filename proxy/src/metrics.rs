//! What the edge counts (OBS-06): requests by route and status, refusals by reason, connections, time to answer.
//!
//! Label values come from fixed lists, so the number of series is bounded whatever clients send (REQUIREMENTS Q-21).

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};

/// Statuses that have a prepared counter; others are looked up, which costs a hash.
const STATUSES: [u16; 18] = [
    200, 202, 204, 400, 401, 403, 404, 405, 406, 408, 413, 415, 422, 429, 431, 500, 503, 504,
];

/// Routes that have prepared series, by the labels the filters give them.
const ROUTES: [&str; 12] = [
    "/mcp",
    "/tools",
    "/tools/{name}",
    "/tools/{name}/schema",
    "/namespaces",
    "/openapi.json",
    "/reload",
    "/health",
    "/ready",
    "/.well-known",
    "/metrics",
    "unknown",
];

/// Buckets in seconds, from a refusal at the edge to a call that used its whole default time limit.
const BUCKETS: [f64; 13] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0,
];

/// The edge's counters.
pub(crate) struct EdgeMetrics {
    /// Connections open now.
    pub(crate) connections: IntGauge,
    /// Requests being answered now.
    pub(crate) in_flight: IntGauge,
    refusals: IntCounterVec,
    requests: IntCounterVec,
    seconds: HistogramVec,
    routes: Vec<RouteSeries>,
}

/// The series of one route, resolved once.
struct RouteSeries {
    route: &'static str,
    by_status: [OnceLock<IntCounter>; STATUSES.len()],
    seconds: Histogram,
}

impl EdgeMetrics {
    /// Registers the edge's metrics.
    ///
    /// # Errors
    ///
    /// When a name is taken in the registry.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let connections = IntGauge::new("tooldock_connections", "Client connections open now")?;
        let in_flight =
            IntGauge::new("tooldock_requests_in_flight", "Requests being answered now")?;
        let refusals = IntCounterVec::new(
            Opts::new(
                "tooldock_refusals_total",
                "Requests and connections refused at the edge, by reason",
            ),
            &["reason"],
        )?;
        let requests = IntCounterVec::new(
            Opts::new("tooldock_requests_total", "Requests by route and status"),
            &["route", "status"],
        )?;
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "tooldock_request_seconds",
                "Time from the complete request head to the end of the answer, in seconds",
            )
            .buckets(BUCKETS.to_vec()),
            &["route"],
        )?;
        registry.register(Box::new(connections.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        registry.register(Box::new(refusals.clone()))?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        let routes = ROUTES
            .into_iter()
            .map(|route| RouteSeries {
                route,
                by_status: Default::default(),
                seconds: seconds.with_label_values(&[route]),
            })
            .collect();
        Ok(Self {
            connections,
            in_flight,
            refusals,
            requests,
            seconds,
            routes,
        })
    }

    /// Counts a refusal. `reason` is a stable code, never text from a client.
    pub(crate) fn refused(&self, reason: &'static str) {
        self.refusals.with_label_values(&[reason]).inc();
    }

    /// Counts an answered request.
    pub(crate) fn answered(&self, route: &'static str, status: u16, elapsed: Duration) {
        let series = self.routes.iter().find(|series| series.route == route);
        let prepared = STATUSES.iter().position(|known| *known == status);
        match (series, prepared) {
            (Some(series), Some(index)) => {
                series.by_status[index]
                    .get_or_init(|| self.counter(route, status))
                    .inc();
                series.seconds.observe(elapsed.as_secs_f64());
            }
            _ => {
                self.counter(route, status).inc();
                self.seconds
                    .with_label_values(&[route])
                    .observe(elapsed.as_secs_f64());
            }
        }
    }

    fn counter(&self, route: &'static str, status: u16) -> IntCounter {
        self.requests
            .with_label_values(&[route, status.to_string().as_str()])
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder, TextEncoder};

    use super::*;

    #[test]
    fn counts_by_route_and_status_and_by_reason() {
        let registry = Registry::new();
        let metrics = EdgeMetrics::new(&registry).expect("fresh registry");
        metrics.answered("/mcp", 200, Duration::from_millis(1));
        metrics.answered("/mcp", 200, Duration::from_millis(1));
        metrics.answered("/mcp", 418, Duration::from_millis(1));
        metrics.refused("unauthorized");
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&registry.gather(), &mut text)
            .expect("encodes");
        let text = String::from_utf8(text).expect("is text");
        for line in [
            r#"tooldock_requests_total{route="/mcp",status="200"} 2"#,
            r#"tooldock_requests_total{route="/mcp",status="418"} 1"#,
            r#"tooldock_refusals_total{reason="unauthorized"} 1"#,
            r#"tooldock_request_seconds_count{route="/mcp"} 3"#,
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }
}
