//! Metrics of the edge (OBS-06): requests by route and status, refusals by reason, connections, time to answer.
//!
//! Label values come from fixed lists. Therefore the number of series is bounded, whatever clients send (REQUIREMENTS Q-21).

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

/// HTTP statuses whose counters are stored in an array. The counter of any other status is looked up by a hash at each use.
const STATUSES: [u16; 18] = [
    200, 202, 204, 400, 401, 403, 404, 405, 406, 408, 413, 415, 422, 429, 431, 500, 503, 504,
];

/// Routes whose counters and histogram are stored in an array. The texts are the labels that the filters give the routes.
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

/// Upper bounds of the histogram's buckets, in seconds: from the duration of a refusal at the edge to the default time limit
/// of a call.
const BUCKETS: [f64; 13] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0,
];

/// The kind of connection over which a long stream is sent to its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamTransport {
    /// A connection that is detached from Pingora and carries only this stream.
    Direct,
    /// A stream of the client's HTTP/2 connection, which also carries other streams.
    Session,
}

metric_table! {
    /// Counters, gauges and histograms of the edge.
    pub(crate) struct EdgeMetrics(registry) {
        /// Number of client connections that are open now.
        pub(crate) connections: IntGauge = "tooldock_connections", "Client connections open now";
        /// Number of connections that are open now on the relay's socket.
        pub(crate) relay_connections: IntGauge = "tooldock_relay_connections",
            "Connections open now on the relay's socket";
        /// Number of requests that are being answered now.
        pub(crate) in_flight: IntGauge = "tooldock_requests_in_flight", "Requests being answered now";
        /// Memory in bytes of request bodies that did not arrive in one read.
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
        /// Counters of refusals by the filters' reason codes. Each counter is created at the first refusal for its reason.
        by_reason: [(&'static str, OnceLock<IntCounter>); Reason::ALL.len()] =
            Reason::ALL.map(|reason| (reason.code(), OnceLock::new()));
        routes: [RouteSeries; ROUTES.len()] = ROUTES.map(|route| RouteSeries {
            route,
            by_status: Default::default(),
            seconds: seconds.with_label_values(&[route]),
        });
        /// Metrics of the operating system's process. Their values are read at each scrape.
        pub(crate) process: ProcessMetrics = ProcessMetrics::new(registry)?;
    }
}

/// The counters and the histogram of one route. They are stored here so that they are not looked up at each request.
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

    /// Counts a wrong credential. `delayed` is true if the refusal was delayed.
    pub(crate) fn credential_failed(&self, delayed: bool) {
        self.credential_failures[usize::from(delayed)].inc();
    }

    /// Counts a long stream as open until the returned guard is dropped.
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

    /// Counts an answered request and records the time that its answer took.
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

/// A guard that counts a long stream as open. Dropping it decrements the count.
pub(crate) struct OpenStream {
    gauge: IntGauge,
    ended: [IntCounter; Ending::ALL.len()],
}

impl OpenStream {
    /// Counts the reason why the stream ended.
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
