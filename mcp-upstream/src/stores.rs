//! Stores of sessions outside of the process, behind the ports [`SessionStore`] and [`EventStore`].
//!
//! `sessions.store` names the store: `memory` has none, `disk` is [`disk::DiskStore`] for one machine, a Redis URL is
//! [`redis::RedisStore`] for replicas on several. A store keeps the record of each session and the events of its streams, so that
//! a session survives the process that opened it.

use std::fmt;
use std::sync::Arc;

use crate::session::store::SessionStore;
use crate::stream::EventStore;

#[cfg(test)]
pub(crate) mod contract;
pub mod disk;
pub mod redis;

/// The store of sessions and of the events of their streams.
#[derive(Clone)]
pub struct Stores {
    /// Keeps the records of sessions.
    pub sessions: Arc<dyn SessionStore>,
    /// Keeps the events of their streams.
    pub events: Arc<dyn EventStore>,
}

impl Stores {
    /// Both ports of one store.
    pub fn of<S: SessionStore + EventStore + 'static>(store: S) -> Self {
        let store = Arc::new(store);
        Self {
            sessions: Arc::clone(&store) as _,
            events: store,
        }
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores").finish_non_exhaustive()
    }
}
