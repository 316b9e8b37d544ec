//! Metrics as tables: each row has the name, kind, labels, help and buckets of a family. Each part of the gateway has its own
//! table and counts its events itself.

use prometheus::core::{
    Atomic, Collector, GenericCounter, GenericCounterVec, GenericGauge, GenericGaugeVec, MetricVec,
    MetricVecBuilder,
};
use prometheus::{Histogram, HistogramOpts, HistogramVec, Opts, Registry, Result};

/// Declares a struct of metrics. Its `new` creates and registers them.
///
/// - `field: Kind["label", …] = "name", "help", buckets;` is a family. Labels and buckets only if the kind has them.
/// - `… => Type = expression;` keeps the value of the expression under the family's name: handles that are resolved once.
/// - A second pair of braces holds fields that are not families: `field: Type = expression;`.
#[macro_export]
macro_rules! metric_table {
    (@kept $kind:ident) => { ::prometheus::$kind };
    (@kept $kind:ident $kept:ty) => { $kept };
    (
        $(#[$about:meta])*
        $vis:vis struct $table:ident($registry:ident) {$(
            $(#[$doc:meta])*
            $field_vis:vis $field:ident: $kind:ident $([$($label:literal),+])? = $name:literal, $help:literal
            $(, $buckets:expr)? $(=> $kept:ty = $resolved:expr)?;
        )*}
        $({$(
            $(#[$own_doc:meta])*
            $own_vis:vis $own:ident: $own_type:ty = $value:expr;
        )*})?
    ) => {
        $(#[$about])*
        $vis struct $table {
            $($(#[$doc])* $field_vis $field: $crate::metric_table!(@kept $kind $($kept)?),)*
            $($($(#[$own_doc])* $own_vis $own: $own_type,)*)?
        }

        impl $table {
            /// Creates the metrics and registers them.
            ///
            /// # Errors
            ///
            /// When the registry already holds one of the names.
            $vis fn new($registry: &::prometheus::Registry) -> ::prometheus::Result<Self> {
                $(
                    let labels: &[&str] = &[$($($label),+)?];
                    let mut _buckets: &[f64] = &[];
                    $(_buckets = &$buckets;)?
                    let $field: ::prometheus::$kind =
                        $crate::metric_table::family($registry, $name, $help, labels, _buckets)?;
                    $(let $field: $kept = $resolved;)?
                )*
                $($(let $own = $value;)*)?
                Ok(Self { $($field,)* $($($own,)*)? })
            }
        }
    };
}

/// A kind of metric that a table can name.
pub trait MetricKind: Collector + Clone + 'static {
    /// Creates a family of this kind. A kind without labels or buckets ignores them.
    ///
    /// # Errors
    ///
    /// When a name is not one that Prometheus allows.
    fn make(options: Opts, labels: &[&str], buckets: &[f64]) -> Result<Self>;
}

impl<P: Atomic + 'static> MetricKind for GenericCounter<P> {
    fn make(options: Opts, _: &[&str], _: &[f64]) -> Result<Self> {
        Self::with_opts(options)
    }
}

impl<P: Atomic + 'static> MetricKind for GenericGauge<P> {
    fn make(options: Opts, _: &[&str], _: &[f64]) -> Result<Self> {
        Self::with_opts(options)
    }
}

impl<P: Atomic + 'static> MetricKind for GenericCounterVec<P> {
    fn make(options: Opts, labels: &[&str], _: &[f64]) -> Result<Self> {
        Self::new(options, labels)
    }
}

impl<P: Atomic + 'static> MetricKind for GenericGaugeVec<P> {
    fn make(options: Opts, labels: &[&str], _: &[f64]) -> Result<Self> {
        Self::new(options, labels)
    }
}

impl MetricKind for Histogram {
    fn make(options: Opts, _: &[&str], buckets: &[f64]) -> Result<Self> {
        Self::with_opts(HistogramOpts::from(options).buckets(buckets.to_vec()))
    }
}

impl MetricKind for HistogramVec {
    fn make(options: Opts, labels: &[&str], buckets: &[f64]) -> Result<Self> {
        Self::new(
            HistogramOpts::from(options).buckets(buckets.to_vec()),
            labels,
        )
    }
}

/// Creates a family and registers it.
///
/// # Errors
///
/// When the registry already holds the name.
pub fn family<K: MetricKind>(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    buckets: &[f64],
) -> Result<K> {
    let family = K::make(Opts::new(name, help), labels, buckets)?;
    registry.register(Box::new(family.clone()))?;
    Ok(family)
}

/// Removes every series of a namespace from a family.
pub fn forget<B: MetricVecBuilder>(family: &MetricVec<B>, namespace: &str) {
    for metric in family.collect().iter().flat_map(|it| it.get_metric()) {
        let labels = metric.get_label().iter();
        let labels: std::collections::HashMap<&str, &str> =
            labels.map(|label| (label.name(), label.value())).collect();
        if labels.get("namespace") == Some(&namespace) {
            // Another thread may have removed the series meanwhile.
            let _ = family.remove(&labels);
        }
    }
}
