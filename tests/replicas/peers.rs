//! Replicas that forward requests to trusted addresses alone.

use serde_json::{Value, json};

use super::{LATEST, both_up, member, ping};
use crate::support::ports::free_address;
use crate::support::redis::Redis;
use crate::support::session::Session;
use crate::support::{Gateway, tools};

/// Two replicas, the first of which trusts addresses that are made of the second one's.
async fn trusting(
    redis: &Redis,
    peers: impl FnOnce(std::net::SocketAddr) -> Value,
) -> (Gateway, Gateway) {
    let address = free_address();
    let start = |name, replicas: Value| {
        let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)]);
        let gateway = member(gateway, redis, name);
        gateway.config(json!({"replicas": replicas})).start()
    };
    let peers = peers(address);
    let one = start("one", json!({"peers": peers}));
    let two = start("two", json!({"address": address.to_string()}));
    both_up(tokio::join!(one, two)).await
}

#[tokio::test]
async fn a_replica_on_the_list_or_at_the_name_is_sent_requests() {
    let redis = Redis::start().await;
    let list = |address: std::net::SocketAddr| json!(["gateway.example:7100", address.to_string()]);
    let (one, two) = trusting(&redis, list).await;
    let session = Session::start(&two, "calc", LATEST).await.at(&one);
    assert_eq!(ping(&session).await, 200);

    let redis = Redis::start().await;
    let name = |address: std::net::SocketAddr| json!(format!("dns:localhost:{}", address.port()));
    let (one, two) = trusting(&redis, name).await;
    let session = Session::start(&two, "calc", LATEST).await.at(&one);
    assert_eq!(ping(&session).await, 200);
}

#[tokio::test]
async fn an_address_that_only_the_store_tells_is_sent_nothing() {
    let redis = Redis::start().await;
    let (one, two) = trusting(&redis, |_| json!(["gateway.example:7100"])).await;
    let here = Session::start(&one, "calc", LATEST).await;
    let there = Session::start(&two, "calc", LATEST).await;
    assert_eq!(ping(&there.at(&one)).await, 503);
    // The other one trusts the store.
    assert_eq!(ping(&here.at(&two)).await, 200);
    let metrics = one.metrics_text().await;
    assert!(
        !metrics.contains("tooldock_replica_forwards_total{"),
        "{metrics}"
    );
    let log = one.log();
    assert!(
        log.contains("its replicas.address is none of replicas.peers"),
        "{log}"
    );
}
