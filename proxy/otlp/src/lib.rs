//! Export of traces, metrics and logs by OTLP, over HTTP or gRPC.
//!
//! ```text
//!   RequestTrace (tooldock_base::trace) ──▶ queue ─┐
//!   tracing events ──▶ LogLayer ──────────▶ queue ─┼─▶ thread "otlp": encodes and sends, retries, drops
//!   the Prometheus registry, durations ────────────┘
//! ```
//!
//! Requests and log events are handed to queues with a bound; adding never waits, and a full queue drops and counts. One thread
//! encodes and sends, so that a receiver that is down or slow costs no request anything but memory up to the bound.
//!
//! | module | holds |
//! |---|---|
//! | `queue`, `sink` | the bounded queues, and the port by which requests reach them |
//! | `logs` | the layer that records log events |
//! | `export`, `operations` | the thread and its rounds; durations of operations |
//! | `encode`, `families` | the messages of OTLP; the Prometheus registry as metrics of OTLP |
//! | `client`, `tls` | sending over HTTP or gRPC; certificates |
//!
//! The crate knows neither MCP nor the configuration. Start reading at [`Otlp`].

mod client;
mod encode;
mod export;
mod families;
mod logs;
mod operations;
mod queue;
mod sink;
mod tls;

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use http::{HeaderName, HeaderValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prometheus::Registry;
use prometheus::proto::MetricFamily;
use tokio::sync::watch;
use tooldock_base::metric_table;
use tooldock_base::secret::Secret;
use tooldock_base::trace::TraceSink;

use crate::client::Transport;
use crate::operations::Operations;
use crate::queue::Queue;
use crate::sink::ExportSink;

pub use crate::logs::{LogLayer, LogQueue};
pub use crate::tls::TlsFault;

/// Time that the last batches get at the end of the process.
pub const FLUSH: Duration = Duration::from_secs(3);

/// Protocol by which the receiver is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Protobuf over HTTP/1.1.
    Http,
    /// gRPC.
    Grpc,
}

/// Certificates for connections to the receiver, as PEM.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// Certificates of authorities that vouch for the receiver, in place of the system's.
    pub ca: Option<Vec<u8>>,
    /// Certificate chain and key of the gateway.
    pub identity: Option<(Vec<u8>, Secret)>,
}

/// Settings of an export.
#[derive(Debug, Clone)]
pub struct Settings {
    /// URL of the receiver; over HTTP the base of the paths `/v1/traces`, `/v1/metrics` and `/v1/logs`.
    pub endpoint: String,
    /// Protocol by which the receiver is reached.
    pub protocol: Protocol,
    /// True when spans of requests are sent.
    pub traces: bool,
    /// True when metrics are sent.
    pub metrics: bool,
    /// Share of the traces that begin here and are recorded, 0 to 1. 0 records no trace, whatever clients ask for.
    pub sample: f64,
    /// Time between two reports of metrics.
    pub interval: Duration,
    /// Headers of each request to the receiver. Their values are marked as sensitive.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Certificates.
    pub tls: Tls,
    /// Attributes of this process, such as `service.name`.
    pub resource: Vec<(&'static str, String)>,
}

/// Reads the metrics of the process, as the Prometheus listener shows them.
pub type Gather = Box<dyn Fn() -> Vec<MetricFamily> + Send + Sync>;

metric_table! {
    /// Counts of the export.
    pub(crate) struct ExportMetrics(registry) {
        exported: IntCounterVec["signal"] = "tooldock_otlp_exported_total",
            "Spans, log records and metric points that the OTLP receiver took.";
        dropped: IntCounterVec["signal"] = "tooldock_otlp_dropped_total",
            "Spans, log records and metric points that were lost: the queue was full, or the OTLP receiver did not take them.";
        failures: IntCounterVec["signal"] = "tooldock_otlp_failures_total",
            "Requests to the OTLP receiver that failed, repeated ones included.";
    }
}

/// An export that is set up and not started yet.
pub struct Otlp {
    shared: Arc<ExportState>,
    transport: TransportSettings,
    logs: Option<Arc<LogQueue>>,
}

/// State that the sink and the exporting thread share.
pub(crate) struct ExportState {
    pub(crate) spans: Queue<tooldock_base::trace::Span>,
    pub(crate) operations: Operations,
    pub(crate) metrics: ExportMetrics,
    pub(crate) settings: Settings,
    pub(crate) resource: Resource,
    pub(crate) started: SystemTime,
}

/// Settings by which the exporting thread opens its connections.
pub(crate) struct TransportSettings {
    pub(crate) tls: rustls::ClientConfig,
}

impl Otlp {
    /// Sets up an export. `logs`: the queue of the layer that takes log events.
    ///
    /// # Errors
    ///
    /// A certificate that cannot be used, or a metric that the registry has already.
    pub fn new(
        settings: Settings,
        registry: &Registry,
        logs: Option<Arc<LogQueue>>,
    ) -> Result<Self, SetupError> {
        let tls = tls::client(&settings.tls)?;
        let resource = encode::resource(&settings.resource);
        Ok(Self {
            transport: TransportSettings { tls },
            shared: Arc::new(ExportState {
                spans: Queue::new(queue::SPANS_MAX, queue::BYTES_MAX),
                operations: Operations::default(),
                metrics: ExportMetrics::new(registry)?,
                resource,
                started: SystemTime::now(),
                settings,
            }),
            logs,
        })
    }

    /// The receiver of finished requests; `None` if neither spans nor durations are exported.
    pub fn sink(&self) -> Option<Arc<dyn TraceSink>> {
        let settings = &self.shared.settings;
        (settings.traces || settings.metrics)
            .then(|| Arc::new(ExportSink(Arc::clone(&self.shared))) as Arc<dyn TraceSink>)
    }

    /// Starts the exporting thread. `gather` reads the metrics.
    ///
    /// # Errors
    ///
    /// When the thread cannot be started.
    pub fn start(self, gather: Gather) -> std::io::Result<OtlpGuard> {
        let (stop, stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = thread::Builder::new().name("otlp".into()).spawn(move || {
            let work = async {
                let settings = &self.shared.settings;
                match Transport::new(settings, self.transport) {
                    Ok(transport) => {
                        export::run(&self.shared, self.logs, transport, &gather, stopped).await;
                    }
                    Err(error) => {
                        tracing::error!("observability.otlp: {error}; nothing is exported")
                    }
                }
            };
            runtime.block_on(work);
            // A connection that is still being opened must not hold up the stop.
            runtime.shutdown_background();
        })?;
        Ok(OtlpGuard {
            stop,
            thread: Some(thread),
        })
    }
}

/// Checks certificates without connecting.
///
/// # Errors
///
/// The certificate or key that cannot be used.
pub fn check_tls(tls: &Tls) -> Result<(), TlsFault> {
    tls::client(tls).map(drop)
}

/// Reason why an export cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsFault),
    /// A metric cannot be registered.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
}

/// Owner of the exporting thread. Dropping the owner sends the rest of the queues, within [`FLUSH`], and waits for that.
pub struct OtlpGuard {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for OtlpGuard {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // An error is a panic, which is logged.
            let _ = thread.join();
        }
    }
}
