//! Reads the points of a curve from a histogram.

use hdrhistogram::Histogram;

/// The percentiles of every curve, so that curves of several measurements can be combined.
const PERCENTILES: [f64; 14] = [
    1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.8, 99.9, 99.95, 99.99,
];

/// Latency in microseconds by percentile, from a histogram in nanoseconds. Percentiles that no sample exceeds are omitted.
pub(super) fn curve(latencies: &Histogram<u64>) -> Vec<(f64, f64)> {
    // Rounded, since a tenth of a percent has no exact floating-point value.
    let above = |percentile: &f64| (latencies.len() as f64 * (100.0 - percentile) / 100.0).round();
    let told = |percentile: &f64| above(percentile) >= 1.0;
    PERCENTILES
        .into_iter()
        .filter(told)
        .map(|percentile| (percentile, micros(latencies, percentile)))
        .collect()
}

pub(super) fn micros(latencies: &Histogram<u64>, percentile: f64) -> f64 {
    latencies.value_at_percentile(percentile) as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_ends_where_the_samples_do() {
        let mut latencies = Histogram::new_with_bounds(1_000, 60_000_000_000, 3).unwrap();
        for micros in 1..=1000 {
            latencies.record(micros * 1_000).unwrap();
        }
        let curve = curve(&latencies);
        let (percentile, last) = *curve.last().unwrap();
        assert_eq!(percentile, 99.9);
        assert!((998.0..=1002.0).contains(&last), "{last}");
        assert!(curve.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1));
        assert!(super::curve(&Histogram::<u64>::new(3).unwrap()).is_empty());
    }
}
