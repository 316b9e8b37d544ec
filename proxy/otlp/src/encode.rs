//! Conversion of spans, log records and metrics to OTLP messages.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{
    ResourceSpans, ScopeSpans, Span as SpanMessage, Status, span, status,
};
use tooldock_base::trace::{Span, SpanKind};

/// Flag of an OTLP span: the flag `IS_REMOTE` is valid.
const HAS_IS_REMOTE: u32 = 0x100;
/// Flag of an OTLP span: the parent span is in another process.
const IS_REMOTE: u32 = 0x200;

/// Times of the data points of a metric, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// The time at which counters began at zero.
    pub(crate) start: u64,
    /// The time at which the metric values were read.
    pub(crate) now: u64,
}

/// Returns a time as nanoseconds since the Unix epoch.
pub(crate) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Creates an OTLP value of a text.
pub(crate) fn string(value: impl Into<String>) -> AnyValue {
    AnyValue {
        value: Some(any_value::Value::StringValue(value.into())),
    }
}

/// Creates an OTLP attribute.
pub(crate) fn attribute(name: &str, value: any_value::Value) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

/// Creates an OTLP attribute whose value is a text.
pub(crate) fn text(name: &str, value: impl Into<String>) -> KeyValue {
    attribute(name, any_value::Value::StringValue(value.into()))
}

/// Creates the OTLP resource: the attributes that describe this process.
pub(crate) fn resource(attributes: &[(&'static str, String)]) -> Resource {
    let attribute = |(name, value): &(&'static str, String)| text(name, value);
    Resource {
        attributes: attributes.iter().map(attribute).collect(),
        ..Resource::default()
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "tooldock".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

/// Creates an export request with spans.
pub(crate) fn spans(resource: &Resource, spans: Vec<Span>) -> ExportTraceServiceRequest {
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource.clone()),
            scope_spans: vec![ScopeSpans {
                scope: Some(scope()),
                spans: spans.into_iter().map(span).collect(),
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        }],
    }
}

fn span(span: Span) -> SpanMessage {
    let kind = match span.kind {
        SpanKind::Server => span::SpanKind::Server,
        SpanKind::Client => span::SpanKind::Client,
        SpanKind::Internal => span::SpanKind::Internal,
    };
    let attributes = span.attributes.iter();
    let mut attributes: Vec<_> = attributes
        .map(|(name, value)| text(name, value.as_str()))
        .collect();
    let mut status = Status::default();
    if let Some(error) = &span.error {
        attributes.push(text("error.type", error.as_str()));
        status.code = status::StatusCode::Error as i32;
    }
    let remote = if span.has_remote_parent { IS_REMOTE } else { 0 };
    let parent = span.parent.map(|it| it.to_be_bytes().to_vec());
    SpanMessage {
        trace_id: span.context.trace_id.to_be_bytes().to_vec(),
        span_id: span.context.span_id.to_be_bytes().to_vec(),
        trace_state: span.state.as_deref().unwrap_or_default().to_owned(),
        parent_span_id: parent.unwrap_or_default(),
        flags: u32::from(span.context.is_sampled) | HAS_IS_REMOTE | remote,
        name: (*span.name).to_owned(),
        kind: kind as i32,
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end),
        attributes,
        status: Some(status),
        ..SpanMessage::default()
    }
}

/// Creates an export request with log records.
pub(crate) fn logs(resource: &Resource, log_records: Vec<LogRecord>) -> ExportLogsServiceRequest {
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(resource.clone()),
            scope_logs: vec![ScopeLogs {
                scope: Some(scope()),
                log_records,
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        }],
    }
}

/// Creates an export request with metrics.
pub(crate) fn metrics(resource: &Resource, metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(resource.clone()),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope()),
                metrics,
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        }],
    }
}
