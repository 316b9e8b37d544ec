//! The version of a server that its sessions go by. A reload may bring another one while they last.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tooldock_workers::remote::RemoteServer;

use super::port::{Backends, HttpClient};

/// A server as it is configured now, for all its sessions.
pub(super) struct Reached(ArcSwap<Version>);

/// One version of a server, with its backends.
pub(super) struct Version {
    pub(super) server: Arc<RemoteServer>,
    pub(super) backends: Arc<dyn Backends>,
}

impl Reached {
    pub(super) fn new(server: &Arc<RemoteServer>, client: &dyn HttpClient) -> Arc<Self> {
        let version = Version::new(server, client);
        Arc::new(Self(ArcSwap::from_pointee(version)))
    }

    /// The version that counts now.
    pub(super) fn now(&self) -> Arc<Version> {
        self.0.load_full()
    }

    /// Another version counts from now on. False: it did already.
    pub(super) fn adopt(&self, server: &Arc<RemoteServer>, client: &dyn HttpClient) -> bool {
        let other = !Arc::ptr_eq(&self.0.load().server, server);
        if other {
            self.0.store(Arc::new(Version::new(server, client)));
        }
        other
    }

    /// Whether sessions of the version that counts may go on as that one says.
    pub(super) fn serves(&self, server: &Arc<RemoteServer>) -> bool {
        let now = self.0.load();
        Arc::ptr_eq(&now.server, server) || now.server.keeps_sessions(server)
    }
}

impl Version {
    fn new(server: &Arc<RemoteServer>, client: &dyn HttpClient) -> Self {
        Self {
            server: Arc::clone(server),
            backends: client.backends(server),
        }
    }
}
