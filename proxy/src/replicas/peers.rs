//! Lookup for `replicas.peers: dns:NAME:PORT`: requests are forwarded only to the addresses of that name.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tooldock_sessions::replicas::Replicas;

/// Interval between two lookups.
const EVERY: Duration = Duration::from_secs(10);
/// Time limit of a lookup.
const LOOK_UP: Duration = Duration::from_secs(5);

/// Resolves the name once.
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

/// Resolves the name at regular intervals.
pub(crate) async fn follow(name: String, port: u16, replicas: Arc<Replicas>) {
    loop {
        tokio::time::sleep(EVERY).await;
        look_up(&name, port, &replicas).await;
    }
}
