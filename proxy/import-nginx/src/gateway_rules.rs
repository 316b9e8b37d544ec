//! Rules of the gateway's configuration that are defined outside this crate. The caller provides them.

use std::time::Duration;

/// Checks and bounds of the gateway for single values. A value that the gateway would refuse is reported instead of written.
#[derive(Debug, Clone, Copy)]
pub struct GatewayRules {
    /// Maximum value of `replicas.grace`.
    pub grace_max: Duration,
    /// Function that returns true for a valid value of `listeners[].address`.
    pub allows_address: fn(&str) -> bool,
    /// Function that returns true for a valid path of `namespaces.overrides.NAME.aliases`.
    pub allows_alias: fn(&str) -> bool,
    /// Function that returns true for a valid name and value of `listeners[].headers.response.set`.
    pub allows_response_header: fn(&str, &str) -> bool,
    /// Function that returns true for a valid pattern of `observability.access_log.format`.
    pub allows_log_format: fn(&str) -> bool,
}
