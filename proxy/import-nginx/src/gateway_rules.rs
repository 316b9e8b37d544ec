//! The part of the gateway's configuration that the importer does not know, as the caller hands it over.

use std::time::Duration;

/// Checks and bounds of the gateway for single values, so that a value it would refuse is reported instead of written.
#[derive(Debug, Clone, Copy)]
pub struct GatewayRules {
    /// The longest `replicas.grace`.
    pub grace_max: Duration,
    /// True for a value of `listeners[].address`.
    pub allows_address: fn(&str) -> bool,
    /// True for a path of `namespaces.overrides.NAME.aliases`.
    pub allows_alias: fn(&str) -> bool,
    /// True for a name and value of `listeners[].headers.response.set`.
    pub allows_response_header: fn(&str, &str) -> bool,
    /// True for a pattern of `observability.access_log.format`.
    pub allows_log_format: fn(&str) -> bool,
}
