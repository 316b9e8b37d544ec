//! Conversion of the metrics in the Prometheus registry to OTLP metrics with the same names.

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
    metric, number_data_point,
};
use prometheus::proto::{Metric as Sample, MetricFamily, MetricType};

use crate::encode::{Times, text};

/// Converts families of Prometheus metrics. Summaries and untyped metrics are omitted; the gateway has none.
pub(crate) fn metrics(families: &[MetricFamily], times: Times) -> Vec<Metric> {
    families
        .iter()
        .filter_map(|family| {
            let data = data(family, times)?;
            Some(Metric {
                name: family.name().to_owned(),
                description: family.help().to_owned(),
                data: Some(data),
                ..Metric::default()
            })
        })
        .collect()
}

/// Returns the number of data points in OTLP metrics.
pub(crate) fn points(metrics: &[Metric]) -> usize {
    let points = metrics.iter().map(|metric| match &metric.data {
        Some(metric::Data::Gauge(it)) => it.data_points.len(),
        Some(metric::Data::Sum(it)) => it.data_points.len(),
        Some(metric::Data::Histogram(it)) => it.data_points.len(),
        _ => 0,
    });
    points.sum()
}

fn data(family: &MetricFamily, times: Times) -> Option<metric::Data> {
    let samples = family.get_metric().iter();
    let cumulative = AggregationTemporality::Cumulative as i32;
    Some(match family.get_field_type() {
        MetricType::COUNTER => metric::Data::Sum(Sum {
            data_points: samples
                .map(|it| number(it, it.get_counter().value(), times))
                .collect(),
            aggregation_temporality: cumulative,
            is_monotonic: true,
        }),
        MetricType::GAUGE => metric::Data::Gauge(Gauge {
            data_points: samples
                .map(|it| number(it, it.get_gauge().value(), times))
                .collect(),
        }),
        MetricType::HISTOGRAM => metric::Data::Histogram(Histogram {
            data_points: samples.map(|it| histogram(it, times)).collect(),
            aggregation_temporality: cumulative,
        }),
        MetricType::SUMMARY | MetricType::UNTYPED => return None,
    })
}

fn labels(sample: &Sample) -> Vec<KeyValue> {
    let labels = sample.get_label().iter();
    labels.map(|it| text(it.name(), it.value())).collect()
}

fn number(sample: &Sample, value: f64, times: Times) -> NumberDataPoint {
    NumberDataPoint {
        attributes: labels(sample),
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        value: Some(number_data_point::Value::AsDouble(value)),
        ..NumberDataPoint::default()
    }
}

fn histogram(sample: &Sample, times: Times) -> HistogramDataPoint {
    let histogram = sample.get_histogram();
    let (count, mut below) = (histogram.get_sample_count(), 0);
    let mut bucket_counts = Vec::new();
    let mut explicit_bounds = Vec::new();
    // A Prometheus bucket also counts the values of all smaller buckets; an OTLP bucket does not.
    for bucket in histogram.get_bucket() {
        let bound = bucket.upper_bound();
        if bound.is_infinite() {
            continue;
        }
        let up_to = bucket.cumulative_count();
        bucket_counts.push(up_to.saturating_sub(below));
        explicit_bounds.push(bound);
        below = up_to;
    }
    bucket_counts.push(count.saturating_sub(below));
    HistogramDataPoint {
        attributes: labels(sample),
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        count,
        sum: Some(histogram.get_sample_sum()),
        bucket_counts,
        explicit_bounds,
        ..HistogramDataPoint::default()
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Registry};

    use super::*;

    #[test]
    fn counters_gauges_and_histograms_keep_names_labels_and_values() {
        let registry = Registry::new();
        let calls = IntCounterVec::new(Opts::new("calls_total", "Calls."), &["namespace"]);
        let calls = calls.expect("a metric");
        let open = IntGauge::new("open", "Open.").expect("a metric");
        let options = HistogramOpts::new("seconds", "Seconds.").buckets(vec![1.0, 2.0]);
        let seconds = Histogram::with_opts(options).expect("a metric");
        registry.register(Box::new(calls.clone())).expect("new");
        registry.register(Box::new(open.clone())).expect("new");
        registry.register(Box::new(seconds.clone())).expect("new");
        calls.with_label_values(&["calc"]).inc_by(3);
        open.set(-2);
        for value in [0.5, 1.5, 1.6, 9.0] {
            seconds.observe(value);
        }
        let times = Times { start: 1, now: 2 };
        let metrics = metrics(&registry.gather(), times);
        assert_eq!(points(&metrics), 3);
        let of = |name: &str| {
            let found = metrics.iter().find(|it| it.name == name);
            found.expect(name).data.clone().expect("data")
        };
        let metric::Data::Sum(sum) = of("calls_total") else {
            panic!("no sum");
        };
        assert!(sum.is_monotonic);
        let point = &sum.data_points[0];
        assert_eq!(point.value, Some(number_data_point::Value::AsDouble(3.0)));
        assert_eq!(point.attributes, [text("namespace", "calc")]);
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1, 2));
        let metric::Data::Gauge(gauge) = of("open") else {
            panic!("no gauge");
        };
        let value = Some(number_data_point::Value::AsDouble(-2.0));
        assert_eq!(gauge.data_points[0].value, value);
        let metric::Data::Histogram(histogram) = of("seconds") else {
            panic!("no histogram");
        };
        let point = &histogram.data_points[0];
        assert_eq!(point.bucket_counts, [1, 2, 1]);
        assert_eq!(point.explicit_bounds, [1.0, 2.0]);
        assert_eq!((point.count, point.sum), (4, Some(12.6)));
    }
}
