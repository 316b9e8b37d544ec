//! Export of traces, metrics and logs by OTLP, over HTTP or gRPC.
//!
//! ```text
//!   RequestTrace (tooldock_base::trace) ──▶ queue ─┐
//!   tracing events ──▶ LogLayer ──────────▶ queue ─┼─▶ thread "otlp": encodes and sends, retries, drops
//!   the Prometheus registry, durations ────────────┘
//! ```
//!
//! Finished requests and log events are put into bounded queues. Adding never waits; a full queue drops new entries and counts
//! them. One thread encodes and sends. So a receiver that is down or slow does not delay requests; it only costs memory up to
//! the bound.
//!
//! | module | content |
//! |---|---|
//! | `queue`, `sink` | the bounded queues, and the receiver of finished requests that fills them |
//! | `logs` | the layer that records log events |
//! | `export`, `operations` | the exporting thread; durations of operations |
//! | `encode`, `families` | the messages of OTLP; the Prometheus registry as metrics of OTLP |
//! | `client`, `tls` | sending over HTTP or gRPC; certificates |
//!
//! The crate depends on neither MCP nor the gateway's configuration. Start reading at [`Otlp`].

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

/// Maximum time for sending the queued entries when the process ends.
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
    /// Certificates of the authorities that may sign the receiver's certificate; `None` for those of the system.
    pub ca: Option<Vec<u8>>,
    /// Client certificate chain and key of the gateway; `None` if it sends no client certificate.
    pub identity: Option<(Vec<u8>, Secret)>,
}

/// Settings of an OTLP export.
#[derive(Debug, Clone)]
pub struct Settings {
    /// URL of the receiver; over HTTP the base of the paths `/v1/traces`, `/v1/metrics` and `/v1/logs`.
    pub endpoint: String,
    /// Protocol by which the receiver is reached.
    pub protocol: Protocol,
    /// True if spans of requests are sent.
    pub traces: bool,
    /// True if metrics are sent.
    pub metrics: bool,
    /// Share of recorded traces, 0 to 1, among the traces that begin at the gateway. 0 records no trace, even if a client's
    /// request asks for it.
    pub sample: f64,
    /// Time between two reports of metrics.
    pub interval: Duration,
    /// Headers of each request to the receiver. Their values are marked as sensitive.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Certificates for connections to the receiver.
    pub tls: Tls,
    /// Attributes that describe this process, such as `service.name`.
    pub resource: Vec<(&'static str, String)>,
}

/// Function that reads all metrics of the process, as the Prometheus listener serves them.
pub type MetricsSource = Box<dyn Fn() -> Vec<MetricFamily> + Send + Sync>;

metric_table! {
    /// Metrics about the export itself.
    pub(crate) struct ExportMetrics(registry) {
        exported: IntCounterVec["signal"] = "tooldock_otlp_exported_total",
            "Spans, log records and metric points that the OTLP receiver took.";
        dropped: IntCounterVec["signal"] = "tooldock_otlp_dropped_total",
            "Spans, log records and metric points that were lost: the queue was full, or the OTLP receiver did not take them.";
        failures: IntCounterVec["signal"] = "tooldock_otlp_failures_total",
            "Requests to the OTLP receiver that failed, repeated ones included.";
    }
}

/// A prepared export, which [`Otlp::start`] starts.
pub struct Otlp {
    shared: Arc<ExportState>,
    transport: TransportSettings,
    logs: Option<Arc<LogQueue>>,
}

/// State shared by the sink of finished requests and the exporting thread.
pub(crate) struct ExportState {
    pub(crate) spans: Queue<tooldock_base::trace::Span>,
    pub(crate) operations: Operations,
    pub(crate) metrics: ExportMetrics,
    pub(crate) settings: Settings,
    pub(crate) resource: Resource,
    pub(crate) started: SystemTime,
}

/// TLS settings with which the exporting thread opens its connections.
pub(crate) struct TransportSettings {
    pub(crate) tls: rustls::ClientConfig,
}

impl Otlp {
    /// Prepares an export. `logs` is the queue that the log layer fills; `None` if logs are not exported.
    ///
    /// # Errors
    ///
    /// An unusable certificate, or a metric whose name the registry has already.
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

    /// Returns the receiver of finished requests; `None` if neither spans nor durations are exported.
    pub fn sink(&self) -> Option<Arc<dyn TraceSink>> {
        let settings = &self.shared.settings;
        (settings.traces || settings.metrics)
            .then(|| Arc::new(ExportSink(Arc::clone(&self.shared))) as Arc<dyn TraceSink>)
    }

    /// Starts the exporting thread. `gather` reads the metrics.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn start(self, gather: MetricsSource) -> std::io::Result<OtlpGuard> {
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
            // `shutdown_background` does not wait for a connection that is still being opened, which would delay the stop.
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

/// Owner of the exporting thread. Dropping it sends the rest of the queues, and waits for that for at most [`FLUSH`].
pub struct OtlpGuard {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for OtlpGuard {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // An error means that the thread panicked, which the panic hook has logged.
            let _ = thread.join();
        }
    }
}
