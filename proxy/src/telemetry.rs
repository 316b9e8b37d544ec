//! Starts the export by OTLP (`observability.otlp`) from the configuration, and decides which requests are traced.

use std::sync::Arc;

use anyhow::Context;
use http::{HeaderMap, Method};
use tooldock_base::secret::Secret;
use tooldock_base::trace::{Origin, RequestTrace, TraceSink};
use tooldock_filters::RouteId;
use tooldock_otlp::{LogQueue, MetricsSource, Otlp, OtlpGuard, Protocol, Settings, Tls, TlsFault};

use crate::config::{ConfigError, OtlpProtocol, OtlpSettings, OtlpSignal, OtlpTls, otlp_key as at};

/// Labels of the routes whose requests get a trace span even if admission refuses them.
const TRACED: [&str; 4] = ["/mcp", "/messages", "/tools/{name}", "/tools/call"];

/// A running OTLP export.
pub(crate) struct Telemetry {
    /// Receiver of finished requests; `None` if neither traces nor metrics are exported.
    pub(crate) sink: Option<Arc<dyn TraceSink>>,
    /// The exporting thread. Dropping the guard sends the rest of the queues.
    pub(crate) guard: OtlpGuard,
}

/// Creates the queue of log events; `None` if the log is not exported.
pub(crate) fn log_queue(config: Option<&OtlpSettings>) -> Option<Arc<LogQueue>> {
    config?.has(OtlpSignal::Logs).then(LogQueue::new)
}

/// Checks the certificates, and the environment variables that headers refer to.
///
/// # Errors
///
/// The key whose value cannot be used.
pub(crate) fn check(config: Option<&OtlpSettings>) -> Result<(), ConfigError> {
    match config {
        None => Ok(()),
        Some(config) => {
            let settings = settings(config)?;
            tooldock_otlp::check_tls(&settings.tls)
                .map_err(|TlsFault { key, reason }| at(&format!("tls.{key}"), reason))
        }
    }
}

/// Starts the export; `None` if it is off.
///
/// # Errors
///
/// When the export cannot be set up.
pub(crate) fn start(
    config: Option<&OtlpSettings>,
    exported: &prometheus::Registry,
    logs: Option<Arc<LogQueue>>,
    gather: MetricsSource,
) -> anyhow::Result<Option<Telemetry>> {
    let Some(config) = config else {
        return Ok(None);
    };
    let otlp = Otlp::new(settings(config)?, exported, logs).context("observability.otlp")?;
    tracing::info!(
        endpoint = config.endpoint,
        "traces, metrics and logs are exported by OTLP as observability.otlp says"
    );
    let sink = otlp.sink();
    let guard = otlp.start(gather).context("starting the export by OTLP")?;
    Ok(Some(Telemetry { sink, guard }))
}

fn settings(config: &OtlpSettings) -> Result<Settings, ConfigError> {
    let environment = |name: &str| std::env::var(name).ok().filter(|it| !it.is_empty());
    let tls = &config.tls;
    let cert = OtlpTls::read("tls.cert", tls.cert.as_deref())?;
    let key = OtlpTls::read("tls.key", tls.key.as_deref())?;
    let key = key.map(|pem| {
        let text = String::from_utf8(pem);
        text.map_err(|_| at("tls.key", "is not PEM".to_owned()))
    });
    let identity = cert.zip(key.transpose()?);
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let instance = format!("{host}:{}", std::process::id());
    Ok(Settings {
        endpoint: config.endpoint.clone(),
        protocol: match config.protocol {
            OtlpProtocol::Http => Protocol::Http,
            OtlpProtocol::Grpc => Protocol::Grpc,
        },
        traces: config.has(OtlpSignal::Traces),
        metrics: config.has(OtlpSignal::Metrics),
        sample: config.sample,
        interval: config.interval,
        headers: config.header_values(&environment)?,
        tls: Tls {
            ca: OtlpTls::read("tls.ca", tls.ca.as_deref())?,
            identity: identity.map(|(cert, key)| (cert, Secret::new(key))),
        },
        resource: vec![
            ("service.name", config.service_name.clone()),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("service.instance.id", instance),
            ("host.name", host),
        ],
    })
}

/// Begins the trace of an admitted request. `None` for requests that contain neither an MCP message nor a call, such as streams
/// and health checks.
pub(crate) fn begin(
    sink: &Arc<dyn TraceSink>,
    (route, label): (RouteId, &'static str),
    method: &Method,
    headers: &HeaderMap,
    started: std::time::Instant,
) -> Option<Arc<RequestTrace>> {
    let is_traced = match route {
        RouteId::Mcp | RouteId::Messages | RouteId::ToolIndex => method == Method::POST,
        RouteId::Tool | RouteId::VaultCall => true,
        _ => false,
    };
    if !is_traced {
        return None;
    }
    let trace = RequestTrace::begin(sink, origin(headers, label, started, false));
    trace.admitted(None);
    Some(trace)
}

/// Records the trace of a request that the edge refuses. Does nothing for routes without a message or call.
pub(crate) fn refused(
    sink: &Arc<dyn TraceSink>,
    route: &'static str,
    headers: &HeaderMap,
    started: std::time::Instant,
    code: &'static str,
) {
    if !TRACED.contains(&route) {
        return;
    }
    let trace = RequestTrace::begin(sink, origin(headers, route, started, true));
    trace.admitted(Some(code.into()));
    trace.failed(code);
}

fn origin<'a>(
    headers: &'a HeaderMap,
    route: &'static str,
    started: std::time::Instant,
    is_refused: bool,
) -> Origin<'a> {
    let text = |name: &str| headers.get(name).and_then(|it| it.to_str().ok());
    Origin {
        started,
        parent: text("traceparent"),
        state: text("tracestate"),
        route,
        is_refused,
    }
}
