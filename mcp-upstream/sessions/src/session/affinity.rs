//! Affinity of a session whose requests are passed through to a remote server: the backend that receives the requests, and the
//! session that the remote server opened at that backend.

use std::fmt;
use std::sync::{Arc, PoisonError};

use serde::{Deserialize, Serialize};

use super::Session;

/// Maximum length of the id of a server's session, in bytes. A longer id is not stored.
pub const UPSTREAM_ID_MAX: usize = 1024;

/// The backend of a remote server, and the session at that backend, that receive the requests of a session that is passed
/// through. A session without an affinity uses client mode.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affinity {
    /// The backend's name in the pool.
    pub backend: Box<str>,
    /// Id of the session that the server opened, which is a credential of the server. `None` if the server has no sessions: any
    /// backend can then answer.
    pub session: Option<Box<str>>,
}

impl Affinity {
    /// The memory that a session holds for its affinity, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.backend.len() + self.session.as_ref().map_or(0, |id| id.len())
    }
}

impl Session {
    /// The backend, and the session at that backend, to which the session's requests are passed on; `None` in client mode.
    pub fn affinity(&self) -> Option<Arc<Affinity>> {
        let own = self.affinity.lock();
        own.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_affinity(&self, affinity: Affinity) {
        let own = self.affinity.lock();
        *own.unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(affinity));
    }
}

impl fmt::Debug for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Affinity")
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}
