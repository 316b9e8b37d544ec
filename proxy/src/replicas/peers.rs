//! Resolves the name in `replicas.peers: dns:NAME:PORT`. Requests are forwarded only to replicas at its addresses.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tooldock_sessions::replicas::Replicas;

/// Interval between two lookups of the name in `replicas.peers`.
const EVERY: Duration = Duration::from_secs(10);
/// Time limit for one lookup of the name in `replicas.peers`.
const LOOK_UP: Duration = Duration::from_secs(5);

/// Resolves the name in `replicas.peers` once, and stores its addresses in `replicas`.
pub(crate) async fn look_up(name: &str, port: u16, replicas: &Replicas) {
    let found = timeout(LOOK_UP, tokio::net::lookup_host((name, port))).await;
    let failure = match found {
        Ok(Ok(addresses)) => {
            let addresses = addresses.map(|it| it.to_string()).collect();
            if replicas.forward_only_to(addresses) {
                tracing::info!(
                    name,
                    "replicas.peers: the addresses of other replicas have changed"
                );
            }
            return;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", LOOK_UP.as_secs()),
    };
    tracing::warn!(
        name,
        "replicas.peers: {name} cannot be looked up, the addresses found before stay: {failure}"
    );
}

/// Resolves the name in `replicas.peers` at regular intervals until the future is dropped.
pub(crate) async fn follow(name: String, port: u16, replicas: Arc<Replicas>) {
    loop {
        tokio::time::sleep(EVERY).await;
        look_up(&name, port, &replicas).await;
    }
}
