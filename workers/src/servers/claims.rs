//! Names that the configuration uses for its servers and aggregates.

use tooldock_base::precedence::{Claim, Kind, Origin, Source};

use super::ServersConfig;
use crate::aggregate::AggregatesConfig;

/// The names that the configuration claims, each with its source: the operator's file or `$DATA/config.yaml`.
pub fn configured(servers: &ServersConfig, aggregates: &AggregatesConfig) -> Vec<Claim> {
    let of = |source, kind| Origin { source, kind };
    let stdio = servers.stdio.iter().map(|(name, config)| {
        let origin = of(config.source, Kind::Stdio);
        Claim::configured(name, origin, "upstreams.stdio", config.enabled)
    });
    let remote = servers.over_http().map(|server| {
        let origin = of(Source::Operator, Kind::Remote);
        Claim::configured(server.name, origin, server.key, server.config.enabled)
    });
    let aggregates = aggregates.iter().map(|(name, config)| {
        Claim::configured(name, of(config.source, Kind::Aggregate), "toolman", true)
    });
    stdio.chain(remote).chain(aggregates).collect()
}
