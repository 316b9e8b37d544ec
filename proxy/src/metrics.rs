//! Metrics of the edge (OBS-06): requests by route and status, refusals by reason, connections, time to answer.
//!
//! Label values come from fixed lists, so the number of series is bounded for any input of clients (REQUIREMENTS Q-21).

mod ending;
mod process;
mod state;

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge};

use tooldock_base::metric_table;
use tooldock_filters::Reason;

pub(crate) use self::ending::Ending;
use self::process::ProcessMetrics;
pub(crate) use self::state::StateMetrics;

/// Statuses that have a prepared counter; the counter of another status is looked up, which costs a hash.
const STATUSES: [u16; 18] = [
    200, 202, 204, 400, 401, 403, 404, 405, 406, 408, 413, 415, 422, 429, 431, 500, 503, 504,
];

/// Routes that have prepared series, by the labels the filters give them.
const ROUTES: [&str; 14] = [
    "/mcp",
    "/sse",
    "/messages",
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

/// Histogram buckets in seconds: from the duration of a refusal at the edge to the default time limit of a call.
const BUCKETS: [f64; 13] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0,
];

/// The connection by which a long stream reaches its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamTransport {
    /// A separate connection, outside Pingora.
    Direct,
    /// A stream of an HTTP/2 connection.
    Session,
}

metric_table! {
    /// The edge's counters.
    pub(crate) struct EdgeMetrics(registry) {
        /// Connections open now.
        pub(crate) connections: IntGauge = "tooldock_connections", "Client connections open now";
        /// Connections open now on the relay's socket.
        pub(crate) relay_connections: IntGauge = "tooldock_relay_connections",
            "Connections open now on the relay's socket";
        /// Requests being answered now.
        pub(crate) in_flight: IntGauge = "tooldock_requests_in_flight", "Requests being answered now";
        /// Bytes of request bodies that took more than one read.
        pub(crate) bodies: IntGauge = "tooldock_body_bytes",
            "Bytes of request bodies held in memory, of bodies that did not come at once";
        refusals: IntCounterVec["reason"] = "tooldock_refusals_total",
            "Requests and connections refused at the edge, by reason";
        credential_failures: IntCounterVec["outcome"] = "tooldock_credential_failures_total",
            "Wrong credentials: answered, or delayed where many came before"
            => [IntCounter; 2] = ["answered", "delayed"].map(|it| credential_failures.with_label_values(&[it]));
        streams: IntGaugeVec["transport"] = "tooldock_stream_connections",
            "Long streams that are written to now, by how they reach their client"
            => [IntGauge; 2] = ["direct", "session"].map(|transport| streams.with_label_values(&[transport]));
        streams_ended: IntCounterVec["reason"] = "tooldock_streams_ended_total",
            "Long streams that are over, by reason"
            => [IntCounter; Ending::ALL.len()] = Ending::ALL.map(|it| streams_ended.with_label_values(&[it.label()]));
        requests: IntCounterVec["route", "status"] = "tooldock_requests_total", "Requests by route and status";
        seconds: HistogramVec["route"] = "tooldock_request_seconds",
            "Time from the complete request head to the end of the answer, of a long stream to its beginning, in seconds",
            BUCKETS;
    }
    {
        /// The counters of the filters' reasons, each made with its first refusal.
        by_reason: [(&'static str, OnceLock<IntCounter>); Reason::ALL.len()] =
            Reason::ALL.map(|reason| (reason.code(), OnceLock::new()));
        routes: [RouteSeries; ROUTES.len()] = ROUTES.map(|route| RouteSeries {
            route,
            by_status: Default::default(),
            seconds: seconds.with_label_values(&[route]),
        });
        /// Metrics of this process; read before they are shown.
        pub(crate) process: ProcessMetrics = ProcessMetrics::new(registry)?;
    }
}

/// The series of a route, resolved once.
struct RouteSeries {
    route: &'static str,
    by_status: [OnceLock<IntCounter>; STATUSES.len()],
    seconds: Histogram,
}

impl EdgeMetrics {
    /// Counts a refusal. `reason` is a stable code, never text from a client.
    pub(crate) fn refused(&self, reason: &'static str) {
        let counter = || self.refusals.with_label_values(&[reason]);
        match self.by_reason.iter().find(|(known, _)| *known == reason) {
            Some((_, prepared)) => prepared.get_or_init(counter).inc(),
            None => counter().inc(),
        }
    }

    /// Counts a wrong credential.
    pub(crate) fn credential_failed(&self, delayed: bool) {
        self.credential_failures[usize::from(delayed)].inc();
    }

    /// Counts a long stream until the guard is dropped.
    pub(crate) fn stream_opened(&self, transport: StreamTransport) -> OpenStream {
        let gauge = &self.streams[transport as usize];
        gauge.inc();
        OpenStream {
            gauge: gauge.clone(),
            ended: self.streams_ended.clone(),
        }
    }

    /// The number of open long streams.
    pub(crate) fn streams_open(&self) -> i64 {
        self.streams.iter().map(IntGauge::get).sum()
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

/// A counted long stream. Dropping it ends the count.
pub(crate) struct OpenStream {
    gauge: IntGauge,
    ended: [IntCounter; Ending::ALL.len()],
}

impl OpenStream {
    /// Counts the reason of the stream's end.
    pub(crate) fn ended(&self, ending: Ending) {
        self.ended[ending as usize].inc();
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder, Registry, TextEncoder};

    use super::*;

    #[test]
    fn a_long_stream_is_open_until_its_guard_is_dropped() {
        let registry = Registry::new();
        let metrics = EdgeMetrics::new(&registry).expect("fresh registry");
        let direct = metrics.stream_opened(StreamTransport::Direct);
        let session = metrics.stream_opened(StreamTransport::Session);
        assert_eq!(metrics.streams_open(), 2);
        direct.ended(Ending::SlowReader);
        drop((direct, session));
        assert_eq!(metrics.streams_open(), 0);
        let ended = Ending::ALL.map(|ending| metrics.streams_ended[ending as usize].get());
        assert_eq!(ended, [0, 0, 1, 0]);
        assert_eq!(Ending::ALL[Ending::SlowReader as usize], Ending::SlowReader);
    }

    #[test]
    fn counts_by_route_and_status_and_by_reason() {
        let registry = Registry::new();
        let metrics = EdgeMetrics::new(&registry).expect("fresh registry");
        metrics.answered("/mcp", 200, Duration::from_millis(1));
        metrics.answered("/mcp", 200, Duration::from_millis(1));
        metrics.answered("/mcp", 418, Duration::from_millis(1));
        metrics.refused("unauthorized");
        metrics.refused("unauthorized");
        metrics.refused("connections");
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&registry.gather(), &mut text)
            .expect("encodes");
        let text = String::from_utf8(text).expect("is text");
        for line in [
            r#"tooldock_requests_total{route="/mcp",status="200"} 2"#,
            r#"tooldock_requests_total{route="/mcp",status="418"} 1"#,
            r#"tooldock_refusals_total{reason="unauthorized"} 2"#,
            r#"tooldock_refusals_total{reason="connections"} 1"#,
            r#"tooldock_request_seconds_count{route="/mcp"} 3"#,
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }
}
