//! Addresses to which this replica forwards requests, together with the credentials of clients: all addresses that other
//! replicas announce, or only the trusted ones among them (`replicas.peers`).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

/// Trusted addresses; `None` if every address that the store returns is trusted.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<Option<BTreeSet<String>>>);

impl Peers {
    /// Trusts only these addresses. Returns true if the set has changed.
    pub(super) fn trust(&self, addresses: BTreeSet<String>) -> bool {
        let mut trusted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = addresses.iter().map(|it| normal(it)).collect();
        trusted.replace(next) != *trusted
    }

    pub(super) fn are_trusted(&self, address: &str) -> bool {
        let trusted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        trusted
            .as_ref()
            .is_none_or(|it| it.contains(&normal(address)))
    }
}

/// Normalizes an address: IP addresses have several spellings, and host names ignore case.
fn normal(address: &str) -> String {
    let ip = address.parse::<SocketAddr>();
    ip.map_or_else(|_| address.to_ascii_lowercase(), |ip| ip.to_string())
}
