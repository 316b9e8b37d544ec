//! Rules of the gateway's configuration that are defined outside this crate and provided by the caller.

use std::time::Duration;

/// Checks and bounds of the gateway for single values, so that a value it would refuse is reported instead of written.
#[derive(Debug, Clone, Copy)]
pub struct GatewayRules {
    /// Maximum of `replicas.grace`.
    pub grace_max: Duration,
    /// Returns true for a valid value of `listeners[].address`.
    pub allows_address: fn(&str) -> bool,
    /// Returns true for a valid path of `namespaces.overrides.NAME.aliases`.
    pub allows_alias: fn(&str) -> bool,
    /// Returns true for a valid name and value of `listeners[].headers.response.set`.
    pub allows_response_header: fn(&str, &str) -> bool,
    /// Returns true for a valid pattern of `observability.access_log.format`.
    pub allows_log_format: fn(&str) -> bool,
}
