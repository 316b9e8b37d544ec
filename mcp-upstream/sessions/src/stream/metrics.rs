//! Metrics of streams.

use prometheus::IntGauge;
use tooldock_base::metric_table;

use super::Role;

metric_table! {
    /// Metrics of streams and their logs.
    #[derive(Debug)]
    pub struct StreamMetrics(registry) {
        /// Gauges by kind, in an array, so that opening a stream needs no lookup by name.
        open: IntGaugeVec["kind"] = "tooldock_streams", "Streams with a reader, by kind"
            => [IntGauge; Role::ALL.len()] = Role::ALL.map(|role| open.with_label_values(&[role.as_str()]));
        pub(crate) events: IntCounter = "tooldock_stream_events_total", "Events put on streams";
        pub(crate) replays: IntCounter = "tooldock_stream_replays_total", "Streams resumed by Last-Event-ID";
        pub(crate) window_misses: IntCounter = "tooldock_stream_window_misses_total",
            "Resumed streams whose log had lost events after the Last-Event-ID";
        pub(crate) slow_readers: IntCounter = "tooldock_stream_slow_readers_total",
            "Streams ended because their reader left too much unread";
        pub(crate) log_bytes: IntGauge = "tooldock_stream_log_bytes",
            "Memory of what streams keep for resumption";
    }
}

impl StreamMetrics {
    /// Creates metrics that are not exported.
    #[cfg(any(test, feature = "testing"))]
    pub fn unregistered() -> std::sync::Arc<Self> {
        std::sync::Arc::new(
            Self::new(&prometheus::Registry::new()).expect("a fresh registry holds no such names"),
        )
    }

    /// The number of streams with a reader, of all roles.
    pub fn open_now(&self) -> i64 {
        self.open.iter().map(IntGauge::get).sum()
    }

    /// The gauge of open streams of a role.
    pub(crate) fn open(&self, role: Role) -> &IntGauge {
        &self.open[role as usize]
    }
}
