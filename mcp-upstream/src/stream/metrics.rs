//! What is counted about streams.

use std::sync::Arc;

use prometheus::{IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

use super::Role;

/// The metrics of streams and their logs.
#[derive(Debug)]
pub struct StreamMetrics {
    /// By role; resolved once, so that opening a stream looks nothing up.
    open: [IntGauge; Role::ALL.len()],
    pub(crate) events: IntCounter,
    pub(crate) replays: IntCounter,
    pub(crate) window_misses: IntCounter,
    pub(crate) slow_readers: IntCounter,
    pub(crate) log_bytes: IntGauge,
}

impl StreamMetrics {
    /// Makes the metrics and registers them.
    ///
    /// # Errors
    ///
    /// When the registry already holds one of the names.
    pub fn new(registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let counter = |name: &str, help: &str| {
            let metric = IntCounter::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let open = IntGaugeVec::new(
            Opts::new("tooldock_streams", "Streams with a reader, by kind"),
            &["kind"],
        )?;
        let log_bytes = IntGauge::new(
            "tooldock_stream_log_bytes",
            "Memory of what streams keep for resumption",
        )?;
        registry.register(Box::new(open.clone()))?;
        registry.register(Box::new(log_bytes.clone()))?;
        Ok(Arc::new(Self {
            open: Role::ALL.map(|role| open.with_label_values(&[role.as_str()])),
            events: counter("tooldock_stream_events_total", "Events put on streams")?,
            replays: counter(
                "tooldock_stream_replays_total",
                "Streams resumed by Last-Event-ID",
            )?,
            window_misses: counter(
                "tooldock_stream_window_misses_total",
                "Resumed streams whose log had lost events after the Last-Event-ID",
            )?,
            slow_readers: counter(
                "tooldock_stream_slow_readers_total",
                "Streams ended because their reader left too much unread",
            )?,
            log_bytes,
        }))
    }

    /// Metrics nobody exports.
    pub fn unregistered() -> Arc<Self> {
        Self::new(&Registry::new()).expect("a fresh registry holds no such names")
    }

    /// The gauge of open streams of a role.
    pub(crate) fn open(&self, role: Role) -> &IntGauge {
        &self.open[role as usize]
    }
}
