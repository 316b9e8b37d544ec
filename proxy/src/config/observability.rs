//! The key `observability:` of the configuration: logs, audit, metrics and traces.

use serde::{Deserialize, Serialize};
use tooldock_sessions::audit::AuditConfig;
use tooldock_upstream::metrics::breakdown::BreakdownConfig;

use super::access_log::AccessLogConfig;
use super::otlp::OtlpConfig;

/// `observability:` — logs, audit, metrics and traces.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ObservabilityConfig {
    /// The access log: a line per request.
    pub(crate) access_log: AccessLogConfig,
    /// The process's own log on standard error.
    pub(crate) log: LogConfig,
    /// The audit log of tool calls.
    pub(crate) audit: AuditConfig,
    /// Additional labels of metrics about calls, besides the namespace.
    pub(crate) metrics: BreakdownConfig,
    /// The OTLP receiver to which traces, metrics and logs are exported.
    pub(crate) otlp: OtlpConfig,
}

/// `observability.log:` — the process's own log on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogConfig {
    /// The level of the least important events that are written.
    pub(crate) level: LogLevel,
    /// The format of the log's lines.
    pub(crate) format: LogFormat,
}

/// `observability.log.level`: the least important events that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    /// Only events that require action by an operator.
    Error,
    /// Errors, and events that may require action later.
    Warn,
    /// Warnings and errors, and events that operators usually follow.
    #[default]
    Info,
    /// All of the above, and events that interest developers.
    Debug,
    /// All events.
    Trace,
}

impl LogLevel {
    /// Parses the value of `LOG_LEVEL`, in upper or lower case.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "error" => Self::Error,
            "warn" | "warning" => Self::Warn,
            "info" => Self::Info,
            "debug" => Self::Debug,
            "trace" => Self::Trace,
            _ => return None,
        })
    }
}

/// `observability.log.format`: the format of the log's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Lines for people to read.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}
