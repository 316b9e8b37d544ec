//! The key `observability:`.

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
    /// The process's own log.
    pub(crate) log: LogConfig,
    /// The audit log of calls.
    pub(crate) audit: AuditConfig,
    /// Labels of call metrics in addition to the namespace.
    pub(crate) metrics: BreakdownConfig,
    /// The OTLP receiver of traces, metrics and logs.
    pub(crate) otlp: OtlpConfig,
}

/// `observability.log:` — the log on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LogConfig {
    /// The least important event that is written.
    pub(crate) level: LogLevel,
    /// The format of a line.
    pub(crate) format: LogFormat,
}

/// `observability.log.level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    /// Events that require action.
    Error,
    /// Also events that may require action later.
    Warn,
    /// Also events that operators follow.
    #[default]
    Info,
    /// Also events for developers.
    Debug,
    /// All events.
    Trace,
}

impl LogLevel {
    /// Reads `LOG_LEVEL`, in upper or lower case.
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

/// `observability.log.format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Lines for people to read.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}
