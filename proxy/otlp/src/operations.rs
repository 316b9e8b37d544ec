//! Durations of MCP requests: the histogram `mcp.server.operation.duration` of the semantic conventions of MCP.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Histogram, HistogramDataPoint, Metric, metric,
};
use tooldock_base::trace::Attribute;

use crate::encode::{Times, text};

/// Name of the metric with the durations of MCP requests.
const NAME: &str = "mcp.server.operation.duration";
/// Upper bounds of the histogram's buckets in seconds, as the semantic conventions recommend.
const BOUNDS: [f64; 14] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
];
/// Maximum number of combinations of attributes that are counted separately. All further combinations are counted together, with
/// the attribute `otel.metric.overflow`.
const SERIES_MAX: usize = 2000;

/// Durations of MCP requests, by the requests' attributes.
#[derive(Default)]
pub(crate) struct Operations(Mutex<HashMap<Vec<(&'static str, String)>, Series>>);

#[derive(Default, Clone)]
struct Series {
    buckets: [u64; BOUNDS.len() + 1],
    sum: f64,
    count: u64,
}

impl Operations {
    /// Counts a request with its duration.
    pub(crate) fn count(&self, attributes: &[Attribute], time: Duration) {
        let key = |(name, value): &Attribute| (*name, value.as_str().to_owned());
        let mut key: Vec<_> = attributes.iter().map(key).collect();
        let seconds = time.as_secs_f64();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SERIES_MAX && !all.contains_key(&key) {
            key = vec![("otel.metric.overflow", "true".to_owned())];
        }
        let series = all.entry(key).or_default();
        let at = BOUNDS.iter().position(|&bound| seconds <= bound);
        series.buckets[at.unwrap_or(BOUNDS.len())] += 1;
        series.sum += seconds;
        series.count += 1;
    }

    /// Returns the durations as an OTLP metric; `None` before the first request.
    pub(crate) fn metric(&self, times: Times) -> Option<Metric> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let point = |(key, series): (&Vec<(&'static str, String)>, &Series)| HistogramDataPoint {
            attributes: key.iter().map(|(name, value)| text(name, value)).collect(),
            start_time_unix_nano: times.start,
            time_unix_nano: times.now,
            count: series.count,
            sum: Some(series.sum),
            bucket_counts: series.buckets.to_vec(),
            explicit_bounds: BOUNDS.to_vec(),
            ..HistogramDataPoint::default()
        };
        let data_points: Vec<_> = all.iter().map(point).collect();
        (!data_points.is_empty()).then(|| Metric {
            name: NAME.to_owned(),
            description:
                "The duration of the MCP request, from its arrival to the end of its answer"
                    .to_owned(),
            unit: "s".to_owned(),
            metadata: Vec::new(),
            data: Some(metric::Data::Histogram(Histogram {
                data_points,
                aggregation_temporality: AggregationTemporality::Cumulative as i32,
            })),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times { start: 1, now: 2 };

    fn points(operations: &Operations) -> Vec<HistogramDataPoint> {
        match operations.metric(TIMES).expect("counted").data {
            Some(metric::Data::Histogram(histogram)) => histogram.data_points,
            _ => panic!("no histogram"),
        }
    }

    #[test]
    fn a_request_is_in_the_bucket_of_its_duration() {
        let operations = Operations::default();
        assert!(operations.metric(TIMES).is_none());
        for ms in [10, 15, 400_000] {
            let attributes = [("mcp.method.name", "tools/call".into())];
            operations.count(&attributes, Duration::from_millis(ms));
        }
        let points = points(&operations);
        assert_eq!((points.len(), points[0].count), (1, 3));
        let counts = &points[0].bucket_counts;
        assert_eq!(counts.len(), points[0].explicit_bounds.len() + 1);
        assert_eq!((counts[0], counts[1], counts[14]), (1, 1, 1));
    }

    #[test]
    fn the_number_of_series_has_a_bound() {
        let operations = Operations::default();
        for at in 0..SERIES_MAX + 5 {
            let name = std::sync::Arc::<str>::from(format!("t{at}"));
            operations.count(&[("gen_ai.tool.name", name.into())], Duration::ZERO);
        }
        let points = points(&operations);
        assert_eq!(points.len(), SERIES_MAX + 1);
        let rest = points.iter().find(|it| it.count == 5).expect("the rest");
        assert_eq!(rest.attributes[0].key, "otel.metric.overflow");
    }
}
