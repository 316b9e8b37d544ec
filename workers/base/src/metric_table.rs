//! Declares Prometheus metrics as tables: each row has the name, kind, labels, help text and buckets of a metric family. Each
//! component of the gateway has its own table and counts its own events.

use prometheus::core::{
    Atomic, Collector, GenericCounter, GenericCounterVec, GenericGauge, GenericGaugeVec, MetricVec,
    MetricVecBuilder,
};
use prometheus::{Histogram, HistogramOpts, HistogramVec, Opts, Registry, Result};

/// Declares a struct of metrics with a function `new` that creates and registers them.
///
/// - `field: Kind["label", …] = "name", "help", buckets;` declares a family. Labels and buckets are given only if the kind has
///   them.
/// - `… => Type = expression;` stores the value of the expression in the field instead of the family, for example the counters
///   of constant labels. In the expression, the family's name refers to the family.
/// - A second pair of braces contains fields that are not families: `field: Type = expression;`.
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
            /// When the registry already contains a metric of the same name.
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

/// A kind of metric that can be declared in a table.
pub trait MetricKind: Collector + Clone + 'static {
    /// Creates a family of this kind. A kind without labels or buckets ignores them.
    ///
    /// # Errors
    ///
    /// When Prometheus does not allow the name of the family or of a label.
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

/// Creates a metric family and registers it.
///
/// # Errors
///
/// When the registry already contains a family of this name.
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

/// Removes all series of a namespace from a metric family.
pub fn forget<B: MetricVecBuilder>(family: &MetricVec<B>, namespace: &str) {
    for metric in family.collect().iter().flat_map(|it| it.get_metric()) {
        let labels = metric.get_label().iter();
        let labels: std::collections::HashMap<&str, &str> =
            labels.map(|label| (label.name(), label.value())).collect();
        if labels.get("namespace") == Some(&namespace) {
            // An error is ignored: another thread may already have removed the series.
            let _ = family.remove(&labels);
        }
    }
}
