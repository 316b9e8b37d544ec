//! The version of a remote server that its sessions use. A reload may replace the version while sessions continue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use tooldock_workers::remote::RemoteServer;

use super::port::{Backends, HttpClient};

/// The current version of a remote server's configuration, which all sessions at the server share.
pub(super) struct CurrentServer {
    version: ArcSwap<Version>,
    /// True if a session was dropped because of the response to a request, and no session was opened since then.
    refused: AtomicBool,
}

/// A version of a server, with its backends.
pub(super) struct Version {
    pub(super) server: Arc<RemoteServer>,
    pub(super) backends: Arc<dyn Backends>,
}

impl CurrentServer {
    pub(super) fn new(server: &Arc<RemoteServer>, client: &dyn HttpClient) -> Arc<Self> {
        let version = Version::new(server, client);
        Arc::new(Self {
            version: ArcSwap::from_pointee(version),
            refused: AtomicBool::new(false),
        })
    }

    /// The current version of the server, with its backends.
    pub(super) fn now(&self) -> Arc<Version> {
        self.version.load_full()
    }

    /// Records that a session was dropped because of a response that may concern only the request, not the session.
    pub(super) fn note_refusal(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Returns true if, since the last session was opened, a session was dropped because of a response that may concern only the
    /// request. Resets the record.
    pub(super) fn take_refusal(&self) -> bool {
        self.refused.swap(false, Ordering::Relaxed)
    }

    /// Makes `server` the current version of the server. Returns false if it is the current version already.
    pub(super) fn adopt(&self, server: &Arc<RemoteServer>, client: &dyn HttpClient) -> bool {
        let other = !Arc::ptr_eq(&self.version.load().server, server);
        if other {
            self.version.store(Arc::new(Version::new(server, client)));
        }
        other
    }

    /// Returns true if sessions of the current version may continue with this version of the server.
    pub(super) fn serves(&self, server: &Arc<RemoteServer>) -> bool {
        let now = self.version.load();
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
