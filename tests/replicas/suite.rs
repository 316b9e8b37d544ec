//! The official conformance suite through nginx, which sends each request to the next of two replicas.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use super::{both_up, member};
use crate::conformance::{as_the_suite_wants, every_check_passes};
use crate::support::nginx::Nginx;
use crate::support::ports::free_address;
use crate::support::redis::Redis;
use crate::support::{Gateway, everything};

/// The configuration of an nginx that knows nothing of sessions.
fn conf(listen: SocketAddr, replicas: [&Gateway; 2]) -> String {
    format!(
        r#"
events {{}}
http {{
    client_body_temp_path temp/body;
    proxy_temp_path temp/proxy;
    fastcgi_temp_path temp/fastcgi;
    scgi_temp_path temp/scgi;
    uwsgi_temp_path temp/uwsgi;
    access_log off;
    upstream replicas {{
        server {first} max_fails=0;
        server {second} max_fails=0;
    }}
    server {{
        listen {listen};
        location / {{
            proxy_pass http://replicas;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 1h;
            proxy_next_upstream off;
        }}
    }}
}}
"#,
        first = replicas[0].address,
        second = replicas[1].address,
    )
}

async fn in_front_of(folder: &Path, replicas: [&Gateway; 2]) -> (Nginx, SocketAddr) {
    let address = free_address();
    fs::write(folder.join("nginx.conf"), conf(address, replicas)).expect("written");
    (Nginx::start(folder, address).await, address)
}

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
    let (_nginx, address) = in_front_of(folder.path(), [&one, &two]).await;
    every_check_passes(&format!("http://{address}/mcp/everything")).await;
    for gateway in [&one, &two] {
        assert!(forwarded(gateway).await > 0, "a replica forwarded nothing");
    }
}
