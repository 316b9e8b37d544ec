//! The addresses to which this replica forwards requests, with the credentials of clients: those that other replicas announce,
//! or of these only trusted ones (`replicas.peers`).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

/// The trusted addresses; `None` trusts all that the store tells.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<Option<BTreeSet<String>>>);

impl Peers {
    /// Trusts these addresses alone. Answers if others were trusted before.
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

/// An address in one spelling: IP addresses have several, and names are the same in capitals.
fn normal(address: &str) -> String {
    let ip = address.parse::<SocketAddr>();
    ip.map_or_else(|_| address.to_ascii_lowercase(), |ip| ip.to_string())
}
