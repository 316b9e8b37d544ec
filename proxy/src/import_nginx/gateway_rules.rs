//! The part of the gateway's configuration that the importer does not know, as the caller hands it over.

use std::time::Duration;

/// Checks and bounds of the gateway for single values, so that a value it would refuse is reported instead of written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatewayRules {
    /// The longest `replicas.grace`.
    pub(crate) grace_max: Duration,
    /// True for a value of `listeners[].address`.
    pub(crate) allows_address: fn(&str) -> bool,
    /// True for a path of `namespaces.overrides.NAME.aliases`.
    pub(crate) allows_alias: fn(&str) -> bool,
    /// True for a name and value of `listeners[].headers.response.set`.
    pub(crate) allows_response_header: fn(&str, &str) -> bool,
    /// True for a pattern of `observability.access_log.format`.
    pub(crate) allows_log_format: fn(&str) -> bool,
}
