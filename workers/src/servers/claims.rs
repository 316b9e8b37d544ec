//! Names that the configuration claims for its servers and aggregates.

use tooldock_base::precedence::{Claim, Kind, Origin, Source};

use super::ServersConfig;
use crate::aggregate::AggregatesConfig;

/// The claims of the configuration: those of the operator's file, and those added by `$DATA/config.yaml`.
pub fn configured(servers: &ServersConfig, aggregates: &AggregatesConfig) -> Vec<Claim> {
    let of = |source, kind| Origin { source, kind };
    let stdio = servers.stdio.iter().map(|(name, config)| {
        let origin = of(config.source, Kind::Stdio);
        Claim::configured(name, origin, "upstreams.stdio", config.enabled)
    });
    let remote = servers.remote.iter().map(|(name, config)| {
        let origin = of(Source::Operator, Kind::Remote);
        Claim::configured(name, origin, "upstreams.remote", config.enabled)
    });
    let aggregates = aggregates.iter().map(|(name, config)| {
        Claim::configured(name, of(config.source, Kind::Aggregate), "toolman", true)
    });
    stdio.chain(remote).chain(aggregates).collect()
}
