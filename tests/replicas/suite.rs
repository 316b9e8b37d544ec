//! The official conformance suite through nginx, which sends each request to the next of two replicas.

use super::{both_up, member};
use crate::conformance::{as_the_suite_wants, every_check_passes};
use crate::support::nginx::Nginx;
use crate::support::redis::Redis;
use crate::support::{Gateway, everything};

/// A replica with the worker that offers the suite's contract.
async fn replica(redis: &Redis, name: &str) -> Gateway {
    let gateway = Gateway::empty().fixture("everything", "conformance/everything");
    everything::start(as_the_suite_wants(member(gateway, redis, name))).await
}

/// Requests of sessions at the other replica that were answered.
async fn forwarded(gateway: &Gateway) -> u64 {
    let text = gateway.metrics_text().await;
    let name = "tooldock_replica_forwards_total{outcome=\"answered\"} ";
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.map_or(0, |it| it.parse().expect("a number"))
}

#[tokio::test]
async fn every_check_passes_through_nginx_without_stickiness() {
    let redis = Redis::start().await;
    let (one, two) = both_up(tokio::join!(replica(&redis, "one"), replica(&redis, "two"))).await;
    let folder = tempfile::TempDir::new().expect("a temporary directory");
    let replicas = [one.address, two.address];
    let (_nginx, address) = Nginx::in_front_of(folder.path(), &replicas, "off").await;
    every_check_passes(&format!("http://{address}/mcp/everything")).await;
    for gateway in [&one, &two] {
        assert!(forwarded(gateway).await > 0, "a replica forwarded nothing");
    }
}
